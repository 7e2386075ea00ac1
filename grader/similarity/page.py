"""The page of `lab similar`: plain HTML without scripts, in which students' text is text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from rapidfuzz.distance import LCSseq

from grader.similarity.answers import Answers
from grader.similarity.report import MOST_ROWS, Pair, Report
from labcore.terminal import visible

MOST_NAMES = 300  # of one group
LONGEST = 10_000  # characters of an answer on the page
MOST_CODE = 3_000_000  # characters of all answers on the page

TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Similar answers in {{ report.lab|visible }}</title>
<style>
body { font-family: sans-serif; margin: 2em; }
table { border-collapse: collapse; margin: 1em 0; }
caption { text-align: left; padding: 0.3em 0; }
th, td { padding: 0.2em 0.8em; text-align: left; border-bottom: 1px solid #ddd; }
pre { white-space: pre-wrap; border-left: 3px solid #999; padding-left: 0.6em; margin: 0.4em 0; }
mark { background: #ffe08a; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 1em; }
</style></head><body>
{%- macro table(caption, pairs, first, second) %}
<table><caption>{{ caption }}</caption>
<thead><tr><th scope="col">{{ first }}</th><th scope="col">{{ second }}</th>
<th scope="col">code</th><th scope="col">text of the most similar answer</th></tr></thead><tbody>
{%- for pair in pairs[:most_rows] %}
<tr><td>{{ pair.one|visible }}</td><td>{{ pair.other|visible }}</td>
<td>{{ pair.score|percent }}</td><td>{{ pair.text|percent }}</td></tr>
{%- endfor %}</tbody></table>
{%- if pairs|length > most_rows %}<p>and {{ pairs|length - most_rows }} more</p>{% endif %}
{%- endmacro %}
{%- macro code(pair, level) %}
{%- for cell in side_by_side(pair) %}
<h{{ level }}>{{ cell.name|visible }}: {{ pair.one|visible }} and {{ pair.other|visible }}, code
{{ cell.code|percent }}, text {{ cell.text|percent }}</h{{ level }}>
<div class="two">
{%- for side in cell.sides %}<pre>
{%- for same, line in side %}{% if same %}<mark>{{ line }}</mark>{% else %}{{ line }}{% endif %}
{% endfor %}</pre>{% endfor %}</div>
{%- endfor %}
{%- endmacro %}
<h1>Similar answers in {{ report.lab|visible }}</h1>
<p>A reason to look, and no proof: short answers, and answers that follow the same text, are alike
by themselves. Half of all pairs among the {{ report.count }} students are above
{{ report.median|percent }}. What everybody was given does not count. No grade was changed.</p>
{%- if report.groups %}
<h2>Groups</h2>
<table>
<caption>Every two students of a group are at least {{ report.least|percent }} alike.</caption>
<thead><tr><th scope="col">group</th><th scope="col">students</th><th scope="col">who</th>
<th scope="col">code, least alike</th><th scope="col">code, most alike</th></tr></thead><tbody>
{%- for group in report.groups[:most_rows] %}
<tr><td><a href="#g{{ loop.index }}">{{ loop.index }}</a></td><td>{{ group.students|length }}</td>
<td>{{ group.students[:5]|names }}{% if group.students|length > 5 %}, ...{% endif %}</td>
<td>{{ group.lowest|percent }}</td><td>{{ group.highest|percent }}</td></tr>
{%- endfor %}</tbody></table>
{%- if report.groups|length > most_rows %}
<p>and {{ report.groups|length - most_rows }} more groups</p>{% endif %}
{%- endif %}
{%- if report.across %}
<h2>Pairs across groups</h2>
{{ table("Alike, but not with everybody in the other's group" ~ (
         "; the first %d of %d" % (report.across|length, report.across_count)
         if report.across_count > report.across|length else ""), report.across, "student",
         "student") }}
{%- endif %}
{%- if report.worked %}
<h2>Like the worked solution</h2>
{{ table("Half of the class is above %s. A right answer to a short exercise is often like the "
         "solution; look for choices that two people would hardly make independently."|format(
         report.worked_median|percent), report.worked, "student", "compared with") }}
{%- endif %}
{%- if report.earlier %}
<h2>Like earlier submissions</h2>
{{ table("For each student the most similar ones", report.earlier, "student", "earlier") }}
{%- endif %}
{%- if not (report.groups or report.across or report.worked or report.earlier) %}
<p>Nothing is {{ report.least|percent }} alike.</p>
{%- endif %}
{%- for group in report.groups[:most_rows] %}
<h2 id="g{{ loop.index }}">Group {{ loop.index }}: {{ group.students|length }} students</h2>
<p>{{ group.students[:most_names]|names }}
{%- if group.students|length > most_names %}, and {{ group.students|length - most_names }} more
{%- endif %}</p>
{%- for same in group.same[:most_names] %}
<p>The same code, apart from names, strings, and comments: {{ same[:most_names]|names }}
{%- if same|length > most_names %}, and {{ same|length - most_names }} more{% endif %}</p>
{%- endfor %}
{{ table("The most similar pairs", group.pairs, "student", "student") }}
{{ code(group.pairs[0], 3) }}
{%- endfor %}
{%- if report.across or report.earlier %}
<h2>Code of other pairs</h2>
{%- for pair in (report.across|list + report.earlier|list)[:most_rows] %}{{ code(pair, 3) }}
{%- endfor %}
{%- endif %}
{%- if report.left_out %}
<h2>Left out</h2>
<table><caption>Submissions that could not be compared</caption>
<thead><tr><th scope="col">student</th><th scope="col">why</th></tr></thead><tbody>
{%- for student, why in report.left_out.items()|list %}{% if loop.index <= most_rows %}
<tr><td>{{ student|visible }}</td><td>{{ why|visible }}</td></tr>
{%- endif %}{% endfor %}</tbody></table>
{%- if report.left_out|length > most_rows %}
<p>and {{ report.left_out|length - most_rows }} more</p>{% endif %}
{%- endif %}
{%- if room[0] < 0 %}
<p>The code of further pairs is not shown, to keep this page small.</p>
{%- endif %}
</body></html>
"""


