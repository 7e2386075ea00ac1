"""Use Slurm from a notebook: connect to the cluster, and wait for jobs."""

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

MAX_WAIT = 55  # seconds; no cell of the course runs longer than a minute
LAST_LINES = 12  # of a failed job's log


@dataclass(frozen=True)
class JobState:
    """A job as `scontrol show job` reports it.

    Attributes:
        job: its ID.
        name: its name.
        state: such as "PENDING" or "COMPLETED".
        reason: why it is in this state, or "None".
        seconds: its elapsed time.
        log: the file for its output, if any.
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

    Raises:
        LabError: there is no Slurm.
    """
    import slurmbox as cluster

    home = workspace.home()
    cluster.ensure_up(home)
    if job := cluster.leave_job(home):
        print(f"This notebook runs in job {job}. The jobs that you submit here are queued like "
              "any others.")
    os.environ.update(cluster.environment(home))
    os.environ.setdefault("USER", getpass.getuser())  # scripts use it, and containers lack it


def show(job: int | str | None = None) -> JobState:
    """Return the state of a job, or of this user's latest job if none is given.

    Raises:
        LabError: Slurm has no such job.
    """
    if job is None:
        return latest(1)[0]
    states = [state for line in _scontrol("show", "job", str(job)) if (state := _parse(line, None))]
    if not states:
        raise LabError(f"Slurm has no job {job} (any more); sacct lists old jobs")
    return max(states, key=lambda state: state.job)


def latest(count: int) -> list[JobState]:
    """Return this user's `count` latest jobs in the order of their submission.

    Raises:
        LabError: there are fewer jobs.
    """
    lines = _scontrol("show", "job")
    states = [state for line in lines if (state := _parse(line, os.getuid()))]
    if len(states) < count:
        raise LabError(f"Slurm has only {len(states)} of your {count} latest jobs: submit them "
                       "again" if states else "there is no job yet: submit one with sbatch")
    return sorted(states, key=lambda state: state.job)[-count:]


def wait(job: int | str | None = None, seconds: float = MAX_WAIT) -> JobState:
    """Wait for a job and print its states; if it fails, print the last lines of its log.

    Args:
        job: its ID; None for this user's latest job.
        seconds: the longest time to wait.

    Raises:
        LabError: Slurm has no such job.
    """
    begin, printed = time.monotonic(), ""
    while True:
        now = show(job)
        job = now.job
        if now.state != printed:
            printed = now.state
            reason = f" ({now.reason})" if now.state == "PENDING" and now.reason != "None" else ""
            print(f"job {now.job} ({now.name}): {_colored(now)}{reason}")
        if now.is_over:
            return _print_end(now)
        if time.monotonic() - begin > seconds:
            print("It has not ended yet: run this cell again to continue waiting.")
            _show_link(now.log)
            return now
        time.sleep(0.5)


def wait_latest(count: int, seconds: float = MAX_WAIT) -> list[JobState]:
    """Wait for this user's latest jobs, as wait() does, and return them.

    Args:
        count: the number of jobs.
        seconds: the longest time to wait for all of them together.
    """
    begin = time.monotonic()
    return [wait(one.job, max(0.0, seconds - (time.monotonic() - begin)))
            for one in latest(count)]


def _colored(now: JobState) -> str:
    if not now.is_over:
        return now.state
    return good(now.state) if now.state == "COMPLETED" else bad(now.state)


def _print_end(now: JobState) -> JobState:
    print(f"It took {now.seconds} s. Its log: {_relative(now.log)}")
    if now.state != "COMPLETED" and now.log and now.log.is_file():
        last = now.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        print("The log ends with\n  " + "\n  ".join(last))
    _show_link(now.log)
    return now


def _show_link(log: Path | None) -> None:
    """In a notebook, show a link to the log."""
    link = served.file_link(log, "Open the log") if log else None
    if link:
        from IPython.display import display  # imported here, because only notebooks need it

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
        raise LabError("Slurm does not respond: see `lab cluster status`") from None
    if done.returncode and "Invalid job id" not in done.stderr:
        raise LabError(f"scontrol: {done.stderr.strip()}")
    return done.stdout.splitlines()


def _parse(line: str, uid: int | None) -> JobState | None:
    fields = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
    if "JobId" not in fields or (uid is not None and not is_owner(fields, uid)):
        return None
    log = fields.get("StdOut")
    return JobState(int(fields["JobId"]), fields.get("JobName", ""), fields.get("JobState", ""),
                    fields.get("Reason", ""), _seconds(fields.get("RunTime", "")),
                    Path(log) if log else None)


def _seconds(text: str) -> int:
    """Convert Slurm's [days-]hours:minutes:seconds to seconds."""
    days, _, clock = text.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = 60 * total + (int(part) if part.isdigit() else 0)
    return total + 86400 * int(days or 0)
