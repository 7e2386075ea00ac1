"""Print the errors of failed ranks: each error once, with all ranks that raised it."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.export import module_calls
from virtualgpu.packages.finder import missing_part

LAUNCHER_CODE = (str(Path(__file__).parent), "<frozen runpy>")
PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
INTERRUPTED = "interrupted by Ctrl-C"
STOPPED = "Stopped"  # error type of a rank that was stopped because another one failed
MAX_HEADLINE = 80  # characters of an error that was already printed in full
GPU_NUMBER = re.compile(r"(cuda:|GPU )\d+")  # differs between ranks with the same error


def explain(error: BaseException) -> str:
    """Return the text of an error: one line for a VirtualGpuError, or else its traceback.

    Torch's errors, such as out of memory, are RuntimeErrors. Their tracebacks omit this package's
    frames, which a real GPU would not have; all others omit those between a module and its caller.
    """
    own_error = cause(error)
    if own_error is not None:
        return str(own_error)
    refusal = missing_part(error) if isinstance(error, ImportError) else None
    if refusal is not None:
        return f"{program_line_of(error)}: {refusal}"
    trimmed = error.with_traceback(program_traceback(error))
    formatted = traceback.TracebackException.from_exception(trimmed)
    for item in chain(formatted):
        omitted = PACKAGE if issubclass(item.exc_type, RuntimeError) else module_calls.__file__
        item.stack[:] = [frame for frame in item.stack
                         if not frame.filename.startswith(omitted)] or item.stack
    text = "".join(formatted.format()).rstrip()
    if isinstance(error, ModuleNotFoundError) and error.name:
        text += (f"\nthe program imports {error.name!r}, which is not installed in this "
                 f"Python environment ({sys.executable})")
    return text


def program_line_of(error: BaseException) -> str:
    """Return the file and line that raised an error."""
    *_, last = traceback.extract_tb(error.__traceback__) or [traceback.FrameSummary("?", 0, "")]
    return f"{last.filename}, line {last.lineno} ({last.line})"


def explain_elsewhere(rank: int) -> None:
    """Print one line for a VirtualGpuError that Python reports itself, with a traceback.

    It does so in threads, finalizers, and functions registered with atexit; the program goes on.

    Args:
        rank: this process's rank.
    """
    in_thread, unraisable = threading.excepthook, sys.unraisablehook

    def hook(usual: Callable, where: Callable[[Any], str]) -> Callable:
        def called(notes: Any) -> None:
            error = None if notes.exc_value is None else cause(notes.exc_value)
            if error is None:
                usual(notes)
            else:
                show([(rank, f"{where(notes)}: {error}")])
        return called

    def thread_of(notes: threading.ExceptHookArgs) -> str:
        return f"in thread {notes.thread.name if notes.thread else '?'}, which ended"

    threading.excepthook = hook(in_thread, thread_of)
    sys.unraisablehook = hook(unraisable, lambda _: "in a finalizer or at exit, ignored by Python")


def program_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames that started the program."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(LAUNCHER_CODE):
        frame = frame.tb_next
    return frame or error.__traceback__


def chain(error: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """Yield an error and those that it was raised from or after."""
    if error is not None:
        yield error
        yield from chain(error.__cause__)
        yield from chain(error.__context__)


def cause(error: BaseException) -> VirtualGpuError | None:
    """Return the VirtualGpuError that an error wraps, or None."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, VirtualGpuError):
            return seen
        for wrapped in getattr(seen, "failures",
                               None) or {}:  # torch.distributed.checkpoint: exceptions by rank
            inner = seen.failures[wrapped][0] if isinstance(seen.failures, dict) else None
            if isinstance(inner, VirtualGpuError):
                return inner
        seen = seen.__cause__ or seen.__context__
    return None


def show(messages: Iterable[tuple[int, str]]) -> None:
    """Print the messages of ranks; a message of several ranks is printed once."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for rank, message in messages:
        groups.setdefault(GPU_NUMBER.sub(r"\1N", message), []).append((rank, message))
    for group in groups.values():
        who, text = spans([rank for rank, _ in group]), group[0][1]
        start = "\n" if "\n" in text else " "
        print(f"virtualrun: {who}:{start}{text}", file=sys.stderr, flush=True)


def headline(errors: Sequence[tuple[int, str]]) -> str:
    """Return one line with the ranks that failed and the first error.

    Args:
        errors: ranks and their errors; those of stopped ranks are ignored.
    """
    causes = [item for item in errors if not item[1].startswith(f"{STOPPED}:")] or errors
    first = textwrap.shorten(causes[0][1].splitlines()[0], MAX_HEADLINE, placeholder=" ...")
    return f"{spans([rank for rank, _ in causes])} failed: {first}"


def spans(ranks: Sequence[int]) -> str:
    """Return ranks as text, such as `rank 3` or `ranks 0 to 7 and 9`."""
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
