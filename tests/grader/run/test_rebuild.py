"""The parts of a submission that are read, and the parts of a page that are shown."""

from __future__ import annotations

import base64
import copy
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat import v4
from PIL import Image

from grader.feedback.page import NOTEBOOK_LINK, PICTURE, data_uri
from grader.nbgrader_plugin.exporter import Harmless, Sanitized
from grader.run.copies import merged
from grader.run.rebuild import Unusable, rebuild
from tests.grader.small_lab import RIGHT, WRONG, answered, find, marks, source

RELEASE = source()


def test_only_answers_are_taken():
    submitted = answered(RELEASE)
    submitted.cells.insert(0, v4.new_code_cell("raise SystemExit"))
    find(submitted, "batch-check").source = "pass"
    submitted.metadata["kernelspec"] = {"name": "evil"}
    result, notes = rebuild(RELEASE, submitted)
    assert [cell.source for cell in result.cells] == [
        cell.source for cell in answered(RELEASE).cells]
    assert result.metadata.kernelspec.name == "python3" and notes == []


DEF = "def global_batch(micro_batch, ranks):"
HELPER = "def product(a, b):\n    return a * b"
USER = f"{DEF}\n    return product(micro_batch, ranks)"


@pytest.mark.parametrize("copies, counts", [
    ([RIGHT, WRONG], WRONG), ([WRONG, RIGHT], RIGHT), ([RIGHT, None], RIGHT), ([None, None], None),
    ([RIGHT, RIGHT], RIGHT), ([RIGHT, " "], RIGHT),
    ([WRONG + "\nglobal_batch()", RIGHT], RIGHT),  # a first try that fails
    ([RIGHT, "def ("], RIGHT), (["def (", RIGHT], RIGHT),
    ([DEF + "\n    a = 1", "    return a"], f"{DEF}\n    a = 1\n    return a"),  # halves
    ([DEF, "    return 1"], f"{DEF}\n    return 1"),
    ([HELPER, USER], f"{HELPER}\n{USER}"), ([USER, HELPER], f"{USER}\n{HELPER}"),
    ([HELPER, None, USER], f"{HELPER}\n{USER}"),
    (["import math", RIGHT], f"import math\n{RIGHT}"),
    ([RIGHT, "global_batch(1, 2)"], f"{RIGHT}\nglobal_batch(1, 2)"),
    (["x" * 200_000, RIGHT], RIGHT),
])
def test_of_cells_with_one_name_a_run_from_top_to_bottom_decides(copies, counts):
    result, notes = rebuild(RELEASE, with_copies("batch", copies))
    untouched = find(RELEASE, "batch").source
    assert find(result, "batch").source == (counts or untouched)
    assert notes == [f"batch occurs {len(copies)} times: graded as if run from top to bottom"]


@pytest.mark.parametrize("copies, counts", [
    (["%%writefile a\nA=1", "B=2"], "%%writefile a\nA=1\nB=2"),
    (["%%writefile a\nA=1", "%%writefile a\nB=2"], "%%writefile a\nB=2"),
])
def test_a_script_in_two_halves_is_one_script_and_a_second_one_replaces_it(copies, counts):
    assert find(rebuild(RELEASE, with_copies("script", copies))[0], "script").source == counts


def test_written_answers_lose_nothing():
    assert merged(["One.", "Two.", "One."], "markdown") == "One.\n\nTwo."


@pytest.mark.parametrize("line", ["%timeit 1", "!ls", "print?", "files = !ls", ",print 1"])
def test_forty_copies_full_of_magics_are_merged_within_bounded_work(line):
    copies = [f"{line}\n" * 400 + f"answer = {number}" for number in range(40)]
    assert merged(copies, "code") == copies[-1]


def with_copies(name, copies):
    """The untouched release, with these sources (None: untouched) in cells called `name`."""
    submitted = copy.deepcopy(RELEASE)
    result = find(submitted, name)
    place = submitted.cells.index(result)
    cells = [copy.deepcopy(result) for _ in copies]
    for cell, text in zip(cells, copies, strict=True):
        cell.source = text or cell.source
    submitted.cells[place:place + 1] = cells
    return submitted


