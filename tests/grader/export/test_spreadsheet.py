"""No cell of any table is a formula, in whatever way a spreadsheet splits it."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.course.spreadsheet import harmless, original

FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")


@pytest.mark.parametrize("text", [
    "=1", "+1", "-1", "@x", "\tx", "\rx", "\n=1", "\uff1d1", "=", "\t=1"])
def test_what_begins_like_a_formula_gets_an_apostrophe(text):
    assert harmless(text).startswith("'" + text[0])


def test_numbers_and_ordinary_text_stay():
    assert harmless(-1.0) == -1.0 and harmless(None) == ""
    for text in ("", "a=1", "a; b", "M\u00fcller-Lee", "2 points - late", "x@example.org"):
        assert harmless(text) == text


@pytest.mark.parametrize("text", ['x;=cmd()', 'x; "=cmd()', "x\t+1", "x\n@y", ";=1;", "a;;-1"])
def test_it_is_none_where_a_semicolon_a_tab_or_a_line_ends_a_cell(text):
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(["ada", harmless(text), "b"])
    for cell in re.split(r"[;\t\n]", line.getvalue()):
        assert not FORMULA.match(cell.strip('" '))


@given(st.text("=+-@';, \t\r\n\"a\uff1d", max_size=12) | st.text(max_size=20))
def test_a_cell_is_read_again_as_it_was(text):
    cell = harmless(text)
    assert original(cell) == text and not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