def page(report: Report) -> str:
    """Return the HTML. Lines that both of a pair have, apart from blanks, are marked."""
    room = [MOST_CODE]
    return _template().render(
        report=report, most_rows=MOST_ROWS, most_names=MOST_NAMES, room=room,
        side_by_side=lambda pair: _side_by_side(pair, report.texts, room))


@lru_cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters.update(
        visible=_text, percent=lambda share: f"{share:.0%}",
        names=lambda students: ", ".join(map(_text, students)))
    return environment.from_string(TEMPLATE)


def _text(text: str) -> str:
    return "\t".join(map(visible, text.split("\t")))


def _side_by_side(pair: Pair, texts: Mapping[str, Answers], room: list[int]
                  ) -> Iterator[dict[str, Any]]:
    """Return the cells of a pair, until the page's limit on code is reached."""
    for name, (code, text) in pair.cells.items():
        shown = [texts[who].texts[name][:LONGEST] for who in (pair.one, pair.other)]
        room[0] -= sum(map(len, shown))
        if room[0] < 0:
            return
        first, second = (one.splitlines() for one in shown)
        same = LCSseq.opcodes([line.strip() for line in first], [line.strip() for line in second])
        left = {at for part in same if part.tag == "equal"
                for at in range(part.src_start, part.src_end)}
        right = {at for part in same if part.tag == "equal"
                 for at in range(part.dest_start, part.dest_end)}
        yield {"name": name, "code": code, "text": text,
               "sides": [_lines(first, left), _lines(second, right)]}


def _lines(lines: list[str], marked: set[int]) -> list[tuple[bool, str]]:
    return [(at in marked and bool(line.strip()), _text(line)) for at, line in enumerate(lines)]
