"""Rules for the names that each cell may use and bind, so that a check means the same in the
notebook and during grading."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable

from labkit.build.calls import CHECK, MODULE, SCRIPTS, TESTED, check_calls, functions
from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems, nearest
from labkit.names import NameUse

BUILTINS = frozenset(dir(builtins))
# Builtins that reach beyond a check's arguments: files, other code, the namespace around it.
REACHING = frozenset(("open", "eval", "exec", "compile", "globals", "locals", "vars", "dir",
                      "__import__", "__build_class__", "input", "breakpoint", "getattr", "setattr",
                      "delattr", "help", "exit", "quit"))
# Times, memory, and counters of the student's process can be forged there, and differ everywhere.
CLOCKS = ("time", "timeit", "datetime", "resource", "tracemalloc", "psutil", "gc", "sys",
          "threading", "cProfile", "profile", "os.times", "os.getrusage", "importlib",
          "torch.cuda", "torch.profiler", "torch.autograd.profiler", "torch.utils.benchmark")
STUDENTS = (Role.ANSWER, Role.DRIVER)  # their names are proxies while a lab is graded


class _Bindings:
    """The names bound by the cells so far, by role."""

    def __init__(self) -> None:
        self.names: dict[Role, dict[str, Cell]] = {role: {} for role in Role}
        self.files: dict[str, Cell] = {}
        self.modules: set[str] = set()  # written by answers
        self.imports: dict[Role, dict[str, str]] = {role: {} for role in Role}

    def of(self, *roles: Role) -> set[str]:
        return {name for role in roles for name in self.names[role]}

    def add(self, cell: Cell) -> None:
        for name in cell.defines:
            self.names[cell.role].setdefault(name, cell)
        self.imports[cell.role] |= cell.names.imports
        if cell.path and cell.role is Role.ANSWER:
            self.files.setdefault(cell.path, cell)
            self.modules |= {cell.module} - {None}


def check(lab: Lab, problems: Problems) -> None:
    """Report every use and every binding of a name that the roles do not allow."""
    seen = _Bindings()
    for cell in lab.cells:
        if cell.role is Role.MUTANT or cell.kind != "code":
            continue
        _bindings(cell, seen, problems)
        rule = RULES.get(cell.role)
        if rule and cell.tree is not None:
            rule(cell, seen, problems, lab)
        seen.add(cell)
    for cell in lab.of(Role.MUTANT):
        if cell.tree is not None:
            earlier = [answer for answer in lab.of(Role.ANSWER) if answer.line < cell.line]
            known = seen.of(Role.SETUP).union(*(answer.defines for answer in earlier))
            _only(cell, known, problems, lab, "a mutant uses what its answer may use")


def _bindings(cell: Cell, seen: _Bindings, problems: Problems) -> None:
    """Report names bound again although a graded cell relies on them; imports may be repeated."""
    if cell.path in seen.files:
        problems.add(cell, 1, f"{cell.path} is written by {seen.files[cell.path].title}: "
                     "two answers cannot define the same file")
    if cell.role is Role.EXPLORE and cell.source.startswith("%%writefile"):
        path = cell.source.split("\n")[0].split()[-1]
        if path in seen.files:
            problems.add(cell, 1, f"{path} is the student's file ({seen.files[path].title}): write "
                         "another file")
    # This includes earlier experiments: until the student answers, the check would test those.
    early = (Role.EXPLORE, Role.CHECK) if cell.role in STUDENTS else ()
    for role in (Role.ANSWER, Role.DRIVER, Role.SETUP, Role.CHECK_SETUP, *early):
        for name in sorted(cell.defines & set(seen.names[role])):
            owner = seen.names[role][name]
            path = cell.names.imports.get(name)
            if path is not None and path == seen.imports[role].get(name) and role not in STUDENTS:
                continue
            problems.add(cell, cell.names.binds[name], f"it binds {name}, which the {role.value} "
                         f"cell in line {owner.line_of(owner.names.binds[name])} defines: choose "
                         "another name")


def _only(cell: Cell, known: Iterable[str], problems: Problems, lab: Lab, why: str) -> None:
    """Report names that are neither builtins nor in `known`."""
    known = set(known)
    for use in cell.names.uses:
        if use.name not in known | BUILTINS:
            problems.add(cell, use.line, f"it uses {use.name}, "
                                         f"{_definition_site(use, lab, known)}; {why}")


def _definition_site(use: NameUse, lab: Lab, known: Iterable[str]) -> str:
    for cell in lab.cells:
        if use.name in cell.defines and cell.role is not Role.MUTANT:
            line = cell.line_of(cell.names.binds[use.name])
            return f"which the {cell.role.value} cell in line {line} defines"
    return f"which nothing defines{nearest(use.name, known)}"


def _setup(cell: Cell, seen: _Bindings, problems: Problems, lab: Lab) -> None:
    _only(cell, seen.of(Role.SETUP), problems, lab, "a setup cell uses builtins and earlier setup "
          "cells")


def _answer(cell: Cell, seen: _Bindings, problems: Problems, lab: Lab) -> None:
    _only(cell, seen.of(Role.SETUP, Role.ANSWER), problems, lab,
          "an answer uses builtins, setup cells and earlier answers: nothing else exists when it "
          "is graded")


def _driver(cell: Cell, seen: _Bindings, problems: Problems, lab: Lab) -> None:
    for node in cell.tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom):
            problems.add(cell, node.lineno, "a driver cell may contain only functions (def) and "
                                            "imports")
    _only(cell, seen.of(Role.SETUP, Role.ANSWER), problems, lab,
          "a driver uses the student's names, setup cells, and its own imports")
    if not (cell.uses & seen.of(Role.ANSWER) or cell.imports & seen.modules):
        problems.add(cell, None, "it uses none of the student's names: make it a setup or a "
                                 "check-setup cell")
    _no_clocks(cell, seen.imports[Role.SETUP] | cell.names.imports, problems)


def _check_setup(cell: Cell, seen: _Bindings, problems: Problems, lab: Lab) -> None:
    _trusted(cell, seen.of(Role.CHECK_SETUP), seen, problems)
    _only(cell, seen.of(Role.CHECK_SETUP), problems, lab, "a check-setup cell uses builtins, its "
          "own imports and earlier check-setup cells: pass values as arguments")


def _check(cell: Cell, seen: _Bindings, problems: Problems, lab: Lab) -> None:
    ours, theirs = seen.of(Role.CHECK_SETUP), seen.of(*STUDENTS)
    _trusted(cell, ours, seen, problems)
    _only(cell, ours | theirs, problems, lab, "a check uses what it imports or defines itself, "
          "check-setup cells, and the names of answers and drivers above it")
    imports = seen.imports[Role.CHECK_SETUP] | cell.names.imports
    if CHECK in cell.uses | cell.defines and imports.get(CHECK) != MODULE:
        problems.add(cell, None, f"{CHECK} is {imports.get(CHECK, 'nothing')} here: write "
                     "`from labkit import check` in a check-setup cell")
    tested = _calls(cell, theirs, seen, problems)
    for use in cell.names.uses:
        if use.name in theirs and id(use.node) not in tested:
            problems.add(cell, use.line, f"{use.name} is the student's: it may only be the "
                         "first argument of check.value, function, raises, call, ranks, gpus, or "
                         f"schedule, as in check.call({use.name}, ...)")
    if not tested:
        problems.add(cell, None, "it does not test the student's code: give check.function(...) a "
                     "student's name, or check.script(\"PATH\") the file of an answer above")


def _calls(cell: Cell, theirs: set[str], seen: _Bindings, problems: Problems) -> set[int]:
    """Return the ids of the nodes that pass a student's name or file to labkit.check."""
    tested: set[int] = set()
    for call in check_calls(cell.tree):
        line = call.node.lineno
        if call.error == "unknown":
            problems.add(cell, line, f"labkit.check has no {call.function}"
                         f"{nearest(call.function, functions())}")
        elif call.error:
            problems.add(cell, line, f"check.{call.function}: {call.error}")
        given = [call.arguments[name] for name in TESTED.values() if name in call.arguments]
        if call.error:  # reported above; do not report its student's names as untested, too
            given = [*call.node.args, *[word.value for word in call.node.keywords]]
        tested |= {id(node) for node in given if isinstance(node, ast.Name) and node.id in theirs}
        if call.function not in SCRIPTS or "path" not in call.arguments:
            continue
        path = call.arguments["path"]
        if not isinstance(path, ast.Constant) or not isinstance(path.value, str):
            problems.add(cell, line, f"check.{call.function}: write the path out, as in "
                         f"check.{call.function}(\"code/mine.sh\")")
        elif path.value not in seen.files:
            problems.add(cell, line, f"check.{call.function}: no answer above writes {path.value}"
                         f"{nearest(path.value, seen.files)}")
        else:
            tested.add(id(path))
    return tested


