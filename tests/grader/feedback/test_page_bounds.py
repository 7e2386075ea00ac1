"""A page's cost is bounded, whatever a student wrote; the excess is shown as text."""

from __future__ import annotations

import time

import pytest
from nbformat import NotebookNode, v4

from grader.nbgrader_plugin import bounds, exporter
from grader.nbgrader_plugin.bounds import PageBudget, depth
from grader.nbgrader_plugin.exporter import Sanitized
from tests.grader.small_lab import marks

GENEROUS = 30  # CPU seconds; without bounds these take minutes to hours
PICTURE = '<img src="data:image/png;base64,' + "A" * 2_000_000 + '">'


def html_output(text: str):
    return v4.new_code_cell("1", outputs=[v4.new_output("display_data", {"text/html": text})])


def printed(text: str):
    return v4.new_code_cell("1", outputs=[v4.new_output("stream", name="stdout", text=text)])


def written(text: str):
    return v4.new_markdown_cell(text, metadata=marks("why", solution=True, locked=False))


def page(*cells) -> str:
    notebook = v4.new_notebook(cells=[NotebookNode({**cell, "id": str(at)})
                                      for at, cell in enumerate(cells)])
    notebook.metadata.language_info = {"name": "python", "pygments_lexer": "ipython3"}
    return Sanitized().from_notebook_node(notebook)[0]


@pytest.mark.parametrize("cell", [
    html_output("<a " * 600_000), html_output("<div>" * 360_000), html_output("<b>" * 20_000),
    html_output("&" * 1_800_000), written("\\begin{a}" * 55_000), written("# a\n=\n" * 80_000),
    written("[a](" * 120_000), v4.new_code_cell("(" * 500_000),
    printed("\x1b[1mx\x1b[31my" * 16_000)],
    ids=["unclosed links", "nested blocks", "nested tags", "ampersands", "environments",
         "headings", "links in links", "parentheses", "colors"])
def test_a_bomb_is_shown_as_text_at_once(cell):
    start = time.process_time()
    made = page(*[cell] * 3)
    assert time.process_time() - start < GENEROUS
    if any(output.output_type == "stream" for output in cell.get("outputs", [])):
        # A terminal's text stays, without its colors.
        assert "xyxy" in made and 'class="ansi-red' not in made
    else:
        assert made.count(bounds.NOT_RENDERED.strip()) == 3


def test_what_is_not_rendered_is_escaped_and_says_so():
    made = page(html_output("<div><script>" * 1_000), written("<script>" * 10_000))
    assert made.count(bounds.NOT_RENDERED.strip()) == 2
    assert "&lt;div&gt;&lt;script&gt;" in made and "<div><script>" not in made


def test_what_people_write_is_rendered():
    table = "<table>" + "<tr>" + "<td>1</td>" * 20 + "</tr>" * 60 + "</table>"
    made = page(html_output(table), html_output(PICTURE), written("A **word**."),
                printed("\x1b[31mred\x1b[0m"))
    assert bounds.NOT_RENDERED.strip() not in made
    assert "<strong>word</strong>" in made and 'class="ansi-red-fg"' in made
    assert PICTURE[10:100] in made and 'alt="No description' in made


def test_one_page_has_one_budget_and_the_next_page_another():
    budget = PageBudget()
    assert budget.takes_markdown("a" * bounds.MOST_MARKDOWN)
    assert not budget.takes_markdown("a")
    long = written("word " * (bounds.MOST_MARKDOWN // 5))
    pages = Sanitized()
    first, second = (pages.from_notebook_node(v4.new_notebook(cells=[long]))[0]
                     for _ in range(2))
    assert first == second and bounds.NOT_RENDERED.strip() not in second


def test_where_a_renderer_fails_the_page_is_text(monkeypatch):
    monkeypatch.setattr(exporter, "ansi2html", lambda text: 1 // 0)
    made = page(printed("\x1b[31mred & more\x1b[0m"), written("A **word**."))
    assert "red &amp; more" in made and "A **word**." in made


def test_depth_counts_what_stays_open():
    assert depth("<a><b></b></a>") == 2
    assert depth("</a></a><p>one<p>two") == 2
    assert depth("1 < 2") == 0
