"""When one rank fails, the others end too, and say in one line why."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minimegatron import main
from tests.ports import free_port

from .conftest import MODEL

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("failing_rank.py")


STAGES = "--pipeline-model-parallel-size 2 "


def run_both(dataset, how, layout=""):
    """Start both ranks without an agent, which would kill the survivor before it can speak."""
    port = str(free_port())
    flags = (MODEL + dataset.flags + "--train-iters 10 --eval-iters 0 --global-batch-size 4 "
             "--distributed-timeout-minutes 0.05 " + layout).split()
    ranks = [subprocess.Popen(
        [sys.executable, PROGRAM, how, *flags], text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2",
                                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        for rank in (0, 1)]
    survivor = ranks[0].communicate(timeout=60)[1]
    if how in ("silence", "stop"):
        ranks[1].kill()
    return ranks[0].returncode, survivor, ranks[1].communicate(timeout=60)[1]


@pytest.mark.parametrize("how", ["error", "death", "silence"])
def test_the_other_rank_says_that_it_lost_contact(dataset, how):
    code, survivor, other = run_both(dataset, how)
    assert code == 1
    assert re.fullmatch(r"\[rank 0\] error: lost contact with another rank \(.*\); its own message "
                        r"says why\n", survivor)
    if how == "error":
        assert other == "[rank 1] error: this rank cannot go on\n"


@pytest.mark.parametrize("how", ["death", "stop"])
def test_the_other_stage_says_whom_it_lost_and_when(dataset, how):
    """A stage that dies, and one that stops (its connections stay open), within the timeout."""
    code, survivor, _ = run_both(dataset, how, STAGES)
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

    monkeypatch.setattr(main.time, "sleep", waited.append)
    monkeypatch.setattr(main, "leave", leave)
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(Left):
            main.main(["--bogus"])
    assert waited == [main.PATIENCE] and waited[0] > 2
    assert capsys.readouterr().err.count("error: unrecognized argument --bogus") == 1
