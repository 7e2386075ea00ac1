"""Find the parts of a check with partial credit in its source.

`lab build` refuses checks that cannot be graded part by part, and the grader runs the parts found
here, so both use the same structure.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass

from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems
from labkit.build.visible import without_hidden
from labkit.names import analyse

FORM = 'with check.part(1, "what it asks for"):'


class UngradableParts(ValueError):
    """A check whose parts cannot be graded separately; `line` is the line in the cell."""

    def __init__(self, node: ast.AST, text: str) -> None:
        super().__init__(text)
        self.line: int = getattr(node, "lineno", 1)


@dataclass(frozen=True)
class Part:
    """One part. `tree` is the shared code before the parts, followed by the part's own code."""

    points: float
    title: str
    tree: ast.Module
    own: ast.Module


def split(tree: ast.Module) -> list[Part]:
    """Return the parts of a check, or an empty list if it is all or nothing. Raises Misplaced."""
    uses = [node for node in ast.walk(tree) if _call(node) in ("parts", "part")]
    if not uses:
        return []
    block = tree.body[-1]
    if not (isinstance(block, ast.With) and _item(block, "parts")):
        raise UngradableParts(uses[0], "`with check.parts():` must be the last statement of its "
                              "check, and contain all parts")
    before, parts = tree.body[:-1], []
    for statement in block.body:
        call = _item(statement, "part") if isinstance(statement, ast.With) else None
        if call is None:
            raise UngradableParts(statement, f"check.parts() may contain only parts: {FORM}")
        points, title = _arguments(call)
        if title in [one.title for one in parts]:
            raise UngradableParts(call, f"two parts are called {title!r}")
        parts.append(Part(points, title, ast.Module([*before, *statement.body], []),
                          ast.Module(statement.body, [])))
    if len(uses) != 1 + len(parts):
        stray = max(uses, key=lambda node: node.lineno)
        raise UngradableParts(stray, "check.parts and check.part may only be used as "
                              f"`with check.parts():` and, directly within it, {FORM}")
    return parts


def _call(node: ast.AST) -> str:
    """Return the attribute of `check` that a node uses, such as `part` for check.part(...)."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) \
            and node.value.id == "check":
        return node.attr
    return ""


def _item(statement: ast.With, name: str) -> ast.Call | None:
    """Return the call in `with check.<name>(...):`, or None for any other statement."""
    if len(statement.items) != 1 or statement.items[0].optional_vars is not None:
        return None
    call = statement.items[0].context_expr
    if not (isinstance(call, ast.Call) and _call(call.func) == name):
        return None
    return call if name == "part" or not (call.args or call.keywords) else None


def _arguments(call: ast.Call) -> tuple[float, str]:
    given = [argument.value if isinstance(argument, ast.Constant) else None
             for argument in call.args]
    if call.keywords or len(given) != 2:
        raise UngradableParts(call, f"write both arguments out: {FORM}")
    points, title = given
    if isinstance(points, bool) or not isinstance(points, int | float) or not 0 < points < 1e6:
        raise UngradableParts(call, f"a part's points must be a literal number above 0: {FORM}")
    if not isinstance(title, str) or not title.strip() or len(title.splitlines()) > 1:
        raise UngradableParts(call, f"a part's title must be a literal string of one line: {FORM}")
    return float(points), title


def check(lab: Lab, problems: Problems) -> None:
    """Report errors in the parts of a lab's checks."""
    for cell in lab.of(Role.CHECK):
        if cell.tree is None:
            continue
        try:
            parts = split(cell.tree)
        except UngradableParts as error:
            problems.add(cell, error.line, str(error))
            continue
        if parts:
            _sums(cell, parts, problems)
            _separate(cell, parts, problems)
            _visible(cell, parts, problems)


def _sums(cell: Cell, parts: list[Part], problems: Problems) -> None:
    total = math.fsum(part.points for part in parts)
    if not math.isclose(total, cell.points):
        problems.add(cell, None, f"its parts sum to {total:g} points, but the check is worth "
                     f"{cell.points:g}")


def _separate(cell: Cell, parts: list[Part], problems: Problems) -> None:
    """Report parts that use each other's names, because each part is graded separately."""
    before = set(analyse(ast.Module(cell.tree.body[:-1], [])).binds)
    names = [analyse(part.own) for part in parts]
    for part, own in zip(parts, names, strict=True):
        if not any(_call(node) for node in ast.walk(part.own)):
            problems.add(cell, part.own.body[0].lineno, f"part {part.title!r} checks nothing: "
                         "call check.function, check.that, or the like")
        for name in sorted(before & set(own.binds)):
            problems.add(cell, own.binds[name], f"part {part.title!r} binds {name}, which is bound "
                         "before the parts: choose another name")
        others = set().union(*(other.binds for other in names if other is not own)) - before
        for use in own.uses:
            if use.name in others:
                problems.add(cell, use.line, f"part {part.title!r} uses {use.name} of another "
                             "part: each part runs by itself; bind it before check.parts()")


def _visible(cell: Cell, parts: list[Part], problems: Problems) -> None:
    """Report hidden parts: students see every part, so that their notebook's total is right."""
    try:
        seen = split(ast.parse(without_hidden(cell.source, blank=True)))
    except (SyntaxError, UngradableParts):
        seen = []  # labkit.build.visible reports the first one in more detail
    if [part.title for part in seen] != [part.title for part in parts]:
        problems.add(cell, None, "hidden tests may not hide a whole part: put them inside one, "
                     "below its visible lines")
