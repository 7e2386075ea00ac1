"""Import every command of `lab`: its parser does, and a fork would do it again."""

from __future__ import annotations

from lab.cli import build_parser

build_parser()
