"""One word for every rank, and why: running, stalled, stopped, dead, done or failed.

As an operator would: is the job alive, is the process, when did the rank last say something, and
what has it said on the error stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from job_monitor import causes
from job_monitor.causes import Cause
from job_monitor.ranks import GONE, STOPPED, Rank
from job_monitor.slurm import Job

RUNNING, STALLED, HALTED, DEAD, DONE, FAILED = (
    "running", "stalled", "stopped", "dead", "done", "failed")
# Seconds of silence: so many usual steps and at least so long, then a rank is stalled. What takes
# longer than a step (start, evaluation, a checkpoint) may last PATIENCE.
USUAL, LEAST, PATIENCE = 20, 10.0, 180.0
# What the job's end means for a rank that did not come to its own.
ENDS = {"CANCELLED": "the job was cancelled", "TIMEOUT": "the job's time was up",
        "NODE_FAIL": "a node of the job failed", "OUT_OF_MEMORY": "the job's memory was used up",
        "PREEMPTED": "another job took the nodes"}


def judge(rank: Rank, process: str | None, job: Job, found: Iterable[Cause], now: float,
          ) -> tuple[str, str]:
    """(word, reason) of a rank. process: as ranks.process; found: as causes.find; now: in seconds
    since the epoch."""
    said = causes.of_rank([cause for cause in found if cause.tier < causes.EXIT], rank.number)
    over = job.is_over or process == GONE
    if rank.state == "done" or rank.state.startswith("stopped "):
        ended = "all iterations" if rank.state == "done" else f"exited {rank.state[8:].rstrip('.')}"
        return DONE, ended
    if said and said.kind == "killed":
        return DEAD, said.text
    if said and (over or said.tier == causes.OWN):
        return FAILED, said.text
    if rank.state == "failed":
        return FAILED, said.text if said else "ended with an error"
    if over:
        return (DONE, "") if job.state == "COMPLETED" else (DEAD, _end(job, process))
    if process == STOPPED:
        return HALTED, "its process is stopped by a signal (SIGSTOP, ^Z); SIGCONT lets it go on"
    return _by_silence(rank, now)


def _end(job: Job, process: str | None) -> str:
    if job.state in ENDS:
        return ENDS[job.state]
    if job.is_over:
        return "ended without a word of its own when the job failed"
    return "its process is gone, without a word"


def _by_silence(rank: Rank, now: float) -> tuple[str, str]:
    silent = max(0.0, now - rank.written)
    if rank.state == "training" and rank.pace:
        limit = max(LEAST, USUAL * rank.pace)
        usual = f"; a step usually takes {rank.pace:.2g} s"
    else:
        limit, usual = PATIENCE, ""
    if silent > limit:
        return STALLED, f"nothing for {silent:.0f} s in state {rank.state}{usual}"
    return RUNNING, "" if rank.state == "training" else rank.state


def missing(number: int, job: Job, found: Iterable[Cause]) -> tuple[str, str]:
    """Return the state of a rank that has no status file, and the reason.

    Args:
        number: the rank.
        job: its Slurm job.
        found: errors in the job's log.
    """
    said = causes.of_rank(list(found), number)
    if said:
        return (DEAD if said.kind == "killed" else FAILED), said.text
    return (DEAD, "never reported") if job.is_over else (RUNNING, "has not reported yet")


def silent_ones(root: Cause | None, found: Iterable[Cause], ranks: Iterable[int],
                words: Mapping[int, str]) -> list[int]:
    """After a time-out or while ranks stall: those that the others wait for, as far as that can be
    told. A rank that complains waits; one that is stopped, dead or silent is waited for."""
    culprits = [rank for rank, word in words.items() if word == HALTED]
    if culprits or root is None or root.kind != "time-out":
        return culprits
    found = list(found)
    complained = {rank for cause in found for rank in cause.ranks}
    named = {rank for cause in found for rank in cause.lost}
    silent = sorted(named - complained or set(ranks) - complained)
    return silent if complained else []
