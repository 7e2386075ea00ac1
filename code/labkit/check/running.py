"""`check.lab`, `check("NAME")`, and `check.show`: a notebook's checks from the file beside the lab.

A check runs as its author wrote it, in a namespace of its own: check-setup cells once per kernel,
then the check's drivers beside what the student has defined, then the check itself.
"""

from __future__ import annotations

import builtins
import difflib
import json
import linecache
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labcore import workspace
from labcore.colors import bad, strong
from labkit import lab_checks
from labkit.cells import Code, Role
from labkit.check import checks
from labkit.check.checks import Failed
from labkit.check.sides import NOTEBOOK, check_file
from labkit.lab_checks import CheckInfo, LabChecks, ServedCell

OLDER = ("This notebook is from another version of {lab} than the one that is installed, whose "
         "exercises differ. Copy your answers into the current notebook: if yours is in "
         "notebooks/, the current one is beside it, as {lab}.new.ipynb.")
YOURS = "Does your answer return what the exercise asks for?"
NOT_YOURS = "This is not your answer's fault: show the message to your instructor."
MAIN = "__main__"  # functions of this module are sent to ranks with their code


class LoadedLab:
    """A lab whose checks this notebook runs."""

    def __init__(self, checks: LabChecks) -> None:
        self.checks = checks
        self.is_older = False
        self.setup: dict[str, Any] = {"__name__": MAIN}  # what check-setup cells define
        self.ran: set[str] = set()  # their IDs

    def find(self, name: Any) -> tuple[ServedCell, CheckInfo]:
        """Return a check. Raises Failed for a name that the lab does not have."""
        known = self.checks.by_name
        if not isinstance(name, str) or name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            all_names = ", ".join(f'"{one}"' for one in known)
            nearest = f'the nearest is check("{near[0]}")' if near else f"its checks: {all_names}"
            older = f"\n{OLDER.format(lab=self.checks.lab)}" if self.is_older else ""
            raise Failed(f"{self.checks.lab} has no check {name!r}; {nearest}{older}")
        cell = known[name]
        return cell, self.checks.checks[cell.grade_id]

    def drivers(self, info: CheckInfo) -> list[ServedCell]:
        return [self.checks.by_id[one] for one in info.drivers]

    def shown_by(self, name: Any, message: str) -> str:
        """Return a line on the drivers that a message names, for students who have not seen them.
        """
        if name not in self.checks.by_name:
            return ""
        _, info = self.find(name)
        functions = [one for driver in self.drivers(info) for one in Code(driver.source).names.binds
                     if re.search(rf"\b{one}\(", message)]
        return f'\n`check.show("{name}")` shows `{functions[0]}`.' if functions else ""

    def run(self, name: Any, student: Mapping[str, Any]) -> None:
        """Run a check. Raises Failed.

        Args:
            name: the check's.
            student: the notebook's global names.
        """
        cell, info = self.find(name)
        self._require_answers(info, student)
        for one in self.checks.cells[:self.checks.cells.index(cell)]:
            if one.role == Role.CHECK_SETUP.value and one.id not in self.ran:
                execute(one.source, check_file(f"setup of {name}"), self.setup, NOT_YOURS)
                self.ran.add(one.id)
        beside = {**student, "__name__": MAIN}
        for number, driver in enumerate(self.drivers(info), 1):
            file = check_file(name if number == 1 else f"{name}, {number}")
            lines = driver.source.splitlines(keepends=True)
            linecache.cache[file] = (len(driver.source), None, lines, file)  # for tracebacks
            execute(driver.source, file, beside, NOT_YOURS)
        execute(cell.source, check_file(f"cases of {name}"), {**beside, **self.setup})

    def _require_answers(self, info: CheckInfo, student: Mapping[str, Any]) -> None:
        """Raise Failed unless the cells above have run."""
        for answer in info.answers:
            missing = [f"`{one}`" for one in answer.names if one not in student]
            where = f"the answer cell of \"{answer.title}\""
            if missing:
                verb = "is" if len(missing) == 1 else "are"
                raise Failed(f"{', '.join(missing)} {verb} not defined. Run {where}, and then this "
                             "check. (A restart of the kernel clears all variables.)")
            if answer.path and not (workspace.home() / answer.path).is_file():
                raise Failed(f"{answer.path} does not exist. Run {where}, which writes it, and "
                             "then this check.")
        missing = [one for one in info.uses if one not in student and not hasattr(builtins, one)]
        if missing:
            raise Failed(f"`{missing[0]}` is not defined. Run the notebook's cells from the top to "
                         "here. (A restart of the kernel clears all variables.)")


