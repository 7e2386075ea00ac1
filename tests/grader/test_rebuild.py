"""What of a submission is looked at, and what of a page is shown."""

from __future__ import annotations

import base64
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat import v4

from grader.feedback import PICTURE, data_uri
from grader.rebuild import Unusable, rebuild
from grader.report import harmless
from tests.grader.small_lab import RIGHT, WRONG, answered, find, source

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


@pytest.mark.parametrize("copies, counts", [
    ([RIGHT, WRONG], WRONG), ([WRONG, RIGHT], RIGHT), ([RIGHT, None], RIGHT), ([None, None], None),
])
def test_of_several_copies_the_last_changed_one_counts(copies, counts):
    untouched = find(RELEASE, "batch").source
    submitted = answered(RELEASE)
    found = find(submitted, "batch")
    submitted.cells.remove(found)
    for text in copies:
        cell = copy.deepcopy(found)
        cell.source = text or untouched
        submitted.cells.append(cell)
    result, notes = rebuild(RELEASE, submitted)
    assert find(result, "batch").source == (counts or untouched)
    assert notes == ["batch is there 2 times: the last changed one counts"]


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


@settings(max_examples=300, deadline=None)
@given(JSON | st.fixed_dictionaries({"cells": st.lists(JSON)}))
def test_whatever_json_is_submitted_is_unusable_or_rebuilt(submitted):
    try:
        result, _ = rebuild(RELEASE, submitted)
    except Unusable as error:
        assert str(error)
    else:
        assert len(result.cells) == len(RELEASE.cells)


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


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", "\tx", "\rx"])
def test_no_cell_of_the_table_is_a_formula(text):
    assert harmless(text) == "'" + text
    assert harmless(-1.0) == -1.0 and harmless("a=1") == "a=1" and harmless(None) == ""
