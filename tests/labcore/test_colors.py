"""Highlights in a lab's output."""

import os
import pty
import subprocess
import sys

import pytest

from labcore import workspace
from labcore.colors import IN_NOTEBOOKS, bad, good, mark, result, strong
from labcore.errors import LabError

CODES = {kind: f"\033[38;2;{';'.join(map(str, IN_NOTEBOOKS[color]))}m"
         for kind, color in ((result, "blue"), (good, "green"), (bad, "red"))} | {strong: ""}
BACKGROUNDS = {"light": (255, 255, 255), "dark": (17, 17, 17)}  # JupyterLab's
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
    # pytest's stdout is no terminal either
    assert result("fast") == f"\033[1m{CODES[result]}fast\033[0m"


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_can_turn_them_off(variables):
    assert on_a_terminal(**variables) == "fast"


def test_a_terminal_shows_them_by_default():
    assert on_a_terminal() == "\033[1m\033[34mfast\033[0m"


def luminance(color):
    """Relative luminance: https://www.w3.org/TR/WCAG21/#dfn-relative-luminance."""
    linear = [one / 255 / 12.92 if one / 255 <= 0.03928 else ((one / 255 + 0.055) / 1.055) ** 2.4
              for one in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", BACKGROUNDS)
@pytest.mark.parametrize("color", IN_NOTEBOOKS)
def test_colors_can_be_read_in_either_theme(color, theme):
    """WCAG asks for 3 where text is bold and large, 4.5 where it is small; Jupyter's own bold blue
    has 3.3 in the dark theme."""
    darker, lighter = sorted(map(luminance, (IN_NOTEBOOKS[color], BACKGROUNDS[theme])))
    assert (lighter + 0.05) / (darker + 0.05) > 4


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
