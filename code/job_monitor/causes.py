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

from job_monitor import prefixes
from labcore.terminal import visible

# Tiers: an error reported where it happened; a signal or the script; timeouts and kills, which may
# be a cause or a consequence; lost connections, which are only consequences; a line that no pattern
# knows, if the log has nothing better; exit codes.
OWN, SIGNAL, TIMEOUT, LOST, GUESS, EXIT = range(6)
MAX_LENGTH = 400  # characters of a message
MAX_LINE = 20 * MAX_LENGTH  # characters of a line that may have one
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


OUT_OF_MEMORY = r"(?:CUDA|HIP) (?:error: )?out of memory"
CONNECTION_LOSS = re.compile(
    r"lost contact|Connection (?:closed|reset|refused)|Broken pipe|[Tt]imed out|"
    r"Watchdog caught|remote process (?:has )?exited|RendezvousC(?:onnection|losed)Error")
LOST_RANK = re.compile(r"lost contact with rank (\d+)")
# Exceptions with which launchers report that a process failed, whatever the reason.
REPORTS = re.compile(r"ChildFailedError|SignalException|RendezvousGracefulExit|failed \(exitcode: ")
EXCEPTION = r"(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt)"
SLURM = r"(?:slurmstepd[\w.-]*|srun|sbatch|salloc)"
# (tier, kind, pattern); the named group `rank` is the rank that reports it, `text` the message.
# The patterns apply to lines without prefixes (prefixes.py).
PATTERNS = [(tier, kind, re.compile(pattern)) for tier, kind, pattern in (
    (OWN, "out of memory", rf"^(?:\[rank (?P<rank>\d+)\] )?(?:[\w.]*Error: )?"
                           rf"(?P<text>{OUT_OF_MEMORY}.*)"),
    (OWN, "memory limit", r"(?P<text>[Ee]xceeded (?:job )?memory limit.*|oom[-_]kill event.*)"),
    (OWN, "time limit", r"(?P<text>\*\*\* (?:JOB|STEP) .*DUE TO TIME LIMIT.*)"),
    (OWN, "node failure", r"error: (?P<text>.*(?:DUE TO NODE FAILURE|Node failure on).*)"),
    (OWN, "cancelled", rf"^{SLURM}: error: (?P<text>\*\*\* JOB \d+ ON \S+ CANCELLED AT .*)"),
    (TIMEOUT, "timeout", r"(?P<text>\[Rank (?P<rank>\d+)\] Watchdog caught .*)"),
    (OWN, "exception", r"Rank (?P<rank>\d+)\] .*watchdog thread terminated with exception: "
                       r"(?P<text>.*)"),
    (OWN, "error", r"^\[rank (?P<rank>\d+)\] (?P<text>(?:error: |[A-Za-z_]\w*"
                   r"(?:Error|Exception|Interrupt): ).*)"),
    (OWN, "error", r"^(?P<text>error: .+|[^:]*python[\d.]*: can't open file .*)"),
    (OWN, "error", rf"^(?!{SLURM}:)(?P<text>[\w./-]+: error: .+)"),  # argparse
    (OWN, "exception", rf"^(?P<text>{EXCEPTION}(?:: .*)?)$"),
    (OWN, "assertion", r"(?P<text>\S+:\d+: .*Assertion [`'].+' failed\b.*|"
                       r"\S+:\d+: .*Assertion `.+` failed\b.*)"),
    (OWN, "CUDA error", r"^(?P<text>CUDA [Ee]rror.*|!+ kernel execution error.*)"),
    (OWN, "container", r"^(?P<text>FATAL: .*)"),
    (OWN, "Slurm", rf"^{SLURM}: (?P<text>unrecognized option .*|invalid option .*)"),
    (SIGNAL, "script", r": line \d+: (?P<text>.*(?:command not found|No such file or directory|"
                       r"Permission denied|unbound variable|syntax error|"
                       r"\d+ (?:Aborted|Killed|Segmentation fault|Bus error)).*)"),
    (SIGNAL, "script", r"(?P<text>\S+\(\d+\):ERROR:\d+: .*|has detected the following error.*)"),
    (SIGNAL, "killed", r"(?P<text>Caught signal \d+ \(.*|Fatal Python error: .*|"
                       r"\*\*\* SIG[A-Z]+ received.*|Signal: (?!Terminated)\w.* \(\d+\))"),
    (TIMEOUT, "killed", r"^srun: error: (?P<text>\S+: tasks? [\d,-]+: (?:Killed|Out Of Memory|"
                        r"Segmentation fault|Aborted|Bus error).*)"),
    (TIMEOUT, "killed", r"^(?P<text>terminate called .*)"),
    (EXIT, "exit code", r"^srun: error: (?P<text>\S+: tasks? [\d,-]+: Exited with exit code .*)"),
    (LOST, "timeout", rf"^{SLURM}: error: (?P<text>.*[Tt]imed out.*)"),
    (LOST, "Slurm", rf"^(?P<text>{SLURM}: (?:error|fatal): (?!\*\*\* STEP |\S+: tasks? [\d,-]+: |"
                    r"spank: |Failed to invoke|Timed out waiting).*)"),
    (SIGNAL, "error", r"^(?:- )?\[?ERROR[\]:]? (?:- )?(?P<text>.+)"),
    (TIMEOUT, "NCCL", r"NCCL WARN (?P<text>.*(?:[Ee]rror|[Ff]ail|no algorithm|[Uu]nable|refused|"
                      r"[Tt]imed? ?out).*)"),
    (TIMEOUT, "error", r"^\[E[\d ][^\]]*\.cpp:\d+\] (?P<text>.*)"),  # torch's C++ log
)]
# A cheap test, because few lines are worth all the patterns.
HINT = re.compile(
    r"[Ee]rror|ERROR|FATAL|Exception|Interrupt|memory|oom|line \d+: |terminate called|Watchdog|"
    r"watchdog|can't open|DUE TO|Assertion|signal|Signal|SIG|NCCL WARN|\[E|option")
