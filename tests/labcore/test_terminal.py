"""No text of others steers a terminal."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from lab import cli
from labcore.errors import LabError
from labcore.terminal import visible

STEERING = ["\x1b[2J", "\x1b]8;;javascript:x()\x07link\x1b]8;;\x07", "\x1b]0;title\x07", "\x9b2J",
            "\x9d0;title\x9c", "\x90q\x9c", "a\rb", "a\x08b", "\u202eabc", "\u2066x\u2069",
            "\u200b", "\ufeff", "\u2028", "\ud800", "\U000e0041", "\x7f", "\x00"]


@pytest.mark.parametrize("text", STEERING)
def test_what_steers_is_written_out_or_replaced(text):
    for shown in (visible(text), visible(text, instead=" ")):
        assert shown.isprintable() and shown.encode()
    assert "\\" in visible(text) and "\\" not in visible(text, instead=" ")


def test_every_control_and_format_character_is_written_out():
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert visible(chr(code)).isascii() and len(visible(chr(code))) > 1


@pytest.mark.parametrize("text", [
    "Ada Lovelace", "Zo\u00eb M\u00fcller", "\u5c71\u7530\u3000\u592a\u90ce", "Jean\u00a0Paul",
    "\u0639\u0644\u064a", "\U0001f600", ""])
def test_names_stay_as_they_are(text):
    assert visible(text) == text


def test_a_message_keeps_its_lines_and_nothing_else(monkeypatch, capsys):
    def fails(arguments):
        raise LabError("no such file: a\x1b]0;x\x07\n  nearest: b\u202e")

    class Parser:
        def parse_args(self, argv):
            return type("Arguments", (), {"run": staticmethod(fails)})

    monkeypatch.setattr(cli, "build_parser", lambda command: Parser())
    assert cli.main([]) == 1
    assert capsys.readouterr().err == (
        "lab: error: no such file: a\\x1b]0;x\\x07\n  nearest: b\\u202e\n")
