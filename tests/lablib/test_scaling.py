"""The split of a step: its parts add up, and latency is what a network without it saves."""

import pytest
import torch
import torch.distributed as dist

import virtualgpu
from lablib import scaling
from virtualgpu.net import collectives, network


def seconds(size, link):
    """Return the modeled seconds of an all-reduce on 2 x 2 V100s."""
    def program():
        dist.init_process_group("nccl")
        dist.all_reduce(torch.empty(size // 4, device="cuda"))
        torch.cuda.synchronize()

    (rank,) = virtualgpu.run(program, "v100:2", 2, link=link, present=[0])
    assert rank.error is None, rank.error
    return rank.seconds


def test_without_latency_an_all_reduce_costs_its_bandwidth_alone():
    size, link = 2**26, "ethernet:25gbit"
    before = seconds(size, link)
    with scaling.no_latency():
        without = seconds(size, link)
    assert seconds(size, link) == before
    saved = before - without
    assert saved == pytest.approx(collectives.LAUNCH + 2 * 3 / 4 * (
        2 * network.parse(link).latency + 2 * 2.5e-6), rel=1e-3)


def test_links_are_restored_after_an_error():
    launch = collectives.LAUNCH
    with pytest.raises(KeyError), scaling.no_latency():
        raise KeyError
    assert launch == collectives.LAUNCH > 0


def test_a_latency_that_is_left_in_is_an_error(monkeypatch):
    modeled = collectives.all_reduce
    monkeypatch.setattr(collectives, "all_reduce", lambda *given: 1e-6 + modeled(*given))
    with pytest.raises(RuntimeError, match="latency"), scaling.no_latency():
        pass


def test_a_split_names_each_part():
    latency = iter((1.0, 0.0, 0.0))  # as it is, without latency, on one GPU

    def seconds_per_step(gpus, tokens):
        return tokens / 100 + 0.5 + (2.0 if gpus > 1 else 0.0) + next(latency)

    split = scaling.split(seconds_per_step, alone=12.0, gpus=4, tokens=300)
    assert (split.ideal, split.small, split.bandwidth, split.latency) == (3.0, 0.5, 2.0, 1.0)
    assert split.step == 6.5 and split.efficiency == pytest.approx(3 / 6.5)


def test_the_tables_have_units(capsys):
    scaling.show_splits({1: scaling.Split(0.012), 4: scaling.Split(0.003, 5e-4, 0.002, -1e-9)},
                        "h100:8")
    out = capsys.readouterr().out
    assert "100%" in out and "5.5 =" in out and "-0.0" not in out
    scaling.show_links("h100:8", 128)
    out = capsys.readouterr().out
    assert "of a line rate of 400 GB/s, 8 adapters per node, 4 us per hop" in out
