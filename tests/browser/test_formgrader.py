"""The instructor in a browser: formgrader shows what `lab grade` gave, and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from grader.course import Course
from grader.gradebook.records import gradebook
from lab.jupyter import Jupyter
from tests.browser.driver import open_lab
from tests.grader import small_lab
from tests.grader.conftest import (  # noqa: F401
    new_course,
    released,
    run,
    submit,
    table,
    template,
)
from tests.grader.small_lab import WRONG, answered


@pytest.fixture(scope="module")
def graded(tmp_path_factory, released) -> Course:  # noqa: F811
    course = new_course(tmp_path_factory.mktemp("formgrader"))
    for student in ("ada", "grace", "jane"):
        submit(course, student, answered(released))
    assert run(course, "grade", "--all").returncode == 0
    submit(course, "ada", answered(released, WRONG))
    submit(course, "grace", answered(released, "import os; os._exit(1)"))  # had 5 before
    course.notebook("submitted", small_lab.NAME, "jane").write_text("{")  # she, too
    assert run(course, "grade", "--all").returncode == 0
    return course


@pytest.fixture(scope="module")
def jupyter(graded: Course, chromium: str) -> Iterator[Jupyter]:
    (graded.root / ".cluster").mkdir()
    running = Jupyter(graded.root, {}, None, instructor=True)
    running.wait_until_ready()
    yield running
    running.stop()


def sign_in(page: Page, jupyter: Jupyter) -> None:
    """Give the browser the server's cookie, without loading JupyterLab."""
    page.goto(f"{jupyter.root}/formgrader/gradebook?token={jupyter.token}")


def test_formgrader_shows_the_graded_submission_and_its_score(jupyter, page, traffic, screenshot):
    open_lab(page, jupyter)
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Nbgrader$")).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Formgrader$")).click()
    frame = page.frame_locator("iframe[src*=formgrader]")
    frame.locator("td", has_text=small_lab.NAME).first.wait_for()
    screenshot(page, "formgrader_assignments")
    page.goto(f"{jupyter.root}/formgrader/manage_submissions/{small_lab.NAME}")
    page.locator("tr", has_text="ada").wait_for()
    screenshot(page, "formgrader_submissions")
    ada, grace, jane = (page.locator("tr", has_text=name).inner_text()
                        for name in ("ada", "grace", "jane"))
    assert "graded" in ada and "2 / 5" in ada
    assert "needs manual grading" in grace and "2 / 5" in grace  # the check that hung wants a look
    assert "needs autograding" in jane and not re.search(r"\d / 5", jane)
    page.locator("tr", has_text="ada").locator("a").first.click()
    page.locator("a", has_text=small_lab.NAME).first.wait_for()
    screenshot(page, "formgrader_student")


def test_the_instructor_sees_the_submission_with_its_checks(jupyter, page, screenshot):
    sign_in(page, jupyter)
    page.goto(f"{jupyter.root}/formgrader/gradebook/{small_lab.NAME}/{small_lab.NAME}")
    link = page.locator("a.name-hidden", has_text="Submission #1")
    link.wait_for()
    assert page.locator("a.name-hidden").count() == 2  # of three students, one has no notebook
    screenshot(page, "formgrader_gradebook")
    link.click()
    page.locator(".nbgrader_cell").first.wait_for()
    screenshot(page, "formgrader_notebook")
    assert "check.draw(20" in page.inner_text("body")  # hidden from students, not from him
    assert "global_batch" in page.inner_text("body")


def test_a_score_typed_by_hand_settles_what_could_not_be_checked(graded, jupyter, page, screenshot):
    sign_in(page, jupyter)
    with gradebook(graded) as book:
        (notebook,) = book.find_submission(small_lab.NAME, "grace").notebooks
    page.goto(f"{jupyter.root}/formgrader/submissions/{notebook.id}")
    score = page.locator("#batch-check.needs_manual_grade")
    score.wait_for()
    with page.expect_response(lambda answer: answer.request.method == "PUT") as saved:
        score.fill("1")
        score.press("Tab")
    assert saved.value.ok
    page.locator("#batch-check:not(.needs_manual_grade)").scroll_into_view_if_needed()
    screenshot(page, "formgrader_by_hand")
    assert run(graded, "export", program="nbgrader").returncode == 0
    result = table(graded.root / "grades.csv")["grace"]
    assert (result["state"], result["score"]) == ("graded", "3.0")  # of the script 2, by hand 1


def test_the_feedback_page_stands_alone(graded, page, traffic, screenshot):
    path = Path(graded.root / "feedback" / "ada" / small_lab.NAME / f"{small_lab.NAME}.html")
    page.goto(path.as_uri())
    screenshot(page, "feedback")
    assert "Score: 2.0 / 5.0" in page.inner_text("body")
    assert "check.draw" not in page.inner_text("body")
