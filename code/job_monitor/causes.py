"""Find the root cause of a failure in a job's log.

When one rank fails, the others lose contact, the launcher ends them, srun ends the launchers, and
each logs an error. Every such line has a tier, and the first line in the lowest tier is the root
cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labcore.terminal import visible

# Tiers: an error reported where it happened; a signal or the script; timeouts and kills, which may
# be a cause or a consequence; lost connections and exit codes, which are only consequences.
OWN, SIGNAL, TIMEOUT, LOST, EXIT = range(5)
MAX_LENGTH = 400  # characters of a message
HEAD, TAIL = 2**20, 2**23  # bytes that are read at either end of a log
OMISSION = "..."  # the line between the two
WORLD = "using world size: "  # in the trainer's first line
STARTS = (WORLD, "DUE TO JOB REQUEUE")  # begin another attempt in the same log
SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}


@dataclass(frozen=True)
class LogError:
    """An error in a log, with the ranks that report the same.

    Attributes:
        kind: its category, such as "out of memory".
        text: the message.
        ranks: the ranks that report it; empty if not known.
        line: its line in the log, from 0.
        tier: how likely it is the root cause; the lowest tier wins.
        lost: the ranks that the message names as lost.
    """

    kind: str
    text: str
    ranks: tuple[int, ...]
    line: int
    tier: int
    lost: tuple[int, ...] = ()


PREFIX = re.compile(r"^(?: *\d+: )?(?:\[default\d+\]:)?(?:\[rank(\d+)\]: ?)?")  # srun -l, torchrun
OUT_OF_MEMORY = r"(?:CUDA|HIP) out of memory"
CONNECTION_LOSS = re.compile(
    r"lost contact|Connection (?:closed|reset|refused)|Broken pipe|[Tt]imed out|"
    r"Watchdog caught|remote process (?:has )?exited")
LOST_RANK = re.compile(r"lost contact with rank (\d+)")
# (tier, kind, pattern); the named group `rank` is the rank that reports it, `text` the message.
PATTERNS = [(tier, kind, re.compile(pattern)) for tier, kind, pattern in (
    (OWN, "out of memory", rf"^(?:\[rank (?P<rank>\d+)\] )?(?:[\w.]*Error: )?"
                           rf"(?P<text>{OUT_OF_MEMORY}.*)"),
    (OWN, "memory limit", r"(?P<text>[Ee]xceeded (?:job )?memory limit.*|oom[-_]kill event.*)"),
    (OWN, "time limit", r"slurmstepd\S*: error: (?P<text>\*\*\* JOB .*DUE TO TIME LIMIT.*)"),
    (OWN, "node failure", r"error: (?P<text>.*(?:DUE TO NODE FAILURE|Node failure on).*)"),
    (OWN, "cancelled", r"slurmstepd\S*: error: (?P<text>\*\*\* JOB \d+ ON \S+ CANCELLED AT .*)"),
    (OWN, "error", r"^\[rank (?P<rank>\d+)\] (?P<text>(?:error: |[A-Za-z_]\w*"
                   r"(?:Error|Exception|Interrupt): ).*)"),
    (OWN, "error", r"^(?P<text>error: .+|[^:]*python[\d.]*: can't open file .*)"),
    (OWN, "exception", r"^(?P<text>[A-Za-z_][\w.]*(?:Error|Exception)(?:: .*)?)$"),
    (SIGNAL, "script", r": line \d+: (?P<text>.*(?:command not found|No such file or directory|"
                       r"Permission denied|unbound variable|syntax error).*)"),
    (TIMEOUT, "timeout", r"(?P<text>\[Rank (?P<rank>\d+)\] Watchdog caught .*)"),
    (TIMEOUT, "killed", r"^srun: error: (?P<text>\S+: tasks? [\d,-]+: (?:Killed|Out Of Memory|"
                        r"Segmentation fault|Aborted|Bus error).*)"),
    (TIMEOUT, "killed", r"^(?P<text>terminate called .*)"),
    (EXIT, "exit code", r"^srun: error: (?P<text>\S+: tasks? [\d,-]+: Exited with exit code .*)"),
)]
HINT = re.compile(r"[Ee]rror|Exception|Interrupt|memory|oom|line \d+: |terminate called|Watchdog|"
                  r"can't open")  # a cheap test, because few lines are worth all the patterns
# In torchrun's summary, a failure is a block with these two lines.
BLOCK_RANK = re.compile(r"^ +rank +: (\d+) \(local_rank: \d+\)")
BLOCK_EXIT = re.compile(r"^ +exitcode +: (-?\d+) ")
FIRST_FAILURE = "Root Cause (first observed failure)"


def clean(text: str) -> str:
    """Return text from a log, truncated and without control characters, safe to print."""
    return visible(text[:MAX_LENGTH], instead=" ").strip()


def read(path: Path) -> list[str]:
    """Return a log's lines; empty if there is no log.

    Only the first HEAD and the last TAIL bytes of a very long log are read.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            data = file.read(HEAD)
            if size > HEAD:
                file.seek(max(HEAD, size - TAIL))
                data += f"\n{OMISSION}\n".encode() * (size > HEAD + TAIL) + file.read(TAIL)
    except OSError:
        return []
    return data.decode(errors="replace").splitlines()


