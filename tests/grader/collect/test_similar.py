"""Copies are named whatever was renamed in them, and no text of a student is more than text."""

from __future__ import annotations

import html.parser
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.similar import Answers, Pair, pairs, similarity
from grader.similar_page import page
from tests.grader.collect.conftest import NAME
from tests.grader.conftest import submit
from tests.grader.small_lab import answered

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
    "with idle lines": ONE.replace("    return", "    unused = 1 + 2\n    return"),
}


def of(text: str, release: str = "") -> Answers:
    return Answers.of({"a": text}, {"a": release})


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_copy_is_named(copy):
    assert similarity(of(ONE), of(copy)) > 0.6


def test_two_answers_of_their_own_are_not_named():
    assert similarity(of(ONE), of(OTHER)) < 0.2


def test_what_students_were_given_does_not_count():
    assert similarity(of(ONE, ONE), of(ONE, ONE)) == 0
    assert similarity(of(ONE + OTHER, ONE), of(ONE + RENAMED, ONE)) < 0.3


@settings(max_examples=100)
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


@settings(max_examples=60)
@given(st.text("<>&\"'/=\n\t\u202e scriptonloadimg!-", max_size=120))
def test_students_text_is_text_on_the_page(text):
    hostile = f"<script>alert(1)</script></pre><img src=x onerror=y>'\"{text}\n{ONE}"
    answers = {who: Answers({"a'<b>": hostile}, {}, {}) for who in ("<b>x", "y")}
    found = page("<i>", [Pair("<b>x", "y", 1.0, {"a'<b>": (1.0, 1.0)})], 0.5, answers)
    tags = _Tags()
    tags.feed(found)
    assert tags.seen <= {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p",
                         "table", "thead", "tbody", "tr", "th", "td", "a", "div", "pre", "mark"}
    assert tags.attributes <= {"lang", "charset", "http-equiv", "content", "href", "id", "class",
                               "scope"}
    assert "\u202e" not in found


def test_a_class_of_300_takes_seconds():
    students = {f"s{number}": of(f"{ONE}\ndef own(a):\n    return a + " + " * ".join(
        str(number + index) for index in range(number % 20 + 1))) for number in range(300)}
    start = time.process_time()
    median = pairs(students, 0.999)[1]
    assert time.process_time() - start < 20 and median > 0.5


def test_the_command_writes_a_page_and_changes_no_grade(course, command, released, tmp_path):
    for who, text in {"ada": ONE, "grace": RENAMED, "jm1": OTHER}.items():
        submit(course, who, answered(released, text))
    path = course.notebook("submitted", NAME, "jm2")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    before = (course.root / "gradebook.db").read_bytes()
    done = command("similar", NAME, "--to", str(tmp_path / "r.html"))
    assert done.returncode == 0, done.stderr
    assert "3 students, 1 pairs over 60 %" in done.stdout and "left out: jm2" in done.stdout
    assert "ada, grace" in (tmp_path / "r.html").read_text()
    assert (course.root / "gradebook.db").read_bytes() == before
    assert command("similar", "nope").returncode == 1
    assert command("similar", NAME, "--over", "200").returncode == 1
