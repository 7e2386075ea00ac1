"""Judge a job: is it running, is a process on every GPU, does stderr have errors, and does it run
as requested."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from job_monitor import causes, liveness
from job_monitor.nodes import NodeFiles
from job_monitor.snapshot import WAITING, Snapshot

GOOD, BAD, UNKNOWN = "ok", "BAD", "-"
RUNS = ("RUNNING", "COMPLETING")
ENDED_WELL = "COMPLETED"
ALIVE = (liveness.RUNNING, liveness.STALLED, liveness.STOPPED)
# Words with which a library reports a problem that no pattern of causes.py matches.
ERROR = re.compile(r"\b(?:error|exception|traceback|fatal|abort(?:ed)?|segmentation fault)\b|"
                   r"\w(?:Error|Exception)\b", re.IGNORECASE)
# A C++ backtrace. It follows the message itself, which may be a warning.
BACKTRACE = re.compile(r"^(?:Exception raised from|frame #\d+)")
# The source location in a record of torch's log, which each line of the record repeats.
RECORD = re.compile(r"^E\d{4} [\d:.]+ \d+ (\S+:\d+)\]")
# On one node, torchrun lost the rendezvous because the other node's torchrun had finished first.
HARMLESS = "Error waiting on exit barrier"
MAX_LENGTH = 20 * causes.MAX_LENGTH


class JobVerdict(NamedTuple):
    """The result of one check.

    Attributes:
        check: what was checked.
        verdict: GOOD, BAD, or UNKNOWN if there was nothing to check.
        reason: why, in words.
    """

    check: str
    verdict: str
    reason: str


def judge(snapshot: Snapshot, nodes: Sequence[NodeFiles]) -> list[JobVerdict]:
    """Return the four verdicts.

    Args:
        snapshot: the job.
        nodes: the nodes' own files; empty if the job's script writes none.
    """
    return [_state(snapshot), _processes(snapshot, nodes), _stderr(snapshot, nodes),
            _configuration(snapshot)]


def _state(snapshot: Snapshot) -> JobVerdict:
    job = snapshot.job
    states = job.states or ((job.number, job.state),)
    others = [(number, state) for number, state in states if state not in RUNS]
    if not others:
        return JobVerdict("state", GOOD, job.state)
    if len(states) == 1:
        text = f"not RUNNING: {job.state}" + (f" ({job.reason})" if job.reason else "")
    else:
        text = "not RUNNING: " + ", ".join(f"job {number} {state}" for number, state in others)
    fine = {state for _, state in others} <= {ENDED_WELL, *WAITING}
    return JobVerdict("state", UNKNOWN if fine else BAD, text)


def _processes(snapshot: Snapshot, nodes: Sequence[NodeFiles]) -> JobVerdict:
    """Judge the GPUs by the ranks' processes if they are known, otherwise by nvidia-smi."""
    name, job = "GPU processes", snapshot.job
    if job.state not in RUNS:
        return JobVerdict(name, UNKNOWN, "the job is not running")
    ranks = {(row.status.node, row.status.gpu): row.health in ALIVE
             for row in snapshot.rows if row.status}
    listed = {(node.name, gpu.slot): bool(gpu.processes) for node in nodes for gpu in node.gpus}
    used = {gpu: ranks.get(gpu, has_process) for gpu, has_process in listed.items()}
    used |= {gpu: has_process for gpu, has_process in ranks.items() if gpu[1] is not None}
    total = max(job.gpus or 0, len(used))
    if not total:
        return JobVerdict(name, UNKNOWN, "the job has no GPU")
    idle = sorted(gpu for gpu, has_process in used.items() if not has_process)
    if idle:
        text = "no process on " + ", ".join(f"GPU {slot} of {node}" for node, slot in idle)
        return JobVerdict(name, BAD, text)
    if len(used) < total:
        return JobVerdict(name, BAD, f"a process on only {len(used)} of {total} GPUs")
    return JobVerdict(name, GOOD, f"a process on each of {total} GPUs")


def _stderr(snapshot: Snapshot, nodes: Sequence[NodeFiles]) -> JobVerdict:
    """Judge the nodes' .err files, or else the job's log, in which only known errors count."""
    files = [(node.name, node.err) for node in nodes if node.err is not None]
    if not files:
        if not snapshot.lines:
            return JobVerdict("stderr", UNKNOWN, "no file yet")
        texts = [error.text for error in snapshot.errors]
        return JobVerdict("stderr", BAD if texts else GOOD, texts[0] if texts else
                          "no known error in the log; the nodes wrote no .err files")
    wrong = {name: errors for name, lines in files if (errors := error_lines(lines))}
    if not wrong:
        written = [f"{name}.err" for name, lines in files if any(line.strip() for line in lines)]
        return JobVerdict("stderr", GOOD, f"no error in {', '.join(written)}" if written
                          else "empty")
    known = [error for name, lines in files if name in wrong for error in causes.find_errors(lines)]
    first = known[0].text if known else next(iter(wrong.values()))[0]
    count = ", ".join(f"{len(lines)} in {name}.err" for name, lines in wrong.items())
    return JobVerdict("stderr", BAD, f"error lines: {count}; the first: {first}")


def error_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines of a stderr file that report an error rather than a warning."""
    errors, harmless = [], ""
    for line in (line[:MAX_LENGTH] for line in lines):
        record = match[1] if (match := RECORD.match(line)) else ""
        if HARMLESS in line:
            harmless = record
        skipped = BACKTRACE.match(line) or (record and record == harmless)
        if ERROR.search(line) and not causes.WARNING.search(line) and not skipped:
            errors.append(causes.clean(line))
    return errors


def _configuration(snapshot: Snapshot) -> JobVerdict:
    if not snapshot.config:
        return JobVerdict("configuration", UNKNOWN, "the trainer has not printed it yet")
    if snapshot.mismatches:
        return JobVerdict("configuration", BAD,
                          "differs: " + "; ".join(map(str, snapshot.mismatches)))
    same = sum(one.requested is not None for one in snapshot.settings)
    return JobVerdict("configuration", GOOD, f"{same} settings as requested")
