"""The table of a contest, as a page and for a spreadsheet.

Neither shows a secret case, nor any text that came out of a sandbox."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grader.contest.standings import Row
from grader.export.spreadsheet import harmless
from labcore.terminal import visible
from labkit.contest.declaration import Contest
from labkit.contest.play import FLOOR

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{{ contest.title }}</title>
<style>
body { font-family: sans-serif; margin: 2em; }
table { border-collapse: collapse; }
caption { text-align: left; padding-bottom: 0.6em; }
th, td { padding: 0.25em 0.8em; text-align: left; border-bottom: 1px solid #ccc; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.ghost { font-style: italic; background: #f2f2f2; }
</style>
</head>
<body>
<h1>{{ contest.title }}</h1>
<table>
<caption>Points on cases that were not known before. 100 is the ideal; a disqualified case counts as
{{ floor }}; totals are geometric means. Rows in italics are ghosts: published algorithms.</caption>
<thead><tr>
<th scope="col" class="number">rank</th><th scope="col">name</th>
<th scope="col" class="number">total</th>
{% for group in contest.groups %}
<th scope="col" class="number">{{ group.name }}</th>
{% endfor %}
<th scope="col">disqualified cases</th><th scope="col">attempt</th>
<th scope="col">received (UTC), or source</th>
</tr></thead>
<tbody>
{% for row in rows %}
<tr{% if row.ghost %} class="ghost"{% endif %}>
<td class="number">{{ row.rank or "-" }}</td>
<th scope="row">{{ row.name|visible }}{% if row.ghost %} (ghost){% endif %}</th>
{% if row.rank %}
<td class="number">{{ "%.2f"|format(row.points) }}</td>
{% for group in contest.groups %}
<td class="number">{{ "%.2f"|format(row.by_group[group.name]) }}</td>
{% endfor %}
{% else %}
<td class="number">-</td>{% for group in contest.groups %}<td class="number">-</td>{% endfor %}
{% endif %}
<td>{{ row|out }}</td>
<td>{{ row.attempt }}{% if row.attempt and row.note %}; {% endif %}{{ row.note|visible }}</td>
<td>{% if row.ghost %}{{ row.received }}{% else %}{{ row|when }}{% endif %}</td>
</tr>
{% endfor %}
</tbody>
</table>
{% for group in contest.groups %}
<p><b>{{ group.name }}</b>: {{ group.title }}</p>
{% endfor %}
</body>
</html>
"""


def page(contest: Contest, rows: Sequence[Row]) -> str:
    """Return the HTML of a table, without scripts and with every name escaped.

    Args:
        contest: the contest.
        rows: its standings.
    """
    return _template().render(contest=contest, rows=rows, floor=f"{100 * FLOOR:g}")


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"visible": visible, "out": _out, "when": _when}
    return environment.from_string(TEMPLATE)


def _out(row: Row) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(row.out.items()))


def _when(row: Row) -> str:
    return "" if row.ghost else row.received[:19].replace("T", " ")


def table(contest: Contest, rows: Sequence[Row]) -> str:
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


def who(named: Mapping[str, str]) -> str:
    """Return a CSV file of pseudonyms, by student.

    Args:
        named: pseudonyms by students' ids.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["student", "pseudonym"])
    lines.writerows([harmless(visible(student)), name] for student, name in named.items())
    return text.getvalue()
