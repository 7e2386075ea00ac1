"""Use Slurm from a notebook: connect to the cluster, and wait for jobs."""

from __future__ import annotations

import getpass
import hashlib
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labcore import workspace
from labcore.atomic import write_atomic
from labcore.colors import bad, good
from labcore.errors import LabError
from lablib import served, submissions
from slurmbox.jobrecords import ACTIVE
from slurmbox.layout import Layout

MAX_WAIT = 55  # seconds; no cell of the course runs longer than a minute
SESSION = "JPY_SESSION_NAME"  # the notebook's path, set by Jupyter's server
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


class NotOver(LabError):
    """Raised when the waiting ends before the job does, so that no later cell shows results that
    are incomplete. Notebooks show only its message."""

    def _render_traceback_(self) -> list[str]:
        return [f"{bad('✗')} {self}"]


def connect() -> None:
    """Put Slurm's commands on this notebook's PATH, and start the course's cluster if it is down.

    From then on, the notebook remembers which cell submitted which job (lablib.submissions).

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
    _remember_submissions(home)


def _remember_submissions(home: Path) -> None:
    """Put lablib.submissions in front of sbatch, and tell it which cell runs."""
    folder = Layout(home).notebook_bin
    folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join([sys.executable, "-S", "-E", "-s", submissions.__file__, str(folder)])
    write_atomic(folder / "sbatch", f'#!/bin/sh\nexec {command} "$@"\n'.encode(), 0o755)
    if str(folder) not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([str(folder), os.environ["PATH"]])
    if os.environ.get(submissions.KERNEL, "").partition("-")[0] == str(os.getpid()):
        return  # connected again
    os.environ[submissions.KERNEL] = f"{os.getpid()}-{time.time():.0f}"
    os.environ[submissions.NOTEBOOK] = os.environ.get(SESSION, "")
    from IPython.core.getipython import get_ipython

    if (shell := get_ipython()) is not None:
        shell.events.register("pre_run_cell", _name_cell)


def _name_cell(info: Any) -> None:
    """Tell programs that the next cell starts which cell that is."""
    from IPython.core.getipython import get_ipython

    digest = hashlib.sha256(info.raw_cell.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    os.environ[submissions.CELL] = info.cell_id or digest
    os.environ[submissions.RUN] = str(get_ipython().execution_count)


def show(job: int | str | None = None) -> JobState:
    """Return the state of a job, or of the one that this notebook submitted last.

    Raises:
        LabError: Slurm has no such job, or the notebook has submitted none.
    """
    if job is None:
        return latest(1)[0]
    states = [state for line in _scontrol("show", "job", str(job)) if (state := _parse(line))]
    mine = [one for one in submissions.read(workspace.home()) if str(one.job) == str(job)]
    if mine and not states:  # Slurm forgets a job five minutes after its end
        states = _recorded(mine[-1])
    if not states:
        raise LabError(f"Slurm has no job {job} (any more); sacct lists old jobs")
    return max(states, key=lambda state: state.job)


def _recorded(submission: submissions.Submission) -> list[JobState]:
    """Return the state in which a job ended that Slurm's controller has forgotten."""
    log = Path(submission.log) if submission.log else None
    if (ended := submissions.final_state(workspace.home(), submission)) is not None:
        return [JobState(submission.job, ended["name"], ended["state"], "None", ended["seconds"],
                         log)]
    if found := submissions.accounted(submission):
        return [JobState(submission.job, found["JobName"], found["State"].split()[0], "None",
                         _seconds(found["Elapsed"]), log)]
    return []


def latest(count: int) -> list[JobState]:
    """Return the `count` jobs that this notebook submitted last, in the order of submission.

    Jobs of other notebooks and of terminals do not count.

    Raises:
        LabError: there are fewer jobs.
    """
    kernel = os.environ.get(submissions.KERNEL)
    if kernel is None:
        raise LabError("this notebook is not connected to Slurm: run jobs.connect() first")
    mine = list(dict.fromkeys(one.job for one in submissions.read(workspace.home())
                              if one.kernel == kernel))
    if len(mine) < count:
        had = f"only {len(mine)} of the {count} jobs" if mine else "no job"
        raise LabError(f"this notebook has submitted {had} since its kernel started: run the cell "
                       "that calls sbatch. If its job has completed before, it is not submitted "
                       "again. For a job from elsewhere, give its ID: jobs.wait(12)")
    return [show(job) for job in mine[-count:]]


def wait(job: int | str | None = None, seconds: float = MAX_WAIT) -> JobState:
    """Wait for a job and print its states; if it fails, print the last lines of its log.

    Args:
        job: its ID; None for the one that this notebook submitted last.
        seconds: the longest time to wait.

    Raises:
        NotOver: the job has not ended yet.
        LabError: Slurm has no such job, or the notebook has submitted none.
    """
    now = _wait(job, seconds)
    if not now.is_over:
        raise _not_over([now], seconds)
    return now


def wait_latest(count: int, seconds: float = MAX_WAIT) -> list[JobState]:
    """Wait for the jobs that this notebook submitted last, as wait() does, and return them.

    Args:
        count: the number of jobs.
        seconds: the longest time to wait for all of them together.
    """
    begin = time.monotonic()
    states = [_wait(one.job, max(0.0, seconds - (time.monotonic() - begin)))
              for one in latest(count)]
    if running := [state for state in states if not state.is_over]:
        raise _not_over(running, seconds)
    return states


def _not_over(states: list[JobState], seconds: float) -> NotOver:
    jobs = " and ".join(f"job {state.job} ({state.name}) is {state.state}" for state in states)
    return NotOver(f"After {seconds:g} s, {jobs}, so the cells below have no complete results yet. "
                   "To continue waiting, run this cell again.")


def _wait(job: int | str | None, seconds: float) -> JobState:
    begin, printed = time.monotonic(), ""
    while True:
        now = show(job)
        job = now.job
        if now.state != printed:
            printed = now.state
            reason = f" ({now.reason})" if now.state == "PENDING" and now.reason != "None" else ""
            print(f"job {now.job} ({now.name}): {_colored(now)}{reason}")
        if now.is_over:
            _record(now)
            return _print_end(now)
        if time.monotonic() - begin > seconds:
            _show_link(now.log)
            return now
        time.sleep(0.5)


def _record(now: JobState) -> None:
    """Remember how a job of a notebook ended."""
    for one in reversed(submissions.read(workspace.home())):
        if one.job == now.job and now.log == Path(one.log):
            submissions.record_end(workspace.home(), one, now.state, now.name, now.seconds)
            return


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


def _parse(line: str) -> JobState | None:
    fields = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
    if "JobId" not in fields:
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
