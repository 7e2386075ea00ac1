"""Partial credit as a student's notebook shows it."""

import re

import pytest

from labkit import check
from labkit.check.partial import PartResult, report

COLORS = re.compile("\033\\[[0-9;]*m")


def plain(text):
    return COLORS.sub("", str(text))


def test_parts_that_pass_and_parts_that_fail_are_listed_with_their_points():
    with pytest.raises(check.Failed) as error, check.parts():
        with check.part(1.5, "first"):
            check.that(True, "no")
        with check.part(2, "second"):
            check.that(False, "Think again.\nWhy?")
        with check.part(0.5, "third"):
            raise ZeroDivisionError("by zero")
    assert plain(error.value) == ("1.5 of 4 points\n✓ 1.5 points: first\n✗ 2 points: second\n"
                                  "    Think again.\n    Why?\n✗ 0.5 points: third\n"
                                  "    ZeroDivisionError: by zero")


def test_all_parts_pass(capsys):
    with check.parts(), check.part(1, "first"):
        check.that(True, "no")
    assert plain(capsys.readouterr().out) == "✓ 1 of 1 points\n✓ 1 point: first\n"


def test_an_interrupt_ends_the_check_and_leaves_nothing_behind():
    with pytest.raises(KeyboardInterrupt), check.parts(), check.part(1, "first"):
        raise KeyboardInterrupt
    with check.parts(), check.part(1, "again"):
        pass


def test_a_part_stands_within_parts():
    with pytest.raises(RuntimeError, match="only valid inside"), check.part(1, "x"):
        pass
    with pytest.raises(RuntimeError, match="one list of parts"), check.parts(), check.parts():
        pass


@pytest.mark.parametrize("line", ["\n", "\r", "\u2028", "\x0b", "\x85"])
def test_no_message_looks_like_a_part(line):
    text = plain(report([PartResult(1, "first", f"you said '{line}✓ 9 points: second'")]))
    assert [one for one in text.splitlines() if one.startswith("✓")] == []
