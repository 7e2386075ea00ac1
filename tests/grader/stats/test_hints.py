"""A hint is recognized where a check put it, and nowhere else."""

from __future__ import annotations

import time

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.stats.hints import first_fired, hints_in
from grader.stats.reading import checks_of
from labcore.workspace import CHECKOUT
from labkit import check
from labkit.check.checks import Failed

SOURCE = '''
check.function(steps, cases=[{"a": 5}], expected=[10], hints={
    "Round up: the last step "
    "is needed.": [9],
    "Those are steps, each of one sample.": [8], "no": [7]})
check.that(limit == 10, "The limit is not " + str(minutes) + " minutes.")
check.raises(steps, ValueError, {"a": 0}, hint="It cannot be negative.")
check.that(right, f"{name} is not as asked.")
'''
HINTS = hints_in(SOURCE)
ROUND_UP, SAMPLES, LIMIT, NEGATIVE, ASKED = (hint.text for hint in HINTS)


def fired(message: str) -> str | None:
    hint = first_fired(HINTS, message)
    return hint.text if hint else None


def test_the_hints_of_a_check_are_found():
    assert (ROUND_UP, LIMIT) == ("Round up: the last step is needed.",
                                 "The limit is not ... minutes.")
    assert (SAMPLES, NEGATIVE) == ("Those are steps, each of one sample.",
                                   "It cannot be negative.")
    assert hints_in("%%bash\necho") == []


def test_the_hints_of_pass_marks_are_found():
    found = hints_in('check.pass_mark(ms, "It waits a lot.", error=0.1, below=3)\n'
                     'check.pass_mark(gib, error=0.1, below=3, hint="It is a bit too large." '
                     'if gib < 4 else f"It takes {gib} GiB, far too much.")')
    assert [hint.text for hint in found] == ["It waits a lot.", "It is a bit too large.",
                                             "It takes ... GiB, far too much."]
    assert first_fired(found, "It takes 9 GiB, far too much.") == found[2]


@pytest.mark.parametrize("answer, hint", [
    (9, ROUND_UP), (8, SAMPLES), (7, None), (6, None), ("Round up: the last step is needed.", None),
])
def test_what_a_check_says_is_recognized(answer, hint):
    with pytest.raises(Failed) as failed:
        check.function(lambda a: answer, cases=[{"a": 5}], expected=[10], hints={
            "Round up: the last step is needed.": [9],
            "Those are steps, each of one sample.": [8], "no": [7]})
    assert fired(str(failed.value)) == hint
    assert fired(f"\x1b[31m✗\x1b[0m {failed.value}\n") == hint
    assert fired(f"\x1b[31m✗\x1b[0m in a hidden test: {failed.value}\n") == hint


@pytest.mark.parametrize("message, hint", [
    ("The limit is not 10 minutes.", LIMIT), ("TIME is not as asked.", ASKED),
    ("steps(a=0) returned 3, but this is not valid input: raise ValueError. It cannot be "
     "negative.", NEGATIVE),
    ("steps(a=5) raised ValueError: x returned 9. Round up: the last step is needed.", None),
    ("steps(a=5) returned 'Round up: the last step is needed.': it should be 10.", None),
    ("Round up: the last step is needed. And more.", None), ("", None), ("x" * 100_000, None),
])
def test_only_the_checks_own_words_count(message, hint):
    assert fired(message) == hint


@settings(max_examples=60)
@given(st.text(max_size=80))
def test_no_students_value_is_taken_for_a_hint(value):
    for said in (value, f"{value}. {ROUND_UP}"):
        assert fired(f"steps(a=5) returned {said!r}: it should be 10.") is None
        assert fired(f"steps(a=5) raised ValueError: {said}") is None


def test_every_hint_of_every_lab_is_recognized_behind_an_answer():
    count = 0
    for path in sorted((CHECKOUT / "grader" / "source").glob("*/*.ipynb")):
        for one in checks_of(nbformat.read(path, as_version=4)):
            for hint in one.hints:
                if "..." in hint.text:
                    continue
                said = hint.text if hint.is_whole else f"f(1) returned 2. {hint.text}"
                assert first_fired(one.hints, said) == hint
                count += 1
    assert count > 150


def test_a_message_with_many_beginnings_of_a_hint_costs_no_time():
    """A student's text can repeat the author's words around what is put in. A regular expression
    would try every combination of them, for minutes."""
    hint, = hints_in("""check.function(
        f, c, e, hints={f"You gave {a} of {b} for {c}, not {d} here": 1})""")
    repeated = "x. You gave of for , not " * 190
    begun = time.process_time()
    assert not hint.fired(f"f(1) returned {repeated}")
    assert hint.fired(f"f(1) returned {repeated}. You gave 1 of 2 for 3, not 4 here")
    assert time.process_time() - begun < 5
