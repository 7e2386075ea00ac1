"""Wrong options and failing programs are named, and no process is left behind."""

import os
import re
import signal

import psutil
import pytest

import virtualgpu
from virtualgpu.launch import command, host, launchers
from virtualgpu.launch.cluster import parse


def refused(capsys, *arguments):
    assert command.main(arguments) == command.USAGE
    return capsys.readouterr().err


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("print(1)\n")
    return str(path)


@pytest.mark.parametrize("options, message", [
    (["--gpus", "h10"], "--gpus h10: .*nearest: .*h100"),
    (["--gpus", "h100:0"], "--gpus h100:0: the number of GPUs on a node must be 1 or more"),
    (["--nodes", "0"], "--nodes 0: there must be 1 node or more"),
    (["--link", "carrier:pigeon"], "--link carrier:pigeon: network 'carrier:pigeon'.*infiniband"),
    (["--values", "some"], "--values some: expected a size such as 1MiB"),
    (["--assume", "train.py=True"], "--assume train.py=True: expected FILE:LINE=True"),
    (["--gpus", "h100:4", "--present", "1,2"],
     "--present 1,2: expected ranks from 0 to 3, including 0"),
    (["--trace", "traces", "--fuse-pointwise"], "--trace and --fuse-pointwise: .*leave out one"),
    (["--gpus", "h100:8", "--nodes", "9999"], "79992 ranks need about .* --solo to run one"),
])
def test_a_wrong_option_is_named(capsys, monkeypatch, program, options, message):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert re.search(message, refused(capsys, *options, program), re.S)


def test_a_program_that_does_not_exist(capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert "nowhere.py: no such file" in refused(capsys, "nowhere.py")


def test_ranks_that_fit_are_counted():
    assert host.needed(8) < 1.8e9
    assert "8 ranks need about" in host.check(8)


def test_a_launcher_s_ranks_must_be_one_per_gpu():
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0",
             "SLURM_JOB_ID": "1234", "SLURM_STEP_NODELIST": "node[07-09,11],other3"}
    launchers.adopt_slurm(slurm)
    assert (slurm["RANK"], slurm["WORLD_SIZE"], slurm["LOCAL_RANK"]) == ("3", "4", "1")
    assert slurm["MASTER_ADDR"] == "node07" and int(slurm["MASTER_PORT"]) in launchers.PORTS
    assert launchers.own_rank(parse("h100:2", 2), slurm) == 3
    with pytest.raises(virtualgpu.VirtualGpuError, match=r"this job has 4 ranks.*h100-80gb:2 --"):
        launchers.own_rank(parse("h100:8", 2), slurm)


def ended_by(what):
    """A function that ends rank 1 while rank 0 waits for it."""
    def program():
        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl")
        if dist.get_rank() == 1:
            what()
        dist.all_reduce(torch.ones(3, device="cuda"))
        torch.cuda.synchronize()
        return os.getpid()
    return program


@pytest.mark.parametrize("what, message", [
    (lambda: os._exit(5), "Exited: exited with status 5"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), "Killed: killed by SIGKILL"),
    (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
])
def test_a_rank_that_ends_early_is_named(what, message):
    before = children()
    ranks = virtualgpu.run(ended_by(what), "h100:2")
    assert message in ranks[1].error and ranks[0].error
    assert children() <= before


def children():
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_a_function_returns_values_from_every_rank():
    def program():
        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl")
        x = torch.full((2,), dist.get_rank() + 1.0, device="cuda")
        dist.all_reduce(x)
        return x, torch.empty(2**20, device="cuda")

    for rank in virtualgpu.run(program, "h100:2"):
        assert rank.error is None and rank.seconds > 0 and rank.peak >= 2**22
        small, large = rank.value
        assert small.tolist() == [3.0, 3.0] and large.is_meta
