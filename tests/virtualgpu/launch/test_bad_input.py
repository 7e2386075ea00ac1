"""Wrong options and failing programs are named, and no process is left behind."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

import virtualgpu
from virtualgpu.launch import command, host, launchers
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.settings import Settings

from .test_processes import over, until


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
    (["--gpus", "h100:16"], re.escape("--gpus h100:16: a node with h100-80gb GPUs (DGX H100) has "
                                      "8; nearest: --gpus h100:8")),
    (["--gpus", "a100:2,a10:4x2"], "--gpus a100:2,a10:4x2: all nodes must have equally many GPUs; "
     "nearest: --gpus a100-80gb:2x1,a10:2x2"),
    (["--gpus", "a100:2,a11:2"], "--gpus a100:2,a11:2: cluster 'a11:2': .*nearest: .*a10"),
    (["--gpus", "a100:2,a10:2", "--nodes", "2"], "--nodes 2: --gpus a100:2,a10:2 already has"),
    (["--gpus", "a100:2x2,a10:2", "--solo"], "--solo: of 4 x virtual a100-80gb .2 x virtual a10 on "
     "3 nodes .*, only rank.s. 0 would be processes, and rank 4 has another GPU model .a10. "
     ".*nearest: --present 0,4$".replace(".2 x", r"\+ 2 x")),
    (["--nodes", "0"], "--nodes 0: expected 1 or more; nearest: --nodes 1"),
    (["--stack", "torch"], "--stack torch: no software stack .*nearest: torch-eager-fsdp"),
    (["--link", "carrier:pigeon"], "--link carrier:pigeon: network 'carrier:pigeon'.*infiniband"),
    (["--values", "some"], "--values some: expected a size such as 1MiB"),
    (["--assume", "train.py=True"], "--assume train.py=True: expected FILE:LINE=True"),
    (["--gpus", "h100:4", "--present", "1,2"],
     "--present 1,2: expected ranks from 0 to 3, including 0"),
    (["--gpus", "h100:8", "--nodes", "9999"], "79992 ranks need about .* --solo to run one"),
])
def test_a_wrong_option_is_named(capsys, monkeypatch, program, options, message):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert re.search(message, refused(capsys, *options, program), re.S)


def test_a_program_that_does_not_exist(capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert "nowhere.py: no such file" in refused(capsys, "nowhere.py")


def test_an_answer_that_no_line_asked_for_is_reported(tmp_path, capfd, monkeypatch, program):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    report = tmp_path / "report.json"
    Path(program).write_text("import torch\ntorch.ones(1, device='cuda')\n")
    assert command.main(["--gpus", "h100:2", "--assume", "program.py:7=True",
                         "--json", str(report), program]) == 0
    warning = "--assume program.py:7=True had no effect: program.py, line 7 never needed a value"
    assert f"virtualrun:   warning        {warning}" in capfd.readouterr().err
    (said,) = json.loads(report.read_text())["warnings"]
    assert said.startswith(warning)


def test_a_recorded_run_cannot_fuse_kernels():
    with pytest.raises(virtualgpu.VirtualGpuError, match=r"fuse.* cannot be recorded.*drop one"):
        Settings(record=True, fuse=True)


@pytest.mark.parametrize(("limits", "left"), [
    ((None, None), None), ((None, 1000), 500), ((700, 1000), 200), ((400, 1000), 0)])
def test_a_limit_of_memory_does_not_count_the_page_cache(tmp_path, limits, left):
    """800 bytes are used, 300 of them by the page cache."""
    membership, job = tmp_path / "membership", tmp_path / "groups/slurm/job_7"
    membership.write_text("0::/slurm/job_7/step_0\n")
    (job / "step_0").mkdir(parents=True)
    for group, most in zip((job / "step_0", job), limits, strict=True):
        (group / "memory.max").write_text("max\n" if most is None else f"{most}\n")
        (group / "memory.current").write_text("800\n")
        (group / "memory.stat").write_text("anon 500\nactive_file 200\ninactive_file 100\n")
    assert host.cgroup_free(membership, tmp_path / "groups") == left


def test_no_memory_left_is_not_taken_for_no_limit(monkeypatch):
    monkeypatch.setattr(host, "cgroup_free", lambda: 0)
    assert host.available() == 0


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


def ended_by(what, pids):
    """A function that ends rank 1 while rank 0 waits for it; each rank has a child.

    Args:
        what: ends the process.
        pids: file for the process IDs of the ranks and their children.
    """
    def program():
        child = os.fork()
        if not child:
            signal.pause()
        with pids.open("a") as file:
            file.write(f"{os.getpid()} {child}\n")
        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl")
        if dist.get_rank() == 1:
            what()
        dist.all_reduce(torch.ones(3, device="cuda"))
        torch.cuda.synchronize()
        return os.getpid()
    return program


@pytest.mark.slow
@pytest.mark.parametrize("what, message", [
    (lambda: os._exit(5), "Exited: exited with status 5"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), "Killed: killed by SIGKILL"),
    (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
])
def test_a_rank_that_ends_early_is_named(tmp_path, what, message):
    pids = tmp_path / "pids"
    ranks = virtualgpu.run(ended_by(what, pids), "h100:2")
    assert message in ranks[1].error and ranks[0].error
    collected = list(map(int, pids.read_text().split()))
    assert len(collected) == 4
    until(lambda: all(map(over, collected)))


def test_a_rank_that_exits_early_is_not_waited_for(tmp_path):
    ranks = virtualgpu.run(ended_by(sys.exit, tmp_path / "pids"), "h100:2")
    assert ranks[1].error is None and "rank 1 has ended" in ranks[0].error


def test_a_program_that_ends_with_os_exit_is_measured():
    """Fork as pretrain_gpt.py does; the child ends there."""
    def program():
        import torch

        torch.ones(2**20, device="cuda").sum()
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
        os._exit(0)

    (rank,) = virtualgpu.run(program, "h100:1")
    assert rank.error is None and rank.peak >= 2**22 and rank.seconds > 0


def test_a_function_returns_values_from_every_rank():
    def program():
        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl")
        x = torch.full((2,), dist.get_rank() + 1.0, device="cuda")
        dist.all_reduce(x)
        return x, torch.empty(2**20, device="cuda")

    before = dict(os.environ)
    ranks = virtualgpu.run(program, "h100:2")
    assert os.environ == before  # or torchrun, started later, would use the ranks' store
    for rank in ranks:
        assert rank.error is None and rank.seconds > 0 and rank.peak >= 2**22
        small, large = rank.value
        assert small.tolist() == [3.0, 3.0] and large.is_meta
