"""However virtualrun ends, nothing is left running."""

import os
import signal
import sys
import time

import psutil
import pytest

from virtualgpu.launch import command

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


def exit_code(pid):
    """Wait for a process; kill it and its ranks if this test has waited too long."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        os.killpg(pid, signal.SIGKILL)  # ranks die with it
        raise


def until(done):
    deadline = time.monotonic() + PATIENCE
    while not (found := done()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def over(pid):
    """Return True if a process has ended, even if it is still a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("number, status, printed", [
    (signal.SIGINT, 130, "virtualrun: ranks 0 and 1: interrupted by Ctrl-C\n"),
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
        ended = exit_code(pid)
    assert ended == status
    until(lambda: all(map(over, ranks)))
    assert (tmp_path / "out").read_text().split("is free\n")[1] == printed


ENDLESS = """
import os
import torch

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
step = 0
while True:
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    step += 1
    print("step", step, flush=True)
"""


@pytest.mark.parametrize("words", [("endless.py",), ("-m", "endless")])
def test_a_program_ends_after_as_many_steps(tmp_path, words):
    (tmp_path / "endless.py").write_text(ENDLESS)
    pid = started(tmp_path, "--steps", "4", *words)
    assert exit_code(pid) == 0
    text = (tmp_path / "out").read_text()
    assert "step 3\n" in text and "step 4\n" not in text
    assert "the median of 3 steps" in text


@pytest.mark.parametrize("gpus", ["h100:1", "h100:2"])
def test_ctrl_c_prints_the_report(tmp_path, gpus):
    (tmp_path / "endless.py").write_text(ENDLESS)
    pid = started(tmp_path, "--gpus", gpus, "endless.py")
    try:
        until(lambda: "step 9\n" in (tmp_path / "out").read_text() if (
            tmp_path / "out").exists() else False)
    finally:
        os.kill(pid, signal.SIGINT)
        ended = exit_code(pid)
    text = (tmp_path / "out").read_text()
    assert ended == 130 and "peak memory" in text
    assert "interrupted by Ctrl-C; the figures cover the run up to there" in text


IN_A_FINALIZER = """
import os
import signal

class Tensor:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

Tensor()
while True:
    pass
"""


def test_ctrl_c_ends_a_program_that_is_just_freeing_a_tensor(tmp_path):
    (tmp_path / "frees.py").write_text(IN_A_FINALIZER)
    pid = started(tmp_path, "frees.py")
    assert exit_code(pid) == 130
    text = (tmp_path / "out").read_text()
    assert "interrupted by Ctrl-C" in text and "Exception ignored" not in text


@pytest.mark.parametrize(("words", "problem"), [
    (("--steps", "0", "endless.py"), "--steps 0: expected at least 1"),
    (("-m", "no.such"), "-m no.such: no such module")])
def test_bad_words_are_refused(tmp_path, words, problem):
    (tmp_path / "endless.py").write_text(ENDLESS)
    pid = started(tmp_path, *words)
    assert exit_code(pid) == 2
    assert f"virtualrun: {problem}" in (tmp_path / "out").read_text()
