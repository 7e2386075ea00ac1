"""Build-time rules for `check.mask`, which makes names unavailable to a lab's answers."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

from labkit.build.calls import CHECK
from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems, nearest
from labkit.masks import (
    PIPELINE_LIBRARIES,
    MaskTarget,
    UnknownName,
    mask_targets,
    modules_in,
    needed_by,
)
from labkit.names import imported

# These modules run beside the student's code in every sandbox.
GUEST = ("labkit.guest.serving", "labkit.guest.shell", "labkit.check.record",
         "labkit.check.stand_in", "labkit.check.launch_record", "labkit.check.steps")


def calls(tree: ast.Module | None) -> list[ast.Call]:
    """Return the calls of `check.mask` in a cell."""
    return [node for node in ast.walk(tree or ast.Module([], []))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and (node.func.value.id, node.func.attr) == (CHECK, "mask")]


def masked(tree: ast.Module | None) -> list[str]:
    """Return the literal names that a cell masks."""
    return [name for call in calls(tree) for word in call.args for name in _written_out(word) or ()]


def _written_out(word: ast.expr) -> tuple[str, ...] | None:
    """Return the names that an argument of `check.mask` stands for; None for any other argument."""
    if isinstance(word, ast.Constant) and isinstance(word.value, str):
        return (word.value,)
    if isinstance(word, ast.Starred) and ast.unparse(word.value) == f"{CHECK}.PIPELINE_LIBRARIES":
        return PIPELINE_LIBRARIES
    return None


def check(lab: Lab, problems: Problems) -> None:
    """Report errors in the masks of `lab`."""
    mask_calls = [(cell, call) for cell in lab.cells if cell.role is not Role.MUTANT
                  for call in calls(cell.tree)]
    for cell, call in mask_calls:
        if cell.role is not Role.CHECK_SETUP:
            problems.add(cell, call.lineno, "check.mask belongs in a check-setup cell")
        if call.keywords or not all(map(_written_out, call.args)):
            problems.add(cell, call.lineno, "check.mask: write the names out, as in "
                         'check.mask("minimegatron.formulas")')
    for cell, call in mask_calls[1:]:
        problems.add(cell, call.lineno, "check.mask is called once in a lab: name everything there")
    for cell, call in mask_calls[:1]:
        needed = list(_needed(lab))
        for name in masked(cell.tree):
            _name(name, cell, call.lineno, needed, problems)


def _name(name: str, cell: Cell, line: int, needed: list[tuple[str, str]], problems: Problems
          ) -> None:
    try:
        matches = mask_targets(name)
        exists = bool(matches) and all(target.defined or _is_compiled(target) for target in matches)
    except UnknownName:
        exists = False
    if not exists:
        known = modules_in(name.rpartition(".")[0])
        problems.add(cell, line, f'check.mask("{name}"): no such module or name'
                     f"{nearest(name, known)}")
        return
    for user, module in needed:
        if any(target.covers(module, "") if not target.qualname else name == module
               for target in matches):
            problems.add(cell, line, f'check.mask("{name}"): {user} needs {module}')
            return


def _is_compiled(target: MaskTarget) -> bool:
    """Return whether a module has a name that no statement of its file defines."""
    try:
        value = importlib.import_module(target.module)
        for part in target.qualname.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return False
    return True


def _needed(lab: Lab) -> Iterator[tuple[str, str]]:
    """Yield (user, module or name) for everything that must work in a lab's sandbox."""
    for module in needed_by(GUEST):
        yield "every sandbox", module
    for cell in lab.of(Role.SETUP, Role.DRIVER):
        direct = list(imported(cell.tree))
        for module in [*direct, *needed_by(direct)]:
            yield f"the {cell.title} in line {cell.line}", module
