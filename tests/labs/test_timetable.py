"""The instructors' timetable: what it says may be left out really may."""

import re

import pytest

from labcore.workspace import CHECKOUT
from labkit.build.lab import Role
from tests.labs.test_labs import lab_of

GUIDE = (CHECKOUT / "docs" / "teaching.md").read_text()
ROW = re.compile(r"^\| (\d\d) [\w -]+ \| \d+ \| \d+ \| \d+ \| exercises? ([\d, ]+) \|$", re.M)

NUMBERS = [row[0] for row in ROW.findall(GUIDE)]
LABS = [path for path in sorted((CHECKOUT / "solutions").glob("*.py"))
        if path.stem[:2] in NUMBERS]


def left_out(number: str) -> list[int]:
    """The exercises that the table says a class may skip."""
    (found,) = [row[1] for row in ROW.findall(GUIDE) if row[0] == number]
    return [int(one) for one in found.split(",")]


def sections(lab):
    """(heading, cell) of every cell: the last exercise's or section's title above it."""
    heading = ""
    for cell in lab.cells:
        titles = re.findall(r"^#+ (.*)$", cell.source, re.M) if cell.kind == "markdown" else []
        heading = titles[-1] if titles else heading
        yield heading, cell


def users(lab, exercise):
    """Headings, other than the exercise's own, whose cells use what its answers define."""
    own = re.compile(rf"Exercise {exercise}\b")
    cells = list(sections(lab))
    names = {name for heading, cell in cells if own.match(heading) and cell.role is Role.ANSWER
             for name in (*cell.defines, *filter(None, [cell.path]))}
    assert names, f"there is no exercise {exercise}"
    return {heading for heading, cell in cells if cell.kind == "code" and not own.match(heading)
            for name in names if re.search(rf"(?<![\w.]){re.escape(name)}\b", cell.source)}


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_what_the_timetable_leaves_out_nothing_else_needs(path):
    for exercise in left_out(path.stem[:2]):
        assert users(lab_of(path), exercise) == set()


def test_an_exercise_that_others_build_on_is_seen():
    (path,) = (CHECKOUT / "solutions").glob("05_*.py")
    assert "Exercise 12: MFU and HFU" in users(lab_of(path), 11)
