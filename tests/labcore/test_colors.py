"""Highlights in a lab's output."""

import os
import pty
import subprocess
import sys

import pytest

from labcore import workspace
from labcore.colors import bad, good, mark, result, strong
from labcore.errors import LabError

CODES = {result: "\033[34m", good: "\033[32m", bad: "\033[31m", strong: ""}
PROGRAM = "from labcore.colors import result; print(result('fast'))"


def on_a_terminal(**variables: str) -> str:
    """Return a program's output there."""
    parent, child = pty.openpty()
    kept = {name: value for name, value in os.environ.items()
            if name not in ("NO_COLOR", "FORCE_COLOR", "ANSI_COLORS_DISABLED")}
    try:
        subprocess.run([sys.executable, "-c", PROGRAM], stdout=child, check=True, timeout=60,
                       env=kept | {"TERM": "xterm"} | variables)
        return os.read(parent, 1000).decode().strip()
    finally:
        os.close(parent)
        os.close(child)


def test_each_kind_has_a_color_and_ends_where_its_text_ends():
    for kind, code in CODES.items():
        assert kind(7) == f"\033[1m{code}7\033[0m"


def test_notebooks_show_colors_whatever_the_terminal_that_started_them_asked_for(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert result("fast") == "\033[1m\033[34mfast\033[0m"  # pytest's stdout is no terminal either


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_can_turn_them_off(variables):
    assert on_a_terminal(**variables) == "fast"


def test_a_terminal_shows_them_by_default():
    assert on_a_terminal() == "\033[1m\033[34mfast\033[0m"


def test_a_line_is_marked_where_the_patterns_match_and_nowhere_else():
    line = "loss scale: 1.0 | skipped: 4 | 1.0"
    assert mark(line, "loss scale: [^ |]+", r"skipped: \d") == (
        f"{result('loss scale: 1.0')} | {result('skipped: 4')} | 1.0")
    # The codes of one pattern hold digits; they are no text for another one.
    assert mark("a 1", "a", r"\d") == f"{result('a')} {result('1')}"


def test_a_pattern_that_matches_nothing_is_named():
    with pytest.raises(LabError, match="skipped"):
        mark("loss scale: 1.0", "loss scale", "skipped")


def test_no_lab_has_escape_codes_of_its_own():
    """They come from one module alone, so that all labs look alike."""
    for path in (workspace.CHECKOUT / "solutions").glob("*.py"):
        text = path.read_text()
        assert "\\033" not in text and "\\x1b" not in text and "termcolor" not in text, path
