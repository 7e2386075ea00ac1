"""`--present auto` finds one rank per pipeline stage, or says how to name them."""

import json
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from virtualgpu.launch import command, stages
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings

pytestmark = pytest.mark.slow


def pass_on(ranks, group=None):
    """Send from the first rank to the last; every rank returns its own."""
    x = torch.ones(2**20, device="cuda")
    if dist.get_rank() == ranks[0]:
        dist.send(x, ranks[-1], group)
    elif dist.get_rank() == ranks[-1]:
        dist.recv(x, ranks[0], group)
    torch.cuda.synchronize()
    return dist.get_rank()


def by_mesh():
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("pp", "dp"))
    group = mesh.get_group("pp")
    dist.all_reduce(torch.ones(2**20, device="cuda"), group=mesh.get_group("dp"))
    return pass_on(dist.get_process_group_ranks(group), group)


def by_group():
    dist.init_process_group("nccl")
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    at = dist.get_rank() % 2
    return pass_on([at, at + 2], groups[at])


def by_library():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Linear(8, 8).cuda(), rank, size, torch.device("cuda", rank))
    schedule = ScheduleGPipe(stage, 2)
    schedule.step(*([torch.ones(4, 8, device="cuda")] if rank == 0 else []))
    return rank


def symmetric():
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(2**20, device="cuda"))
    return dist.get_rank()


@pytest.mark.parametrize("program, ranks", [
    (by_mesh, [0, 2]), (by_group, [0, 2]), (by_library, [0, 1, 2, 3]), (symmetric, [0])])
def test_one_rank_of_each_stage(capfd, program, ranks):
    result = stages.run(parse("h100:4"), Settings(), program)
    assert [(rank.error, rank.value) for rank in result] == [(None, rank) for rank in ranks]
    said = capfd.readouterr().err
    assert ("restarting with one process" in said) == (len(ranks) > 1)
    if program is by_mesh:
        assert ("a device mesh with 2 pipeline stages; restarting with one process for each of "
                "ranks 0, 2\n") in said
        everyone = run_ranks(parse("h100:4"), Settings(), program)
        assert [rank.seconds for rank in result] == pytest.approx(
            [everyone[rank].seconds for rank in ranks], rel=1e-9)


@pytest.mark.parametrize("program, ranks", [(by_mesh, [0, 2]), (symmetric, [0])])
def test_the_command_reports_those_ranks(tmp_path, capfd, monkeypatch, program, ranks):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    script, report = tmp_path / "program.py", tmp_path / "report.json"
    script.write_text(f"from {__name__} import {program.__name__}\n{program.__name__}()\n")
    assert command.main(["--gpus", "h100:4", "--present", "auto", "--json", str(report),
                         str(script)]) == 0
    assert [rank["rank"] for rank in json.loads(report.read_text())["ranks"]] == ranks
    assert "4 x virtual h100-80gb" in capfd.readouterr().err


def test_stages_that_cannot_be_known_must_be_named():
    def among_all():
        dist.init_process_group("nccl")
        return pass_on([0, 1])

    (rank,) = stages.run(parse("h100:4"), Settings(), among_all)
    assert re.search(r"test_present.py, line \d+ .* sends among all 4 ranks", rank.error)
    assert "list one rank of each, such as --present 0,1" in rank.error


@pytest.mark.parametrize("present", [[0], [0, 2]])
def test_gloo_does_not_wait_for_ranks_that_are_not_present(present):
    """The present ranks tell each other what they know; ranks 1 and 3 are represented by them."""
    def control():
        dist.init_process_group("gloo")
        group, rank = dist.new_group(backend="nccl"), dist.get_rank()
        total, ranks, last = torch.tensor([rank]), [None] * 4, [rank]
        dist.all_reduce(total)
        dist.all_gather_object(ranks, rank)
        dist.broadcast_object_list(last, src=3)
        on_gpu = torch.ones(2, device="cuda")
        dist.all_reduce(on_gpu, group=group)
        with pytest.raises(RuntimeError, match="Gloo is not modeled on GPU tensors"):
            dist.all_reduce(on_gpu)
        return dist.get_backend(), total.item(), ranks, last, on_gpu.tolist()

    results = run_ranks(parse("h100:4"), Settings(), control, present)
    ranks = [0] * 4 if present == [0] else [0, 0, 2, 2]
    assert [(rank.error, rank.value) for rank in results] == [
        (None, ("gloo", sum(ranks), ranks, [ranks[3]], [4.0, 4.0]))] * len(present)
    assert all("broadcast_object_list" in str(rank.assumptions) for rank in results)
