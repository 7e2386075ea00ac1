"""Scores are of this submission and this lab, or there are none."""

from __future__ import annotations

import contextlib
import csv
import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from nbgrader.api import MissingEntry

from grader.batch import batch
from grader.course import Submission, reasons
from grader.course.received import receipt_time, received
from grader.gradebook import byhand, records, watch
from grader.gradebook.ungraded import leave_ungraded
from grader.nbgrader_plugin import assign
from grader.run import lab_plan
from grader.run.rebuild import Unusable
from tests.conftest import command_line
from tests.grader import small_lab
from tests.grader.batch.test_merge import Desk
from tests.grader.conftest import run, submit, table
from tests.grader.small_lab import RIGHT, answered

NAME = small_lab.NAME
CRASH = "import os; os._exit(1)"


@pytest.fixture
def desk(course, released) -> Desk:
    return Desk(course, released)


def processes(parent: int) -> set[int]:
    """Return the descendants of a process, at any depth."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return {child.pid for child in psutil.Process(parent).children(recursive=True)}
    return set()


@pytest.mark.slow
@pytest.mark.parametrize("number", [
    signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.stress)])
def test_who_is_stopped_keeps_what_was_graded_and_no_older_score(course, grade, released, number):
    submit(course, "ada", answered(released))
    submit(course, "bob", answered(released))
    grade()
    course.config_file.write_text(course.config_file.read_text()
                                  + "c.Grading.seconds_per_cell = 100\n")
    submit(course, "bob", answered(released, "import time\nwhile True: time.sleep(0.01)"))
    (course.root / "grades.csv").unlink()
    program = Path(sys.executable).with_name("lab")
    running = subprocess.Popen(
        [program, "grade", NAME], cwd=course.root, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**os.environ, "LAB_COURSE": str(course.root)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    deadline = time.monotonic() + 120
    while not any("labkit.guest" in command_line(pid) for pid in processes(running.pid)):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)  # bob's cell runs
    started = processes(running.pid)
    running.send_signal(number)
    output = running.communicate(timeout=60)[0]
    assert running.returncode == 130 and "Traceback" not in output, output
    assert "stopped: 1 of 2 were not graded" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    rows = table(course.root / "grades.csv")
    assert rows["ada"]["score"] == "5.0"
    assert (rows["bob"]["score"], rows["bob"]["reason"]) == ("", reasons.STOPPED)
    with records.gradebook(course) as book, pytest.raises(MissingEntry):
        book.find_submission(NAME, "bob")


@pytest.mark.slow
def test_a_crash_in_a_hand_typed_autograde_leaves_no_score_either(desk):
    course, released = desk.course, desk.released
    desk.merge(desk.result())
    assert desk.row()["score"] == "5.0"
    submit(course, "ada", answered(released, CRASH))
    done = run(course, "autograde", NAME, "--student", "ada", "--force", program="nbgrader")
    assert done.returncode != 0 and "without isolation" in done.stderr
    with records.gradebook(course) as book, pytest.raises(MissingEntry):
        book.find_submission(NAME, "ada")
    assert "ended the kernel" in records.state(Submission(course, NAME, "ada"))[1]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{", "[]", "null", '{"state": 1, "digest": ""}', '{"old": 1}'])
def test_a_damaged_record_is_said_kept_and_made_again(course, released, text):
    submit(course, "ada", answered(released))
    path = course.root / "attempts" / "ada" / f"{NAME}.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    verdict, reason = records.state(Submission(course, NAME, "ada"))
    assert verdict == "ungraded" and f"{path} is damaged" in reason
    record = leave_ungraded(Submission(course, NAME, "ada"), "why not")
    kept = path.with_name(path.name + ".damaged")
    assert kept.read_text() == text and str(kept) in record.notes[0]
    assert Submission(course, NAME, "ada").record == record


def scored_by_hand(desk) -> None:
    """Enter a score and a comment for ada as formgrader does; then she submits a wrong answer."""
    desk.merge(desk.result())
    with records.gradebook(desk.course) as book:
        book.find_grade("batch-check", NAME, NAME, "ada").manual_score = 3
        book.find_comment("batch", NAME, NAME, "ada").manual_comment = "Well done."
        book.db.commit()
    submit(desk.course, "ada", answered(desk.released, small_lab.WRONG))


def set_points(course, points: int) -> Path:
    """Change the points of a check, and return the lab's source."""
    source = small_lab.source()
    small_lab.find(source, "batch-check").metadata.nbgrader.points = points
    return small_lab.put(source, course.notebook("source", NAME))


