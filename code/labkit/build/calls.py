"""The calls `check.<function>(...)` in a check: their arguments by name, and the hints in them."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass

CHECK = "check"  # `from labkit import check`; one spelling, so that all labs read alike
MODULE = "labkit.check"

# These functions compose their own messages, so a mutant's hint need not be a string in the cell;
# only running the mutant proves that the hint is shown.
SCRIPTS = ("script", "program")  # their first argument is a file that an answer writes
OWN_WORDS = ("raises", *SCRIPTS, "figures", "schedule", "ranks", "gpus")

# The one parameter of each function that may be a student's name. Every other argument must be a
# plain value: while grading, a student's name is a proxy (always true, equal to itself, ...).
TESTED = {"value": "x", "function": "f", "raises": "f", "call": "f", "schedule": "f",
          "ranks": "driver", "gpus": "driver"}


@dataclass(frozen=True)
class Hint:
    """One hint: its fixed pieces (several in an f-string), and its line in the cell."""

    pieces: tuple[str, ...]
    line: int

    def contains(self, text: str) -> bool:
        return any(text in piece for piece in self.pieces)


@dataclass(frozen=True)
class CheckCall:
    """A call of a function of labkit.check.

    Attributes:
        arguments: the nodes passed, by the function's parameter names.
        error: why the arguments do not fit the function, if they do not.
    """

    function: str
    node: ast.Call
    arguments: dict[str, ast.expr]
    error: str = ""


def functions() -> list[str]:
    """Return the names of labkit.check's functions for checks."""
    from labkit import check

    return [name for name in check.__all__ if name not in check.NOTEBOOKS
            and inspect.isfunction(getattr(check, name))]


@functools.lru_cache(maxsize=256)  # several rules need the calls of each cell, once per mutant
def check_calls(tree: ast.Module | None) -> tuple[CheckCall, ...]:
    """Return all calls of labkit.check in a cell; a cell that is not Python has none."""
    return () if tree is None else tuple(_call(node) for node in ast.walk(tree)
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                 and isinstance(node.func.value, ast.Name) and node.func.value.id == CHECK)


def _call(node: ast.Call) -> CheckCall:
    from labkit import check

    name = node.func.attr
    if name not in functions():
        return CheckCall(name, node, {}, "unknown")
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return CheckCall(name, node, {}, "* in its arguments: write them out")
    if any(word.arg is None for word in node.keywords):
        return CheckCall(name, node, {}, "** in its arguments: write them out")
    keywords = {word.arg: word.value for word in node.keywords}
    try:
        bound = inspect.signature(getattr(check, name)).bind(*node.args, **keywords)
    except TypeError as error:
        return CheckCall(name, node, {}, str(error))
    if name == "figures" and len({"device", "cluster"} & set(bound.arguments)) != 1:
        return CheckCall(name, node, {}, "give either a device or cluster=")
    return CheckCall(name, node,
                     {k: v for k, v in bound.arguments.items() if isinstance(v, ast.expr)})


def script_paths(tree: ast.Module | None) -> list[str]:
    """Return the files that check.script and check.program read; not those spelled otherwise."""
    given = [call.arguments.get("path") for call in check_calls(tree) if call.function in SCRIPTS]
    return [path.value for path in given
            if isinstance(path, ast.Constant) and isinstance(path.value, str)]


def hints(tree: ast.Module | None) -> Iterator[Hint | ast.expr]:
    """Yield the hints of a check, or the expression itself where its text is not a literal."""
    for call in check_calls(tree):
        if "hint" in call.arguments:
            yield _hint(call.arguments["hint"])
        if "hints" in call.arguments:
            given = resolved(call.arguments["hints"], tree)
            if not isinstance(given, ast.Dict) or None in given.keys:
                yield call.arguments["hints"]
                continue
            yield from map(_hint, given.keys)


def _hint(node: ast.expr) -> Hint | ast.expr:
    pieces = tuple(part.value for part in ast.walk(node)
                   if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return Hint(pieces, node.lineno) if any(map(str.strip, pieces)) else node


def resolved(node: ast.expr, tree: ast.Module) -> ast.expr:
    """Return the value of a name that a cell assigns exactly once, or the expression itself."""
    if not isinstance(node, ast.Name):
        return node
    values = [statement.value for statement in tree.body
              if isinstance(statement, ast.Assign)
              and [target.id for target in statement.targets if isinstance(target, ast.Name)]
              == [node.id]]
    return values[0] if len(values) == 1 else node
