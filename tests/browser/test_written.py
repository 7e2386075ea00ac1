"""A person grades a written answer in formgrader, with the rubric beside it."""

from __future__ import annotations

import pytest

from grader.gradebook.records import gradebook
from lab.jupyter import Jupyter
from tests.browser.driver import open_lab
from tests.grader.conftest import run, table
from tests.grader.small_lab import NAME
from tests.grader.written.test_written import ANSWER, enter, template_written  # noqa: F401

pytestmark = pytest.mark.stress


@pytest.fixture
def jupyter(template_written, chromium):  # noqa: F811
    course = template_written
    enter(course, "ada", ANSWER)
    (course.root / ".cluster").mkdir()
    running = Jupyter(course.root, {}, None, instructor=True)
    running.wait_until_ready()
    yield course, running
    running.stop()


def test_the_rubric_is_below_the_answer_and_the_score_counts(jupyter, page, screenshot, traffic):
    course, server = jupyter
    open_lab(page, server)
    with gradebook(course) as book:
        (notebook,) = book.find_submission(NAME, "ada").notebooks
    page.goto(f"{server.root}/formgrader/submissions/{notebook.id}")
    score = page.locator("#why.needs_manual_grade")
    score.wait_for()
    box = page.locator(".panel-info", has_text="For graders")
    assert "names the slowest link" in box.inner_text()
    assert "Accept network." in box.inner_text()
    answer = page.locator(".nbgrader_cell", has_text="Because of the slowest link.")
    assert answer.bounding_box()["y"] < box.bounding_box()["y"]
    box.scroll_into_view_if_needed()
    screenshot(page, "formgrader_rubric")
    for locator, text in ((score, "1.5"), (page.locator("#why-comment"), "Which link?")):
        with page.expect_response(lambda sent: sent.request.method == "PUT") as saved:
            locator.fill(text)
            locator.press("Tab")
        assert saved.value.ok
    page.locator("#why:not(.needs_manual_grade)").wait_for()
    assert run(course, "feedback", NAME).returncode == 0
    assert run(course, "export", program="nbgrader").returncode == 0
    row = table(course.root / "grades.csv")["ada"]
    assert (row["state"], row["score"], row["reason"]) == ("graded", "6.5", "")
    shown = course.notebook("feedback", NAME, "ada").with_suffix(".html").read_text()
    assert "Which link?" in shown and "1.5 / 2.0" in shown and "Rubric" not in shown
