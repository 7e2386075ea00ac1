"""Find imports that give an answer away: functions with the same results as the reference.

`lab build` looks for public functions of the course's packages that no mask covers and that share
an answer's name, the words of its name, or its parameters. To learn what they return, it calls them
with the arguments that the lab's checks pass to the reference. A separate process does that
(`python -m labkit.build.shortcuts FILE`); it is started only if there are such functions.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from labcore.workspace import CODE
from labkit.build.calls import script_paths
from labkit.build.lab import Cell, Lab, Role
from labkit.build.masks import masked
from labkit.masks import UnknownName, mask_targets

PACKAGES = ("cluster_planner", "corpus_tools", "job_monitor", "lab", "labkit", "lablib",
            "layout_estimator", "minimegatron", "pipeline_schedules", "virtualgpu")
# Packages that run, serve, and build the course; no exercise is about them.
MACHINERY = ("labkit.build.", "labkit.check.", "labkit.guest.", "lab.hub.", "lab.jupyter.",
             "lab.start.", "lab.tensorboard.")
FUNCTION = re.compile(r"^def ([a-z]\w*)\((.*?)\)(?: ->[^\n]*)?:\n", re.M | re.S)
PARAMETER = re.compile(r"(?:^|,)\s*(\w+)\s*(?=[:=,]|$)")
SECONDS = 120.0  # for one lab
SECONDS_PER_CALL = 1
FEWEST_PARAMETERS = 2  # with fewer, matching parameter names mean nothing


@dataclass(frozen=True)
class Shortcut:
    """A function with the same results as an answer's reference."""

    answer: str  # its grade_id
    module: str
    name: str

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Recorded:
    """One call of an answer's function in a check."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any


def warnings(lab: Lab) -> list[str]:
    """Return a warning for each unmasked import that would pass as an answer."""
    if not similar(lab):
        return []
    try:
        done = subprocess.run([sys.executable, "-m", "labkit.build.shortcuts", str(lab.path)],
                              env={**os.environ, "PYTHONPATH": str(CODE)}, text=True,
                              capture_output=True, timeout=SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        why = (error.stderr or str(error)).strip().split("\n")[-1]
        return [f"{lab.path.name}: could not test whether an import gives an answer away, because "
                f"the lab fails with its own answers: {why}"]
    return [sentence(lab, Shortcut(*fields)) for fields in json.loads(done.stdout)]


def sentence(lab: Lab, shortcut: Shortcut) -> str:
    answer = lab.answers[shortcut.answer]
    (name, *_) = functions_of(answer)
    return (f"{lab.path.name}:{answer.line}: {answer.title}: `from {shortcut.module} import "
            f"{shortcut.name} as {name}` gives the same results: mask it in a check-setup cell, "
            f'check.mask("{shortcut.dotted}")')


def functions_of(answer: Cell) -> dict[str, list[str]]:
    """Return the functions that an answer defines, with their parameters."""
    return {node.name: [argument.arg for argument in node.args.args]
            for node in (answer.tree.body if answer.tree else ())
            if isinstance(node, ast.FunctionDef)}


def covered(lab: Lab, dotted: str) -> bool:
    """Return whether a mask of the lab covers a function."""
    names = [name for cell in lab.of(Role.CHECK_SETUP) for name in masked(cell.tree)]
    try:
        (defined, *_) = mask_targets(dotted)
        return any(target.covers(defined.module, defined.qualname)
                   for name in names for target in mask_targets(name))
    except UnknownName:  # a compiled module's
        return dotted in names


def similar(lab: Lab) -> list[Shortcut]:
    """Return the unmasked functions that resemble an answer."""
    candidates = []
    for grade_id, answer in lab.answers.items():
        for name, parameters in functions_of(answer).items():
            for module, other, theirs in public():
                alike = len(parameters) >= FEWEST_PARAMETERS and set(parameters) <= set(theirs)
                named = set(name.split("_")) <= set(other.split("_"))
                if lab.tested_by[grade_id] and (named or alike):
                    candidates.append(Shortcut(grade_id, module, other))
    return [one for one in candidates if not covered(lab, one.dotted)]


@cache
def public() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return (module, name, parameters) of the public functions that may contain an answer.

    Regular expressions find them, because parsing all modules would dominate the build time.
    """
    functions = []
    for package in PACKAGES:
        for path in sorted((CODE / package).rglob("*.py")):
            parts = path.relative_to(CODE).with_suffix("").parts
            module = ".".join(part for part in parts if part != "__init__")
            if not f"{module}.".startswith(MACHINERY):
                functions += [(module, name, tuple(PARAMETER.findall(parameters)))
                              for name, parameters in FUNCTION.findall(path.read_text("utf-8"))]
    return tuple(functions)