def _trusted(cell: Cell, ours: set[str], seen: _Bindings, problems: Problems) -> None:
    for use in cell.names.uses:
        if use.name in REACHING and use.name not in ours:
            problems.add(cell, use.line, f"{use.name} reaches out of the check: use it in the "
                         "answer, a driver, or a setup cell, and check the value")
    for node in ast.walk(cell.tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            problems.add(cell, node.lineno, f".{node.attr} reaches out of the check: check values")
    _no_clocks(cell, seen.imports[Role.CHECK_SETUP] | cell.names.imports, problems)


def _no_clocks(cell: Cell, imports: dict[str, str], problems: Problems) -> None:
    """Report clocks and counters: nothing measured on the student's machine is graded."""
    for path, line in _paths(cell.tree, imports):
        for clock in CLOCKS:
            if path == clock or path.startswith(f"{clock}."):
                problems.add(cell, line, f"{path}: no clocks, counters, or process state: "
                             "a measurement on the student's machine is never graded")
                break


def _paths(tree: ast.Module, imports: dict[str, str]) -> list[tuple[str, int]]:
    """Return the dotted paths, with lines, of all modules and attributes that the cell names."""
    paths = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            paths += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
        elif isinstance(node, ast.Attribute):
            parts, inner = [node.attr], node.value
            while isinstance(inner, ast.Attribute):
                parts.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in imports:
                paths.append((".".join([imports[inner.id], *reversed(parts)]), node.lineno))
        elif isinstance(node, ast.Name) and node.id in imports:
            paths.append((imports[node.id], node.lineno))
    return paths


RULES = {Role.SETUP: _setup, Role.ANSWER: _answer, Role.DRIVER: _driver,
         Role.CHECK_SETUP: _check_setup, Role.CHECK: _check}
