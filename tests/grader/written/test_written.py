"""Written answers in grading: pending until a person scores them, 0 only if left untouched."""

from __future__ import annotations

import json
import shutil

import nbformat
import pytest
from nbformat import v4

from grader.batch import merge
from grader.course import Course, Submission
from grader.course.log import logging_to
from grader.feedback import pages
from grader.gradebook import records
from grader.gradebook.pending import incomplete, pending
from grader.nbgrader_plugin import assign
from grader.report import grades as report
from grader.run import results
from grader.run.attempt import Attempt
from grader.written import rubrics
from labkit.build.release import release
from tests.grader import small_lab
from tests.grader.conftest import submit
from tests.grader.small_lab import NAME, find, marks

MODEL = """### BEGIN SOLUTION
The slowest link sets the time.

**Rubric** (2 points)

- 2 points: names the slowest link

Accept *network*.
### END SOLUTION"""
STUB = "*Your turn: replace this line with your answer.*"
ANSWER = "Because of the slowest link. <script>alert(1)</script>"


def source():
    notebook = small_lab.source()
    cell = v4.new_markdown_cell(MODEL, metadata=marks("why", grade=True, solution=True,
                                                      locked=False, points=2))
    notebook.cells.append(cell)
    return notebook


@pytest.fixture(scope="module")
def template_written(tmp_path_factory):
    course = Course(tmp_path_factory.mktemp("written"))
    course.make()
    small_lab.put(source(), course.notebook("source", NAME))
    with logging_to(course):
        assign.release(course, NAME)
    return course


@pytest.fixture
def written(template_written, tmp_path):
    """A course whose lab has a written answer, and the released notebook."""
    shutil.copytree(template_written.root, tmp_path / "course")
    course = Course(tmp_path / "course")
    return course, nbformat.read(course.notebook("release", NAME), as_version=4)


def enter(course, student, text, batch=None):
    """Enter what grading finds of a submission with this written answer."""
    released = nbformat.read(course.notebook("release", NAME), as_version=4)
    find(released, "why").source = text
    if batch is not None:
        find(released, "batch").source = batch
    submit(course, student, released)
    result = results.write(course, "", Attempt(
        student, NAME, course.digest(NAME, student), course.digest_of_lab(NAME),
        state="graded", notebook=json.loads(json.dumps(released)),
        scores={"batch-check": 3.0, "script-check": 2.0}))
    with records.gradebook(course) as book:
        merge.merge(course, course.settings(), book, result)
        given = merge.feedback_values(Submission(course, NAME, student), book)
    pages.FeedbackPages(course, course.settings()).make(Submission(course, NAME, student), given)
    return Submission(course, NAME, student).page.read_text()


def row(course, student):
    with records.gradebook(course) as book:
        return next(one for one in report.rows(course, book) if one.student == student)


@pytest.mark.slow
def test_the_release_has_a_stub_and_a_checksum(written):
    _, released = written
    cell = find(released, "why")
    assert cell.source == STUB and cell.metadata.nbgrader["checksum"]
    assert "slowest" not in json.dumps(released) and "Rubric" not in json.dumps(released)
    assert find(release(source()), "why").source == STUB


@pytest.mark.slow
def test_an_answer_waits_for_a_person_and_an_untouched_one_is_0(written):
    course, _ = written
    page, untouched = enter(course, "ada", ANSWER), enter(course, "grace", STUB)
    ada, grace = row(course, "ada"), row(course, "grace")
    assert (ada.state, ada.score, ada.max_score) == ("graded", 5.0, 7.0)
    assert ada.reason == ("needs review in formgrader: incomplete: why (2 points) to grade by "
                          "hand")
    assert (grace.state, grace.score, grace.reason) == ("graded", 5.0, "")
    assert "Not graded yet." in page and "incomplete: why (2 points)" in page
    assert "0.0 / 2.0" not in page and "slowest link sets" not in page and "Rubric" not in page
    assert "Not graded yet." not in untouched and "0.0 / 2.0" in untouched
    with records.gradebook(course) as book:
        grade = book.find_grade("why", NAME, NAME, "ada")
        assert (grade.auto_score, grade.needs_manual_grade) == (None, True)
        grade.manual_score, grade.needs_manual_grade = 1.5, False
        book.db.commit()
        assert pending(book.find_submission(NAME, "ada")) == {}
        submission = Submission(course, NAME, "ada")
        pages.FeedbackPages(course, course.settings()).make(
            submission, merge.feedback_values(submission, book))
    assert (row(course, "ada").score, row(course, "ada").reason) == (6.5, "")
    page = Submission(course, NAME, "ada").page.read_text()
    assert "1.5 / 2.0" in page and "Not graded yet." not in page


@pytest.mark.slow
def test_formgrader_shows_the_rubric_below_the_answer_and_pages_do_not(written):
    from nbgrader.server_extensions.formgrader import handlers

    from grader.nbgrader_plugin.exporter import Sanitized

    course, _ = written
    assert "slowest link sets" not in enter(course, "ada", ANSWER)
    config = course.settings()
    config.HTMLExporter.template_name = "formgrade"
    config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
    page, _ = Sanitized(config=config).from_filename(
        str(course.notebook("autograded", NAME, "ada")), resources={
            "assignment_id": NAME, "notebook_id": NAME, "submission_id": "x", "index": 0,
            "total": 1, "base_url": "", "student": "ada", "last_name": "", "first_name": "",
            "notebook_path": ""})
    answer, box = page.index("Because of the slowest link."), page.index("The slowest link sets")
    assert answer < page.index("For graders") < box < page.index("names the slowest link")
    assert "<em>network</em>" in page and "alert(1)</script>" not in page
    assert "SOLUTION" not in page[box:]


@pytest.mark.slow
def test_rubrics_of_a_lab_without_markers_or_without_a_source(written):
    course, _ = written
    assert rubrics.for_graders(course, "nowhere") == {}
    notebook = source()
    find(notebook, "why").source = "All of it."
    small_lab.put(notebook, course.notebook("source", NAME))
    assert rubrics.for_graders(course, NAME) == {"why": "All of it."}


def test_what_is_incomplete_is_named_in_order():
    assert incomplete({}) == ""
    assert incomplete({"why": 2.0, "how": 1.5}) == ("incomplete: how (1.5 points), why (2 points) "
                                                    "to grade by hand")
