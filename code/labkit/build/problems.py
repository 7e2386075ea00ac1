"""Collect all errors of a lab, so that they can be reported together."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from labcore import workspace
from labcore.errors import LabError
from labkit.build.lab import Cell


@dataclass
class Problems:
    """Errors of one file, each with its line.

    Attributes:
        draft: whether mutants that prove the checks may be missing.
        missing: the pieces that a draft lacks; without `draft`, these are errors, too.
    """

    path: Path
    draft: bool = False
    errors: list[tuple[int, str]] = field(default_factory=list)
    missing: list[tuple[int, str]] = field(default_factory=list)

    def add(self, cell: Cell, line: int | None, text: str) -> None:
        """`line` counts from 1 in the cell's source; None for the cell as a whole."""
        self.errors.append(self._at(cell, line, text))

    def add_missing(self, cell: Cell, line: int | None, text: str) -> None:
        """Add an error that a draft is allowed to have."""
        (self.missing if self.draft else self.errors).append(self._at(cell, line, text))

    @staticmethod
    def _at(cell: Cell, line: int | None, text: str) -> tuple[int, str]:
        at = cell.line_of(line) if line else cell.line - 1
        return max(at, 1), f"{cell.title}: {text}"

    def add_at(self, line: int, text: str) -> None:
        """`line` counts from 1 in the file."""
        self.errors.append((line, text))

    def lines(self) -> list[str]:
        return self._shown(self.errors)

    def missing_lines(self) -> list[str]:
        return self._shown(self.missing)

    def _shown(self, entries: list[tuple[int, str]]) -> list[str]:
        shown = self.path
        if shown.is_relative_to(workspace.CHECKOUT):
            shown = shown.relative_to(workspace.CHECKOUT)
        return [f"{shown}:{line}: {text}" for line, text in sorted(dict.fromkeys(entries))]

    def raise_any(self) -> None:
        """Raise LabError with all errors, one per line, if there are any."""
        if self.errors:
            raise LabError("\n".join(self.lines()))


def nearest(name: str, known: object) -> str:
    """Return ` (nearest: x)`, or an empty string if no known name is close."""
    close = get_close_matches(name, sorted(known), n=1)
    return f" (nearest: {close[0]})" if close else ""