@pytest.mark.slow
def test_one_run_grades_a_changed_lab_and_new_versions_and_names_a_setup_that_fails(desk):
    course, broken = desk.course, "91_broken"
    desk.merge(desk.result("bob"))
    scored_by_hand(desk)
    set_points(course, 10)
    small_lab.put(small_lab.source("import no_such_module"), course.notebook("source", broken))
    small_lab.put(answered(desk.released), course.notebook("submitted", broken, "ada"))
    done = run(course, "grade", "--all")
    assert done.returncode == 0, done.stderr
    with (course.root / "grades.csv").open() as file:
        rows = {(row["lab"], row["student"]): row for row in csv.DictReader(file)}
    ada, bob, failed = (rows[key] for key in ((NAME, "ada"), (NAME, "bob"), (broken, "ada")))
    assert (ada["state"], ada["score"], ada["max_score"]) == ("graded", "2.0", "12.0")
    assert (bob["state"], bob["score"], bob["max_score"]) == ("graded", "12.0", "12.0")
    assert (failed["state"], failed["score"]) == ("ungraded", "")
    assert "`import no_such_module` failed: ModuleNotFoundError" in failed["reason"]
    record = Submission(course, NAME, "ada").record
    assert record.set_aside == {"batch-check": [3.0, None], "comment on batch": "Well done."}
    assert f"{byhand.SET_ASIDE} batch, batch-check (`lab review`)" in record.notes


@pytest.mark.slow
def test_a_score_given_by_hand_is_not_the_new_versions(desk):
    course = desk.course
    scored_by_hand(desk)
    done = run(course, "autograde", NAME, "--student", "ada", "--force", program="nbgrader")
    assert done.returncode == 0, done.stderr
    assert records.state(Submission(course, NAME, "ada")) == ("graded", "")
    with records.gradebook(course) as book:
        submission = book.find_submission(NAME, "ada")
        assert submission.score == 2 and not submission.needs_manual_grade
        assert book.find_comment("batch", NAME, NAME, "ada").comment is None
    record = Submission(course, NAME, "ada").record
    assert record.set_aside == {"batch-check": [3.0, None], "comment on batch": "Well done."}
    assert f"{byhand.SET_ASIDE} batch, batch-check (`lab review`)" in record.notes


@pytest.mark.slow
def test_what_a_person_entered_comes_back_with_the_same_notebook_only(desk):
    course = desk.course

    def entered() -> tuple[float | None, str | None]:
        with records.gradebook(course) as book:
            comment = book.find_comment("batch", NAME, NAME, "ada")
            return book.find_grade("batch-check", NAME, NAME, "ada").manual_score, comment.comment

    desk.merge(desk.result())
    with records.gradebook(course) as book:
        book.find_grade("batch-check", NAME, NAME, "ada").manual_score = 1.5
        book.find_comment("batch", NAME, NAME, "ada").manual_comment = "Nearly."
        book.db.commit()
    leave_ungraded(Submission(course, NAME, "ada"), "stopped")
    leave_ungraded(Submission(course, NAME, "ada"), "stopped twice")
    desk.merge(desk.result())
    row = desk.row()
    assert (row["score"], row["reason"]) == ("3.5", "needs review in formgrader")
    assert entered() == (1.5, "Nearly.") and not Submission(course, NAME, "ada").record.set_aside
    leave_ungraded(Submission(course, NAME, "ada"), "stopped")
    desk.merge(desk.result("ada", RIGHT + "  # again"))
    assert desk.row()["score"] == "5.0"
    assert entered() == (None, None)
    assert Submission(course, NAME, "ada").record.set_aside == {
        "batch-check": [1.5, None], "comment on batch": "Nearly."}


