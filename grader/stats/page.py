"""Render the figures of a lab as a page and as CSV, without scripts or names."""

from __future__ import annotations

import csv
import io
from functools import lru_cache

from jinja2 import Environment, StrictUndefined, Template

from grader.export.spreadsheet import harmless
from grader.stats.figures import LOW, Figures

EXERCISES = ("exercise", "points", "submissions", "scored", "unscored", "full", "partial", "zero",
             "tried", "mean", "difficulty", "discrimination", "failed_without_hint")
HINTS = ("exercise", "hint", "fired")
NOTHING = "–"
TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Statistics of {{ found.lab }}</title>
<style>
body { font-family: sans-serif; margin: 2em; max-width: 75em; }
table { border-collapse: collapse; margin: 1em 0; }
caption { text-align: left; padding: 0.3em 0; }
th, td { padding: 0.2em 0.8em; text-align: left; border-bottom: 1px solid #ddd; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.2em 1.5em; }
dd { margin: 0; }
.bar { display: inline-block; height: 0.8em; background: #35608f; }
</style></head><body>
<h1>Statistics of {{ found.lab }}</h1>
<dl>
<dt>Submissions</dt><dd>{{ found.submissions }}: {{ found.graded }} graded,
{{ found.submissions - found.graded }} ungraded; {{ found.excused }} excused and not counted</dd>
<dt>Points</dt><dd>mean {{ found.mean|number }} of {{ found.most|number }}, median
{{ found.median|number }}, standard deviation {{ found.deviation|number }}, before late
penalties</dd>
<dt>Attempts</dt><dd>mean {{ found.attempts|number }}, at most {{ found.most_attempts }};
{{ found.again }} submissions are not the first attempt</dd>
</dl>
<table><caption>How many submissions have which share of the points. Only those in which every
exercise has a score are counted.</caption>
<thead><tr><th scope="col">share</th><th scope="col">submissions</th><th scope="col"></th></tr>
</thead><tbody>
{%- for count in found.bins %}
<tr><th scope="row">{{ loop.index0 * 10 }}%{{ " to 100%" if loop.last else
    " to under %d%%"|format(loop.index * 10) }}</th><td class="number">{{ count }}</td>
<td>{% if count %}<span class="bar" style="width: {{ count|width(found.bins|max) }}em"></span>
{%- endif %}</td></tr>
{%- endfor %}
</tbody></table>
<table><caption>Exercises. Full, partial, and zero are shares of the submissions that have a score
here, unscored and tried shares of all. Tried: the answer is not as it was released.</caption>
<thead><tr><th scope="col">exercise</th><th scope="col">points</th><th scope="col">mean</th>
<th scope="col">full</th><th scope="col">partial</th><th scope="col">zero</th>
<th scope="col">unscored</th><th scope="col">tried</th><th scope="col">difficulty</th>
<th scope="col">discrimination</th></tr></thead><tbody>
{%- for one in found.exercises %}
<tr><th scope="row">{{ one.name }}</th><td class="number">{{ one.points|number }}</td>
<td class="number">{{ one.mean|number }}</td>
<td class="number">{{ one.full|share(one.scored) }}</td>
<td class="number">{{ one.partial|share(one.scored) }}</td>
<td class="number">{{ one.zero|share(one.scored) }}</td>
<td class="number">{{ one.unscored|share(one.submissions) }}</td>
<td class="number">{{ one.tried|share(one.submissions) }}</td>
<td class="number">{{ one.difficulty|number }}</td>
<td class="number">{{ one.discrimination|number }}
{%- if one.discrimination is not none and one.discrimination < low %} (low){% endif %}</td></tr>
{%- endfor %}
</tbody></table>
<p><strong>Difficulty</strong> is the mean share of the points: near 1, the exercise is easy.
<strong>Discrimination</strong> is the corrected item-total correlation: how the points of an
exercise go together with the points of all others
(<a href="https://doi.org/10.1007/BF02289618">Henrysson, 1963</a>). An exercise below {{ low }}
tells strong and weak students apart poorly; below 0, look for a mistake in the exercise or its
check. A dash is a number that is not defined: too few submissions, or all with the same points.</p>
{%- if found.exercises|selectattr("hints")|list %}
<table><caption>Hints, in the newest graded version of each submission</caption>
<thead><tr><th scope="col">exercise</th><th scope="col">hint</th><th scope="col">fired</th></tr>
</thead><tbody>
{%- for one in found.exercises %}{% for text, count in one.hints %}
<tr><th scope="row">{{ one.name }}</th><td>{{ text }}</td><td class="number">{{ count }}</td></tr>
{%- endfor %}{% if one.without_hint %}
<tr><th scope="row">{{ one.name }}</th><td><em>failed, and no hint fitted</em></td>
<td class="number">{{ one.without_hint }}</td></tr>
{%- endif %}{% endfor %}
</tbody></table>
{%- endif %}
<p>No names are on this page; in a small class, numbers can still point at a person.</p>
</body></html>
"""


def page(found: Figures) -> str:
    """Return the HTML."""
    return _template().render(found=found, low=LOW)


@lru_cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters.update(
        number=_number, share=lambda part, whole: f"{part / whole:.0%}" if whole else NOTHING,
        width=lambda count, most: f"{20 * count / most:.2f}")
    return environment.from_string(TEMPLATE)


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def exercises_csv(found: Figures) -> str:
    """Return a line for each exercise; an empty cell is a number that is not defined."""
    return _csv(EXERCISES, [[
        one.name, one.points, one.submissions, one.scored, one.unscored, one.full, one.partial,
        one.zero, one.tried, *map(_exact, (one.mean, one.difficulty, one.discrimination)),
        one.without_hint] for one in found.exercises])


def hints_csv(found: Figures) -> str:
    """Return a line for each hint."""
    return _csv(HINTS, [[one.name, text, count] for one in found.exercises
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