def find_errors(lines: Sequence[str]) -> list[LogError]:
    """Return a log's errors, the root cause first; the same error of several ranks is one."""
    errors = [error for number, line in enumerate(lines) if (error := _parse_line(line, number))]
    errors = _merge_anonymous(errors)
    errors += _signals(lines)
    errors = _with_first_failure(errors, lines)
    return _merge_ranks(sorted(errors, key=lambda error: (error.tier, error.line)))


def errors_of_last_start(lines: Sequence[str]) -> list[LogError]:
    """Return the errors since the trainer's last start; a requeued job has several starts."""
    start = next((number for number in range(len(lines) - 1, 0, -1)
                  if any(word in lines[number] for word in STARTS)), 0)
    return [replace(error, line=error.line + start) for error in find_errors(lines[start:])]


def _parse_line(line: str, number: int) -> LogError | None:
    if len(line) > 20 * MAX_LENGTH or not HINT.search(line):
        return None
    prefix = PREFIX.match(line)
    line = line[prefix.end():]
    for tier, kind, pattern in PATTERNS:
        match = pattern.search(line)
        if not match:
            continue
        text, rank = match["text"], match.groupdict().get("rank") or prefix[1]
        if text.startswith("torch.distributed.elastic") or "ChildFailedError" in text:
            return None
        if kind in ("error", "exception") and CONNECTION_LOSS.search(text):
            timed_out = re.search("[Tt]imed out|Watchdog", text)
            tier, kind = (TIMEOUT, "timeout") if timed_out else (LOST, "lost contact")
        ranks = (int(rank),) if rank else ()
        lost = tuple(map(int, LOST_RANK.findall(text)))
        return LogError(kind, clean(text.removeprefix("error: ")), ranks, number, tier, lost)
    return None


def _merge_anonymous(errors: list[LogError]) -> list[LogError]:
    """Merge a message without a rank into the next one if that repeats it with a rank."""
    merged, dropped = list(errors), set()
    for index, error in enumerate(errors[:-1]):
        after = errors[index + 1]
        message = error.text.partition(": ")[2] or error.text
        if not error.ranks and after.ranks and message in after.text:
            merged[index + 1] = replace(after, line=error.line)
            dropped.add(index)
    return [error for index, error in enumerate(merged) if index not in dropped]


def _failure_blocks(lines: Sequence[str]) -> Iterator[tuple[int, int, int, bool]]:
    """Yield the failures in torchrun's summaries.

    Each is a tuple (line, rank, exit code, whether it is the first failure of its node).
    """
    rank, first = None, False
    for number, line in enumerate(lines):
        if FIRST_FAILURE in line:
            first = True
        elif line.startswith("Failures:"):
            first = False
        elif match := BLOCK_RANK.match(line):
            rank = int(match[1])
        elif rank is not None and (match := BLOCK_EXIT.match(line)):
            yield number, rank, int(match[1]), first
            rank = None


def _signals(lines: Sequence[str]) -> list[LogError]:
    """Return the ranks killed by a signal, without SIGTERM and SIGINT, which launchers send."""
    errors = []
    for number, rank, code, _ in _failure_blocks(lines):
        if -code in SIGNALS:
            name = SIGNALS[-code]
            hint = ": by a user, or by the kernel when memory ran out" if code == -9 else ""
            errors.append(LogError("killed", f"killed by {name}{hint}", (rank,), number, SIGNAL))
    return errors


def _with_first_failure(errors: list[LogError], lines: Sequence[str]) -> list[LogError]:
    """Assign the first exception without a rank to the only rank that torchrun saw fail first."""
    ranks = {rank for _, rank, _, first in _failure_blocks(lines) if first}
    anonymous = [error for error in errors if error.kind == "exception" and not error.ranks]
    if len(ranks) != 1 or not anonymous:
        return errors
    return [replace(error, ranks=tuple(ranks)) if error is anonymous[0] else error
            for error in errors]


def _merge_ranks(errors: list[LogError]) -> list[LogError]:
    """Merge errors that differ only in their numbers."""
    merged: dict[tuple[str, str], LogError] = {}
    for error in errors:
        key = error.kind, re.sub(r"\d[\d.]*", "#", error.text)
        if key in merged:
            first = merged[key]
            merged[key] = replace(first, ranks=tuple(sorted({*first.ranks, *error.ranks})),
                                  lost=tuple(sorted({*first.lost, *error.lost})))
        else:
            merged[key] = error
    return list(merged.values())


def first_of_rank(errors: Sequence[LogError], rank: int) -> LogError | None:
    """Return the first error that a rank reports."""
    return next((error for error in errors if rank in error.ranks), None)