@pytest.mark.slow
def test_a_lab_that_was_changed_has_no_scores_until_all_are_graded_again(desk):
    course = desk.course
    desk.merge(desk.result("ada"))
    desk.merge(desk.result("bob"))
    path = set_points(course, 10)
    os.utime(path, (1, 1))  # an older file, put back, is a change too
    assert assign.release(course, NAME)
    desk.plan = lab_plan.read(course, NAME)
    desk.merge(desk.result("bob", scores={"batch-check": 10.0, "script-check": 2.0}))
    ada, bob = desk.row("ada"), desk.row("bob")
    assert (ada["score"], ada["reason"]) == ("", "the lab was changed since it was graded")
    assert (bob["score"], bob["max_score"]) == ("12.0", "12.0")
    (path.parent / ".ipynb_checkpoints").mkdir()
    (path.parent / ".ipynb_checkpoints" / "x.ipynb").write_text("saved in JupyterLab")
    assert records.state(Submission(course, NAME, "bob"))[0] == "graded"


@pytest.mark.slow
def test_a_timestamp_that_is_none_is_that_students_reason_alone(desk):
    results = [desk.result("ada"), desk.result("bob")]
    stamp = desk.course.notebook("submitted", NAME, "ada").with_name("timestamp.txt")
    stamp.write_text("yesterday")
    limits, pool = (SimpleNamespace(digest=lambda: "limits"),
                    SimpleNamespace(add=lambda *_, **__: None))
    with records.gradebook(desk.course) as book:
        actual = batch.GradingRun(desk.course, limits, desk.config, book, pool, lambda _: None)
        for result in results:
            actual.enter(result)
    row = desk.row("ada")
    assert row["score"] == "" and "'yesterday', which is not a time" in row["reason"]
    assert desk.row("bob")["score"] == "5.0"


def test_who_has_no_name_is_called_by_the_id_and_a_name_is_kept(course):
    with records.gradebook(course) as book:
        book.add_student("grace", first_name="Grace", last_name="Hopper")
        for student in ("ada", "grace"):
            records.enroll(book, student)
        names = [(one.last_name, one.first_name) for one in book.students]
    assert sorted(names) == [("Hopper", "Grace"), ("ada", "")]


@pytest.mark.parametrize("stamp, expected", [
    ("2026-01-31 12:00:00 UTC", "2026-01-31T12:00:00+00:00"),
    ("2020-01-01 00:00:00 UTC", "2026-01-30T00:00:00+00:00"),  # forged: the file is newer
    ("", "2026-01-30T00:00:00+00:00"), ("(((", "2026-01-30T00:00:00+00:00"),
    ("9" * 400, "2026-01-30T00:00:00+00:00"), (None, "2026-01-30T00:00:00+00:00"),
])
def test_a_submission_came_in_at_the_later_of_its_two_times(course, released, stamp, expected):
    path = submit(course, "ada", released)
    when = datetime.datetime(2026, 1, 30, tzinfo=datetime.UTC).timestamp()
    os.utime(path, (when, when))
    if stamp is not None:
        path.with_name("timestamp.txt").write_text(stamp)
    assert received(Submission(course, NAME, "ada")) == expected


@pytest.mark.parametrize("stamp", ["(((", "9" * 400, "1.5.2026.3", "\0"])
def test_what_is_no_time_is_refused_in_words(course, released, stamp):
    submit(course, "ada", released).with_name("timestamp.txt").write_text(stamp)
    with pytest.raises(Unusable, match="which is not a time"):
        receipt_time(Submission(course, NAME, "ada"))


def test_no_gradebook_compiles_a_statement_that_another_compiled(course):
    def look() -> int:
        with records.gradebook(course) as book, pytest.raises(MissingEntry):
            book.find_submission(NAME, "nobody")
        return len(watch.STATEMENTS)

    before = look()
    assert before and look() == before
