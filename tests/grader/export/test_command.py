"""`lab export`, on a course in which two students are graded and one is not."""

from __future__ import annotations

import json
import zipfile

import pytest

from grader.batch import merge
from grader.gradebook import decisions, records
from grader.run import lab_plan, results
from grader.run.attempt import Attempt
from tests.grader.conftest import submit
from tests.grader.export.conftest import NAME
from tests.grader.export.files import CANVAS, GRADES, WORKSHEET, csv_bytes
from tests.grader.small_lab import RIGHT, answered

pytestmark = pytest.mark.slow

FULL = {"batch-check": 3.0, "script-check": 2.0}
LOST = {"state": "ungraded", "reason": "out of time", "scores": {"script-check": 2.0},
        "unscored": ("batch-check",)}


@pytest.fixture
def graded(course, released):
    """ada has 5 of 5 points, less a tenth for being late; grace is ungraded."""
    plan, config = lab_plan.read(course, NAME), course.settings()
    with records.gradebook(course) as book:
        for student, more in (("ada", {"state": "graded", "scores": FULL}), ("grace", LOST)):
            submit(course, student, answered(released))
            notebook = json.loads(json.dumps(answered(plan.skeleton, RIGHT)))
            result = results.write(course, "", Attempt(
                student, NAME, course.digest(NAME, student), plan.digest, notebook=notebook,
                **more))
            merge.merge(course, config, book, result)
        actual = book.find_submission(NAME, "ada").notebooks[0]
        actual.late_submission_penalty = 0.5
        book.db.commit()
    return course


@pytest.fixture
def lms(tmp_path):
    def lms(rows, **dialect):
        path = tmp_path / "lms.csv"
        path.write_bytes(csv_bytes(rows, **dialect))
        return str(path)

    return lms


def test_the_net_score_goes_to_canvas_and_the_rest_is_said(graded, command, lms, tmp_path):
    done = command("export", "canvas", "--roster", lms(CANVAS, bom=True, end="\r\n"), "--to",
                   str(tmp_path / "up.csv"))
    assert done.returncode == 0, done.stderr
    expected = [list(row) for row in CANVAS]
    expected[3][7] = "4.5"
    assert (tmp_path / "up.csv").read_bytes() == csv_bytes(expected, bom=True, end="\r\n")
    assert f"{NAME} -> 90_small (4711): 1 new, 0 changed, 0 as before, 0 excused, 1 ungraded, " \
           "2 who submitted nothing" in done.stdout
    assert "so the file keeps what it has: grace: out of time; Canvas has 2" in done.stderr
    assert "line 8, =HYPERLINK(evil): '=HYPERLINK(evil)' is not on the roster" in done.stderr


def test_what_a_person_decided_goes_to_canvas(graded, command, lms, tmp_path):
    decisions.add(graded, decisions.SCORE, ["ada"], NAME, decisions.EXCUSED, "ill")
    decisions.add(graded, decisions.SCORE, ["jm1"], NAME, 2.5, "handed in on paper")
    done = command("export", "canvas", "--roster", lms(CANVAS), "--to", str(tmp_path / "up.csv"))
    assert done.returncode == 0, done.stderr
    expected = [list(row) for row in CANVAS]
    expected[3][7], expected[5][7] = "EX", "2.5"
    assert (tmp_path / "up.csv").read_bytes() == csv_bytes(expected)
    assert "1 excused" in done.stdout


@pytest.mark.parametrize("words, says", [
    (["--lab", "nope"], "no lab nope"), (["--column", f"{NAME}=x"], "--column"),
    (["--to", "/nowhere/up.csv"], "no folder /nowhere"), (["--roster", "gone.csv"], "gone.csv"),
    (["--feedback", "/nowhere/p.zip"], "no folder /nowhere"),
])
def test_bad_input_is_named_and_nothing_is_written(graded, command, lms, tmp_path, words, says):
    done = command("export", "canvas", "--roster", lms(CANVAS), "--to", str(tmp_path / "up.csv"),
                   *words)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["lms.csv"]


def test_the_lmss_own_file_is_not_overwritten(graded, command, lms):
    path = lms(CANVAS)
    done = command("export", "canvas", "--roster", path, "--to", path)
    assert done.returncode == 1 and "the LMS's own file" in done.stderr


def test_a_file_of_another_class_is_refused(graded, command, lms, tmp_path):
    rows = [*CANVAS[:3], ["Doe, Jane", "7", "x", "y", "Wed", "", "", "", "", ""]]
    done = command("export", "canvas", "--roster", lms(rows), "--to", str(tmp_path / "up.csv"))
    assert done.returncode == 1 and "none of its 1 students is in this course" in done.stderr


@pytest.mark.slow
def test_moodle_gets_its_worksheet_and_the_pages(graded, command, lms, tmp_path):
    up, pages = tmp_path / "up.csv", tmp_path / "pages.zip"
    words = ["--to", str(up), "--lab", NAME, "--feedback", str(pages)]
    done = command("export", "moodle", "--roster", lms(GRADES), *words)
    assert done.returncode == 1 and "needs Moodle's grading worksheet" in done.stderr
    assert not up.exists() and not pages.exists()
    done = command("export", "moodle", "--roster", lms(WORKSHEET, end="\r\n"), *words)
    assert done.returncode == 0, done.stderr
    expected = [list(row) for row in WORKSHEET]
    expected[1][5] = "4.5"
    assert up.read_bytes() == csv_bytes(expected, end="\r\n")
    with zipfile.ZipFile(pages) as archive:
        assert archive.namelist() == [f"Ada Lovelace_5001_assignsubmission_file_/{NAME}.html",
                                      f"Grace Hopper_5002_assignsubmission_file_/{NAME}.html"]
        assert b"global_batch" in archive.read(archive.namelist()[0])
    assert "2 pages to upload" in done.stdout
