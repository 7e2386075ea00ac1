"""Four verdicts on a job: is it running, is a process on every GPU, does stderr have errors, and
does it run as requested."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from job_monitor import causes, liveness
from job_monitor.nodes import Node
from job_monitor.picture import WAITING, Picture

GOOD, BAD, UNKNOWN = "ok", "BAD", "-"
RUNS = ("RUNNING", "COMPLETING")
ENDED_WELL = "COMPLETED"
ALIVE = (liveness.RUNNING, liveness.STALLED, liveness.HALTED)
# What a library prints about a problem that no pattern of causes.py knows.
ERROR = re.compile(r"\b(?:error|exception|traceback|fatal|abort(?:ed)?|segmentation fault)\b|"
                   r"\w(?:Error|Exception)\b", re.IGNORECASE)
# Python's warnings, and the log levels of torch (W1124 ...) and NCCL.
WARNING = re.compile(r"warn|^\[?W\d{4} |NCCL (?:INFO|WARN)", re.IGNORECASE)
# A C++ backtrace, below the message that counts: in a warning, too.
BACKTRACE = re.compile(r"^(?:Exception raised from|frame #\d+)")
# Where torch's log says that a record comes from; each line of a record repeats it.
RECORD = re.compile(r"^E\d{4} [\d:.]+ \d+ (\S+:\d+)\]")
# torchrun on one node lost the rendezvous because the other node's had finished first.
HARMLESS = "Error waiting on exit barrier"
LONGEST = 20 * causes.LONGEST


class Verdict(NamedTuple):
    """What was checked, GOOD, BAD, or UNKNOWN (nothing to check), and why."""

    what: str
    word: str
    text: str


def judge(shown: Picture, nodes: Sequence[Node]) -> list[Verdict]:
    """Return the four verdicts.

    Args:
        shown: what is known of the job.
        nodes: the nodes' own files; empty if the job's script keeps none.
    """
    return [_state(shown), _processes(shown, nodes), _stderr(shown, nodes), _configuration(shown)]


def _state(shown: Picture) -> Verdict:
    job = shown.job
    states = job.states or ((job.number, job.state),)
    others = [(number, state) for number, state in states if state not in RUNS]
    if not others:
        return Verdict("state", GOOD, job.state)
    if len(states) == 1:
        text = f"not RUNNING: {job.state}" + (f" ({job.reason})" if job.reason else "")
    else:
        text = "not RUNNING: " + ", ".join(f"job {number} {state}" for number, state in others)
    fine = {state for _, state in others} <= {ENDED_WELL, *WAITING}
    return Verdict("state", UNKNOWN if fine else BAD, text)


def _processes(shown: Picture, nodes: Sequence[Node]) -> Verdict:
    """Judge the GPUs by the ranks' processes where these are known, otherwise by nvidia-smi."""
    name, job = "GPU processes", shown.job
    if job.state not in RUNS:
        return Verdict(name, UNKNOWN, "the job does not run")
    ranks = {(row.file.node, row.file.gpu): row.word in ALIVE for row in shown.rows if row.file}
    listed = {(node.name, gpu.slot): bool(gpu.processes) for node in nodes for gpu in node.gpus}
    used = {place: ranks.get(place, has_process) for place, has_process in listed.items()}
    used |= {place: lives for place, lives in ranks.items() if place[1] is not None}
    total = max(job.gpus or 0, len(used))
    if not total:
        return Verdict(name, UNKNOWN, "the job has no GPU")
    idle = sorted(place for place, lives in used.items() if not lives)
    if idle:
        text = "no process on " + ", ".join(f"GPU {slot} of {node}" for node, slot in idle)
        return Verdict(name, BAD, text)
    if len(used) < total:
        return Verdict(name, BAD, f"a process on {len(used)} of {total} GPUs")
    return Verdict(name, GOOD, f"a process on each of {total} GPUs")


def _stderr(shown: Picture, nodes: Sequence[Node]) -> Verdict:
    """Judge the nodes' .err files; without them, the job's log, in which only known errors
    count."""
    files = [(node.name, node.err) for node in nodes if node.err is not None]
    if not files:
        if not shown.lines:
            return Verdict("stderr", UNKNOWN, "no file yet")
        found = [cause.text for cause in shown.causes]
        return Verdict("stderr", BAD if found else GOOD, found[0] if found else
                       "no error in the log, which has both streams or no node's own")
    wrong = {name: found for name, lines in files if (found := errors(lines))}
    if not wrong:
        some = [f"{name}.err" for name, lines in files if any(line.strip() for line in lines)]
        return Verdict("stderr", GOOD, f"no error, in {', '.join(some)}" if some else "empty")
    known = [cause for name, lines in files if name in wrong for cause in causes.find(lines)]
    first = known[0].text if known else next(iter(wrong.values()))[0]
    count = ", ".join(f"{len(lines)} in {name}.err" for name, lines in wrong.items())
    return Verdict("stderr", BAD, f"error lines: {count}; the first: {first}")


def errors(lines: Sequence[str]) -> list[str]:
    """Return the lines of a stderr file that report an error, and not a warning."""
    found, harmless = [], ""
    for line in (line[:LONGEST] for line in lines):
        record = match[1] if (match := RECORD.match(line)) else ""
        if HARMLESS in line:
            harmless = record
        skipped = BACKTRACE.match(line) or (record and record == harmless)
        if ERROR.search(line) and not WARNING.search(line) and not skipped:
            found.append(causes.clean(line))
    return found


def _configuration(shown: Picture) -> Verdict:
    if not shown.config:
        return Verdict("configuration", UNKNOWN, "the trainer has not printed it yet")
    if shown.mismatches:
        return Verdict("configuration", BAD, "differs: " + "; ".join(map(str, shown.mismatches)))
    same = sum(one.asked is not None for one in shown.settings)
    return Verdict("configuration", GOOD, f"{same} settings as requested")
