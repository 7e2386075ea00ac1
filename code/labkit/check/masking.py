"""Masks in the notebook: an answer that uses masked code fails its check there, too.

When a lab is graded, masked code is missing from the sandbox (grader/sandbox/masks.py). A notebook
kernel still has it, because explore cells use it. So a check inspects the imports of the cells that
define the function it calls, and watches which code runs during the call.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import CodeType, FrameType, FunctionType
from typing import Any

from labkit.check.sides import Raised, current_side
from labkit.masks import PIPELINE_LIBRARIES, MaskTarget, mask_targets, message

__all__ = ["PIPELINE_LIBRARIES", "KernelMasks", "mask", "refused"]
MAIN = "__main__"  # the module of a notebook's cells


def mask(*names: str) -> None:
    """Make modules and names that contain the solution unavailable to answers.

    A lab calls this once, in a check-setup cell, with literal names and *check.PIPELINE_LIBRARIES.

    Args:
        names: dotted names, such as "minimegatron.formulas" or "torch.distributed.all_reduce".

    Raises labkit.masks.UnknownName for a name that does not exist.
    """
    current_side().mask(names)


class KernelMasks:
    """The masks of this kernel."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)

    @cached_property
    def mask_targets(self) -> list[MaskTarget]:
        return [target for name in self.names for target in mask_targets(name)]

    def watched(self, function: Any, call: Callable[[], Any | Raised]) -> Any | Raised:
        """Return the result of `call`; raise the sandbox's error if `function` uses masked code."""
        if not self.names:
            return call()
        used = next((name for cell in _cells(function, set()) for name in self.imported(cell)), "")
        if used:
            return refused(used)
        watch = _Watch(self.mask_targets)
        result = watch.run(call)
        return refused(watch.used) if watch.used else result

    def imported(self, cell: str) -> Iterator[str]:
        """Yield the masked names that a cell imports."""
        try:
            tree = ast.parse(cell)
        except (SyntaxError, ValueError):  # magics
            return
        for node in _statements(tree.body):
            imports = []
            if isinstance(node, ast.Import):
                imports = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imports = [f"{node.module}.{alias.name}" for alias in node.names]
            for dotted in imports:
                yield from (name for name in self.names if f"{dotted}.".startswith(f"{name}."))


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements of a tree, at any depth. Expressions, which are most of it, import
    nothing, and every rank looks at every cell."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            if isinstance(inner := getattr(node, name, None), list):
                yield from _statements(inner)


def refused(name: str) -> Raised:
    """Return the exception that the sandbox raises when an answer uses the masked `name`."""
    return Raised(("ImportError", "Exception", "BaseException"), message(name))


class _MaskedCode(BaseException):
    """Ends an answer at its first use of masked code: the result no longer counts."""


class _Watch:
    """Record the first masked code that runs in this thread, and end the answer there."""

    def __init__(self, mask_targets: Sequence[MaskTarget]) -> None:
        self.mask_targets, self.used = mask_targets, ""
        self.modules = {target.module.partition(".")[0] for target in mask_targets}
        self.compiled = {id(thing): target.name for target in mask_targets if not target.defined
                         for thing in [_loaded(target)] if thing is not None}

    def run(self, call: Callable[[], Any]) -> Any:
        get, put = sys.gettrace, sys.settrace
        if self.compiled or get():  # a trace function is a debugger's
            get, put = sys.getprofile, sys.setprofile
        before = get()
        put(self._callback())
        try:
            return call()
        except (Exception, _MaskedCode):
            if not self.used:
                raise
            return None  # also if the answer raised an error of its own afterward
        finally:
            put(before)

    def _callback(self) -> Callable[[FrameType, str, Any], None]:
        """Return the trace function. It is the profile function if a mask covers compiled code, or
        if a debugger is tracing.

        A trace function that returns None runs only when Python code is entered. A profile function
        also runs at every return, and at both ends of every call of compiled code, such as `len`:
        an answer then takes up to four times its own time instead of twice. Either function looks
        at each code object only once.
        """
        compiled, seen = self.compiled, {}

        def callback(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                code = frame.f_code
                if id(code) not in seen:
                    seen[id(code)] = code  # kept, so that no other gets its ID
                    self._look(frame)
            elif event == "c_call" and id(argument) in compiled:
                self.used = compiled[id(argument)]
                raise _MaskedCode

        return callback

    def _look(self, frame: FrameType) -> None:
        module = frame.f_globals.get("__name__")
        if isinstance(module, str) and module.partition(".")[0] in self.modules:
            self.used = next((target.name for target in self.mask_targets
                              if target.covers(module, frame.f_code.co_qualname)), self.used)
            if self.used and not _is_importing(frame):  # half a module would stay in the kernel
                raise _MaskedCode


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether the answer is importing a module whose code runs or called this frame."""
    while frame is not None and frame.f_code is not _Watch.run.__code__:
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _loaded(target: MaskTarget) -> Any:
    """Return the object that compiled code bound to a name, if its module is imported."""
    value = sys.modules.get(target.module)
    for part in target.qualname.split("."):
        value = getattr(value, part, None)
    return value


def _cells(thing: Any, seen: set[int]) -> Iterator[str]:
    """Yield the sources of the cells that define a student's function or class, and of the
    cells that define whatever it uses."""
    thing = getattr(thing, "__func__", thing)  # of a method
    if id(thing) in seen or getattr(thing, "__module__", None) != MAIN:
        return
    seen.add(id(thing))
    if isinstance(thing, FunctionType):
        yield "".join(linecache.getlines(thing.__code__.co_filename))
        for name in _names(thing.__code__):
            yield from _cells(thing.__globals__.get(name), seen)
    elif isinstance(thing, type):
        for value in list(vars(thing).values()):
            yield from _cells(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
