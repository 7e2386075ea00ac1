"""The stacks of a job's ranks: each is asked for on its node, and errors name the rank."""

import pytest

from labcore.errors import LabError
from lablib import stacks

LOG = "rank 1: PID 22 on node2\nsome noise\nrank 0: PID 11 on node1\n"


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A log of two ranks, beside a stand-in for srun that prints its arguments."""
    tools = tmp_path / "bin"
    tools.mkdir()
    srun = tools / "srun"
    srun.write_text('#!/bin/sh\n[ "$CLICOLOR_FORCE" = 0 ] || exit 3\n'
                    'case "$*" in *" 99") echo no such process >&2; exit 1 ;;\n'
                    '*" 88") exec sleep 60 ;; esac\necho "$@"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    path = tmp_path / "log.txt"
    path.write_text(LOG)
    return path


def test_each_rank_is_asked_on_its_own_node(log, capsys):
    result = stacks.dump(7, log, 2)
    assert [one.split("--nodelist=")[1].split()[0] for one in result] == ["node1", "node2"]
    assert [one.split()[-4:] for one in result] == [["py-spy", "dump", "--pid", pid]
                                                    for pid in ("11", "22")]
    assert capsys.readouterr().out.startswith("$ srun --jobid=7 --overlap")


def test_a_rank_without_a_stack_is_named(log):
    log.write_text(LOG.replace("22", "99"))
    with pytest.raises(LabError, match="no stack of rank 1: no such process"):
        stacks.dump(7, log, 2)


def test_a_stack_that_takes_too_long_is_an_error(log, monkeypatch):
    monkeypatch.setattr(stacks, "TIMEOUT", 1)
    log.write_text(LOG.replace("22", "88"))
    with pytest.raises(LabError, match="no stack of rank 1 within 1 s: run this cell again"):
        stacks.dump(7, log, 2)


def test_ranks_that_have_not_started_are_counted(log, monkeypatch):
    monkeypatch.setattr(stacks, "START_TIMEOUT", 0)
    with pytest.raises(LabError, match="2 of 3 ranks have started"):
        stacks.dump(7, log, 3)
