"""Print the errors of failed ranks: each error once, with all ranks that raised it."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from virtualgpu.core.errors import VirtualGpuError

OWN = (str(Path(__file__).parent), "<frozen runpy>")
PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
STOPPED = "Stopped"  # kind of the error of a rank that was ended because another one failed
MOST = 80  # characters of an error that has been printed in full before
NUMBERED = re.compile(r"(cuda:|GPU )\d+")  # what differs between ranks that failed alike


def explain(error: BaseException) -> str:
    """Return an error as it is printed: ours in one line, all others with the traceback.

    torch raises RuntimeError, out of memory included. Its traceback has no frames of this package,
    as it would have none with a real GPU.
    """
    ours = cause(error)
    if ours is not None:
        return str(ours)
    found = traceback.TracebackException.from_exception(error.with_traceback(inside(error)))
    for one in chain(found):
        if issubclass(one.exc_type, RuntimeError):
            one.stack[:] = [frame for frame in one.stack
                            if not frame.filename.startswith(PACKAGE)] or one.stack
    text = "".join(found.format()).rstrip()
    if isinstance(error, ModuleNotFoundError):
        text += (f"\nthe program imports {error.name!r}, which is not installed in this "
                 f"Python environment ({sys.executable})")
    return text


def inside(error: BaseException):
    """The traceback without the frames that started the program."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(OWN):
        found = found.tb_next
    return found or error.__traceback__


def chain(error: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """An error, and those that it was raised from or after."""
    if error is not None:
        yield error
        yield from chain(error.__cause__)
        yield from chain(error.__context__)


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


def headline(errors: Sequence[tuple[int, str]]) -> str:
    """Return which rank failed, and with which error, in one line.

    Args:
        errors: ranks and their errors; those that other ranks caused are not mentioned.
    """
    own = [one for one in errors if not one[1].startswith(f"{STOPPED}:")] or errors
    first = textwrap.shorten(own[0][1].splitlines()[0], MOST, placeholder=" ...")
    return f"{spans([rank for rank, _ in own])} failed: {first}"


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