_loaded: LoadedLab | None = None


def lab(name: str) -> None:
    """Choose the lab whose checks `check("NAME")` runs. Its notebook calls this at the top.

    Raises Failed if the lab's checks are not on this machine.
    """
    global _loaded
    path = lab_checks.find(name)
    if path is None:
        near = difflib.get_close_matches(name, lab_checks.installed(), n=1)
        nearest = f"; nearest: {near[0]}" if near else ""
        raise Failed(f"the checks of {name} are not installed{nearest}. If it is a lab of your "
                     f"instructor's own, put {name}{lab_checks.BESIDE} beside this notebook.")
    _loaded = LoadedLab(lab_checks.read(path))
    if (version := saved_version()) and version != _loaded.checks.version:
        _loaded.is_older = True
        print(f"{bad('!')} {OLDER.format(lab=name)}")


def chosen_lab() -> str:
    """Return the name that `lab` was last called with; empty before that."""
    return _loaded.checks.lab if _loaded is not None else ""


def run(name: Any, student: dict[str, Any]) -> None:
    """Run a check of the notebook's lab, and end with a verdict. Raises Failed.

    Args:
        name: the check's, such as "shift".
        student: the notebook's global names.
    """
    loaded = _of_this_notebook()
    checks.begin()
    try:
        loaded.run(name, student)
    except Failed as error:
        raise Failed(f"{error}{loaded.shown_by(name, str(error))}") from None
    checks.conclude()


def show(name: str) -> None:
    """Print the drivers of a check, and the cases that students can see of it. Expected values and
    hints are not shown. Raises Failed for an unknown name."""
    loaded = _of_this_notebook()
    _, info = loaded.find(name)
    drivers = loaded.drivers(info)
    for driver in drivers:
        print(f"{driver.source}\n")
    print(strong(f'check("{name}") tries'))
    for case in info.cases:
        print(f"  {case}")
    if info.has_hidden:
        print("Grading also runs hidden tests, with other cases.")


def _of_this_notebook() -> LoadedLab:
    if _loaded is None:
        raise Failed("which lab is this? Run the cell at the top with `from labkit import check` "
                     f"and check.lab(...): one of {', '.join(lab_checks.installed())}.")
    return _loaded


def execute(source: str, file: str, namespace: dict[str, Any], advice: str = YOURS) -> None:
    """Run a cell of the course. Raises Failed, without a traceback, which would quote the cell.

    Args:
        source: the cell.
        file: stands for its file in tracebacks.
        namespace: its global names.
        advice: what to say about an exception.
    """
    try:
        exec(compile(source, file, "exec"), namespace)
    except Failed as error:
        raise Failed(str(error)) from None
    except AssertionError as error:
        raise Failed(str(error) or "a test of this check failed") from None
    except Exception as error:
        raise Failed(f"the check ended with {type(error).__name__}: {error}. {advice}") from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None


def saved_version() -> str:
    """Return the version of the lab that this notebook was made from, as its file has it; empty
    where that is unknown."""
    try:
        path = Path(os.environ.get(NOTEBOOK, ""))
        marks = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("lab", {})
        return str(marks.get("version", ""))
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return ""
