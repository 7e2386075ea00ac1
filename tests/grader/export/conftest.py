"""The class of the tests for collecting, and rows of grades.csv without grading anybody."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.export import canvas, moodle, sheet
from grader.export.layout import LmsFile
from tests.grader.collect.conftest import PEOPLE, command, template
from tests.grader.export.files import csv_bytes

__all__ = ["PEOPLE", "command", "template"]
NAME = "90_small"


def row(student: str, score: float | None = None, state: str = "", reason: str = "",
        most: float = 5.0) -> SimpleNamespace:
    """The fields of a row of grades.csv that the export reads."""
    state = state or ("ungraded" if score is None else "graded")
    return SimpleNamespace(student=student, lab=NAME, score=score, max_score=most, state=state,
                           reason=reason)


@pytest.fixture
def opened(tmp_path: Path):
    """The layout of a file with these rows, in a dialect."""
    def opened(lms: str, rows: list[list[str]], **dialect) -> LmsFile:
        path = tmp_path / f"{lms}.csv"
        path.write_bytes(csv_bytes(rows, **dialect))
        reader = {"canvas": canvas, "moodle": moodle}[lms]
        return reader.layout(sheet.read(path, reader.REQUIRED))

    return opened
