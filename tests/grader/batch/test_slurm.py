"""`lab grade --slurm` on the bundled cluster: a lost node costs time, not a grade."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grader.course import Submission
from grader.run import results
from tests.conftest import cluster_processes
from tests.grader import small_lab
from tests.grader.conftest import submit, table
from tests.grader.small_lab import RIGHT, WRONG, answered
from tests.slurmbox.test_cluster import daemon
from tests.slurmbox.test_failures import lab

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
NAME = small_lab.NAME
LINGER = RIGHT + "\nimport time\ntime.sleep(3)"


@pytest.fixture(scope="module")
def spare(make_cluster):
    """A cluster to break."""
    return make_cluster()


@pytest.fixture(autouse=True)
def patient(course):
    """Cells may take longer than the tests' course allows."""
    with course.config_file.open("a") as file:
        file.write("c.Grading.seconds_per_cell = 100\n")


def start(course, spare, *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [Path(sys.executable).with_name("lab"), "grade", NAME, "--slurm", *words], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=course.root,
        env={**os.environ, "LAB_COURSE": str(course.root), "LAB_HOME": str(spare.home)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


def until(done, running: subprocess.Popen) -> None:
    deadline = time.monotonic() + 240
    while not done():
        assert running.poll() is None and time.monotonic() < deadline, running.stdout.read()
        time.sleep(0.1)


@pytest.mark.stress  # tests/slurmbox has nodes that die, test_resume.py a batch that is killed
def test_a_node_that_dies_loses_no_submission(course, released, spare):
    scores = {f"s{n}": "2.0" if n % 3 == 0 else "5.0" for n in range(6)}
    for student, score in scores.items():
        submit(course, student, answered(released, WRONG if score == "2.0" else LINGER))
    running = start(course, spare)
    until(lambda: list((course.root / results.FOLDER).glob("*/*.json")), running)
    node, *others = set(spare.run("squeue -h -t R -o %N").stdout.split())
    assert not others  # tasks fill a node before they begin another
    lab(spare, "node", node, "kill")
    for pid in daemon(spare, "slurmstepd"):
        os.kill(pid, signal.SIGKILL)
    # Slurm would notice by itself when SlurmdTimeout is over.
    assert spare.run(f"scontrol update nodename={node} state=down reason=died").returncode == 0
    output = running.communicate(timeout=400)[0]
    assert running.returncode == 0, output
    rows = table(course.root / "grades.csv")
    assert {student: row["score"] for student, row in rows.items()} == scores, output
    assert all((course.root / "feedback" / student / NAME / f"{NAME}.html").exists()
               for student in scores)
    assert not (course.root / ".slurm").exists()


def test_ctrl_c_cancels_the_job_and_what_is_there_counts(course, released, spare):
    assert spare.until(lambda: not spare.run("squeue -h").stdout.strip(), 60)
    submit(course, "ada", answered(released))
    for student in ("bob", "cyd", "dan"):
        submit(course, student, answered(released, LINGER.replace("3", "50")))
    running = start(course, spare)
    until(lambda: (record := Submission(course, NAME, "ada").record) and record.state == "graded",
          running)
    running.send_signal(signal.SIGINT)
    output = running.communicate(timeout=120)[0]
    assert running.returncode == 130 and "3 of 4 were not graded" in output, output
    assert spare.until(lambda: not spare.run("squeue -h").stdout.strip(), 60)
    assert table(course.root / "grades.csv")["ada"]["score"] == "5.0"
    assert not any("grader.batch.worker" in line for line in cluster_processes(spare.home))
