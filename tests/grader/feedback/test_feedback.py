"""The page that a student gets back: bounded, harmless, without what is hidden."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser

import nbformat
import pytest
from nbformat import v4

from grader.batch import merge
from grader.course import Submission
from grader.feedback import page as feedback
from grader.feedback import pages
from grader.gradebook import records
from grader.nbgrader_plugin import mathjax
from grader.run import lab_plan, results
from grader.run.attempt import Attempt
from tests.grader import small_lab
from tests.grader.conftest import run, submit
from tests.grader.small_lab import RIGHT, answered, find

NAME = small_lab.NAME
SECRET = "43 of the hidden kind"


@pytest.fixture
def make(course, released):
    """Enter an attempt with these outputs; its page."""
    plan, config = lab_plan.read(course, NAME), course.settings()

    def make(outputs: dict[str, list], **more) -> str:
        submit(course, "ada", answered(released))
        notebook = answered(plan.skeleton, RIGHT)
        for name, found in outputs.items():
            find(notebook, name).outputs = found
        fields = {"state": "graded", "scores": {"batch-check": 3.0, "script-check": 2.0}}
        result = results.write(course, "", Attempt(
            "ada", NAME, course.digest(NAME, "ada"), plan.digest,
            notebook=json.loads(json.dumps(notebook)), **fields | more))
        with records.gradebook(course) as book:
            merge.merge(course, config, book, result)
            submission = Submission(course, NAME, "ada")
            values = merge.feedback_values(submission, book)
            pages.FeedbackPages(course, config).make(submission, values)
        return Submission(course, NAME, "ada").page.read_text()

    return make


def stream(text: str):
    return v4.new_output("stream", name="stdout", text=text)


class Elements(HTMLParser):
    """Names of elements, and meta elements with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@pytest.mark.slow
def test_a_page_forbids_scripts_and_everything_from_elsewhere(make):
    result = Elements(make({})).found
    first = next(index for index, (tag, _) in enumerate(result) if tag == "meta")
    assert [tag for tag, _ in result[:first]] == ["html", "head"]  # before all it is about
    policy = dict(part.strip().split(" ", 1) for part in result[first][1]["content"].split(";"))
    assert result[first][1]["http-equiv"] == "Content-Security-Policy"
    assert policy["default-src"] == policy["form-action"] == "'none'"
    assert policy["img-src"] == "data:"
    assert "unsafe" not in policy["script-src"] and "*" not in policy["script-src"]
    for tag, attributes in result:
        if tag == "script" and "src" in attributes:
            assert attributes["src"].startswith(mathjax.FOLDER)


@pytest.mark.slow
def test_hidden_tests_are_in_no_page_by_no_way(make):
    error = v4.new_output("error", ename="Failed", evalue="another case", traceback=[
        f"cases=check.draw(20)  # {SECRET}"])
    page = make({"batch-check": [stream(f"printed by it: {SECRET}"), error]},
                scores={"batch-check": 0.0, "script-check": 2.0})
    assert SECRET not in page and "check.draw" not in page and "another case" in page


@pytest.mark.slow
def test_the_list_at_the_top_names_the_exercises_and_a_failure_is_red(make):
    error = v4.new_output("error", ename="Failed", evalue="in a hidden test: no", traceback=["no"])
    page = make({"batch-check": [error]}, scores={"batch-check": 0.0, "script-check": 2.0})
    assert "Test cell" not in page
    assert '<a href="#batch-check">batch-check</a> (Score: 0.0 / 3.0)' in page  # has no heading
    red = re.search(r'<span[^>]* style="color: rgb\(224,58,62\)">✗</span>[^<]*', page)
    assert red and "in a hidden test: no" in red[0]


def test_an_exercise_is_named_by_the_heading_above_it():
    notebook = v4.new_notebook(cells=[
        v4.new_markdown_cell("## Part\n### Exercise 1: <b> & c\nText"), v4.new_code_cell("x"),
        v4.new_code_cell("check", metadata=small_lab.marks("one", grade=True, points=1))])
    line = '<li><a href="#{}">Test cell</a> (Score: 1.0 / 1.0)</li>'
    page = feedback.name_exercises(line.format("one") + line.format("two"), notebook)
    assert page == line.format("one").replace("Test cell", "Exercise 1: &lt;b&gt; &amp; c") + \
        line.format("two")


@pytest.mark.slow
def test_a_check_without_a_score_says_so_and_is_no_0(make):
    reason = "out of time at cell batch-check (60 s)<script>"
    page = make({}, state="ungraded", reason=reason, scores={"script-check": 2.0},
                unscored=("batch-check",))
    assert "This check could not be scored: out of time at cell batch-check (60 s)" in page
    assert f"{NAME}: not graded: out of time" in page
    assert "(60 s)<script>" not in page


@pytest.mark.slow
def test_a_check_of_which_some_parts_were_decided_says_which(make):
    text = "not scored: out of time\n1 of 3 points\n\u2713 1 point: first\n? 2 points: second"
    page = make({"batch-check": [v4.new_output("error", ename="NotScored", evalue=text,
                                               traceback=[text])]},
                state="ungraded", reason="out of time", scores={"batch-check": 1.0,
                                                                "script-check": 2.0},
                unscored=("batch-check",))
    assert "This check could not be scored: out of time" in page
    assert "\u2713 1 point: first" in page and "? 2 points: second" in page
    assert page.count("1.0 / 3.0") == 2  # in the list above, and at the check



@pytest.mark.slow
def test_a_page_is_small_whatever_was_printed(make):
    collected = [stream("x" * 3_000_000), stream("y" * 3_000_000),
                 v4.new_output("display_data", {"text/html": "<p>" + "z" * 5_000_000})]
    page = make({"batch": collected, "script": copy.deepcopy(collected)})
    assert len(page) < 1_500_000 and "... the rest is not shown ..." in page


def test_of_all_outputs_together_so_much_is_shown():
    picture = {"image/png": "p" * (feedback.LARGEST_PICTURE - 1)}
    cells = [v4.new_code_cell("", outputs=[v4.new_output("display_data", dict(picture))])
             for _ in range(9)]
    notebook, _ = feedback.LimitOutputSize().preprocess(v4.new_notebook(cells=cells), {})
    size = len(nbformat.writes(notebook))
    assert 2 * feedback.LARGEST_PICTURE < size < feedback.LARGEST_PAGE * 1.1


@pytest.mark.slow
def test_after_grading_by_hand_the_pages_are_made_again(course, make, tmp_path):
    make({})
    with records.gradebook(course) as book:
        book.find_grade("batch-check", NAME, NAME, "ada").manual_score = 1
        book.find_comment("batch", NAME, NAME, "ada").manual_comment = "Nearly there."
        book.db.commit()
    done = run(course, "feedback", NAME, "--to", str(tmp_path / "back"))
    assert done.returncode == 0, done.stderr
    page = Submission(course, NAME, "ada").page.read_text()
    assert "Nearly there." in page and "Score: 3.0 / 5.0" in page
    assert (tmp_path / "back" / "ada" / f"{NAME}.html").read_text() == page
    done = run(course, "generate_feedback", NAME, "--force", program="nbgrader")
    assert done.returncode == 0, done.stderr
    theirs = Submission(course, NAME, "ada").page.read_text()
    assert "Nearly there." in theirs and "Content-Security-Policy" in theirs
