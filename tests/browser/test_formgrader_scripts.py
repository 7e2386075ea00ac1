"""A student's answer in formgrader: no script of theirs runs with the instructor's session."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from nbformat import v4
from playwright.sync_api import Browser, Cookie, Page

from grader.course import Course
from grader.course.log import logging_to
from grader.gradebook.records import gradebook
from grader.nbgrader_plugin import assign
from lab.jupyter import Jupyter
from tests.browser.driver import open_lab, until
from tests.grader import small_lab
from tests.grader.conftest import run, submit
from tests.grader.small_lab import NAME, answered, find, marks

PICTURE = ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
           "RU5ErkJggg==")


def writes(name: str) -> str:
    """JavaScript that writes a file NAME into the course folder through the server's API."""
    return ("fetch('/api/contents/pwned-" + name + "',{method:'PUT',body:JSON.stringify({type:"
            "'file',format:'text',content:'x'}),headers:{'X-XSRFToken':document.cookie.match("
            "'_xsrf=([^;]*)')[1]}})")


CLICKED = {
    "link": f"[bait-link](<javascript:{writes('link')}>)",
    "files": f"[bait-files](<files/javascript:{writes('files')}>)",
    "entity": f"""<a href="&#106;avascript:{writes('entity')}">bait-entity</a>""",
    "tab": f"""<a href="java\tscript:{writes('tab')}">bait-tab</a>""",
    "click": f"""<b onclick="{writes('click')}">bait-click</b>""",
}
BY_ITSELF = {
    "image": f"""<img src="x" onerror="{writes('image')}">""",
    "svg": f"""<svg onload="{writes('svg')}"></svg>""",
    "script": f"<script>{writes('script')}</script>",
    "toggle": f"""<details open ontoggle="{writes('toggle')}">d</details>""",
    "frame": f"""<iframe srcdoc="<script>parent.{writes('frame')}</script>"></iframe>""",
}
CREDIT = '<b class="full-credit">bait-credit</b>'
HARMLESS = """$a<b$ <a href="https://example.org/x">a source</a>
![pasted](attachment:it.png)

| a | b |
|---|---|
| 1 | 2 |"""
ANSWER = "\n\n".join(["Because **so**.", *CLICKED.values(), *BY_ITSELF.values(), CREDIT, HARMLESS])


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> Course:
    """The small lab with a written answer, which eve has used for her attacks."""
    course = Course(tmp_path_factory.mktemp("scripts") / "course")
    course.make()
    source = small_lab.source()
    source.cells.append(v4.new_markdown_cell("Why?", metadata=marks(
        "why", grade=True, solution=True, locked=False, points=4)))
    small_lab.put(source, course.notebook("source", NAME))
    with logging_to(course):
        assign.release(course, NAME)
    answer = answered(source)
    find(answer, "why").source = ANSWER
    find(answer, "why").attachments = {"it.png": {"image/png": PICTURE}}
    submit(course, "eve", answer)
    assert run(course, "grade", NAME).returncode == 0
    return course


@pytest.fixture(scope="module")
def jupyter(graded: Course, chromium: str) -> Iterator[Jupyter]:
    yield from serving(graded.root)


def serving(root: Path) -> Iterator[Jupyter]:
    (root / ".cluster").mkdir(exist_ok=True)
    running = Jupyter(root, {}, None, instructor=True)
    running.wait_until_ready()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, jupyter: Jupyter) -> list[Cookie]:
    """Return the cookies that JupyterLab's page sets: with them, a script may write files."""
    context = browser.new_context()
    context.request.get(f"{jupyter.root}/lab?token={jupyter.token}")
    cookies = context.cookies()
    context.close()
    assert "_xsrf" in {cookie["name"] for cookie in cookies}
    return cookies


@pytest.fixture(scope="module")
def stock(graded: Course, chromium: str, tmp_path_factory) -> Iterator[Jupyter]:
    """nbgrader's own formgrader over a copy of the course."""
    root = tmp_path_factory.mktemp("stock") / "course"
    shutil.copytree(graded.root, root)
    (root / "nbgrader_config.py").write_text(
        "c = get_config()\nc.CourseDirectory.course_id = 'stock'\n")
    yield from serving(root)


def open_submission(page: Page, jupyter: Jupyter, course: Course) -> str:
    """eve's submission in formgrader; its id. A browser that JupyterLab has signed in may write
    files, too."""
    if not page.context.cookies():
        page.goto(f"{jupyter.root}/formgrader/gradebook?token={jupyter.token}")
    with gradebook(course) as book:
        (notebook,) = book.find_submission(NAME, "eve").notebooks
        result = notebook.id
    page.goto(f"{jupyter.root}/formgrader/submissions/{result}/", wait_until="domcontentloaded")
    page.locator("#why").wait_for()
    # When the scores have come from the server, formgrader's own scripts are at work.
    page.locator("#why_extra_credit[placeholder]").wait_for()
    return result


def written(root: Path) -> set[str]:
    return {path.name.removeprefix("pwned-") for path in root.glob("pwned-*")}


def click_everything(page: Page) -> None:
    for name in CLICKED:
        page.get_by_text(f"bait-{name}").first.click(no_wait_after=True)
        page.wait_for_timeout(200)


