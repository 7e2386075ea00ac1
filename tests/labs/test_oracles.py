"""No function that a sandbox can import computes what a check expects, and no table could hold it.
Else an answer could look its result up, and a rank could compute what it should receive."""

import ast
import contextlib
import io
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labcore.workspace import CODE
from labkit import check
from labkit.build.calls import check_calls
from labkit.build.lab import Cell, Lab, Role
from labkit.build.shortcuts import covered
from labkit.check.cases import cut, of_all_ranks
from labkit.check.checks import arguments_of
from labkit.check.kernel import KernelSide
from labkit.check.sides import checking_on
from tests.labs import graded
from tests.labs.test_labs import SOLUTIONS, each_lab, lab_of

MOST_LEAVES = 5_000  # numbers of one value that are compared
FEWEST_DIGITS = 5  # a number with fewer digits, such as 0.5, may be equal by chance
LEAST = 0.2  # share of the numbers that a call expects
JUDGED = ("function", "ranks", "value")
FEWEST_CASES = 1_000  # that a draw chooses from


class Anything:
    """Stands for what the student's code returns: every operation on it succeeds."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __getitem__(self, key: Any) -> Any:
        return [] if isinstance(key, slice) else self

    def __len__(self) -> int:
        return 1

    def __index__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        return True

    def __float__(self) -> float:
        return 1.0

    def __hash__(self) -> int:
        return 1

    def __format__(self, spec: str) -> str:
        return ""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def same(self, other: Any = None) -> Any:
        return self

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = same
    __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = same
    __rfloordiv__ = __rmod__ = __pow__ = __abs__ = __neg__ = __contains__ = same


class Expecting(Anything):
    """Stands for `labkit.check`: calls none of the student's code, and keeps what is expected."""

    def __init__(self) -> None:
        self.wanted: list[set[float]] = []  # the telling numbers of each call of a check
        self.lines: set[int] = set()  # of the check's calls that it has seen

    def __getattr__(self, name: str) -> Any:
        real = name in ("between", "by_rank", "draw", "for_each_rank", "PIPELINE_LIBRARIES")
        return getattr(check, name) if real else super().__getattr__(name)

    def function(self, f: Any, cases: Any, expected: Any, *rest: Any, **options: Any) -> None:
        self._see(expected, (arguments_of(case) for case in cases))

    def ranks(self, driver: Any, cases: Any, expected: Any, *, ranks: Any = 4, **options: Any
              ) -> Any:
        numbers = [ranks] if isinstance(ranks, int) else ranks
        calls = [of_all_ranks(cut(arguments_of(case), number), number) for number in numbers
                 for case in cases]
        self._see(expected, (((number, *given), words) for number, (given, words) in zip(
            (number for number in numbers for _ in cases), calls, strict=True)))
        return [Anything() for _ in calls]

    def value(self, x: Any, expected: Any, *rest: Any, **options: Any) -> None:
        self._see([expected], [])

    def _see(self, expected: Any, calls: Any) -> None:
        self.lines.add(sys._getframe(2).f_lineno)
        self.wanted.append(some_of([expected(*given, **words) for given, words in calls]
                                   if callable(expected) else expected))


def telling(value: Any) -> Iterator[float]:
    """Yield the numbers in a value that no other value has by chance, to seven digits."""
    if isinstance(value, np.ndarray) or type(value).__module__ == "torch":
        value = value.tolist() if hasattr(value, "tolist") else ()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from telling(item)
    elif type(value) in (int, float, np.float64) and math.isfinite(value):
        digits = f"{abs(value):.6e}".partition("e")[0].replace(".", "").rstrip("0")
        if len(digits) >= FEWEST_DIGITS:
            yield float(f"{value:.6e}")


def some_of(value: Any) -> set[float]:
    return set(itertools.islice(telling(value), MOST_LEAVES))