def test_an_answer_that_is_missing_or_no_code_is_reported():
    submitted = answered(RELEASE)
    find(submitted, "batch").cell_type = "markdown"
    submitted.cells.remove(find(submitted, "script"))
    with pytest.raises(Unusable, match="another lab's"):
        rebuild(RELEASE, submitted)
    submitted = answered(RELEASE)
    submitted.cells.remove(find(submitted, "script"))
    assert rebuild(RELEASE, submitted)[1] == ["script is missing"]


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(
                        st.sampled_from(["cells", "metadata", "nbgrader", "grade_id", "source",
                                         "cell_type"]) | st.text(), inner), max_leaves=30)


@pytest.mark.slow
@pytest.mark.parametrize("examples", [100, pytest.param(3000, marks=pytest.mark.stress)])
def test_whatever_json_is_submitted_is_unusable_or_rebuilt(examples):
    @settings(max_examples=examples)
    @given(JSON | st.fixed_dictionaries({"cells": st.lists(JSON)}))
    def is_unusable_or_rebuilt(submitted):
        try:
            result, _ = rebuild(RELEASE, submitted)
        except Unusable as error:
            assert str(error)
        else:
            assert len(result.cells) == len(RELEASE.cells)

    is_unusable_or_rebuilt()


def test_pictures_come_from_the_folder_of_pictures_only(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    (images / "a.png").write_bytes(b"png")
    (tmp_path / "b.png").write_bytes(b"secret")
    (images / "c.png").symlink_to(tmp_path / "b.png")

    def embedded(text: str) -> str:
        return PICTURE.sub(lambda found: data_uri(found, images) or found[0], text)

    assert embedded("![x](../images/a.png)") == (
        f"![x](data:image/png;base64,{base64.b64encode(b'png').decode()})")
    for path in ("../images/../b.png", "../images/c.png", "../images/no.png", "/etc/a.png"):
        assert embedded(path) == path


def test_links_to_notebooks_that_are_not_beside_the_page_become_text():
    link = "*Stuck? [The worked](worked/03.ipynb#Exercise-1%3A-who) [x](https://a.b/c.ipynb)*"
    assert NOTEBOOK_LINK.sub(r"\1", link) == "*Stuck? The worked [x](https://a.b/c.ipynb)*"


def picture(size: int) -> str:
    file = io.BytesIO()
    Image.new("1", (size, size)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


PNG = picture(2)


def written(text: str, attachments: object = None):
    """A lab with a written answer, and the page of nbconvert's that shows one."""
    release = copy.deepcopy(RELEASE)
    release.cells.append(v4.new_markdown_cell("Why?", metadata=marks(
        "why", grade=True, solution=True, locked=False, points=1)))
    submitted = copy.deepcopy(release)
    find(submitted, "why").source = text
    if attachments is not None:
        find(submitted, "why")["attachments"] = attachments
    return rebuild(release, submitted)[0]


def shown(notebook) -> str:
    return Sanitized(preprocessors=[Harmless]).from_notebook_node(notebook)[0]


def test_a_pasted_picture_stays_in_a_written_answer():
    result = written("See ![it](attachment:it.png)", {"it.png": {"image/png": PNG}})
    assert find(result, "why").attachments == {"it.png": {"image/png": PNG}}
    assert f"data:image/png;base64,{PNG}" in shown(result)


@pytest.mark.parametrize("content", [picture(6_000), base64.b64encode(b"BM no PNG").decode(), ""])
def test_without_a_picture_that_is_not_shown_an_answer_is_rendered(content):
    page = shown(written("**So** ![it](attachment:it.png)", {"it.png": {"image/png": content}}))
    assert "<strong>So</strong>" in page and (not content or content not in page)


@pytest.mark.parametrize("attachments", [
    None, [], {"it.png": 3}, {"it.png": {"image/svg+xml": "<svg onload='pwned()'/>"}},
    {"it.png": {"image/png": "x' onerror='pwned()"}}, {"it.png": {"image/png": ["x"]}},
    {"it.png": {"image/png": "A" * 4_000_000}}, {"other.png": {"image/png": PNG}}])
@pytest.mark.parametrize("name", ["it.png", "%69t.png", "&#105;t.png"])
def test_a_picture_that_is_not_there_stops_no_page(attachments, name):
    page = shown(written(f"See ![it](attachment:{name}) and this", attachments))
    assert "and this" in page and "pwned" not in page and len(page) < 2_000_000
