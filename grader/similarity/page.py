"""The page of `lab similar`: plain HTML without scripts, in which students' text is text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rapidfuzz.distance import LCSseq

from grader.similarity.answers import Answers
from grader.similarity.report import MOST_ROWS, SimilarityReport, SimilarPair
from labcore.html import render

MOST_NAMES = 300  # of one group
LONGEST = 10_000  # characters of an answer on the page
MOST_CODE = 3_000_000  # characters of all answers on the page


def page(report: SimilarityReport) -> str:
    """Return the HTML. Lines that both of a pair have, apart from blanks, are marked."""
    budget = [MOST_CODE]
    return render(
        "grader/similarity/page.html.j2", report=report, most_rows=MOST_ROWS,
        most_names=MOST_NAMES, budget=budget, percent="{:.0%}".format,
        side_by_side=lambda pair: _side_by_side(pair, report.texts, budget))


def _side_by_side(pair: SimilarPair, texts: Mapping[str, Answers], budget: list[int]
                  ) -> Iterator[dict[str, Any]]:
    """Yield the cells of a pair until the page's limit on code is reached.

    Args:
        pair: the pair.
        texts: all answers by student.
        budget: the characters that are left, as its only item.
    """
    for name, (code, text) in pair.cells.items():
        shown = [_beginning(texts[who].texts[name]) for who in (pair.one, pair.other)]
        budget[0] -= sum(map(len, shown))
        if budget[0] < 0:
            return
        first, second = (one.splitlines() for one in shown)
        same = LCSseq.opcodes([line.strip() for line in first], [line.strip() for line in second])
        left = {at for part in same if part.tag == "equal"
                for at in range(part.src_start, part.src_end)}
        right = {at for part in same if part.tag == "equal"
                 for at in range(part.dest_start, part.dest_end)}
        yield {"name": name, "code": code, "text": text,
               "sides": [_lines(first, left), _lines(second, right)]}


def _beginning(text: str) -> str:
    """Return an answer up to the limit; of a longer one without lines of comments, behind which
    code could hide."""
    if len(text) > LONGEST:
        text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return text[:LONGEST]


def _lines(lines: list[str], marked: set[int]) -> list[tuple[bool, str]]:
    return [(at in marked and bool(line.strip()), line) for at, line in enumerate(lines)]
