"""Render the figures of a lab as a page and as CSV, without scripts or names."""

from __future__ import annotations

import csv
import io

from grader.course.spreadsheet import harmless
from grader.stats.figures import LOW, LabStatistics
from labcore.html import render

EXERCISES = ("exercise", "points", "submissions", "scored", "unscored", "full", "partial", "zero",
             "tried", "mean", "difficulty", "discrimination", "failed_without_hint")
HINTS = ("exercise", "hint", "fired")
NOTHING = "–"


def page(statistics: LabStatistics) -> str:
    """Return the HTML."""
    return render("grader/stats/page.html.j2", statistics=statistics, low=LOW, number=_number,
                  share=_share)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else NOTHING


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def exercises_csv(statistics: LabStatistics) -> str:
    """Return a line for each exercise; an empty cell is a number that is not defined."""
    return _csv(EXERCISES, [[
        one.name, one.points, one.submissions, one.scored, one.unscored, one.full, one.partial,
        one.zero, one.tried, *map(_exact, (one.mean, one.difficulty, one.discrimination)),
        one.without_hint] for one in statistics.exercises])


def hints_csv(statistics: LabStatistics) -> str:
    """Return a line for each hint."""
    return _csv(HINTS, [[one.name, text, count] for one in statistics.exercises
                        for text, count in one.hints])


def _exact(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _csv(header: tuple[str, ...], rows: list[list[object]]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header)
    table.writerows([harmless(cell) if index < 2 else cell for index, cell in enumerate(row)]
                    for row in rows)
    return text.getvalue()
