"""Copies are named whatever was renamed in them, and no text of a student is more than text."""

from __future__ import annotations

import html.parser
import itertools
import re
import statistics
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.course.reasons import Unusable
from grader.similarity.answers import Answers
from grader.similarity.clusters import across, complete_linkage
from grader.similarity.page import page
from grader.similarity.report import WORKED, report
from grader.similarity.scores import distinct, matrix, median, similarity

ONE = '''def plan(ranks, tensor, pipeline):
    data = ranks // (tensor * pipeline)
    if data * tensor * pipeline != ranks:
        raise ValueError("does not divide")
    return data


def groups(ranks, tensor):
    result = []
    for start in range(0, ranks, tensor):
        result.append(list(range(start, start + tensor)))
    return result


def bubble(stages, micro):
    return (stages - 1) / (micro + stages - 1)
'''
OTHER = '''def plan(ranks, tensor, pipeline):
    model = tensor * pipeline
    assert ranks % model == 0, "bad"
    return int(ranks / model)

def groups(ranks, tensor):
    return [[i * tensor + j for j in range(tensor)] for i in range(ranks // tensor)]

def bubble(stages, micro):
    total = micro + stages - 1
    idle = total - micro
    return idle / total
'''
RENAMED = re.sub(r"\b(ranks|tensor|data|result|start|stages)\b", lambda word: word[0][::-1], ONE)
COPIES = {
    "the same": ONE, "renamed": RENAMED, "other strings": ONE.replace("does not divide", "no"),
    "reordered": "\n\n\n".join(RENAMED.split("\n\n\n")[::-1]),
    "with comments": '"""Mine."""\n' + ONE.replace("\n    ", "\n    # a thought\n    "),
    "below comments": "# a thought\n" * 10_000 + ONE,
    "below a docstring": '"""' + "mine " * 10_000 + '"""\n' + ONE,
    "with idle lines": ONE.replace("    return", "    unused = 1 + 2\n    return"),
}


def of(text: str, release: str = "") -> Answers:
    return Answers.of({"a": text}, {"a": release})


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_copy_is_named(copy):
    assert similarity(of(ONE), of(copy)) > 0.6


@pytest.mark.parametrize("idle", ["idle = 1\n" * 10_000, "#\n" * 150_000])
def test_an_answer_that_is_too_long_to_compare_is_left_to_a_person(idle):
    with pytest.raises(Unusable, match=r"the answer a has .*, too many to compare"):
        of(idle + ONE)


def test_the_page_shows_the_code_below_long_comments():
    copies = {"ada": of("# a thought\n" * 10_000 + ONE), "grace": of(ONE)}
    assert page(report("lab", copies, 0.6)).count("data = ranks //") == 2


def test_two_answers_of_their_own_are_not_named():
    assert similarity(of(ONE), of(OTHER)) < 0.2


def test_what_students_were_given_does_not_count():
    assert similarity(of(ONE, ONE), of(ONE, ONE)) == 0
    assert similarity(of(ONE + OTHER, ONE), of(ONE + RENAMED, ONE)) < 0.3


@settings(max_examples=40)
@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_has_a_measure(one, other):
    first, second = of(ONE + one), of(RENAMED + other)
    assert 0 <= similarity(first, second) == similarity(second, first) <= 1
    assert similarity(first, first) in (0, 1)


class _Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen, self.attributes = set(), set()

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attributes}


@settings(max_examples=40)
@given(st.text("<>&\"'/=\n\t\u202e scriptonloadimg!-{}%", max_size=120))
def test_students_text_is_text_on_the_page(text):
    hostile = f"<script>alert(1)</script></pre><img src=x onerror=y>'\"{text}\n{ONE}"
    mine = Answers.of({"a'<b>": hostile}, {})
    result = page(report("<i>", {"<b>x": mine, "y{{ 1 }}": mine}, 0.5, worked=mine, earlier={
        "<u>": mine}, left_out={"<s>": "<q>"}))
    tags = _Tags()
    tags.feed(result)
    assert tags.seen <= {"html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3",
                         "p", "table", "caption", "thead", "tbody", "tr", "th", "td", "a", "div",
                         "pre", "mark"}
    assert tags.attributes <= {"lang", "charset", "http-equiv", "content", "name", "href", "id",
                               "class", "scope"}
    assert "\u202e" not in result and "y{{ 1 }}" in result


def varied(number: int) -> str:
    """An answer that is like the others of a class, and still its own."""
    steps = [f"    x{step} = a {'+-*/%'[(number >> step) % 5]} {'bcdef'[(number * 7 >> step) % 5]}("
             f"{number})[{step}]" for step in range(number % 13 + 4)]
    return ONE + "\n\ndef own(a, b):\n" + "\n".join(steps) + "\n    return a\n"


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from([ONE, OTHER, RENAMED, varied(3), varied(44), "x = 1"]),
                         min_size=2, max_size=2), min_size=1, max_size=6))
