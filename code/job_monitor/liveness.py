"""Judge the health of every rank: running, stalled, stopped, dead, done, or failed, and why.

The evidence is what an operator would check: whether the job is alive, whether the process is, when
the rank last reported, and which errors it logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from job_monitor import causes, ranks
from job_monitor.causes import LogError
from job_monitor.components import SlurmJob
from job_monitor.ranks import RankStatus

RUNNING, STALLED, STOPPED, DEAD, DONE, FAILED = (
    "running", "stalled", "stopped", "dead", "done", "failed")
# A rank in training is stalled after STALL_STEPS typical steps and at least STALL_SECONDS without
# an update. A start, an evaluation, or a checkpoint may take LONG_PHASE_SECONDS.
STALL_STEPS, STALL_SECONDS, LONG_PHASE_SECONDS = 20, 10.0, 180.0
# Why a rank that did not report its own end ended with its job.
ENDS = {"CANCELLED": "the job was cancelled", "TIMEOUT": "the job reached its time limit",
        "NODE_FAIL": "a node of the job failed", "OUT_OF_MEMORY": "the job ran out of memory",
        "PREEMPTED": "another job preempted it"}


def rank_health(status: RankStatus, process: str | None, job: SlurmJob, errors: Iterable[LogError],
                now: float) -> tuple[str, str]:
    """Return the health of a rank, and the reason.

    Args:
        status: the rank's status file.
        process: the state of its process, as from `ranks.process`.
        errors: errors in the job's log.
        now: the time in seconds since the epoch.
    """
    error = causes.first_of_rank([one for one in errors if one.tier < causes.EXIT], status.number)
    over = job.is_over or process == ranks.GONE
    if status.state == "done" or status.state.startswith("stopped "):
        ended = ("all iterations" if status.state == "done"
                 else f"exited {status.state[8:].rstrip('.')}")
        return DONE, ended
    if error and error.kind == "killed":
        return DEAD, error.text
    if error and (over or error.tier == causes.OWN):
        return FAILED, error.text
    if status.state == "failed":
        return FAILED, error.text if error else "ended with an error"
    if over:
        return (DONE, "") if job.state == "COMPLETED" else (DEAD, _end_reason(job))
    if process == ranks.STOPPED:
        return STOPPED, "a signal (SIGSTOP, Ctrl-Z) has stopped its process; SIGCONT resumes it"
    return _health_by_age(status, now)


def _end_reason(job: SlurmJob) -> str:
    if job.state in ENDS:
        return ENDS[job.state]
    if job.is_over:
        return "ended with the job, and reported no error"
    return "its process is gone, and reported no error"


def _health_by_age(status: RankStatus, now: float) -> tuple[str, str]:
    age = max(0.0, now - status.written)
    if status.state == "training" and status.pace:
        limit = max(STALL_SECONDS, STALL_STEPS * status.pace)
        typical = f"; a step usually takes {status.pace:.2g} s"
    else:
        limit, typical = LONG_PHASE_SECONDS, ""
    if age > limit:
        return STALLED, f"no update for {age:.0f} s in state {status.state}{typical}"
    return RUNNING, "" if status.state == "training" else status.state


def missing_rank_health(number: int, job: SlurmJob, errors: Iterable[LogError]) -> tuple[str, str]:
    """Return the health of a rank that has no status file, and the reason.

    Args:
        number: the rank.
        errors: errors in the job's log.
    """
    error = causes.first_of_rank(list(errors), number)
    if error:
        return (DEAD if error.kind == "killed" else FAILED), error.text
    return (DEAD, "never reported") if job.is_over else (RUNNING, "has not reported yet")


def unresponsive_ranks(root: LogError | None, errors: Iterable[LogError],
                       health: Mapping[int, str]) -> list[int]:
    """Return the ranks that the others wait for, as far as that is known.

    These are stopped ranks, or, after a timeout, the ranks that reported none: a rank that reports
    a timeout was waiting for another.

    Args:
        root: the root cause, if any.
        errors: errors in the job's log.
    """
    stopped = [rank for rank, word in health.items() if word == STOPPED]
    if stopped or root is None or root.kind != "timeout":
        return stopped
    errors = list(errors)
    reporting = {rank for error in errors for rank in error.ranks}
    lost = {rank for error in errors for rank in error.lost}
    unresponsive = sorted(lost - reporting or set(health) - reporting)
    return unresponsive if reporting else []
