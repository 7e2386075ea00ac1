"""A page's cost is bounded, whatever a student wrote; the excess is shown as text."""

from __future__ import annotations

import base64
import io
import random
import time

import pytest
from nbformat import NotebookNode, v4
from PIL import Image

from grader.nbgrader_plugin import bounds, exporter
from grader.nbgrader_plugin.bounds import PageBudget, depth
from grader.nbgrader_plugin.exporter import Harmless, Sanitized
from tests.grader.small_lab import marks

GENEROUS = 30  # CPU seconds; without bounds these take minutes to hours


def png(width: int, height: int, noise: bytes = b"") -> str:
    """Return a gray picture in base64; `noise` is its upper part."""
    picture, file = Image.new("L", (width, height)), io.BytesIO()
    if noise:
        picture.paste(Image.frombytes("L", (width, len(noise) // width), noise))
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def image(content: str) -> str:
    return f'<img src="data:image/png;base64,{content}">'


PICTURE = image(png(1200, 1200, random.Random(0).randbytes(1200 * 1200)))  # 1.9 MB


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


@pytest.mark.parametrize("text", [
    "<table><tr>" + "<td colspan=100>" * 8_000 + "</table>",
    "<table>" + "<tr><td rowspan=65534 colspan=1000>x" * 300 + "</table>",
    "<table>" + "<tr><td rowspan=1000>x" * 1_000 + "</table>",
    "<table><tr>" + "<td>" * 990 + "<tr><td>" * 990 + "</table>",
    "<table><tr><td>" + "<table><tr>" + "<td colspan=1000>" * 2 + "</table>" * 2,
    image(png(6_000, 6_000)), image("AAAA"), image(png(4_900, 4_900)) * 11],
    ids=["wide cells", "large spans", "stairs", "an L", "a table in a table", "a large picture",
         "no picture", "large pictures"])
def test_what_a_browser_would_lay_out_for_minutes_is_text(text):
    made = page(html_output(text))
    assert bounds.NOT_RENDERED.strip() in made and "<td" not in made and "<img" not in made


def test_spans_and_sizes_that_no_page_needs_are_left_out():
    made = page(html_output("<table><tr><td rowspan=2000 colspan=0x>a<td colspan=12>b</table>"
                            f"{image(png(2, 2)).replace('>', ' width=99999 height=50%>')}"))
    assert "<td>a" in made and '<td colspan="12">b' in made
    assert 'height="50%"' in made and "width=" not in made.partition("<img")[2].partition(">")[0]


def test_a_picture_with_too_many_pixels_says_so():
    kinds = {"image/png": png(6_000, 6_000), "image/gif": "R0lGOD", "text/plain": "<Figure>"}
    cells = [v4.new_code_cell("1", outputs=[v4.new_output("display_data", {kind: content})])
             for kind, content in kinds.items()]
    cells[0].outputs[0].data["text/plain"] = "<Figure>"
    made = Harmless().preprocess(v4.new_notebook(cells=cells), {})[0].cells
    assert made[0].outputs[0].data == {"text/plain": bounds.TOO_LARGE + "<Figure>"}
    assert made[1].outputs[0].data == {"text/plain": bounds.TOO_LARGE}
    assert made[2].outputs[0].data == {"text/plain": "<Figure>"}


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
