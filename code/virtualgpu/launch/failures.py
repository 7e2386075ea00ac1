"""What a run prints about ranks that failed: each error once, with all ranks that raised it."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from virtualgpu.core.errors import VirtualGpuError

OWN = (str(Path(__file__).parent), "<frozen runpy>")
NUMBERED = re.compile(r"(cuda:|GPU )\d+")  # what differs between ranks that failed alike


def explain(error: BaseException) -> str:
    """Return an error as it is printed: ours in one line, all others with the traceback."""
    ours = cause(error)
    if ours is not None:
        return str(ours)
    text = "".join(traceback.format_exception(error.with_traceback(inside(error)))).rstrip()
    if isinstance(error, ModuleNotFoundError):
        text += (f"\nthe program needs the package {error.name!r}, which this Python "
                 f"({sys.executable}) does not have")
    return text


def inside(error: BaseException):
    """The traceback without the frames that started the program."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(OWN):
        found = found.tb_next
    return found or error.__traceback__


def cause(error: BaseException) -> VirtualGpuError | None:
    """Our error that a library has wrapped, if there is one."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, VirtualGpuError):
            return seen
        for wrapped in getattr(seen, "failures", None) or {}:  # of DCP: exceptions by rank
            inner = seen.failures[wrapped][0] if isinstance(seen.failures, dict) else None
            if isinstance(inner, VirtualGpuError):
                return inner
        seen = seen.__cause__ or seen.__context__
    return None


def show(messages: Iterable[tuple[int, str]]) -> None:
    """Print messages of ranks; one that several ranks have is printed once."""
    alike: dict[str, list[tuple[int, str]]] = {}
    for rank, message in messages:
        alike.setdefault(NUMBERED.sub(r"\1N", message), []).append((rank, message))
    for found in alike.values():
        who, text = spans([rank for rank, _ in found]), found[0][1]
        start = "\n" if "\n" in text else " "
        print(f"virtualrun: {who}:{start}{text}", file=sys.stderr, flush=True)


def spans(ranks: Sequence[int]) -> str:
    """Ranks in words, such as `rank 3`, or `ranks 0 to 7 and 9`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    words: list[str] = []
    for first, *last in parts:
        if last and last[0] == first + 1:
            words += str(first), str(last[0])
        else:
            words.append(" to ".join(map(str, (first, *last))))
    if len(words) > 2:
        words[-1] = f"and {words[-1]}"
    return ("rank " if len(ranks) == 1 else "ranks ") + (
        " and ".join(words) if len(words) < 3 else ", ".join(words))
