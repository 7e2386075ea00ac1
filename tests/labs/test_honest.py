"""Correct answers in unusual styles, written from the exercises' text alone: all have full marks.

`honest/LAB.py` holds them as cells with `answer="NAME" style="..."`, complete, as a student hands
them in. The first answers to all exercises of a lab are checked together, then the second ones; in
`make test` only the first.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

import pytest

from labcore import shipping
from tests.labs import graded
from tests.labs.test_labs import SOLUTIONS, lab_of, mutated

CELL = re.compile(r'^# %% answer="([^"]+)" style="([^"]+)"\n', re.MULTILINE)
HONEST = sorted((Path(__file__).parent / "honest").glob("*.py"))


def answers(path: Path) -> list[tuple[str, str, str]]:
    """Return the name, the style, and the source of every answer in a file."""
    _, *found = CELL.split(path.read_text())
    return [(name, style, source.strip("\n"))
            for name, style, source in zip(found[::3], found[1::3], found[2::3], strict=True)]


def rounds(path: Path) -> list[dict[str, tuple[str, str]]]:
    """Return dictionaries from names to styles and sources: the first answer to each exercise, the
    second, and so on."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for name, style, source in answers(path):
        by_name.setdefault(name, []).append((style, source))
    return [{name: one for name, one in zip(by_name, group, strict=True) if one}
            for group in zip_longest(*by_name.values())]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = tmp_path_factory.mktemp("workspace")
    shipping.make_workspace(made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("path", "chosen"), [
    pytest.param(path, chosen, id=f"{path.stem}-{number}",
                 marks=pytest.mark.stress if number > 1 else ())
    for path in HONEST for number, chosen in enumerate(rounds(path), 1)])
def test_a_correct_answer_is_never_refused(path, chosen, home):
    lab = lab_of(next(one for one in SOLUTIONS if one.stem == path.stem))
    checks = {check.grade_id for name in chosen for check in lab.tested_by[name]}
    assert checks
    outcome = graded.run(lab, home, lambda cell: chosen[cell.grade_id][1]
                         if cell.grade_id in chosen else cell.source, checks)
    assert {name: str(error) for name, error in outcome.answers.items()} == {}
    assert {name: graded.text(error) for name, error in outcome.checks.items() if error} == {}


def test_the_answers_are_many_and_each_has_an_exercise():
    found = {path.stem: answers(path) for path in HONEST}
    assert set(found) == {path.stem for path in SOLUTIONS}
    assert sum(map(len, found.values())) >= 60
    for path in SOLUTIONS:
        assert {name for name, *_ in found[path.stem]} <= set(mutated(path))
