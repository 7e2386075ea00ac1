"""Waiting for a job from a notebook."""

import os
import subprocess
import time

import pytest
from IPython.core.interactiveshell import InteractiveShell

from lab.submit.nodes import slurm
from labcore.colors import bad, good
from labcore.errors import LabError
from labcore.workspace import home
from lablib import jobs, submissions
from slurmbox.layout import Layout


class Notebook:
    """This process as the kernel of a notebook."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.starts = monkeypatch, 0

    def restart(self, name: str = "03_multi_node") -> None:
        """Start the kernel of a notebook again: it has no variables, and another number."""
        self.starts += 1
        self.monkeypatch.setenv(jobs.SESSION, f"/somewhere/{name}.ipynb")
        os.environ.pop(submissions.KERNEL, None)
        jobs.connect()
        os.environ[submissions.KERNEL] += f"-{self.starts}"  # as if seconds had passed


@pytest.fixture
def here(cluster, monkeypatch):
    """This process, connected to the running cluster as a notebook is."""
    monkeypatch.setenv("LAB_HOME", str(cluster.home))
    monkeypatch.chdir(cluster.home)
    monkeypatch.setattr(os, "environ", dict(os.environ))  # connect() changes it
    InteractiveShell.clear_instance()
    notebook = Notebook(monkeypatch)
    notebook.restart()
    yield notebook
    InteractiveShell.clear_instance()


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, env=os.environ, check=True).stdout


def write(body, name="short"):
    script = home() / "code" / f"{name}.sh"
    script.parent.mkdir(exist_ok=True)
    form = f"#SBATCH --job-name={name}\n#SBATCH --output=%x_%j.txt\n"
    script.write_text(f"#!/bin/bash\n{form}{body}\n")
    return f"code/{name}.sh"


def submit(body, name="short"):
    """Submit a job as a cell does; return its ID."""
    return int(run("sbatch", "--parsable", write(body, name)))


@pytest.mark.cluster
def test_a_job_is_waited_for_and_its_log_named(here, capsys):
    job = submit("echo done")
    state = jobs.wait()
    assert (state.job, state.state, state.is_over) == (job, "COMPLETED", True)
    assert state.log.read_text() == "done\n"
    assert f"job {job} (short): {good('COMPLETED')}" in capsys.readouterr().out


@pytest.mark.cluster
def test_another_notebook_s_job_is_not_this_one_s(here):
    """Nor is one from a terminal."""
    mine = submit("true", "mine")
    here.restart("02_single_node")
    with pytest.raises(LabError, match=r"has submitted no job.*run the cell that calls sbatch"):
        jobs.wait()
    other = submit("true", "other")
    assert jobs.wait().job == other != mine
    terminal = dict(os.environ, PATH=os.environ["PATH"].partition(":")[2])
    subprocess.run(["sbatch", "code/mine.sh"], env=terminal, check=True, capture_output=True)
    assert jobs.wait().job == other
    assert jobs.wait(mine).name == "mine"


@pytest.mark.cluster
def test_a_failed_job_shows_the_end_of_its_log(here, capsys):
    job = submit("echo first; echo it broke here; exit 3", "broken")
    assert jobs.wait(job).state == "FAILED"
    said = capsys.readouterr().out
    assert "it broke here" in said and f"(broken): {bad('FAILED')}" in said


@pytest.mark.cluster
def test_a_job_that_is_not_over_stops_run_all_and_the_message_says_how_to_go_on(here):
    job = submit("sleep 300", "long")
    with pytest.raises(jobs.NotOver, match=r"job \d+ \(long\) is .*no complete results") as raised:
        jobs.wait(job, seconds=2)
    (line,) = raised.value._render_traceback_()  # a notebook shows no traceback
    assert line.endswith("To continue waiting, run this cell again.")
    run("scancel", str(job))
    assert jobs.wait(job).state == "CANCELLED"


@pytest.mark.cluster
def test_several_jobs_are_waited_for_in_the_order_of_their_submission(here, capsys):
    slow, quick = submit("sleep 2", "slow"), submit("true", "quick")
    states = jobs.wait_latest(2)
    assert [(state.job, state.is_over) for state in states] == [(slow, True), (quick, True)]
    assert capsys.readouterr().out.count("COMPLETED") == 2


@pytest.mark.cluster
def test_one_that_is_not_over_does_not_make_the_others_wait_longer(here, capsys):
    long, quick = submit("sleep 300", "long"), submit("true", "quick")
    jobs.wait(quick)
    capsys.readouterr()
    with pytest.raises(jobs.NotOver, match=f"job {long}"):
        jobs.wait_latest(2, seconds=1)
    assert f"job {quick} (quick): {good('COMPLETED')}" in capsys.readouterr().out
    run("scancel", str(long))


@pytest.mark.cluster
def test_more_jobs_than_there_were_are_asked_for_again(here):
    submit("true")
    with pytest.raises(LabError, match="submitted only 1 of the 99 jobs"):
        jobs.wait_latest(99)


@pytest.mark.cluster
def test_a_job_that_never_was_is_named(here):
    with pytest.raises(LabError, match="Slurm has no job 99999"):
        jobs.wait(99999)


# --- after a restart of the kernel

def cell(*words, name="cell-1", count=[0]):  # noqa: B006  the kernel's execution count
    """Run a cell that calls sbatch; return what it prints."""
    count[0] += 1
    os.environ |= {submissions.CELL: name, submissions.RUN: str(count[0])}
    return run("sbatch", *words)


def job_in(text):
    return int(submissions.SUBMITTED.search(text)[1])


@pytest.mark.cluster
def test_after_a_restart_a_cell_offers_the_results_of_its_job(here, capsys):
    script = write("echo result", "train")
    first = job_in(cell(script, "--steps", "3"))
    jobs.wait()
    here.restart()
    said = cell(script, "--steps", "3")
    assert f"Not submitted again: job {first}" in said and "run this cell once more" in said
    capsys.readouterr()
    assert jobs.wait().log.read_text().startswith("result")  # of the first
    assert f"job {first} (train)" in capsys.readouterr().out
    again = job_in(cell(script, "--steps", "3"))  # run once more
    assert again != first and jobs.wait().job == again


@pytest.mark.cluster
def test_what_has_changed_failed_or_lost_its_log_is_submitted_again(here):
    script = write("cat mytrainer/mine.py", "train")
    (home() / "mytrainer").mkdir(exist_ok=True)
    (home() / "mytrainer" / "mine.py").write_text("x = 1")
    first = job_in(cell(script))
    log = jobs.wait().log

    def after_restart(*words, name="cell-1"):
        here.restart()
        return "Not submitted" not in cell(*words, name=name)

    assert not after_restart(script)
    assert after_restart(script, "--flag")
    assert after_restart(script, name="cell-2")
    os.environ["SEED"] = "7"  # set in a cell
    assert after_restart(script)
    del os.environ["SEED"]
    (home() / "mytrainer" / "mine.py").write_text("x = 2")  # the job reads it
    assert after_restart(script)
    (home() / "mytrainer" / "mine.py").write_text("x = 1")
    log.unlink()
    assert after_restart(script)
    failing = write("exit 3", "failing")
    cell(failing)
    assert jobs.wait().state == "FAILED" and first
    assert after_restart(failing)


@pytest.mark.cluster
def test_results_survive_the_kernel_even_if_nobody_waited_and_slurm_forgot(here, monkeypatch):
    script = write("echo result", "overnight")
    job = job_in(cell(script))
    end = time.monotonic() + 60
    while "COMPLETED" not in run("sacct", "-n", "-P", "-j", str(job), "-o", "State"):
        assert time.monotonic() < end
        time.sleep(0.1)
    here.restart()
    (home() / "forgetful").mkdir()
    (home() / "forgetful" / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    (home() / "forgetful" / "scontrol").chmod(0o755)
    os.environ["PATH"] = f"{home()}/forgetful:{os.environ['PATH']}"
    monkeypatch.setattr(jobs, "_scontrol", lambda *words: [])
    assert f"job {job}" in cell(script)
    state = jobs.wait()
    assert (state.job, state.state, state.name) == (job, "COMPLETED", "overnight")
    assert state.log.read_text() == "result\n"


@pytest.mark.cluster
def test_a_job_that_still_runs_is_not_submitted_twice(here):
    script = write("sleep 300", "long")
    job = job_in(cell("--parsable", script))
    here.restart()
    assert cell("--parsable", script).strip() == str(job)  # a script may read the ID
    assert run("squeue", "--noheader", "--name=long", "--format=%i").split() == [str(job)]
    run("scancel", str(job))


@pytest.mark.cluster
def test_a_job_of_lab_submit_is_the_notebook_s_too(here):
    """As in lab 14: `!lab submit` starts sbatch with an environment of its own."""
    submit("true", "earlier")
    jobs.connect()  # the setup cell, run again
    job = int(slurm("sbatch", "--parsable", write("true", "planned")))
    assert jobs.wait().job == job
    assert os.environ["PATH"].count(str(Layout(home()).notebook_bin)) == 1


@pytest.mark.cluster
def test_a_job_that_submits_jobs_does_not_mix_them_with_the_notebook_s(here):
    write("true", "inner")
    outer = submit("sbatch code/inner.sh", "outer")
    assert jobs.wait().job == outer == jobs.latest(1)[0].job


def test_the_kernel_names_its_cell(monkeypatch):
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    monkeypatch.setattr(os, "environ", dict(os.environ))
    shell.events.register("pre_run_cell", jobs._name_cell)
    shell.run_cell("x = 1", store_history=True, cell_id="train-1")
    assert os.environ[submissions.CELL] == "train-1"
    before = os.environ[submissions.RUN]
    shell.run_cell("x = 2", store_history=True)  # a frontend that sends no ID
    assert len(os.environ[submissions.CELL]) == 12
    assert os.environ[submissions.RUN] != before
    InteractiveShell.clear_instance()


def test_a_damaged_record_costs_one_line(tmp_path):
    path = tmp_path / submissions.FILE
    path.parent.mkdir()
    one = submissions.Submission(7, "a.ipynb", "1-2", "cell", "1", "d", 3.0, "log")
    submissions._append(tmp_path, vars(one))
    path.write_text(path.read_text() + '{"job": 8, "noteb\n')
    submissions._append(tmp_path, vars(one))
    assert submissions.read(tmp_path) == [one, one]


def test_without_slurm_the_way_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(submissions.KERNEL, raising=False)
    for ask in (jobs.show, lambda: jobs.show(7)):
        with pytest.raises(LabError, match=r"jobs\.connect"):
            ask()


@pytest.mark.parametrize(("text", "seconds"), [
    ("00:01:47", 107), ("1-02:00:00", 93600), ("INVALID", 0), ("", 0)])
def test_slurms_clock(text, seconds):
    assert jobs._seconds(text) == seconds
