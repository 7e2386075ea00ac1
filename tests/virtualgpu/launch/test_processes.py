"""Ctrl-C, and launchers that start the ranks themselves; nothing is left running."""

import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from virtualgpu.launch import command

from .running import SCRIPTS

PATIENCE = 120  # seconds of real time; a busy machine is no failure
WAITS = """
import os, signal
open(f"{os.environ['RANK']}.tmp", "w").write(str(os.getpid()))
os.rename(f"{os.environ['RANK']}.tmp", f"{os.environ['RANK']}.pid")
while True:
    signal.pause()
"""


def started(folder, *words):
    """virtualrun in a fork of this process, the leader of a process group; returns its number."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        out = os.open("out", os.O_CREAT | os.O_WRONLY)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        status = command.main(words)
    except SystemExit as stop:
        status = stop.code
    finally:
        sys.stderr.flush()
        os._exit(status)


def until(done):
    deadline = time.monotonic() + PATIENCE
    while not (found := done()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def over(pid):
    """Whether a process has ended; nobody may have collected it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("number, status, printed", [
    (signal.SIGINT, command.INTERRUPTED, "virtualrun: interrupted; no rank is left running\n"),
    (signal.SIGTERM, command.TERMINATED, ""), (signal.SIGKILL, -signal.SIGKILL, "")])
def test_no_rank_outlives_virtualrun(tmp_path, number, status, printed):
    (tmp_path / "waits.py").write_text(WAITS)
    pid = started(tmp_path, "--gpus", "h100:2", "waits.py")
    try:
        files = [tmp_path / f"{rank}.pid" for rank in range(2)]
        until(lambda: all(file.exists() for file in files))
        ranks = [int(file.read_text()) for file in files]
        os.killpg(pid, number)  # as a terminal does: ranks have process groups of their own
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended == status
    until(lambda: all(map(over, ranks)))
    assert (tmp_path / "out").read_text().split("are free\n")[1] == printed


def expect_two_ranks(text, error):
    """What the data-parallel program prints, once, and what virtualrun reports, once."""
    assert len(re.findall(r"step 2 loss \d", text)) == 1
    one, other = re.findall(r"tensor\(\[(\S+)\]", text)
    assert one == other
    assert error.count("virtualrun: 2 x virtual h100-80gb") == 1, error


DDP = ["-m", "virtualgpu.run", "--gpus", "h100:2", str(SCRIPTS / "ddp.py"), "plain", "64"]


@pytest.mark.stress
def test_under_torchrun():
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         *DDP], text=True, capture_output=True, timeout=2 * PATIENCE, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stderr
    expect_two_ranks(ended.stdout, ended.stderr)


@pytest.mark.cluster
def test_under_srun(cluster):
    ended = cluster.run(["srun", "-N1", "-n2", "--overcommit", sys.executable, *DDP],
                        timeout=2 * PATIENCE)
    assert ended.returncode == 0, ended.stderr
    expect_two_ranks(ended.stdout, ended.stderr)
    wrong = cluster.run(["srun", "-N1", "-n2", "--overcommit", sys.executable, "-m",
                         "virtualgpu.run", "--gpus", "h100:8", str(SCRIPTS / "ddp.py")])
    assert wrong.returncode != 0
    assert "this job has 2 ranks (WORLD_SIZE); nearest: --gpus h100-80gb:2" in wrong.stderr
    assert cluster.until(lambda: not cluster.run("squeue -h").stdout)
