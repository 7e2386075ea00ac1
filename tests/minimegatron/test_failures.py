"""When one rank fails, the others end too, and say in one line why."""

import re

import pytest

from minimegatron import failures, main
from minimegatron.errors import SharedError
from warmranks import run_ranks

from . import failing_rank
from .conftest import MODEL

pytestmark = pytest.mark.slow

STAGES = "--pipeline-model-parallel-size 2 "


def run_both(dataset, folder, how, layout=""):
    """Return the survivor's exit code and standard error, and the other rank's."""
    flags = (MODEL + dataset.flags + "--train-iters 10 --eval-iters 0 --global-batch-size 4 "
             "--distributed-timeout-minutes 0.05 " + layout).split()
    (code, survivor), (_, other) = run_ranks(failing_rank.run, 2, how, flags, str(folder),
                                             backend=None, timeout=100)
    return code, survivor, other


@pytest.mark.parametrize("how", ["error", "death", "silence"])
def test_the_other_rank_says_that_it_lost_contact(dataset, tmp_path, how):
    code, survivor, other = run_both(dataset, tmp_path, how)
    assert code == 1
    assert re.fullmatch(r"\[rank 0\] error: lost contact with another rank \(.*\); its own message "
                        r"says why\n", survivor)
    if how == "error":
        assert other == "[rank 1] error: this rank cannot go on\n"


@pytest.mark.parametrize("how", ["death", "stop"])
def test_the_other_stage_says_whom_it_lost_and_when(dataset, tmp_path, how):
    """A stage that dies, and one that stops (its connections stay open), within the timeout."""
    code, survivor, _ = run_both(dataset, tmp_path, how, STAGES)
    assert code == 1
    doing = r"waiting for B\d" if how == "stop" else r"(waiting for B|sending F)\d"
    assert re.fullmatch(r"\[rank 0\] error: lost contact with rank 1 \(stage 1\) while " + doing +
                        r" \(.*\); its own message says why\n", survivor)
    assert "/" not in survivor, survivor  # no path inside the library
    assert how != "stop" or "imed out" in survivor


def test_rank_0_gets_to_say_what_is_wrong_with_the_command_line(monkeypatch, capsys):
    """torchrun ends all ranks when the first one fails: the silent ones must not be first."""
    waited = []

    class Left(BaseException):
        pass

    def leave(code):
        raise Left(code)

    monkeypatch.setattr(failures.time, "sleep", waited.append)
    monkeypatch.setattr(main, "leave", leave)
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(Left):
            main.main(["--bogus"])
    assert waited == [failures.GRACE] and waited[0] > 2
    assert capsys.readouterr().err.count("error: unrecognized argument --bogus") == 1


def test_rank_0_exits_after_the_others_have_heard_of_a_shared_error(monkeypatch, capsys):
    waited = []
    monkeypatch.setattr(failures.time, "sleep",
                        lambda seconds: waited.append((seconds, capsys.readouterr().err)))
    failures.print_error(SharedError("two schedules"), 0)
    assert waited == [(failures.LAST_EXCHANGE, "[rank 0] error: two schedules\n")]
