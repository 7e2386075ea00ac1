"""Pages show values as text: templates escape them, and no module builds tags by hand."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from labcore.html import environment, fragment, render

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "</p><script>alert(1)</script>\"' onload=x {{ 7 * 7 }} \x1b[2J\u202e"
SHOWN = ("&lt;/p&gt;&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39; onload=x {{ 7 * 7 }} "
         "\\x1b[2J\\u202e")
TAG = re.compile(r"""(?<!\(\?P)</?(?:
    a|article|b|body|br|button|caption|circle|code|dd|details|div|dl|dt|em|figcaption|figure|footer|
    form|g|h[1-6]|head|header|hr|html|i|iframe|img|input|label|li|line|link|main|mark|meta|ol|option|
    output|p|path|polyline|pre|rect|script|section|select|small|span|strong|style|sub|summary|sup|
    svg|table|tbody|td|text|textarea|tfoot|th|thead|title|tr|u|ul|use
    )(?:\s+[\w:-]+=[^<>]*|\s*)/?>|<!DOCTYPE""", re.IGNORECASE | re.VERBOSE)
# A figure with sliders. Its script is a file of the course.
HANDLERS = {"lablib/memory_movie.html.j2": """ oninput="({{ show }})(this.closest('figure'))\""""}
ALLOWED = {
    "code/lablib/served.py": "a link that a notebook shows",
    "code/lab/tensorboard/plugin.py": "tags of the profiler's page that are replaced by others",
    "code/pipeline_schedules/drawing.py": "a figure that a notebook shows, without libraries",
    "code/pipeline_schedules/steps.py": "a figure with a slider, without libraries",
    "grader/feedback/page.py": "a tag of nbgrader's page, to find",
    "grader/gradebook/notices.py": "tags of nbgrader's page, to find",
    "grader/nbgrader_plugin/mathjax.py": "constants, in a template of nbconvert's",
    "grader/written/rubrics.py": "a box around the course's own Markdown",
}


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module with their lines, docstrings aside. The parts of an f-string
    are joined."""
    tree = ast.parse(path.read_text())
    skipped = {id(node.value) for node in ast.walk(tree)
               if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [one.value if isinstance(one, ast.Constant) else "x" for one in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (
                id(node) not in skipped):
            yield node.lineno, node.value


def modules() -> Iterator[Path]:
    for folder in ("code", "grader"):
        yield from (path for path in sorted((ROOT / folder).rglob("*.py"))
                    if (ROOT / "grader" / "source") not in path.parents)


def templates() -> list[Path]:
    return sorted(path for folder in ("code", "grader") for path in (ROOT / folder).rglob("*.j2"))


@pytest.fixture
def template(tmp_path, monkeypatch):
    """Render a template of a package that is made for one test."""
    def make(source: str, /, **values: object) -> str:
        folder = tmp_path / "pages_of_a_test"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
        (folder / "one.html.j2").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        environment.cache_clear()
        return render("pages_of_a_test/one.html.j2", **values)

    yield make
    environment.cache_clear()


class Hostile:
    def __str__(self) -> str:
        return HOSTILE


@pytest.mark.parametrize("text", [HOSTILE, Hostile()], ids=["string", "object"])
def test_every_value_is_escaped_and_printable(template, text):
    assert template("<p>{{ text }}</p>", text=text) == f"<p>{SHOWN}</p>"
    assert template('<p class="{{ text }}">', text=text) == f'<p class="{SHOWN}">'


def test_values_are_escaped_in_macros_calls_and_expressions(template):
    text = template("""{% from "labcore/macros.html.j2" import pairs, table %}
{% call table([text], caption="of " ~ text) %}<tr><td>{{ "%s"|format(text) }}</td></tr>{% endcall %}
{{ pairs([(text, [text, text]|join(", "))]) }}""", text=HOSTILE)
    assert text.count(SHOWN) == 6 and "<script" not in text and "{{ 7 * 7 }}" in text


def test_only_a_template_makes_markup(template):
    template("<b>{{ text }}</b>", text="")
    inner = fragment("pages_of_a_test/one.html.j2", text="<i>")
    assert template("{{ inner }}{{ text }}", inner=inner, text=str(inner)) == (
        "<b>&lt;i&gt;</b>&lt;b&gt;&amp;lt;i&amp;gt;&lt;/b&gt;")


@pytest.mark.parametrize("text", [
    "{{ nobody }}", "{{ given.nobody }}", "{% if nobody %}x{% endif %}",
    "{% for one in nobody %}{% endfor %}"])
def test_an_undefined_name_raises(template, text):
    with pytest.raises(UndefinedError):
        template(text, given=object())


@pytest.mark.parametrize("path", templates(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_template_turns_escaping_off_or_fetches_anything(path):
    text = path.read_text()
    name = path.relative_to(ROOT / "code" if ROOT / "code" in path.parents else ROOT)
    text = text.replace(HANDLERS.get(str(name), "\0"), "")
    assert not re.search(r"\|\s*safe\b|autoescape|<script|<link|url\(|@import|\son\w+=", text)
    environment().get_template(str(name))  # compiles


def test_no_module_builds_tags_from_strings():
    results = {f"{path.relative_to(ROOT)}:{line}" for path in modules()
               if str(path.relative_to(ROOT)) not in ALLOWED
               for line, text in strings(path) if TAG.search(text)}
    assert not results, "write a template instead, see labcore/html.py"


def test_no_other_module_decides_what_is_escaped():
    results = {str(path.relative_to(ROOT)) for path in modules()
               if re.search(r"\b(Markup|Environment|Template)\(", path.read_text())}
    batch_scripts = {"code/lab/submit/scripts.py"}  # bash, in which nothing is HTML
    assert results == {"code/labcore/html.py", "grader/nbgrader_plugin/formgrader_pages.py",
                       *batch_scripts}


def test_the_modules_that_may_build_tags_still_do():
    for name in ALLOWED:
        assert any(TAG.search(text) for _, text in strings(ROOT / name)), f"no tags in {name}"


def test_jinja_is_not_imported_before_a_page_is_rendered():
    program = ("import sys, labcore.html, job_monitor.report, lab.cli; "
               "sys.exit('jinja2' in sys.modules or 'markupsafe' in sys.modules)")
    subprocess.run([sys.executable, "-c", program], check=True)
