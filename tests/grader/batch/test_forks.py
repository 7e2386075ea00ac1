"""Workers that start as forks: they have nothing of their parent's but its memory."""

from __future__ import annotations

import signal

import pytest

from tests.grader.batch import fork_steps
from tests.warm import server

pytestmark = pytest.mark.slow


def alone(function, *arguments):
    """Call it in a process that has one thread; this one may have more."""
    (value,) = server().run_ranks(function, 1, *arguments, backend=None)
    return value


def test_a_fork_has_its_pipes_the_log_and_a_session_of_its_own(tmp_path):
    result = alone(fork_steps.talk, str(tmp_path / "log"))
    assert (result["question"], result["code"], result["noise"]) == ("who?\n", 3, "noise\n")
    assert result["session"] == result["pid"] and result["interrupt"]
    assert str(tmp_path / "log.ours") not in result["open"]
    assert sorted(one.partition(":")[0] for one in result["open"]
                  if not one.startswith("/proc/")) == [str(tmp_path / "log"), "pipe", "pipe"]


@pytest.mark.parametrize("how, code", [("kill", -signal.SIGKILL), ("terminate", -signal.SIGTERM)])
def test_a_fork_that_a_signal_ends_has_the_signals_code(tmp_path, how, code):
    assert alone(fork_steps.signaled, str(tmp_path / "log"), how) == code


def test_a_fork_whose_check_was_interrupted_goes_on_as_a_program(tmp_path):
    (by, noted), is_one_process = alone(fork_steps.renew, str(tmp_path / "log"))
    assert by == "fork" and "renewed" in noted and is_one_process


@pytest.mark.parametrize("with_thread, by", [
    (False, ["fork", "program", "program"]), (True, ["program"] * 3)])
def test_what_replaces_a_fork_is_a_program_and_beside_threads_nothing_is_forked(
        tmp_path, with_thread, by):
    acts = ["work", "die", "work"]
    assert alone(fork_steps.pool, str(tmp_path / "log"), acts, with_thread) == by