# Words of a line that may say why a program failed, though no pattern knows it.
UNKNOWN_ERROR = re.compile(
    r"\b(?:error|exception|fatal|fail(?:ed|ure)?|abort(?:ed)?|unable to|cannot|could not|invalid|"
    r"insufficient|denied|not found|no such|terminat(?:ed|ion)|killed|stuck)\b", re.IGNORECASE)
# Python's warnings, and the log levels of torch (W1124 ...) and NCCL.
WARNING = re.compile(r"warn|^\[?W\d{4} |NCCL (?:INFO|WARN)", re.IGNORECASE)
# A row of the trainer's table of arguments, or a line of a traceback.
NO_MESSAGE = re.compile(r"^ +\w+ \.{2,} |^ +File \"|^Traceback |\bINFO\b|\bDEBUG\b")
# In torchrun's summary, a failure is a block with these two lines.
BLOCK_RANK = re.compile(r"^ +rank +: (\d+) \(local_rank: \d+\)")
BLOCK_EXIT = re.compile(r"^ +exitcode +: (-?\d+) ")
AGENT_EXIT = re.compile(r"\bfailed \(exitcode: (-\d+)\) local_rank: ")
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
    split = [prefixes.split(line) if len(line) <= MAX_LINE else ("", None) for line in lines]
    errors = [error for number, (line, rank) in enumerate(split)
              if (error := _parse_line(line, rank, number))]
    errors = _merge_anonymous(errors)
    lines = [line for line, _ in split]
    errors += _signals(lines)
    if errors and all(error.tier == EXIT for error in errors):
        errors += _guess(split[:errors[0].line])
    errors = _with_first_failure(errors, lines)
    return _merge_ranks(sorted(errors, key=lambda error: (error.tier, error.line)))


def errors_of_last_start(lines: Sequence[str]) -> list[LogError]:
    """Return the errors since the trainer's last start; a requeued job has several starts."""
    start = next((number for number in range(len(lines) - 1, 0, -1)
                  if any(word in lines[number] for word in STARTS)), 0)
    return [replace(error, line=error.line + start) for error in find_errors(lines[start:])]


def _parse_line(line: str, rank: str | None, number: int) -> LogError | None:
    if not HINT.search(line):
        return None
    for tier, kind, pattern in PATTERNS:
        match = pattern.search(line)
        if not match:
            continue
        text, rank = match["text"], match.groupdict().get("rank") or rank
        if REPORTS.search(text):
            return None
        if kind in ("error", "exception") and CONNECTION_LOSS.search(text):
            timed_out = re.search("[Tt]imed out|Watchdog", text)
            tier, kind = (TIMEOUT, "timeout") if timed_out else (LOST, "lost contact")
        ranks = (int(rank),) if rank else ()
        lost = tuple(map(int, LOST_RANK.findall(text)))
        return LogError(kind, clean(text.removeprefix("error: ")), ranks, number, tier, lost)
    return None


def _guess(split: Sequence[tuple[str, str | None]]) -> list[LogError]:
    """Return the last line before an exit code that may be an error; empty if there is none."""
    for number, (line, rank) in reversed(list(enumerate(split))):
        if UNKNOWN_ERROR.search(line) and not any(
                pattern.search(line) for pattern in (WARNING, NO_MESSAGE, REPORTS)):
            ranks = (int(rank),) if rank else ()
            return [LogError("unknown error", clean(line), ranks, number, GUESS)]
    return []


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
    if errors:
        return errors
    # Without a summary, its agent's own line, which does not know the rank.
    found = [(number, SIGNALS.get(-int(match[1]))) for number, line in enumerate(lines)
             if (match := AGENT_EXIT.search(line))]
    return [LogError("killed", f"a rank was killed by {name}", (), number, SIGNAL)
            for number, name in found if name]


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
