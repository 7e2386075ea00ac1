"""Functions on warm ranks: values, errors, timeouts, and nothing left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from warmranks import ForkServer, RankError, RanksTimeout, default_server, run_ranks

from . import programs, steps

ROOT = Path(__file__).parents[2]  # the children import `tests`


def until(done, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def idle() -> bool:
    """Return True if the default server has no descendants."""
    return not psutil.Process(default_server().process.pid).children(recursive=True)


def test_values_come_rank_by_rank():
    assert run_ranks(steps.all_reduced, 4, 0.5) == [(rank, 4, 5.0) for rank in range(4)]
    assert run_ranks(steps.all_reduced, 1, 0.5) == [(0, 1, 0.5)]
    assert [x[0].item() for x in run_ranks(steps.large, 2)] == [0.0, 1.0]
    assert until(idle)


def test_a_function_without_a_module_goes_by_its_code():
    factor = torch.tensor(3.0)

    def scaled(x: int) -> float:
        return (factor * x).item() + steps.all_reduced(1.0)[0]

    assert run_ranks(scaled, 2, 5) == [15.0, 16.0]
    assert run_ranks(lambda: "here", 1) == ["here"]


@pytest.mark.slow
def test_a_program_s_own_functions_and_classes_can_be_sent(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("""
from warmranks import preload, run_ranks

class Module:
    def __init__(self):
        self.shapes = []

class Model(Module):
    def __init__(self, size):
        super().__init__()
        self.shapes += [(size, 1), (1,)]

def parameters(size):
    return count(Model(size))

def count(model):
    return sum(shape[0] for shape in model.shapes)

preload()
print(run_ranks(parameters, 2, 7, backend=None))
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True,
                          timeout=200)
    assert done.stdout == "[8, 8]\n", done.stderr


def test_the_rank_that_raised_is_the_only_one_to_be_heard():
    with pytest.raises(RankError) as caught:
        run_ranks(steps.raises, 4, 2)
    message = str(caught.value)
    assert message.startswith("rank 2 of 4 raised ValueError: no rank 2\n\nTraceback")
    assert 'steps.py", line' in message and "raise ValueError" in message
    assert "onnection" not in message and "warmranks/rank.py" not in message
    assert caught.value.rank == 2 and caught.value.error == "ValueError: no rank 2"
    assert until(idle)


@pytest.mark.parametrize(("code", "words"), [
    (7, "rank 1 of 4 ended with exit code 7 before it returned"),
    (0, "rank 1 of 4 ended with exit code 0 before it returned")])
def test_a_rank_that_ends_without_a_word_is_named(code, words):
    with pytest.raises(RankError, match=words) as caught:
        run_ranks(steps.ends, 4, 1, code)
    assert "Traceback" not in str(caught.value)


def test_a_crash_names_its_signal():
    with pytest.raises(RankError, match="rank 0 of 2 was killed by signal 11"):
        run_ranks(crash, 2)


def crash() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()


@pytest.mark.slow
def test_a_deadlock_s_message_names_the_ranks_and_their_lines():
    with pytest.raises(RanksTimeout) as caught:
        run_ranks(steps.deadlocks, 3, timeout=3)
    lines = str(caught.value).splitlines()
    assert lines[0] == "ranks 0 and 1 of 3 did not finish within 3 s"
    assert "rank 0 is in recv:" in lines and "rank 1 is in recv:" in lines
    assert any(line.startswith("rank 2 returned after ") for line in lines)
    assert sum("steps.py" in line and line.endswith("in deadlocks") for line in lines) == 2
    assert sum("dist.recv(torch.empty(1)" in line for line in lines) == 2
    assert set(caught.value.stacks) == {0, 1} and isinstance(caught.value, TimeoutError)
    assert until(idle)