def test_the_matrix_is_the_measure_of_every_pair(texts):
    class_ = [Answers.of({"a": first, "b": second}, {}) for first, second in texts]
    result = matrix(class_, class_[:2])
    for (row, one), (column, other) in itertools.product(enumerate(class_), enumerate(class_[:2])):
        assert result[row, column] == pytest.approx(similarity(one, other), abs=1e-6)
    assert matrix(class_)[:, :2] == pytest.approx(result, abs=1e-6)


def test_the_median_counts_every_pair_of_students():
    students = {f"s{at}": of([ONE, OTHER, varied(9), ONE, RENAMED][at]) for at in range(5)}
    answers, holders = distinct(students)
    assert sorted(map(len, holders)) == [1, 1, 3]  # RENAMED is ONE apart from names
    scores = matrix(answers)
    each = [similarity(one, other) for one, other in itertools.combinations(students.values(), 2)]
    assert median(scores, [len(who) for who in holders]) == pytest.approx(
        statistics.median_high(each), abs=1e-6)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 14), st.floats(0.2, 0.9))
def test_everybody_in_a_group_is_alike_and_no_pair_is_lost(seed, size, least):
    scores = np.random.default_rng(seed).random((size, size)).astype(np.float32)
    scores = (scores + scores.T) / 2
    result = complete_linkage(scores, least)
    together = {pair for group in result for pair in itertools.combinations(group, 2)}
    assert all(scores[pair] >= np.float32(least) for pair in together)
    over = {pair for pair in itertools.combinations(range(size), 2) if scores[pair] >= least}
    pairs, count = across(scores, result, least, 1000)
    assert set(pairs) | together == over and count == len(pairs)
    for one, other in itertools.combinations(result, 2):  # no two groups could be one
        assert scores[np.ix_(one, other)].min() < least


def test_a_chain_of_look_alikes_is_not_one_group():
    near = np.array([[1, 0.9, 0.1], [0.9, 1, 0.8], [0.1, 0.8, 1]], np.float32)
    assert complete_linkage(near, 0.6) == [[0, 1]]
    assert across(near, [[0, 1]], 0.6, 10) == ([(1, 2)], 1)


def test_a_hundred_identical_submissions_are_one_group():
    students = {f"s{at:03}": of([ONE, RENAMED][at % 2]) for at in range(100)}
    made = report("lab", {**students, "honest": of(OTHER)}, 0.6)
    assert [len(group.students) for group in made.groups] == [100] and not made.across
    assert made.median == 1 and len(page(made)) < 30_000


def test_the_pair_that_is_shown_first_shares_names_and_comments_too():
    students = {"ada": of(ONE), "eve": of(RENAMED + "# eve's\n"), "max": of(ONE + "# a thought\n")}
    made = report("lab", students, 0.6, worked=of(RENAMED), earlier={"2025: bob": of(RENAMED)})
    first, *others = made.groups[0].pairs
    assert (first.one, first.other) == ("ada", "max") and 0.9 < first.text < 1
    assert len(others) == 2 and all(pair.text < 0.9 for pair in others)
    texts = {pair.one: pair.text for pair in made.earlier}
    assert texts == {pair.one: pair.text for pair in made.worked}
    assert texts["eve"] > 0.9 > texts["ada"]


def test_a_page_has_an_end(monkeypatch):
    monkeypatch.setattr("grader.similarity.page.MOST_CODE", 100)
    students = {f"s{at:04}": of(ONE) for at in range(1200)}
    result = page(report("lab", students, 0.6, worked=of(ONE), left_out={
        f"x{at}": "why" for at in range(700)}))
    assert "not shown, to keep this page small" in result and "<pre>" not in result
    assert "and 200 more" in result and "and 700 more" in result and len(result) < 200_000


def test_who_has_the_worked_solution_or_last_years_is_named():
    made = report("lab", {"ada": of(ONE), "grace": of(OTHER)}, 0.6, worked=of(RENAMED),
                  earlier={"2025: eve": of(OTHER), "2025: bob": of(varied(7))})
    assert [(pair.one, pair.other) for pair in made.worked] == [("ada", WORKED)]
    assert [(pair.one, pair.other, pair.score) for pair in made.earlier
            if pair.one == "grace"] == [("grace", "2025: eve", 1.0)]
    assert "2025: eve" in page(made)


@pytest.mark.parametrize("students", [{}, {"ada": of(ONE)}, {"ada": of("x"), "eve": of("x")}])
def test_a_class_with_nothing_to_compare_has_a_page(students):
    made = report("lab", students, 0.6, worked=of(ONE) if not students else None)
    assert not made.groups and "Nothing is 60% alike" in page(made)


def measured(count: int) -> float:
    students = {f"s{at:04}": of(varied(at)) for at in range(count)}
    start = time.process_time()
    made = report("lab", students, 0.6, worked=of(ONE))
    assert len(page(made)) < 8_000_000 and made.count == count
    return time.process_time() - start


@pytest.mark.slow
def test_a_class_of_200_takes_seconds():
    assert measured(200) < 20


@pytest.mark.stress
def test_a_class_of_2000_takes_less_than_minutes():
    assert measured(2000) < 200
