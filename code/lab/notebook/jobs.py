"""Slurm from a notebook: connect to the cluster, and wait for jobs."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lab.notebook import served
from labcore import workspace
from labcore.colors import bad, good
from labcore.errors import LabError
from slurmbox.jobrecords import ACTIVE, is_owner

LONGEST_WAIT = 55  # seconds: no cell of the course runs longer than a minute
LAST_LINES = 12


@dataclass(frozen=True)
class State:
    """A job as `scontrol show job` reports it.

    Attributes:
        job: its ID.
        name: of the job.
        state: such as "PENDING" or "COMPLETED".
        reason: why it is in this state, or "None".
        seconds: its elapsed time.
        log: the file that its output goes to, if any.
    """

    job: int
    name: str
    state: str
    reason: str
    seconds: int
    log: Path | None

    @property
    def is_over(self) -> bool:
        return self.state not in ACTIVE


def connect() -> None:
    """Put Slurm's commands on this notebook's PATH, and start the course's cluster if it is down.

    Raises LabError if there is no Slurm.
    """
    import slurmbox as cluster

    home = workspace.home()
    cluster.ensure_up(home)
    if job := cluster.leave_job(home):
        print(f"This notebook runs in job {job}. The jobs that you submit here are queued like "
              "any others.")
    os.environ.update(cluster.environment(home))
    os.environ.setdefault("USER", getpass.getuser())  # containers leave it out; scripts use it


def show(job: int | str | None = None) -> State:
    """Return the state of a job, or of this user's latest job.

    Raises LabError if Slurm does not know it.
    """
    if job is None:
        return latest(1)[0]
    found = [state for line in _scontrol("show", "job", str(job)) if (state := _parse(line, None))]
    if not found:
        raise LabError(f"Slurm does not know job {job} (any more); sacct lists old jobs")
    return max(found, key=lambda state: state.job)


def latest(count: int) -> list[State]:
    """Return this user's `count` latest jobs in the order of their submission.

    Raises LabError if there are fewer.
    """
    lines = _scontrol("show", "job")
    found = [state for line in lines if (state := _parse(line, os.getuid()))]
    if len(found) < count:
        raise LabError(f"Slurm knows {len(found)} of your {count} latest jobs: submit them again"
                       if found else "there is no job yet: submit one with sbatch")
    return sorted(found, key=lambda state: state.job)[-count:]


def wait(job: int | str | None = None, seconds: float = LONGEST_WAIT) -> State:
    """Wait for a job and print its states; if it fails, print the last lines of its log.

    Args:
        job: its ID; None: this user's latest job.
        seconds: the longest time to wait.

    Raises LabError if Slurm does not know the job.
    """
    begin, said = time.monotonic(), ""
    while True:
        now = show(job)
        job = now.job
        if now.state != said:
            said = now.state
            why = f" ({now.reason})" if now.state == "PENDING" and now.reason != "None" else ""
            print(f"job {now.job} ({now.name}): {_shown(now)}{why}")
        if now.is_over:
            return _ended(now)
        if time.monotonic() - begin > seconds:
            print("It is not over yet: run this cell again to go on waiting.")
            _link(now.log)
            return now
        time.sleep(0.5)


def wait_latest(count: int, seconds: float = LONGEST_WAIT) -> list[State]:
    """Wait for this user's latest jobs, as wait() does, and return them.

    Args:
        count: how many.
        seconds: the longest time to wait for all of them together.
    """
    begin = time.monotonic()
    return [wait(one.job, max(0.0, seconds - (time.monotonic() - begin)))
            for one in latest(count)]


def _shown(now: State) -> str:
    if not now.is_over:
        return now.state
    return good(now.state) if now.state == "COMPLETED" else bad(now.state)


def _ended(now: State) -> State:
    print(f"It took {now.seconds} s. Its log: {_relative(now.log)}")
    if now.state != "COMPLETED" and now.log and now.log.is_file():
        last = now.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        print("The log ends with\n  " + "\n  ".join(last))
    _link(now.log)
    return now


def _link(log: Path | None) -> None:
    """In a notebook, show a link to the log."""
    link = served.file_link(log, "Open the log") if log else None
    if link:
        from IPython.display import display  # only where there is a kernel

        display(link)


def _relative(log: Path | None) -> str:
    if log is None:
        return "none"
    home = workspace.home()
    return str(log.relative_to(home) if log.is_relative_to(home) else log)


def _scontrol(*words: str) -> list[str]:
    try:
        done = subprocess.run(["scontrol", "--oneliner", *words], capture_output=True, text=True,
                              timeout=30)
    except FileNotFoundError:
        raise LabError("Slurm's commands are not on the PATH: run jobs.connect() first") from None
    except subprocess.TimeoutExpired:
        raise LabError("Slurm does not answer: see `lab cluster status`") from None
    if done.returncode and "Invalid job id" not in done.stderr:
        raise LabError(f"scontrol: {done.stderr.strip()}")
    return done.stdout.splitlines()


def _parse(line: str, uid: int | None) -> State | None:
    fields = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
    if "JobId" not in fields or (uid is not None and not is_owner(fields, uid)):
        return None
    log = fields.get("StdOut")
    return State(int(fields["JobId"]), fields.get("JobName", ""), fields.get("JobState", ""),
                 fields.get("Reason", ""), _seconds(fields.get("RunTime", "")),
                 Path(log) if log else None)


def _seconds(text: str) -> int:
    """Convert Slurm's [days-]hours:minutes:seconds to seconds."""
    days, _, clock = text.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = 60 * total + (int(part) if part.isdigit() else 0)
    return total + 86400 * int(days or 0)