def test_one_run_leaves_nothing_to_the_next(tmp_path):
    first = run_ranks(steps.surroundings, 2, cwd=tmp_path, env={"OF_ONE_RUN": "x"})
    run_ranks(steps.changes_everything, 2)
    second = run_ranks(steps.surroundings, 2)
    assert [one["mine"] for one in first + second] == ["x", "x", None, None]
    assert first[0]["cwd"] == str(tmp_path) and second[0]["cwd"] == os.getcwd()
    assert second[1]["env"] is None and second[1]["dtype"] == "torch.float32"
    assert not second[0]["path"] and second[0]["umask"] == first[0]["umask"] != 0o777
    assert {one["seed"] for one in first + second} == {torch.initial_seed()} or all(
        one["seed"] == first[0]["seed"] for one in second)
    assert len({one["draw"] for one in first + second}) == 4
    assert {one["threads"] for one in first + second} == {1}
    assert [(one["rank"], one["world"]) for one in second] == [("0", "2"), ("1", "2")]
    assert "OF_ONE_RUN" not in os.environ


def test_what_ranks_print_goes_where_this_process_prints(capfd):
    run_ranks(steps.speaks, 2)
    out, err = capfd.readouterr()
    assert sorted(out.split("\n")) == ["", "out 0", "out 1", "program 0", "program 1"]
    assert sorted(err.split("\n")) == ["", "err 0", "err 1"]


def test_a_function_may_create_the_process_group_itself():
    assert run_ranks(steps.meets_by_itself, 3, backend=None) == [3, 3, 3]


def test_what_cannot_be_sent_is_named():
    with pytest.raises(RankError, match="the return value generator cannot be sent to another"):
        run_ranks(steps.unsendable, 1)
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        run_ranks(steps.raises, 1, (one for one in range(3)))
    with pytest.raises(ValueError, match="ranks=0: there must be at least 1"):
        run_ranks(steps.raises, 0, 1)


def test_a_module_that_cannot_be_imported_is_named():
    with ForkServer(["no_such_module"]) as server, pytest.raises(
            RankError, match=r"did not start(.|\n)*No module named 'no_such_module'"):
        server.run_ranks(steps.all_reduced, 1, 1.0)


def pids_in(folder: Path, count: int) -> list[int]:
    def found() -> list[str]:
        return [file.read_text() for file in folder.iterdir()]

    assert until(lambda: len(found()) == count and all(found()))
    return [int(text) for text in found()]


def none_runs(pids: list[int]) -> bool:
    def ended(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return until(lambda: all(map(ended, pids)))


@pytest.mark.slow
def test_after_a_timeout_nothing_runs_that_ranks_started(tmp_path):
    with pytest.raises(RanksTimeout, match="did not finish within 4 s"):
        run_ranks(programs.start, 2, str(tmp_path), timeout=4)
    written = [file.read_text() for file in tmp_path.iterdir()]
    assert none_runs([int(pid) for pid in written if pid]) and until(idle)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["caller", "server"])
def test_nothing_runs_after_the_caller_or_the_server_is_killed(tmp_path, victim):
    program = ("import warmranks; from tests.warmranks import programs; warmranks.preload(); "
               "print(warmranks.default_server().process.pid, flush=True); "
               f"warmranks.run_ranks(programs.start, 2, {str(tmp_path)!r}, backend=None, "
               "timeout=500)")
    caller = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    server = int(caller.stdout.readline())
    pids = pids_in(tmp_path, 6)
    os.kill(caller.pid if victim == "caller" else server, signal.SIGKILL)
    _, err = caller.communicate(timeout=60)
    assert none_runs([*pids, server])
    if victim == "server":
        assert "RankError: the fork server ended during a run" in err


def test_a_running_server_imports_more_and_leaves_out_what_does_not_exist():
    def imported():
        return "colorsys" in sys.modules

    with ForkServer([]) as server:
        before = server.run_ranks(imported, 1, backend=None)
        server.load("no_such_module", "colorsys")
        assert (before, server.run_ranks(imported, 1, backend=None)) == ([False], [True])


@pytest.mark.slow
def test_an_interrupted_call_leaves_no_rank(tmp_path):
    program = ("from warmranks import preload, run_ranks; from tests.warmranks import programs\n"
               "preload()\n"
               "try:\n"
               f"    run_ranks(programs.start, 2, {str(tmp_path)!r}, backend=None, timeout=500)\n"
               "except KeyboardInterrupt:\n"
               "    print(run_ranks(programs.rank, 1, backend=None))\n")
    caller = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE)
    pids = pids_in(tmp_path, 6)
    caller.send_signal(signal.SIGINT)
    out, _ = caller.communicate(timeout=100)
    assert out == "['0']\n" and none_runs(pids)
