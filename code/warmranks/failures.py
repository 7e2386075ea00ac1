"""Define the errors of a run, and format their messages."""

from __future__ import annotations

import linecache
import re
import traceback
from pathlib import Path

from warmranks.requests import RankOutcome, RunReport, RunRequest

FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
OWN_CODE = f"{Path(__file__).parent}/"
TORCH_CODE = "/site-packages/torch/"


class RankError(RuntimeError):
    """Raised if a rank raised an exception or ended by itself.

    Attributes:
        rank: the first rank that failed; None if no rank was started.
        error: the exception's type and message, or how the process ended.
        traceback: the traceback of that rank's exception; empty if it ended without one.
    """

    def __init__(self, message: str, rank: int | None, error: str, traceback: str) -> None:
        super().__init__(message)
        self.rank, self.error, self.traceback = rank, error, traceback


class RanksTimeout(RankError, TimeoutError):
    """Raised if some ranks did not finish in time.

    Attributes:
        stacks: the Python frames of each rank that was still running, innermost last.
    """

    def __init__(self, message: str, stacks: dict[int, str]) -> None:
        super().__init__(message, min(stacks, default=None), message.partition("\n")[0], "")
        self.stacks = stacks


class RanksDeadlock(RanksTimeout):
    """Raised if all ranks that were still running waited for each other."""


def failure(run: RunRequest, report: RunReport) -> RankError | None:
    """Return the error for a report, or None if all ranks returned."""
    if report.problem:
        return RankError(f"no rank was started:\n{report.problem}", None,
                         report.problem.strip().rpartition("\n")[2], report.problem)
    if report.timed_out:
        return _timeout_error(run, report)
    if report.cause is None:
        return None
    first = report.outcomes[report.cause]
    others = [rank for rank, one in enumerate(report.outcomes)
              if rank != report.cause and one.state in ("raised", "died")]
    message = f"rank {report.cause} of {run.ranks} {_how_it_ended(first)}"
    if others:
        message += f" (after it, {_ranks(others)} failed, too)"
    if first.traceback:
        message += f"\n\n{first.traceback.rstrip()}"
    return RankError(message, report.cause, first.error or _how_it_ended(first), first.traceback)


def _how_it_ended(outcome: RankOutcome) -> str:
    if outcome.state == "raised":
        return f"raised {outcome.error}"
    if outcome.code is not None and outcome.code < 0:
        return f"was killed by signal {-outcome.code}"
    return f"ended with exit code {outcome.code} before it returned"


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _timeout_error(run: RunRequest, report: RunReport) -> RanksTimeout:
    stacks = {rank: stack_text(one.stack) for rank, one in enumerate(report.outcomes)
              if one.state == "running"}
    wait = "waits" if len(stacks) == 1 else "wait"
    lines = [f"{_ranks(list(stacks))} of {run.ranks} {wait} for ranks that never respond" if
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
    """Return (file, line, function) of the frames in faulthandler's output, innermost last."""
    matches = [FRAME.match(line) for line in stack.splitlines()]
    frames = [(one["file"], int(one["line"]), one["name"]) for one in matches if one]
    frames.reverse()
    own = [number for number, frame in enumerate(frames) if frame[0].startswith(OWN_CODE)]
    return [frame for frame in frames[own[0] if own else 0:] if not frame[0].startswith(OWN_CODE)]


def stack_text(stack: str) -> str:
    """Return faulthandler's output as a traceback, with at most one frame of torch in a row."""
    shown: list[tuple[str, int, str]] = []
    for frame in _frames(stack):
        if not (shown and TORCH_CODE in frame[0] and TORCH_CODE in shown[-1][0]):
            shown.append(frame)
        elif "wrapper" in shown[-1][2]:  # a decorator of the function that was called
            shown[-1] = frame
    lines = []
    for file, line, name in shown:
        lines.append(f'  File "{file}", line {line}, in {name}')
        if source := linecache.getline(file, line).strip():
            lines.append(f"    {source}")
    return "\n".join(lines)


def traceback_text(error: BaseException) -> str:
    """Return an exception's traceback without its outermost frames, which are in this package."""
    while (error.__traceback__ and error.__traceback__.tb_next
           and error.__traceback__.tb_frame.f_code.co_filename.startswith(OWN_CODE)):
        error.__traceback__ = error.__traceback__.tb_next
    return "".join(traceback.format_exception(error))