def recorded(lab: Lab, home: Path) -> dict[str, list[Recorded]]:
    """Run a lab's function checks on the reference, and return the calls by grade_id."""
    from labcore import shipping
    from labkit.check import kernel, sides

    calls: dict[str, list[Recorded]] = {}
    owners = {name: grade_id for grade_id, answer in lab.answers.items()
              for name in functions_of(answer)}

    of_files = {check.grade_id for grade_id, answer in lab.answers.items() if answer.path
                for check in lab.tested_by[grade_id]}  # no answer's file is written here

    class RecordingKernel(kernel.KernelSide):
        def call(self, function: Any, arguments: Sequence[Any], keywords: Any) -> Any:
            result = super().call(function, arguments, keywords)
            owner = owners.get(self.title(function))
            if owner and not isinstance(result, sides.Raised):
                calls.setdefault(owner, []).append(
                    Recorded(tuple(arguments), dict(keywords), result))
            return result

    os.environ["LAB_HOME"] = str(home)
    shipping.make_workspace(home, lambda line: None)
    names: dict[str, Any] = {"__name__": "__main__"}
    with sides.checking_on(RecordingKernel()), contextlib.redirect_stdout(io.StringIO()):
        for cell in lab.of(Role.SETUP, Role.ANSWER, Role.DRIVER, Role.CHECK_SETUP, Role.CHECK):
            scripts = cell.path or (cell.role is Role.CHECK and script_paths(cell.tree))
            if cell.tree is not None and not scripts and cell.grade_id not in of_files:
                exec(compile(cell.source, f"<{cell.title}>", "exec"), names)
    return calls


def passing(calls: dict[str, list[Recorded]], candidates: Sequence[Shortcut]) -> list[Shortcut]:
    """Return the candidates that reproduce the recorded results.

    They run in a separate process; if a candidate ends it, the rest run in a new one.
    """
    wanted = [one for one in candidates if calls.get(one.answer)]
    for module in dict.fromkeys(one.module for one in wanted):
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
    confirmed, begin = [], 0
    while begin < len(wanted):
        tried = 0
        for line in _in_a_fork(lambda begin=begin: (
                _gives(one, calls[one.answer]) for one in wanted[begin:])):
            confirmed += [wanted[begin + tried]] * (line == "True\n")
            tried += 1
        begin += tried + 1
    return confirmed


def _in_a_fork(work: Callable[[], Iterator[bool]]) -> list[str]:
    """Return the lines that `work` yields in a forked process, until that process ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            for descriptor in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            for result in work():
                os.write(writer, f"{result}\n".encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        lines = list(answer)
    os.waitpid(child, 0)
    return lines


def _gives(one: Shortcut, calls: Sequence[Recorded]) -> bool:
    """Return whether a function reproduces all recorded results.

    It is called with the recorded arguments as they were, or in the order of its parameters.
    """
    try:
        function = getattr(importlib.import_module(one.module), one.name)
    except Exception:
        return False
    return any(all(_same(function, given, call.result) for given, call in zip(ways, calls,
                                                                              strict=True))
               for ways in ([(call.arguments, call.keywords) for call in calls],
                            [((*call.arguments, *call.keywords.values()), {}) for call in calls]))


def _same(function: Any, given: tuple[tuple[Any, ...], dict[str, Any]], result: Any) -> bool:
    from labkit.check import wire
    from labkit.check.same import NEAR, difference

    signal.alarm(SECONDS_PER_CALL)  # which ends this process
    try:
        arguments, keywords = wire.copy(given)
        return difference(wire.copy(function(*arguments, **keywords)), result, NEAR) is None
    except (Exception, SystemExit):
        return False
    finally:
        signal.alarm(0)


def main(path: Path) -> None:
    from labkit.build.problems import Problems
    from labkit.build.reading import read_into

    lab = read_into(path, Problems(path))
    with tempfile.TemporaryDirectory() as home:
        calls = recorded(lab, Path(home))
        os.chdir(home)
        shortcuts = passing(calls, similar(lab))
        os.chdir("/")
    print(json.dumps([(one.answer, one.module, one.name) for one in shortcuts]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
