"""The table of a contest, as a page and for a spreadsheet.

Neither shows a secret case, nor any text that came out of a sandbox."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from grader.contest.standings import StandingsRow
from grader.course.spreadsheet import harmless
from labcore.html import render
from labcore.terminal import visible
from labkit.contest.declaration import Contest
from labkit.contest.play import FLOOR


def page(contest: Contest, rows: Sequence[StandingsRow]) -> str:
    """Return the HTML of a table, without scripts and with every name escaped.

    Args:
        contest: the contest.
        rows: its standings.
    """
    return render("grader/contest/page.html.j2", contest=contest, rows=rows, out=_out,
                  floor=f"{100 * FLOOR:g}")


def _out(row: StandingsRow) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(row.out.items()))


def table(contest: Contest, rows: Sequence[StandingsRow]) -> str:
    """Return the same as CSV, in which no cell is a formula.

    Args:
        contest: the contest.
        rows: its standings.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    groups = [group.name for group in contest.groups]
    lines.writerow(["rank", "name", "source of a ghost", "points", *groups, "disqualified",
                    "attempt", "received", "note"])
    for row in rows:
        has = bool(row.rank)
        cells = [row.rank if has else None, visible(row.name), row.received if row.ghost else "",
                 row.points if has else None,
                 *(row.by_group[group] if has else None for group in groups), _out(row),
                 row.attempt, "" if row.ghost else row.received, visible(row.note)]
        lines.writerow([harmless(cell) for cell in cells])
    return text.getvalue()


def pseudonym_table(named: Mapping[str, str]) -> str:
    """Return a CSV file of pseudonyms, by student.

    Args:
        named: pseudonyms by students' ids.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["student", "pseudonym"])
    lines.writerows([harmless(visible(student)), name] for student, name in named.items())
    return text.getvalue()
