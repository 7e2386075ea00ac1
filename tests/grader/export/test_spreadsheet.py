"""No cell of any table is a formula, in whatever way a spreadsheet splits it."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.course.spreadsheet import harmless, original

BLANK = "[\\s\x00-\x1f\x7f-\xa0\xad\u200b-\u200f\u2060\ufeff]"
FORMULA = re.compile(rf"{BLANK}*[=+\-@\uff1d\uff0b\uff0d\uff20]")


@pytest.mark.parametrize("text", [
    "=1", "+1", "-1", "@x", "\tx", "\rx", "\n=1", "\uff1d1", "=", "\t=1", " =1", "\ufeff=1",
    "\xa0+1", "\u3000@x", "\x0b=1", "\x0c=1", "\x00=1", "\u200b\u2060=1", "\x85-1", "\u202e=1",
    "\xad=1"])
def test_what_begins_like_a_formula_gets_an_apostrophe(text):
    assert harmless(text).startswith("'" + text[0])


def test_numbers_and_ordinary_text_stay():
    assert harmless(-1.0) == -1.0 and harmless(None) == ""
    for text in ("", "a=1", "a; b", " a", "\ufeffa=1", "M\u00fcller-Lee",
                 "2 points - late", "x@example.org"):
        assert harmless(text) == text


@pytest.mark.parametrize("text", ['x;=cmd()', 'x; "=cmd()', "x\t+1", "x\n@y", ";=1;", "a;;-1",
                                  "x;\ufeff=1", "x;\xa0\u3000+1", "x;\x0b=1"])
def test_it_is_none_where_a_semicolon_a_tab_or_a_line_ends_a_cell(text):
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(["ada", harmless(text), "b"])
    for cell in re.split(r"[;\t\n]", line.getvalue()):
        assert not FORMULA.match(cell.strip('" '))


@given(st.text("=+-@';, \t\r\n\"a\uff1d\ufeff\xa0\x0b", max_size=12) | st.text(max_size=20))
def test_a_cell_is_read_again_as_it_was(text):
    cell = harmless(text)
    assert original(cell) == text and not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
