"""The numbers of a lab are those of the textbook, and a number that is not defined is not shown."""

from __future__ import annotations

import csv
import html.parser
import io
import statistics
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.stats.figures import correlation, figures
from grader.stats.hints import hints_in
from grader.stats.page import exercises_csv, hints_csv, page
from grader.stats.reading import Check, StoredResults

HINTS = hints_in('check.that(x, "=Say <b>echo</b> mine.")')


def stored(*points: tuple[float | None, ...], most: tuple[float, ...] = (2, 3, 1)) -> StoredResults:
    """A lab of three checks and these submissions; None is a check without a score."""
    checks = [Check(f"c{at}", worth, (f"a{at}",), HINTS if at == 0 else ())
              for at, worth in enumerate(most)]
    result = StoredResults("lab", checks)
    for row in points:
        result.scores.append({f"c{at}": score for at, score in enumerate(row) if score is not None})
        result.graded.append(None not in row)
        result.tried.append(frozenset({"a0"}))
        result.attempts.append(1)
    return result


def test_the_numbers_of_a_small_class():
    data = stored((2, 3, 1), (2, 1.5, 0), (0, 0, 0), (0, 3, None))
    data.attempts[1] = 4
    data.fired["c0"] = Counter({HINTS[0].text: 2})
    data.without_hint["c1"] = 1
    result = figures(data)
    first, second, third = result.exercises
    assert (first.full, first.partial, first.zero, first.unscored) == (2, 0, 2, 0)
    assert (second.full, second.partial, second.zero, second.without_hint) == (2, 1, 1, 1)
    assert (third.scored, third.unscored, third.tried, first.tried) == (3, 1, 0, 4)
    assert (first.mean, first.difficulty, second.mean) == (1, 0.5, 7.5 / 4)
    assert (result.mean, result.median, result.attempts, result.most_attempts, result.again) == (
        pytest.approx(9.5 / 3), 3.5, 1.75, 4, 1)
    # of the three complete submissions: (2, 2, 0) with (4, 1.5, 0)
    assert first.discrimination == pytest.approx(statistics.correlation([2, 2, 0], [4, 1.5, 0]))
    assert first.hints == [("=Say <b>echo</b> mine.", 2)]
    assert result.bins == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1]


def test_the_point_biserial_formula_gives_the_same():
    """(M1 - M0) / s * sqrt(p q), with the standard deviation of all (n)."""
    right, rest = [1, 1, 0, 1, 0, 0, 1, 1], [5.0, 4, 3, 5, 1, 2, 2, 4]
    high = [score for one, score in zip(right, rest, strict=True) if one]
    low = [score for one, score in zip(right, rest, strict=True) if not one]
    share = len(high) / len(right)
    expected = ((statistics.fmean(high) - statistics.fmean(low)) / statistics.pstdev(rest)
                * (share * (1 - share)) ** 0.5)
    assert correlation(right, rest) == pytest.approx(expected)


class _Texts(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.texts, self.tags, self.bare = [], set(), 0

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.bare += tag == "th" and "scope" not in dict(attributes)

    def handle_data(self, data):
        self.texts.append(data)


SCORES = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 9.0]))


@settings(max_examples=60)
@given(st.lists(st.tuples(SCORES, SCORES, SCORES), max_size=6),
       st.sampled_from([(2, 3, 1), (0, 0, 0), (1, 0, 5)]))
def test_no_page_says_nan(rows, most):
    result = figures(stored(*rows, most=most))
    read = _Texts()
    read.feed(page(result))
    words = " ".join(read.texts).lower().split()
    assert not {"nan", "inf", "none", "-inf"} & set(words) and "script" not in read.tags
    assert not read.bare
    for text in (exercises_csv(result), hints_csv(result)):
        table = list(csv.reader(io.StringIO(text)))
        assert len({len(row) for row in table}) == 1
        assert not {"nan", "inf", "none"} & {cell.lower() for row in table for cell in row}
    for one in result.exercises:
        assert one.full + one.partial + one.zero + one.unscored == len(rows)


def test_an_authors_words_are_text_and_no_formula():
    result = figures(stored((0, 0, 0)))
    assert "=Say &lt;b&gt;echo&lt;/b&gt; mine." in page(result)
    assert "c0,'=Say <b>echo</b> mine.,0" in hints_csv(result)


def test_a_class_of_2000_takes_seconds():
    rows = [(at % 3, at % 4, at % 2) for at in range(2000)]
    start = time.process_time()
    result = figures(stored(*rows, most=(2, 3, 1)))
    assert len(page(result)) < 20_000 and result.submissions == 2000
    assert time.process_time() - start < 10
