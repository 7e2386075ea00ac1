"""Waiting for a job from a notebook."""

import os

import pytest

from lab.notebook import jobs
from labcore.colors import bad, good
from labcore.errors import LabError


@pytest.fixture
def here(cluster, monkeypatch):
    """This process, connected to the running cluster as a notebook is."""
    monkeypatch.setenv("LAB_HOME", str(cluster.home))
    monkeypatch.chdir(cluster.home)
    monkeypatch.setattr(os, "environ", dict(os.environ))  # connect() changes it
    jobs.connect()
    return cluster


def submit(cluster, body, name="short"):
    script = cluster.home / "code" / f"{name}.sh"
    script.parent.mkdir(exist_ok=True)
    form = f"#SBATCH --job-name={name}\n#SBATCH --output=%x_%j.txt\n"
    script.write_text(f"#!/bin/bash\n{form}{body}\n")
    return int(cluster.run(f"sbatch --parsable code/{name}.sh").stdout)


@pytest.mark.cluster
def test_a_job_is_waited_for_and_its_log_named(here, capsys):
    job = submit(here, "echo done")
    state = jobs.wait()
    assert (state.job, state.state, state.is_over) == (job, "COMPLETED", True)
    assert state.log.read_text() == "done\n"
    assert f"job {job} (short): {good('COMPLETED')}" in capsys.readouterr().out


@pytest.mark.cluster
def test_a_failed_job_shows_the_end_of_its_log(here, capsys):
    job = submit(here, "echo first; echo it broke here; exit 3", "broken")
    assert jobs.wait(job).state == "FAILED"
    said = capsys.readouterr().out
    assert "it broke here" in said and f"(broken): {bad('FAILED')}" in said


@pytest.mark.cluster
def test_waiting_gives_up_before_a_minute_and_says_how_to_go_on(here, capsys):
    job = submit(here, "sleep 300", "long")
    assert not jobs.wait(job, seconds=2).is_over
    assert "run this cell again" in capsys.readouterr().out
    here.run(f"scancel {job}")
    assert jobs.wait(job).state == "CANCELLED"


@pytest.mark.cluster
def test_several_jobs_are_waited_for_in_the_order_of_their_submission(here, capsys):
    slow, quick = submit(here, "sleep 2", "slow"), submit(here, "true", "quick")
    states = jobs.wait_latest(2)
    assert [(state.job, state.is_over) for state in states] == [(slow, True), (quick, True)]
    assert capsys.readouterr().out.count("COMPLETED") == 2


@pytest.mark.cluster
def test_one_that_is_not_over_does_not_make_the_others_wait_longer(here, capsys):
    long, quick = submit(here, "sleep 300", "long"), submit(here, "true", "quick")
    jobs.wait(quick)
    capsys.readouterr()
    states = jobs.wait_latest(2, seconds=1)
    assert [state.is_over for state in states] == [False, True]
    assert capsys.readouterr().out.count("run this cell again") == 1
    here.run(f"scancel {long}")


@pytest.mark.cluster
def test_more_jobs_than_there_were_are_asked_for_again(here):
    submit(here, "true")
    with pytest.raises(LabError, match="of your 99 latest jobs: submit them again"):
        jobs.wait_latest(99)


@pytest.mark.cluster
def test_a_job_that_never_was_is_named(here):
    with pytest.raises(LabError, match="Slurm has no job 99999"):
        jobs.wait(99999)


def test_without_slurm_the_way_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match=r"jobs\.connect"):
        jobs.show()


@pytest.mark.parametrize(("text", "seconds"), [
    ("00:01:47", 107), ("1-02:00:00", 93600), ("INVALID", 0), ("", 0)])
def test_slurms_clock(text, seconds):
    assert jobs._seconds(text) == seconds
