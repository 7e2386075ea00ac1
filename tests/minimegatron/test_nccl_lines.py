"""NCCL_DEBUG=INFO, as the log of a run shows it; and what a virtual card says of its work."""

import re

import pytest
import torch

SHORT = "--train-iters 1 --log-interval 1 --eval-iters 0 --global-batch-size 4 "


def lines_of(run, what):
    return [line for line in run.out.splitlines() if f" {what} INFO " in line]


def test_virtual_cards_print_each_communicator_once(train):
    run = train("--device virtual:v100 --tensor-model-parallel-size 2 " + SHORT, ranks=2,
                   env={"NCCL_DEBUG": "INFO"})
    lines = lines_of(run, "NCCL")
    first = [line for line in lines if "INFO virtual v100-sxm2-16gb: " in line]
    assert len(first) == 2 and all(line.endswith("rank(s) 0,1") for line in first)
    assert sum("Channel 00/16 :    0    1" in line for line in lines) == 1
    assert sum("Channel 15 : 1[1c000] -> 0[1b000] via P2P/IPC" in line for line in lines) == 1
    assert all(re.match(r"[^ :]+:\d+:\d+ \[[01]\] NCCL INFO ", line) for line in lines)
    assert not lines_of(run, "gloo")


def test_the_cpu_has_no_nccl_to_debug(train):
    run = train("--tensor-model-parallel-size 2 " + SHORT, ranks=2, env={"NCCL_DEBUG": "INFO"})
    assert not lines_of(run, "NCCL") and not lines_of(run, "gloo")


@pytest.mark.parametrize("level", ["", "VERSION", "WARN"])
def test_nothing_is_printed_unasked(train, level):
    run = train("--device virtual:v100 " + SHORT, ranks=2, env={"NCCL_DEBUG": level})
    assert not lines_of(run, "NCCL")


def test_utilization_is_of_the_time_since_the_last_look(virtual_device):
    gpu = virtual_device.gpu
    big = torch.empty(4096, 4096, device="meta")
    big @ big
    virtual_device.now()
    assert virtual_device.status()["utilization"] > 0.99
    gpu.clock.work(1.0)  # the host alone
    assert virtual_device.status()["utilization"] == 0.0
    assert virtual_device.status()["utilization"] == 0.0  # no time has passed
    started = gpu.clock.host
    big @ big
    ended = virtual_device.now()
    gpu.clock.work(ended - started)
    assert virtual_device.status()["utilization"] == pytest.approx(0.5, abs=0.01)


def test_a_card_s_number_is_the_one_that_slurm_gave(monkeypatch):
    from minimegatron.device.virtual import VirtualDevice
    from virtualgpu.core.cards import CARDS

    for visible, local, slot in (("2,3", "1", 3), ("", "1", None), ("2", "1", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setenv("LOCAL_RANK", local)
        device = VirtualDevice(CARDS["v100-sxm2-16gb"], link=None)
        device.gpu.__exit__(None, None, None)
        said = device.status()
        assert (said["gpu"], said["slot"]) == (int(local), slot)
