"""The instructors' timetable: its minutes follow its rule, and what may be left out really may."""

import re

import pytest

from labcore.workspace import CHECKOUT
from labkit.build.lab import Role
from tests.labs.test_labs import lab_of

GUIDE = (CHECKOUT / "docs" / "teaching.md").read_text()
ROW = re.compile(r"^\| (\d\d) [\w -]+ \| (\d+) \| (\d+) \| \d+ \| exercises? ([\d, ]+) \|$", re.M)
ROWS = {row[0]: row[1:] for row in ROW.findall(GUIDE)}
NUMBERS = list(ROWS)
WORDS_PER_MINUTE = 160
# Pictures, links, and formulas have no words to read.
UNREAD = re.compile(r"!\[[^\]]*\]\([^)]*\)|(?<=\])\([^)]*\)|\$\$.*?\$\$", re.S)
COUNTED_ELSEWHERE = ("Exercise", "Discuss", "Read next")  # sections with a column of their own
WAITS = re.compile(r"jobs\.wait|wait_for\(\"|srun .*python")
LABS = [path for path in sorted((CHECKOUT / "solutions").glob("*.py"))
        if path.stem[:2] in NUMBERS]


def left_out(number: str) -> list[int]:
    """The exercises that the table says a class may skip."""
    return [int(one) for one in ROWS[number][2].split(",")]


def reading_minutes(lab) -> float:
    """Minutes for the prose, and one for each cell that waits for jobs."""
    parts = [part for cell in lab.cells if cell.kind == "markdown"
             for part in re.split(r"^(?=#+ )", cell.source, flags=re.M)
             if not part.lstrip("# ").startswith(COUNTED_ELSEWHERE)]
    waiting = [cell for cell in lab.cells if cell.kind == "code" and WAITS.search(cell.source)
               and cell.role is Role.EXPLORE]
    words = sum(len(UNREAD.sub("", part).split()) for part in parts)
    return words / WORDS_PER_MINUTE + len(waiting)


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_reading_and_running_takes_no_longer_than_the_timetable_says(path):
    assert 5 * round(reading_minutes(lab_of(path)) / 5) <= int(ROWS[path.stem[:2]][0])


def test_the_first_labs_fit_into_an_hour_and_lab_04_into_five_sittings():
    minutes = {number: int(read) + int(exercises) for number, (read, exercises, _) in ROWS.items()}
    assert all(minutes[number] <= 60 for number in ("00", "01", "02", "03"))
    (path,) = (path for path in LABS if path.stem[:2] == "04")
    sittings = re.findall(r"(\w+) sitting, (\d+) minutes", path.read_text())
    assert [name for name, _ in sittings] == ["First", "Second", "Third", "Fourth", "Fifth"]
    assert all(int(length) <= 60 and f"{name.lower()} sitting ({length} minutes" in GUIDE
               for name, length in sittings)
    assert sum(int(length) for _, length in sittings) == minutes["04"]


@pytest.mark.parametrize("path", [path for path in LABS if path.stem < "10"],
                         ids=lambda path: path.stem)
def test_the_guide_agrees_on_the_minutes_of_a_sitting(path):
    for name, length in re.findall(r"(\w+) sitting, (\d+) minutes", path.read_text()):
        assert f"{name.lower()} sitting ({length} minutes" in " ".join(GUIDE.split())


def cuts() -> list[tuple[str, str]]:
    """(lab, section) of every place at which the guide divides a lab into sittings."""
    advice = " ".join(GUIDE.partition("**Self-paced**")[2].split()).partition("The *Discuss*")[0]
    return [(number, section)
            for number, places in re.findall(r"lab (\d\d) (before (?:(?!lab \d\d).)*)", advice)
            for section in re.findall(r"before \*([^*]+)\*", places)]


@pytest.mark.parametrize(("number", "section"), cuts())
def test_a_lab_is_cut_where_a_section_begins(number, section):
    """The guide may shorten a title to its first words."""
    (path,) = (path for path in LABS if path.stem[:2] == number)
    assert re.search(rf"^# ## {re.escape(section)}(?!\w)", path.read_text(), re.M)


def test_every_lab_of_several_sittings_is_cut():
    assert len(cuts()) > 10 and {number for number, _ in cuts()} >= {"04", "05", "06", "08", "09"}


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
    (path,) = (CHECKOUT / "solutions").glob("07_*.py")
    assert "Exercise 2: utilization" in users(lab_of(path), 1)
