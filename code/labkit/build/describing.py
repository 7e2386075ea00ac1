"""Describe what a check tries, for `check.show`: calls and cases, never expected values or hints.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from labkit.build.calls import CheckCall, check_calls, resolved
from labkit.build.lab import Cell
from labkit.build.visible import without_hidden

MOST_CASES = 12  # lines for one call
LONGEST = 300  # characters of a line
BY_CASES = ("function", "ranks", "schedule")


def cases(check: Cell) -> list[str]:
    """Return one line for each case of a check's visible tests, in their order."""
    tree = ast.parse(without_hidden(check.source, blank=True))
    tree = _Values(tree).visit(tree)
    calls = sorted(check_calls(tree), key=lambda call: (call.node.lineno, call.node.col_offset))
    return [_cut(line) for call in calls for line in _lines(call, tree)]


class _Values(ast.NodeTransformer):
    """Put the values of names into the calls of a check, if each is assigned once."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = resolved(node, self.tree) if isinstance(node.ctx, ast.Load) else node
        is_plain = not any(isinstance(part, ast.Name) for part in ast.walk(value))
        return value if is_plain and len(ast.unparse(value)) <= LONGEST else node


def _cut(line: str) -> str:
    line = line.replace("\n", "\\n")  # of an f-string
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def _lines(call: CheckCall, tree: ast.Module) -> Iterator[str]:
    given = {name: ast.unparse(node) for name, node in call.arguments.items()}
    if call.function == "part":
        yield f"{_text(call.arguments['title'])}:"
    elif call.function == "value":
        yield f"the value of {given['x']}"
    elif call.function == "call":
        yield ast.unparse(ast.Call(call.node.args[0], call.node.args[1:], call.node.keywords))
    elif call.function == "raises":
        yield f"{_call(given['f'], call.arguments['case'])}, which is not valid input"
    elif call.function in BY_CASES:
        yield from _cases(call, tree, given)
    elif call.function == "gpus":
        case = call.arguments.get("case", ast.Tuple([], ast.Load()))
        gpus = given.get("gpus", "h100:8").strip("'")
        yield f"{_call(given['driver'], case)} on virtual GPUs: {given.get('nodes', 1)} x {gpus}"
    elif call.function == "script":
        free = ", ".join(one.value for one in getattr(call.arguments.get("only"), "elts", ())
                         if isinstance(one, ast.Constant))
        yield f"what {_text(call.arguments['path'])} would start" + (
            f"; yours to choose: {free}" if free else "")
    elif call.function == "program":
        details = [f"{name}={text}" for name, text in given.items()
                   if name not in ("path", "trainer")]
        yield ", ".join([f"what {_text(call.arguments['path'])} would start", *details])
    elif call.function == "figures":
        where = call.arguments.get("device") or call.arguments.get("cluster")
        yield f"the modeled cost of that job on {_text(where)}"


def _cases(call: CheckCall, tree: ast.Module, given: dict[str, str]) -> Iterator[str]:
    function = given.get("driver") or given["f"]
    where = f" on {given.get('ranks', '4')} ranks" if call.function == "ranks" else ""
    listed = resolved(call.arguments["cases"], tree)
    if not isinstance(listed, ast.List | ast.Tuple):
        yield f"{function}{where} in each of these cases: {ast.unparse(listed)}"
        return
    for case in listed.elts[:MOST_CASES]:
        yield f"{_call(function, case)}{where}"
    if more := len(listed.elts[MOST_CASES:]):
        yield f"and {more} more case{'s' if more > 1 else ''}"


def _call(function: str, case: ast.expr) -> str:
    """Return a call with the arguments of a case: a dict of keywords, or a tuple."""
    if isinstance(case, ast.Dict):
        words = [f"{key.value}={ast.unparse(value)}" if isinstance(key, ast.Constant) else
                 f"**{ast.unparse(value)}"
                 for key, value in zip(case.keys, case.values, strict=True)]
    elif isinstance(case, ast.List | ast.Tuple):
        words = [ast.unparse(value) for value in case.elts]
    else:
        words = [f"*{ast.unparse(case)}"]
    return f"{function}({', '.join(words)})".replace("check.by_rank", "by_rank")


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) \
        else ast.unparse(node)
