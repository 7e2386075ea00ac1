"""The two errors of a run, and how they read."""

from __future__ import annotations

import linecache
import re
import traceback
from pathlib import Path

from warmranks.requests import Outcome, Report, Run

FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
OURS = f"{Path(__file__).parent}/"
LIBRARY = "/site-packages/torch/"


class RankError(RuntimeError):
    """A rank raised an exception or ended by itself.

    Attributes:
        rank: the first rank that failed; None where no rank was started.
        error: the exception's type and message, or how the process ended.
        traceback: of that rank's exception; empty where it ended without one.
    """

    def __init__(self, message: str, rank: int | None, error: str, traceback: str) -> None:
        super().__init__(message)
        self.rank, self.error, self.traceback = rank, error, traceback


class RanksTimeout(RankError, TimeoutError):
    """Some ranks did not finish in time.

    Attributes:
        stacks: for each rank that still ran, its Python frames, innermost last.
    """

    def __init__(self, message: str, stacks: dict[int, str]) -> None:
        super().__init__(message, min(stacks, default=None), message.partition("\n")[0], "")
        self.stacks = stacks


class RanksDeadlock(RanksTimeout):
    """All ranks that still ran waited for others, so none would ever have gone on."""


def failure(run: Run, report: Report) -> RankError | None:
    """Return the error that a report amounts to; None where all ranks returned."""
    if report.problem:
        return RankError(f"no rank was started:\n{report.problem}", None,
                         report.problem.strip().rpartition("\n")[2], report.problem)
    if report.timed_out:
        return _timeout(run, report)
    if report.cause is None:
        return None
    first = report.outcomes[report.cause]
    also = [rank for rank, one in enumerate(report.outcomes)
            if rank != report.cause and one.state in ("raised", "died")]
    message = f"rank {report.cause} of {run.ranks} {_ended(first)}"
    if also:
        message += f" (after it, {_ranks(also)} failed too)"
    if first.traceback:
        message += f"\n\n{first.traceback.rstrip()}"
    return RankError(message, report.cause, first.error or _ended(first), first.traceback)


def _ended(outcome: Outcome) -> str:
    if outcome.state == "raised":
        return f"raised {outcome.error}"
    if outcome.code is not None and outcome.code < 0:
        return f"was killed by signal {-outcome.code}"
    return f"ended with exit code {outcome.code} before it returned"


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _timeout(run: Run, report: Report) -> RanksTimeout:
    stacks = {rank: stack_text(one.stack) for rank, one in enumerate(report.outcomes)
              if one.state == "running"}
    lines = [f"{_ranks(list(stacks))} of {run.ranks} wait for ranks that never get there" if
             report.deadlock else
             f"{_ranks(list(stacks))} of {run.ranks} did not finish within {run.timeout:g} s"]
    for rank, one in enumerate(report.outcomes):
        if one.state != "running":
            lines.append(f"rank {rank} {one.state} after {one.seconds:.1f} s")
        else:
            inner = _frames(one.stack)
            where = f"is in {inner[-1][2]}" if inner else "is outside of Python"
            if one.waits:
                where = f"waits in {one.waits}"
            lines += [f"rank {rank} {where}:", stacks[rank].rstrip()]
    kind = RanksDeadlock if report.deadlock else RanksTimeout
    return kind("\n".join(lines), stacks)


def _frames(stack: str) -> list[tuple[str, int, str]]:
    """Return (file, line, function) of the frames in faulthandler's text, innermost last."""
    found = [FRAME.match(line) for line in stack.splitlines()]
    frames = [(one["file"], int(one["line"]), one["name"]) for one in found if one]
    frames.reverse()
    ours = [number for number, frame in enumerate(frames) if frame[0].startswith(OURS)]
    return [frame for frame in frames[ours[0] if ours else 0:] if not frame[0].startswith(OURS)]


def stack_text(stack: str) -> str:
    """Return faulthandler's text as a traceback, with one frame of torch at most."""
    shown: list[tuple[str, int, str]] = []
    for frame in _frames(stack):
        if not (shown and LIBRARY in frame[0] and LIBRARY in shown[-1][0]):
            shown.append(frame)
        elif "wrapper" in shown[-1][2]:  # a decorator around the function that was called
            shown[-1] = frame
    lines = []
    for file, line, name in shown:
        lines.append(f'  File "{file}", line {line}, in {name}')
        if source := linecache.getline(file, line).strip():
            lines.append(f"    {source}")
    return "\n".join(lines)


def traceback_text(error: BaseException) -> str:
    """Return an exception's traceback without its outermost frames, which are ours."""
    while (error.__traceback__ and error.__traceback__.tb_next
           and error.__traceback__.tb_frame.f_code.co_filename.startswith(OURS)):
        error.__traceback__ = error.__traceback__.tb_next
    return "".join(traceback.format_exception(error))
