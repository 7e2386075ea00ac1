"""Print a table of scores: one row per case, with the player beside the ghosts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from labcore.terminal import visible
from labkit.contest.declaration import Contest
from labkit.contest.play import FLOOR, CaseResult, points, points_by_group

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 110  # columns, without a terminal
MOST_SHOWN = 300  # characters of a reason
OUT = "out"


def console() -> Console:
    """Return a console that is wide enough for tables even without a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def show(contest: Contest, players: Mapping[str, Sequence[CaseResult]], mine: str | None = None
         ) -> None:
    """Print the table, followed by the reasons for disqualified cases of `mine`.

    Args:
        players: outcomes by player name, all for the same cases.
        mine: the player to explain; if empty, only the table is printed.
    """
    from rich.markup import escape

    out = console()
    out.print(_table(contest, players))
    out.print(f"Points are 100 times a score. {OUT}: disqualified, counts as "
              f"{100 * FLOOR:g}. The total is the geometric mean over all cases.")
    if mine is None:
        return
    for line in explained(players[mine]):
        out.print(escape(line), soft_wrap=True)
    total = points(players[mine])
    behind = [name for name, outcomes in players.items()
              if name != mine and points(outcomes) < total]
    level = [name for name, outcomes in players.items()
             if name != mine and points(outcomes) == total]
    out.print(escape(f"{mine}: {total:.2f} points, ahead of {', '.join(behind) or 'no ghost'}"
                     + (f"; level with {', '.join(level)}" if level else "")), soft_wrap=True)


def explained(outcomes: Iterable[CaseResult]) -> list[str]:
    """Return a line or two per case that explain its score or its disqualification.

    Cases that are disqualified for the same reason share these lines.
    """
    lines, alike = [], {}
    for one in outcomes:
        key = (one.kind, one.reason, one.hint) if one.kind else (one.case, one.note)
        alike.setdefault(key, []).append(one)
    for first, *others in alike.values():
        if first.kind:
            reason = visible(" ".join(first.reason.split()))
            if len(reason) > MOST_SHOWN:
                reason = reason[:MOST_SHOWN] + "..."
            cases = (f"{first.case} and {len(others)} more cases" if len(others) > 1
                     else ", ".join([first.case, *(other.case for other in others)]))
            lines.append(f"{cases}: {first.kind}: {reason}")
            lines += [f"    hint: {first.hint}"] * bool(first.hint)
        elif first.note:
            lines.append(f"{first.case}: {first.note}")
    return lines


def _table(contest: Contest, players: Mapping[str, Sequence[CaseResult]]) -> Table:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    # Eight ghosts have to fit into the 80 columns of a terminal.
    table = Table("case", title=f"{contest.title}: points", box=SIMPLE, collapse_padding=True,
                  pad_edge=False, show_edge=False)
    for name in players:
        table.add_column(escape(name), justify="right")
    for number, case in enumerate(next(iter(players.values()))):
        table.add_row(case.case, *(_cell(outcomes[number]) for outcomes in players.values()))
    table.add_section()
    for group in contest.groups:
        table.add_row(f"{group.name}, all", *(f"{points_by_group(outcomes)[group.name]:.2f}"
                                              for outcomes in players.values()))
    table.add_section()
    table.add_row("total", *(f"{points(outcomes):.2f}" for outcomes in players.values()),
                  style="bold")
    return table


def _cell(outcome: CaseResult) -> str:
    return OUT if outcome.kind else f"{points([outcome]):.2f}"
