"""The player's process: load a submitted file and call its function.

As a program, `python -P -m labkit.contest.player FILE ENTRY [MASKED ...]`, it answers frames
(labkit.guest.protocol) on its standard streams:

    ready {}           -> {}
    load {}            -> {} | {raised: {names, text}}
    call {arguments}   -> {value} | {raised: {names, text}} | {cannot: text}

In the grader's sandbox, labkit.guest does this with the same `load`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.check import wire
from labkit.check.masking import KernelMasks
from labkit.check.sides import Raised, called, raised
from labkit.guest import serving

MODULE = "contest_entry"  # the submitted file's __name__, whatever the file is called
MOST_FRAMES = -5  # innermost frames of a traceback


def load(path: str, entry: str) -> Callable[..., Any]:
    """Run a file and return its function.

    Args:
        path: the file, Python in UTF-8.
        entry: the function's name.

    Raises what the file raises, and NameError when it defines no such function.
    """
    module = ModuleType(MODULE)
    module.__file__ = path
    sys.modules[MODULE] = module  # dataclasses look up their own module
    exec(compile(Path(path).read_bytes(), Path(path).name, "exec"), module.__dict__)
    function = module.__dict__.get(entry)
    if not callable(function):
        raise NameError(f"{Path(path).name} defines no function {entry}(case)")
    return function


def main() -> None:
    """Serve until the parent closes the pipe. Output of the file goes to standard error."""
    path, entry, *masked = sys.argv[1:]
    masks = KernelMasks(masked)
    requests, responses = serving.private_copy(0), serving.private_copy(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    loaded: list[Callable[..., Any]] = []

    def shown(case: Any) -> Any:
        try:
            return loaded[0](case)
        except Exception:
            traceback.print_exc(limit=MOST_FRAMES)
            raise

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        try:
            if request["do"] == "ready":
                return {}
            if request["do"] == "load":
                function = masks.watched(None, lambda: load(path, entry))
                if isinstance(function, Raised):
                    return {"raised": serving.coded(function)}
                loaded.append(function)
                return {}
            given = wire.loads(request["arguments"].encode())
            return serving.sent(masks.watched(loaded[0], lambda: called(shown, given, {})))
        except BaseException as error:  # KeyboardInterrupt and the like, too
            return {"raised": serving.coded(raised(error))}

    serving.serve(requests, responses, answer)
    os._exit(0)  # without waiting for threads that the file left running


if __name__ == "__main__":
    main()
