"""`lab grade --slurm`: grade submissions in an array job; each array task is a worker with a slice.

Nodes only write result files. This process enters them after checking their digests, as always.
What a node does not finish is submitted once more, then graded on this machine.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import slurmbox as cluster
from grader.batch.batch import GradingRun, WorkList, pending_result
from grader.batch.grading import worker_command
from grader.course import Submission
from grader.run import results
from labcore import workspace
from labcore.errors import LabError
from slurmbox.jobrecords import ACTIVE
from slurmbox.layout import Layout

FOLDER = ".slurm"  # in the course folder: slices, and the tasks' output
SUBMISSIONS = 2  # times that a job is submitted
TICK = 0.5  # seconds between two looks at the results
SECONDS_PER_QUERY = 30.0
MOST_SILENCE = 120.0  # seconds without an answer of Slurm's, after which the job counts as lost
GRACE = 120.0  # seconds of a task for start and end

SCRIPT = """#!/bin/bash
#SBATCH --job-name=lab-grade
exec {worker} < {folder}/slice-$SLURM_ARRAY_TASK_ID.jsonl > {folder}/answers-$SLURM_ARRAY_TASK_ID
"""


class SlurmClient:
    """The Slurm cluster of $LAB_HOME's workspace."""

    def __init__(self) -> None:
        home = workspace.home()
        cluster.ensure_up(home)
        self.is_site = Layout(home).site.exists()
        self.environment = cluster.environment(home)

    def run(self, *words: str) -> subprocess.CompletedProcess:
        """Run a Slurm command. Raises LabError when it does not exist or does not respond."""
        try:
            return subprocess.run(words, env=self.environment, text=True, capture_output=True,
                                  timeout=SECONDS_PER_QUERY, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LabError(f"{words[0]}: {error}: see `lab cluster status`") from error

    def cpus(self) -> int:
        """Return the CPUs of all nodes; the bundled cluster shares this machine's. Raises
        LabError."""
        if not self.is_site:
            return max(2, len(os.sched_getaffinity(0)))
        done = self.run("sinfo", "--noheader", "--format=%C")
        try:
            return max(1, int(done.stdout.split()[0].split("/")[3]))
        except (IndexError, ValueError) as error:
            raise LabError(f"sinfo: {done.stderr.strip() or done.stdout.strip()}") from error

    def submit(self, script: Path, tasks: int, minutes: int) -> str:
        """Submit an array job and return its id.

        Args:
            script: the job script.
            tasks: the size of the array.
            minutes: the time limit.

        Raises LabError with sbatch's message.
        """
        done = self.run("sbatch", "--parsable", f"--array=0-{tasks - 1}", "--ntasks=1",
                        "--cpus-per-task=1", "--no-requeue", f"--time={minutes}",
                        f"--output={script.parent}/task-%a.log", f"--chdir={script.parent}",
                        str(script))
        if done.returncode:
            raise LabError(f"sbatch: {done.stderr.strip()}")
        return done.stdout.strip().partition(";")[0]

    def is_active(self, job: str) -> bool | None:
        """Return whether an array task is pending or running; None if Slurm does not respond."""
        try:
            done = self.run("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        except LabError:
            return None
        if done.returncode:
            return False if "Invalid job id" in done.stderr else None
        return any(word in ACTIVE for word in done.stdout.split())

    def cancel(self, job: str) -> None:
        self.run("scancel", job)


def grade_on_cluster(batch: GradingRun, work: WorkList) -> WorkList:
    """Grade submissions on the cluster, enter the results, and return what is left after two jobs.

    Args:
        batch: the batch.
        work: (lab, student) pairs.

    Raises LabError without a cluster.
    """
    slurm, left = SlurmClient(), set(work)
    folder = batch.course.root / FOLDER
    for _ in range(SUBMISSIONS):
        if left:
            shutil.rmtree(folder, ignore_errors=True)
            left = run_array_job(batch, slurm, folder, [one for one in work if one in left])
    shutil.rmtree(folder, ignore_errors=True)
    return [one for one in work if one in left]


def run_array_job(batch: GradingRun, slurm: SlurmClient, folder: Path,
                  work: WorkList) -> set[tuple[str, str]]:
    """Submit an array job and enter its results; return what it left. No task runs on afterwards.

    Args:
        batch: the batch.
        slurm: the cluster.
        folder: where to put the slices and the script.
        work: (lab, student) pairs.
    """
    count = min(len(work), slurm.cpus())
    script = write_slices(batch, folder, [work[index::count] for index in range(count)])
    seconds = -(-len(work) // count) * batch.settings.seconds_per_notebook + GRACE
    before = {one: file_version(Submission(batch.course, *one)) for one in work}
    job = slurm.submit(script, count, int(seconds // 60) + 1)
    try:
        return enter_results(batch, slurm, job, before)
    finally:
        slurm.cancel(job)


def write_slices(batch: GradingRun, folder: Path, slices: list[WorkList]) -> Path:
    """Write a list of tasks for every worker, and the script that starts them.

    Args:
        batch: the batch.
        folder: the folder to create.
        slices: one list of (lab, student) pairs per array task.
    """
    folder.mkdir(mode=0o700)
    for index, tasks in enumerate(slices):
        lines = [json.dumps({"do": "grade", "lab": lab, "student": student}) + "\n"
                 for lab, student in tasks]
        (folder / f"slice-{index}.jsonl").write_text("".join(lines))
    script = folder / "grade.sh"
    worker = shlex.join(worker_command(batch.course, batch.backend))
    script.write_text(SCRIPT.format(worker=worker, folder=shlex.quote(str(folder))))
    return script


def enter_results(batch: GradingRun, slurm: SlurmClient, job: str,
                  before: dict[tuple[str, str], object]) -> set[tuple[str, str]]:
    """Enter results as they appear until the job ends; return the submissions without one.

    Args:
        batch: the batch.
        slurm: the cluster.
        job: the job id.
        before: file_version of each result before the job.
    """
    left, last_answer, active = set(before), time.monotonic(), True
    while left and active and time.monotonic() - last_answer < MOST_SILENCE:
        state = slurm.is_active(job)
        if state is not None:
            last_answer, active = time.monotonic(), state
        for one in sorted(left):  # a look after the job's end, too
            submission = Submission(batch.course, *one)
            if file_version(submission) == before[one]:
                continue
            if result := pending_result(submission, batch.settings):
                left.discard(one)
                batch.enter(result)
        for finished in batch.pool.finished():  # pages
            batch.handle(finished)
        if active:
            time.sleep(TICK)
    return left


def file_version(submission: Submission) -> tuple[int, int] | None:
    """Return a value that changes when a result is written; None if there is no result."""
    try:
        status = results.path(submission).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