@pytest.mark.stress
def test_in_stock_formgrader_each_of_the_scripts_writes_a_file(graded, stock, page):
    """The positive control: the attacks work where nothing stops them."""
    open_lab(page, stock)
    open_submission(page, stock, graded)
    click_everything(page)
    everything = {*CLICKED, *BY_ITSELF}
    until(page, lambda: written(stock.home) == everything, f"all of {everything}")


def test_no_script_of_a_student_runs(graded, jupyter, signed_in, page):
    page.context.add_cookies(signed_in)
    open_submission(page, jupyter, graded)
    click_everything(page)
    page.wait_for_timeout(1000)
    assert written(graded.root) == set()
    why = page.locator(".nbgrader_cell", has=page.locator("#why")).locator(".text_cell_render")
    assert why.locator("table td").count() == 2 and why.locator("strong").inner_text() == "so"
    pasted = why.locator("img[alt=pasted]")
    assert pasted.get_attribute("src") == f"data:image/png;base64,{PICTURE}"
    assert pasted.evaluate("one => one.naturalWidth") == 1
    link = why.locator("a", has_text="a source")
    assert link.get_attribute("href") == "https://example.org/x"
    assert link.get_attribute("rel") == "noopener noreferrer"
    assert link.get_attribute("target") == "_blank" and "$a<b$" in why.inner_text()
    assert page.evaluate("MathJax.Safe.allow.URLs") == "none"  # no links in formulas


def test_a_click_on_an_answer_gives_no_credit(graded, jupyter, page):
    open_submission(page, jupyter, graded)
    page.get_by_text("bait-credit").click()
    page.wait_for_timeout(500)
    with gradebook(graded) as book:
        (notebook,) = book.find_submission(NAME, "eve").notebooks
        assert notebook.written_score == 0


def test_scores_and_comments_are_typed_by_hand(graded, jupyter, page):
    submission = open_submission(page, jupyter, graded)
    with page.expect_response(lambda answer: answer.request.method == "PUT") as saved:
        page.locator("#why").fill("3")
        page.locator("#why").press("Tab")
    assert saved.value.ok
    with page.expect_response(lambda answer: answer.request.method == "PUT") as saved:
        page.locator("#why-comment").fill("Good.")
        page.locator("#why-comment").press("Tab")
    assert saved.value.ok
    cell = page.locator(".nbgrader_cell", has=page.locator("#why"))
    with page.expect_response(lambda answer: answer.request.method == "PUT") as saved:
        cell.locator("button.full-credit").click()
    assert saved.value.ok
    page.locator(".glyphicon-eye-open").click()  # an inline handler of nbgrader's
    assert page.locator("a.name-shown").is_visible()
    with gradebook(graded) as book:
        notebook = book.find_submission_notebook_by_id(submission)
        (comment,) = [one.comment for one in notebook.comments if one.name == "why"]
        assert notebook.written_score == 4 and comment == "Good."


def test_addresses_of_formgrader_run_nothing(graded, jupyter, signed_in, page):
    """Targets that a plain link in an answer, an email, or a forum may have."""
    page.context.add_cookies(signed_in)
    submission = open_submission(page, jupyter, graded)
    script = quote(f'";{writes("reflected")};//', safe="")
    tag = quote(f"</script><script>{writes('reflected-too')}</script>", safe="")
    for address in (f"manage_students/{script}", f"manage_students/{tag}", f"gradebook/{script}",
                    f"manage_students/x/{script}", f"manage_submissions/{script}",
                    f"gradebook/x/{tag}"):
        page.goto(f"{jupyter.root}/formgrader/{address}")
        page.wait_for_timeout(200)
    assert written(graded.root) == set()
    folder = graded.notebook("submitted", NAME, "eve").parent
    (folder / "nbgrader_config.py").write_text("open('pwned-configuration', 'w')")
    refused = page.goto(f"{jupyter.root}/formgrader?path={quote(str(folder))}")
    assert refused.status == 403 and written(graded.root) == set()
    beside = graded.notebook("autograded", NAME, "eve").with_name("evil.html")
    beside.write_text(f"<script>{writes('file')}</script>")
    answer = page.goto(f"{jupyter.root}/formgrader/submissions/{submission}/evil.html")
    page.wait_for_timeout(300)
    assert "sandbox" in answer.headers["content-security-policy"]
    assert written(graded.root) == set()


def test_every_page_and_answer_has_a_policy(graded, jupyter, page):
    seen = open_submission(page, jupyter, graded)
    pages = ["manage_assignments", "gradebook", f"gradebook/{NAME}", f"gradebook/{NAME}/{NAME}",
             "manage_students", "manage_students/eve", f"manage_students/eve/{NAME}",
             f"manage_submissions/{NAME}"]
    for address in pages:
        answer = page.goto(f"{jupyter.root}/formgrader/{address}")
        policy = answer.headers["content-security-policy"]
        assert "script-src 'nonce-" in policy and "unsafe-eval" not in policy
        page.locator("#main-table td", has_text=re.compile(".")).first.wait_for()
    for address in ("status", "students", f"grades?submission_id={seen}", "submissions/" + NAME):
        answer = page.request.get(f"{jupyter.root}/formgrader/api/{address}")
        assert answer.ok and "sandbox" in answer.headers["content-security-policy"]
        assert not answer.headers["content-type"].startswith("text/html")
