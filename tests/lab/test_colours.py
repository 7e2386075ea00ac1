"""What stands out in a lab's output."""

import pytest

from lab import workspace
from lab.colours import BLUE, PLAIN, bad, good, mark, result
from lab.errors import LabError


def test_kinds_are_told_apart_and_end_where_the_text_ends():
    said = [result(7), good(7), bad(7)]
    assert len(set(said)) == 3
    assert all("7" in one and one.endswith(PLAIN) and one.startswith("\033[1;") for one in said)


def test_a_line_is_marked_where_the_patterns_match_and_nowhere_else():
    line = "loss scale: 1.0 | skipped: 4 | 1.0"
    assert mark(line, "loss scale: [^ |]+", r"skipped: \d") == (
        f"{BLUE}loss scale: 1.0{PLAIN} | {BLUE}skipped: 4{PLAIN} | 1.0")
    # The codes of one pattern hold digits; they are no text for another one.
    assert mark("a 1", "a", r"\d") == f"{BLUE}a{PLAIN} {BLUE}1{PLAIN}"


def test_a_pattern_that_matches_nothing_is_named():
    with pytest.raises(LabError, match="skipped"):
        mark("loss scale: 1.0", "loss scale", "skipped")


def test_no_lab_has_colours_of_its_own():
    """Escape codes stand in lab.colours alone, so all labs look alike."""
    for path in (workspace.CHECKOUT / "solutions").glob("*.py"):
        text = path.read_text()
        assert "\\033" not in text and "\\x1b" not in text and "color" not in text.lower(), path