@contextlib.contextmanager
def returning(found: dict[tuple[str, str], set[float]]) -> Iterator[None]:
    """Note the numbers that functions of the course's packages return."""
    machinery = str(CODE / "labkit")

    def note(frame: Any, event: str, result: Any) -> None:
        file = frame.f_code.co_filename
        if event == "return" and file.startswith(str(CODE)) and not file.startswith(machinery):
            numbers = some_of(result)
            if numbers:
                found.setdefault((file, frame.f_code.co_qualname), set()).update(numbers)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def statements(cell: Cell, names: dict[str, Any], run: Callable[[Any], Any]) -> None:
    """Execute a check, each statement for itself: some compute with what Anything returned."""
    def each(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            is_part = isinstance(node, ast.With) and "check.part" in ast.unparse(node.items[0])
            yield from each(node.body) if is_part else [node]

    for node in each(ast.parse(cell.source).body):
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            run(compile(ast.Module([node], []), f"<{cell.title}>", "exec"))


def oracles(lab: Lab, home: Path) -> tuple[list[str], list[str]]:
    """Return the functions that compute expected values, and the calls of checks that did not run.

    Both are sentences.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    students = {name for cell in lab.of(Role.ANSWER, Role.DRIVER) for name in cell.defines}
    findings, missed = [], []
    with graded.inside(home), checking_on(KernelSide()):  # the masks end with the block
        for cell in lab.of(Role.CHECK_SETUP):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(cell.source, "<check-setup>", "exec"), names)
        for cell in lab.of(Role.CHECK):
            expecting = Expecting()
            given = names | dict.fromkeys(students, Anything()) | {"check": expecting}
            returned: dict[tuple[str, str], set[float]] = {}
            with returning(returned):
                statements(cell, given, lambda code, given=given: exec(code, given))
            missed += [f"{cell.title}, line {call.node.lineno}: check.{call.function}"
                       for call in check_calls(cell.tree) if call.function in JUDGED and not any(
                           call.node.lineno <= line <= call.node.end_lineno
                           for line in expecting.lines)]
            for (file, name), numbers in returned.items():
                module = ".".join(Path(file).relative_to(CODE).with_suffix("").parts)
                name = name.partition(".<locals>")[0]
                dotted = f"{module.removesuffix('.__init__')}.{name}"
                if any(wanted and len(numbers & wanted) >= LEAST * len(wanted)
                       for wanted in expecting.wanted) and not covered(lab, dotted):
                    findings.append(f"{cell.title}: {dotted} computes what the check expects")
    return findings, missed


def cases_of(call: ast.Call) -> float:
    """Return how many cases a call of check.draw can return; inf if a choice is no sequence."""
    sizes = []
    for word in call.keywords:
        try:
            sizes.append(len(eval(ast.unparse(word.value), {"range": range, "__builtins__": {}})))
        except Exception:  # a function, or a name
            return math.inf
    return math.prod(sizes)


def few_cases(cell: Cell) -> list[str]:
    """Return a sentence for each draw of a check that a table could hold.

    A schedule is long for its few arguments, and shapes are drawn beside the values of ranks.
    """
    calls = [node for node in ast.walk(cell.tree) if isinstance(node, ast.Call)
             and ast.unparse(node.func).startswith("check.")]
    names = {ast.unparse(call.func).removeprefix("check.") for call in calls}
    return [] if names & {"schedule", "for_each_rank"} else [
        f"{cell.title}, line {call.lineno}: {cases_of(call)} cases" for call in calls
        if ast.unparse(call.func) == "check.draw" and cases_of(call) < FEWEST_CASES]


def test_a_draw_that_a_table_holds_is_found():
    (cell,) = [cell for cell in lab_of(SOLUTIONS[0]).of(Role.CHECK)][:1]
    drawn = "check.function(f, check.draw(9, x=[1, 2], y=range({})), expected)"
    assert few_cases(replace(cell, tree=ast.parse(drawn.format(499)))) == [
        f"{cell.title}, line 1: 998 cases"]
    assert few_cases(replace(cell, tree=ast.parse(drawn.format(500)))) == []


def test_an_oracle_without_a_mask_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.labs.test_oracles.covered", lambda lab, dotted: False)
    (path,) = [one for one in SOLUTIONS if one.stem == "11_pipeline_2"]
    assert set(oracles(lab_of(path), tmp_path)[0]) == {
        f"check break-even-check: pipeline_schedules.simulation.{name} computes what the check "
        "expects" for name in ("Timeline.total", "_times")}


@pytest.mark.slow
@each_lab
def test_a_sandbox_can_import_no_oracle_and_no_table_is_one(path, tmp_path):
    findings, missed = oracles(lab_of(path), tmp_path)
    assert findings == [] and missed == []
    assert [line for cell in lab_of(path).of(Role.CHECK) for line in few_cases(cell)] == []
