"""The page of `lab similar`: plain HTML without scripts, in which students' text is text."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from html import escape

from grader.collect.names import visible
from grader.similar import Answers, Pair

MOST_SHOWN = 100  # pairs with their code
LONGEST = 10_000  # characters of an answer on the page
HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Similar answers</title>
<style>body { font-family: sans-serif; margin: 2em; } th, td { padding: 0.2em 0.8em;
text-align: left; } td.pair { display: flex; gap: 2em; } pre { white-space: pre-wrap;
border-left: 3px solid #999; padding-left: 0.6em; margin: 0.4em 0; } mark { background: #ffe08a; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 1em; }</style></head><body>
"""


def page(lab: str, found: Sequence[Pair], median: float, students: Mapping[str, Answers]) -> str:
    """HTML. Lines that both have, apart from blanks, are marked."""
    rows = "".join(
        f"<tr><td><a href='#p{index}'>{_text(pair.one)}, {_text(pair.other)}</a></td>"
        f"<td>{pair.score:.0%}</td><td>{max(text for _, text in pair.cells.values()):.0%}</td></tr>"
        for index, pair in enumerate(found))
    parts = "".join(_pair(index, pair, students) for index, pair in
                    enumerate(found[:MOST_SHOWN]))
    return (f"{HEAD}<h1>Similar answers in {_text(lab)}</h1>"
            "<p>A reason to look, and no proof: short answers, and those that follow one text, are "
            f"alike by themselves. Half of all pairs in this class are above {median:.0%}. "
            "No grade was changed.</p>"
            f"<table><thead><tr><th scope='col'>students</th><th scope='col'>code</th>"
            f"<th scope='col'>text of the most similar answer</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>{parts}</body></html>\n")


def _pair(index: int, pair: Pair, students: Mapping[str, Answers]) -> str:
    cells = "".join(_cell(name, *scores, students[pair.one].texts[name],
                          students[pair.other].texts[name]) for name, scores in pair.cells.items())
    who = f"{_text(pair.one)} and {_text(pair.other)}"
    return f"<h2 id='p{index}'>{who}: {pair.score:.0%}</h2>{cells}"


def _cell(name: str, code: float, text: float, one: str, other: str) -> str:
    first, second = (shown[:LONGEST].splitlines() for shown in (one, other))
    matcher = difflib.SequenceMatcher(None, [line.strip() for line in first],
                                      [line.strip() for line in second], autojunk=False)
    same = matcher.get_matching_blocks()
    left = {block.a + offset for block in same for offset in range(block.size)}
    right = {block.b + offset for block in same for offset in range(block.size)}
    return (f"<h3>{_text(name)}: code {code:.0%}, text {text:.0%}</h3><div class='two'>"
            f"<pre>{_lines(first, left)}</pre><pre>{_lines(second, right)}</pre></div>")


def _lines(lines: Sequence[str], marked: set[int]) -> str:
    return "\n".join(f"<mark>{_text(line)}</mark>" if index in marked and line.strip()
                     else _text(line) for index, line in enumerate(lines))


def _text(text: str) -> str:
    return escape("\t".join(map(visible, text.split("\t"))))
