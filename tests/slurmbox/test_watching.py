"""`lab top` and `lab report` on jobs of the real cluster: while they run, and after their end."""

import json
import os
import signal
from pathlib import Path

import pytest

from slurmbox import jobfolders, processes

pytestmark = pytest.mark.cluster

ENDLESS = ("--hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
           "--train-iters 1000000 --log-interval 1 --eval-iters 0")


@pytest.fixture
def lab(course, monkeypatch, call):
    """A call of the command in the workspace; its output."""
    monkeypatch.setenv("LAB_HOME", str(course.home))
    monkeypatch.chdir(course.home)
    return call


@pytest.fixture
def submit(course, warm):
    numbers = []

    def run(command):
        done = course.run(f"sbatch --parsable {command}")
        assert done.returncode == 0, done.stderr
        numbers.append(done.stdout.strip())
        return numbers[-1]

    yield run
    course.run(f"scancel {' '.join(numbers)}")


def job_of(lab, number):
    (result,) = json.loads(lab("top", number, "--json"))["jobs"]
    return result


def words(job):
    return {rank["rank"]: rank["word"] for rank in job["ranks"]}


def until(course, lab, number, done, seconds=120):
    """The job, once `done(job)`."""
    seen = []

    def look():
        seen[:] = [job_of(lab, number)]
        return done(seen[0])

    assert course.until(look, seconds), seen
    return seen[0]


def send(course, number, rank, which):
    """Send a signal to a warm rank, whose environment says which one it is."""
    (pid,) = (set(processes.pids_with_variable(f"SLURM_JOB_ID={number}"))
              & set(processes.pids_with_variable(f"RANK={rank}"))
              & set(processes.pids_in_cluster(course.layout.run.name)))
    os.kill(pid, which)


def report(lab, number):
    return Path(lab("report", number).removeprefix("report: ").strip()).read_text()


def test_a_job_on_the_cpu_running_stopped_and_killed(course, lab, submit):
    number = submit(f"-J watched code/dp_single_node.sh {ENDLESS}")
    job = until(course, lab, number, lambda job: job["iteration"] >= 3 and job["loss"])
    assert words(job) == {0: "running", 1: "running"}
    assert (job["state"], job["source"], job["virtual"]) == ("RUNNING", "ranks", None)
    assert job["train_iters"] == 1000000 and job["milliseconds"] > 0
    assert all(rank["node"] == "slurmnode1" and rank["memory_used"] > 2**26
               for rank in job["ranks"])
    assert (job["problem"], job["mismatches"]) == (None, [])
    text = lab("top", "--once")
    assert f"job {number} watched: RUNNING, on slurmnode1, for 00:0" in text
    assert "/1000000" in text

    send(course, number, 1, signal.SIGSTOP)
    job = until(course, lab, number, lambda job: words(job)[1] == "stopped", 10)
    assert job["problem"] == "rank(s) 1 stopped"
    send(course, number, 1, signal.SIGCONT)
    until(course, lab, number, lambda job: words(job)[1] == "running", 10)

    send(course, number, 1, signal.SIGKILL)
    job = until(course, lab, number, lambda job: job["state"] == "FAILED", 40)
    assert words(job)[1] == "dead" and words(job)[0] in ("failed", "dead")
    assert job["problem"].startswith("killed on rank(s) 1: killed by SIGKILL")
    page = report(lab, number)
    assert "What went wrong: </strong>killed on rank(s) 1" in page
    assert "Iteration times" in page and "Loss" in page and "/dp_single_node.sh" in page
    folder = course.layout.ranks / number
    assert "torchrun" in (folder / jobfolders.SCRIPT_FILE).read_text()
    assert f"JobId={number} " in (folder / jobfolders.JOB_FILE).read_text()


def test_a_job_on_virtual_cards_and_its_page(course, lab, submit):
    number = submit(f"code/virtual_v100.sh {ENDLESS}")
    job = until(course, lab, number, lambda job: job["iteration"] >= 2)
    assert (job["virtual"], job["loss"], job["gpus"]) == ("virtual v100-sxm2-16gb", None, 4)
    assert set(words(job)) == {0, 1, 2, 3} and set(words(job).values()) == {"running"}
    assert [(rank["node"], rank["gpu"]) for rank in job["ranks"]] == [
        ("slurmnode1", 0), ("slurmnode1", 1), ("slurmnode2", 0), ("slurmnode2", 1)]
    assert all(rank["memory_total"] > 15 * 2**30 and rank["virtual_seconds"] > 0
               for rank in job["ranks"])
    running = report(lab, number)
    assert "RUNNING" in running and "Modeled: virtual v100-sxm2-16gb." in running

    course.run(f"scancel {number}")
    job = until(course, lab, number, lambda job: job["state"] == "CANCELLED", 40)
    # Some rank may notice that its peers are gone before the signal reaches it.
    assert "dead" in words(job).values() and set(words(job).values()) <= {"dead", "failed"}
    assert job["ranks"][0]["reason"] == "the job was cancelled"
    assert "What went wrong: </strong>cancelled" in report(lab, number)


def test_a_job_that_never_trains_says_why(course, lab, submit):
    number = submit("code/dp_single_node.sh --hiden-size 32")
    job = until(course, lab, number, lambda job: job["state"] == "FAILED")
    assert job["problem"] == ("error: unrecognized argument --hiden-size; did you mean "
                              "--hidden-size?")
    assert job["source"] == "log" and "did you mean --hidden-size?" in report(lab, number)


def test_a_job_that_never_was_is_named(course, lab, submit):
    number = submit("--wrap true")
    error = lab("top", "99999", code=1)
    assert error.startswith("lab: error: job 99999: Slurm has no such job; the latest is ")
    assert int(error.split()[-1]) >= int(number)
    assert "--log none: no such file" in lab("report", number, "--log", "none", code=1)
