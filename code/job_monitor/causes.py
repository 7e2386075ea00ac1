"""Find the root cause of a failure in a job's log.

When one rank fails, the others lose contact, the launcher ends them, srun ends the launchers, and
each logs an error. Every such line has a tier; the first line of the lowest tier is the root cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labcore.terminal import visible

# Tiers: the word of who failed; a signal or the script; time-outs and kills, which may be either
# cause or consequence; what only follows.
OWN, SIGNAL, SILENCE, LOST, EXIT = range(5)
LONGEST = 400  # characters of a message
HEAD, TAIL = 2**20, 2**23  # bytes of a log that are read at its ends
CUT = "..."  # the line between the two
WORLD = "using world size: "  # of the trainer's first line
STARTS = (WORLD, "DUE TO JOB REQUEUE")  # of another attempt, in the same log
SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}


@dataclass(frozen=True)
class Cause:
    """kind: in two words. line: of the log, from 0. ranks: that say so; empty where not known.
    lost: the ranks that they name as lost."""

    kind: str
    text: str
    ranks: tuple[int, ...]
    line: int
    tier: int
    lost: tuple[int, ...] = ()


PREFIX = re.compile(r"^(?: *\d+: )?(?:\[default\d+\]:)?(?:\[rank(\d+)\]: ?)?")  # srun -l, torchrun
OUT_OF_MEMORY = r"(?:CUDA|HIP) out of memory"
LOSS = re.compile(r"lost contact|Connection (?:closed|reset|refused)|Broken pipe|[Tt]imed out|"
                  r"Watchdog caught|remote process (?:has )?exited")
NAMED = re.compile(r"lost contact with rank (\d+)")
# (tier, kind, pattern); a named group `rank` is the rank that says it, `text` the message.
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
    (SILENCE, "time-out", r"(?P<text>\[Rank (?P<rank>\d+)\] Watchdog caught .*)"),
    (SILENCE, "killed", r"^srun: error: (?P<text>\S+: tasks? [\d,-]+: (?:Killed|Out Of Memory|"
                        r"Segmentation fault|Aborted|Bus error).*)"),
    (SILENCE, "killed", r"^(?P<text>terminate called .*)"),
    (EXIT, "exit code", r"^srun: error: (?P<text>\S+: tasks? [\d,-]+: Exited with exit code .*)"),
)]
HINT = re.compile(r"[Ee]rror|Exception|Interrupt|memory|oom|line \d+: |terminate called|Watchdog|"
                  r"can't open")  # few lines of a log are worth all the patterns
# torchrun's summary: a failure is a block with these two lines.
BLOCK_RANK = re.compile(r"^ +rank +: (\d+) \(local_rank: \d+\)")
BLOCK_EXIT = re.compile(r"^ +exitcode +: (-?\d+) ")
FIRST_FAILURE = "Root Cause (first observed failure)"


def clean(text: str) -> str:
    """Return a log's text, bounded and safe to print."""
    return visible(text[:LONGEST], instead=" ").strip()


def read(path: Path) -> list[str]:
    """The lines of a log; of a very long one its two ends. Empty where there is none."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            data = file.read(HEAD)
            if size > HEAD:
                file.seek(max(HEAD, size - TAIL))
                data += f"\n{CUT}\n".encode() * (size > HEAD + TAIL) + file.read(TAIL)
    except OSError:
        return []
    return data.decode(errors="replace").splitlines()


def find(lines: Sequence[str]) -> list[Cause]:
    """All that went wrong, the root cause first; what several ranks say alike is one."""
    found = [cause for number, line in enumerate(lines) if (cause := _of(line, number))]
    found = _adopt(found)
    found += _signals(lines)
    found = _with_first_failure(found, lines)
    return _together(sorted(found, key=lambda cause: (cause.tier, cause.line)))


def of_last_start(lines: Sequence[str]) -> list[Cause]:
    """Return the causes since the trainer's last start; a requeued job has several starts."""
    start = next((number for number in range(len(lines) - 1, 0, -1)
                  if any(word in lines[number] for word in STARTS)), 0)
    return [replace(cause, line=cause.line + start) for cause in find(lines[start:])]


def _of(line: str, number: int) -> Cause | None:
    if len(line) > 20 * LONGEST or not HINT.search(line):
        return None
    prefix = PREFIX.match(line)
    line = line[prefix.end():]
    for tier, kind, pattern in PATTERNS:
        match = pattern.search(line)
        if not match:
            continue
        text, named = match["text"], match.groupdict().get("rank") or prefix[1]
        if text.startswith("torch.distributed.elastic") or "ChildFailedError" in text:
            return None
        if kind in ("error", "exception") and LOSS.search(text):
            late = re.search("[Tt]imed out|Watchdog", text)
            tier, kind = (SILENCE, "time-out") if late else (LOST, "lost contact")
        ranks = (int(named),) if named else ()
        lost = tuple(map(int, NAMED.findall(text)))
        return Cause(kind, clean(text.removeprefix("error: ")), ranks, number, tier, lost)
    return None


def _adopt(causes: list[Cause]) -> list[Cause]:
    """A message without a rank that comes again right after with one is that rank's."""
    left, dropped = list(causes), set()
    for index, cause in enumerate(causes[:-1]):
        after = causes[index + 1]
        message = cause.text.partition(": ")[2] or cause.text
        if not cause.ranks and after.ranks and message in after.text:
            left[index + 1] = replace(after, line=cause.line)
            dropped.add(index)
    return [cause for index, cause in enumerate(left) if index not in dropped]


def _blocks(lines: Sequence[str]) -> Iterator[tuple[int, int, int, bool]]:
    """(line, rank, exit code, whether torchrun calls it the first failure of its node)."""
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


def _signals(lines: Sequence[str]) -> list[Cause]:
    """Ranks that a signal ended; SIGTERM and SIGINT are how launchers end the others."""
    found = []
    for number, rank, code, _ in _blocks(lines):
        if -code in SIGNALS:
            name = SIGNALS[-code]
            hint = ": by hand, or by the machine when its memory was full" if code == -9 else ""
            found.append(Cause("killed", f"killed by {name}{hint}", (rank,), number, SIGNAL))
    return found


def _with_first_failure(causes: list[Cause], lines: Sequence[str]) -> list[Cause]:
    """An exception that names no rank is the first failing rank's, if there is only one."""
    ranks = {rank for _, rank, _, first in _blocks(lines) if first}
    plain = [cause for cause in causes if cause.kind == "exception" and not cause.ranks]
    if len(ranks) != 1 or not plain:
        return causes
    return [replace(cause, ranks=tuple(ranks)) if cause is plain[0] else cause
            for cause in causes]


def _together(causes: list[Cause]) -> list[Cause]:
    merged: dict[tuple[str, str], Cause] = {}
    for cause in causes:
        key = cause.kind, re.sub(r"\d[\d.]*", "#", cause.text)
        if key in merged:
            first = merged[key]
            merged[key] = replace(first, ranks=tuple(sorted({*first.ranks, *cause.ranks})),
                                  lost=tuple(sorted({*first.lost, *cause.lost})))
        else:
            merged[key] = cause
    return list(merged.values())


def of_rank(causes: Sequence[Cause], rank: int) -> Cause | None:
    """The first thing that a rank says of itself."""
    return next((cause for cause in causes if rank in cause.ranks), None)
