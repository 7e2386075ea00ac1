"""Every byte of an LMS's file stays, except for the cells that are filled in."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.export import canvas, moodle, sheet
from grader.export.layout import number_in, written
from labcore.errors import LabError
from tests.grader.export.files import CANVAS, DIALECTS, GRADES, WORKSHEET, csv_bytes

CELLS = st.text(st.sampled_from('ab",;\t \'=ü\n\r'), max_size=6)


def read(path, content: bytes) -> sheet.Sheet:
    path.write_bytes(content)
    return sheet.read(path, (*canvas.REQUIRED, *moodle.REQUIRED))


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("rows", [CANVAS, WORKSHEET, GRADES], ids=["canvas", "worksheet", "moodle"])
def test_only_the_cells_that_are_filled_in_change(tmp_path, rows, dialect):
    content = csv_bytes(rows, **dialect)
    result = read(tmp_path / "lms.csv", content)
    assert result.rows == rows and result.replaced({}) == content
    changed = [list(row) for row in rows]
    changed[2][0] = "4.5"
    changed[1][0] = "EX"
    assert result.replaced({(2, 0): "4.5", (1, 0): "EX"}) == csv_bytes(changed, **dialect)


@settings(max_examples=100)
@given(st.lists(st.lists(CELLS, min_size=2, max_size=4), max_size=5), st.sampled_from(",;\t"),
       st.sampled_from(["\n", "\r\n"]))
def test_any_file_that_python_writes_is_understood(tmp_path_factory, rows, delimiter, end):
    rows = [["Student", "ID"], *rows]
    content = csv_bytes(rows, delimiter, end)
    path = tmp_path_factory.getbasetemp() / "any.csv"
    result = read(path, content)
    assert result.replaced({}) == content
    for place in [(number, len(row) - 1) for number, row in enumerate(result.rows)]:
        expected = [list(row) for row in result.rows]
        expected[place[0]][place[1]] = "1.5"
        text = result.replaced({place: "1.5"}).decode()
        again = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
        assert [row for row in again if row] == expected


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    content = b"Student,ID\n" + content
    try:
        result = read(tmp_path_factory.getbasetemp() / "bytes.csv", content)
    except LabError:
        return
    assert result.replaced({}) == content


@pytest.mark.parametrize("content, says", [
    (b"", "the file is empty"), (b"name,score\nada,1\n", "none of the headings"),
    (b'Student,ID\n"ada,1\n', "unexpected end of data"), (b"Student,ID\n\x00,1\n", "not text"),
    (b'Student,ID\n"ada"x,1\n', "headings"),
])
def test_what_is_not_an_lmss_file_is_refused(tmp_path, content, says):
    with pytest.raises(LabError, match=says):
        read(tmp_path / "bad.csv", content)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(LabError, match=r"gone\.csv: No such file"):
        sheet.read(tmp_path / "gone.csv", ("Student",))


@pytest.mark.parametrize("score, text", [(0, "0"), (5.0, "5"), (13 + 1 / 3, "13.33333"),
                                         (0.1 + 0.2, "0.3"), (100, "100"), (1e-9, "0")])
def test_scores_are_written_plainly(score, text):
    assert written(score) == text


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -1.0])
def test_what_is_not_a_score_is_never_written(score):
    with pytest.raises(ValueError, match="not a score"):
        written(score)


def test_numbers_with_a_decimal_comma_are_numbers():
    assert number_in(" 8,50 ") == 8.5 and number_in("12.25") == 12.25
    others = ("", "-", "EX", "1e3", "nan", "4 %", "1,000.5")
    assert {number_in(text) for text in others} == {None}
