"""The functions that a check cell calls, in the notebook and for a student who is elsewhere."""

import linecache

import pytest

from labcore.colors import result
from labkit import check
from labkit.check.checks import Failed
from labkit.check.kernel import KernelSide
from labkit.check.sides import Raised, checking_on

HINTS = {"That is one rank's share.": lambda micro_batch, ranks: micro_batch,
         "Divided instead of multiplied.": lambda micro_batch, ranks: micro_batch // (ranks - 4)}
CASES = [{"micro_batch": 4, "ranks": 4}, {"micro_batch": 2, "ranks": 8}]


def expected(micro_batch, ranks):
    return micro_batch * ranks


def failure(assertion, *arguments, **keywords):
    with pytest.raises(Failed) as caught:
        assertion(*arguments, **keywords)
    return str(caught.value)


def test_a_right_function_passes_and_says_so(capsys):
    def global_batch(micro_batch, ranks):
        return ranks * micro_batch

    check.function(global_batch, CASES, expected, HINTS)
    assert "global_batch: right in 2 cases" in capsys.readouterr().out


def test_a_known_wrong_answer_gets_its_hint_and_not_the_answer():
    said = failure(check.function, lambda micro_batch, ranks: micro_batch, CASES, expected, HINTS)
    assert said == ("<lambda>(micro_batch=4, ranks=4) returned 4. That is one rank's share.")
    assert "16" not in said


def test_an_unknown_wrong_answer_is_said_to_be_wrong():
    said = failure(check.function, lambda micro_batch, ranks: 7, CASES, expected, HINTS)
    assert "returned 7: another number." in said


def test_an_exception_of_the_students_is_shown():
    said = failure(check.function, lambda micro_batch, ranks: 1 // 0, CASES, expected)
    assert "raised ZeroDivisionError: integer division" in said


def test_an_unanswered_function_says_that_it_waits():
    def unanswered(micro_batch, ranks):
        raise NotImplementedError("Your turn")

    assert "still waits for your answer" in failure(check.function, unanswered, CASES, expected)


def test_a_changed_def_line_is_explained():
    said = failure(check.function, lambda batch: 1, CASES, expected)
    assert "Keep the line that begins with def" in said


def test_a_check_without_cases_is_an_error_of_its_author():
    with pytest.raises(ValueError, match="nothing would be checked"):
        check.function(expected, [], expected)


def test_arguments_are_copies():
    def spoil(items):
        items.append(1)
        return len(items)

    case = {"items": [1, 2]}
    check.function(spoil, [case, case], lambda items: 3)


def test_a_result_that_cannot_cross_fails_with_advice():
    assert "a sorted list" in failure(check.function, lambda x: {x}, [(1,)], lambda x: [x])


def test_a_value_is_checked_with_hints_by_value_and_by_predicate(capsys):
    check.value(16, 16)
    assert "16 is right" in capsys.readouterr().out
    hints = {"One rank's.": 4, "Too many.": lambda got: got > 100}
    assert failure(check.value, 4, 16, hints) == "4 is not right. One rank's."
    assert failure(check.value, 101, 16, hints) == "101 is not right. Too many."
    assert failure(check.value, 5, 16, hints) == "5 is not right: another number."
    assert "a sorted list" in failure(check.value, {1}, 16)


class EqualToEverything:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


def test_an_object_that_equals_everything_equals_nothing_here():
    assert "cannot be checked" in failure(check.value, EqualToEverything(), 16)


def refuse(kind):
    def split(batch):
        raise kind(f"batch {batch} does not divide")

    return split


def test_refused_input_is_checked_by_kind_and_text():
    class Special(ValueError):
        pass

    check.raises(refuse(ValueError), ValueError, (7,), mentions="7")
    check.raises(refuse(Special), ValueError, (7,))
    assert "returned 7" in failure(check.raises, lambda batch: batch, ValueError, (7,))
    assert "raise ValueError instead" in failure(check.raises, refuse(KeyError), ValueError, (7,))
    assert "mention divisor" in failure(check.raises, refuse(ValueError), ValueError, (7,),
                                        mentions="divisor")
    assert "mention div" in failure(check.raises, refuse(ValueError), ValueError, (7,),
                                    mentions="div")  # a part of "divide"
    check.raises(refuse(ValueError), ValueError, (7,), mentions="batch 7")


def test_a_prediction_never_fails(capsys):
    check.compare("seconds", 3, 2.0)
    check.compare("seconds", None, 2.0)
    check.compare("seconds", True, 2.0)
    check.compare("seconds", 10**400, 2.0)
    check.compare("seconds", float("nan"), 2.0)
    check.compare("seconds", 2.0, 2.0)
    said = capsys.readouterr().out
    assert f"you guessed 3, it is {result('2')}" in said  # what is true stands out
    assert "50% too high" in said and said.count("No prediction") == 4 and "Spot on" in said


@pytest.mark.parametrize(("guess", "measured", "more", "said"), [
    (2.1, 2.0, {}, "close: 5% too high."), (1.5, 2.0, {}, "25% too low."),
    (3.9, 2.0, {}, "95% too high."), (23.08, 2.0, {}, "too high by a factor of 11.5."),
    (1.0, 4.0, {}, "too low by a factor of 4."),
    (2e6, 2.0, {}, "by a factor of 1,000,000, 6.0 orders of magnitude. Is it in the same unit?"),
    (0.001, 0.0, {}, "0.001 too high."), (-1.0, 2.0, {}, "3 too low."),
    (15, 12.0, {"power": 2}, "3 too high, which is a factor of 8."),
    (0, 15.0, {"power": 2}, "15 too low, which is a factor of 32,768."),
    (1e9, 15.0, {"power": 2}, "too high, which is a factor of")])
def test_a_wrong_guess_gets_a_sentence_that_fits_its_distance(guess, measured, more, said, capsys):
    check.compare("seconds", guess, measured, **more)
    assert f"Your guess was {said}" in (printed := capsys.readouterr().out) or said in printed


def test_draws_are_the_submissions_own_and_repeat(monkeypatch):
    def drawn():
        return check.draw(5, ranks=range(1, 1000), factor=check.between(0.5, 2.0))

    here = drawn()
    monkeypatch.setenv("LAB_CHECK_SEED", "another")
    there = drawn()
    assert here != there and there == drawn()
    assert all(1 <= case["ranks"] < 1000 and 0.5 <= case["factor"] <= 2 for case in here)
    with pytest.raises(ValueError, match="choices for ranks are empty"):
        check.draw(1, ranks=[])


def test_another_side_answers_for_the_students_names():
    class Elsewhere(KernelSide):
        seed = "7"

        def call(self, function, arguments, keywords):
            return 16 if function == "proxy" else Raised(("NameError", "Exception"), "gone")

        def value(self, name):
            return Raised(("NameError", "Exception"), "gone")

        def title(self, function):
            return "global_batch"

    with checking_on(Elsewhere()):
        assert "is not there: NameError: gone" in failure(check.value, "proxy", 16)
        check.function("proxy", CASES[:1], expected)
        assert "global_batch(micro_batch=4, ranks=4) raised NameError: gone" in failure(
            check.function, "other", CASES, expected)
    assert "'str' object is not callable" in failure(check.function, "proxy", CASES, expected)


def test_a_failure_is_shown_without_a_traceback():
    (line,) = Failed("no")._render_traceback_()
    assert line.endswith("no") and "✗" in line


class TextFails(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class ReprFails:
    def __repr__(self):
        raise RuntimeError("no picture")

    def __call__(self, x):
        return self


def test_odd_objects_of_a_student_end_no_check():
    def leave(x):
        raise SystemExit(0)

    def fail(x):
        raise TextFails

    assert "raised SystemExit: 0" in failure(check.function, leave, [(1,)], [1])
    assert "its text cannot be shown" in failure(check.function, fail, [(1,)], [1])
    assert "a ReprFails(1): a value of type ReprFails" in failure(
        check.function, ReprFails(), [(1,)], [1])


def test_a_function_that_prints_instead_of_returning_is_told_so():
    said = failure(check.function, lambda x: None, [(1,)], [1])
    assert "without `return`" in said
    assert "`return`" not in failure(check.function, lambda x: 2, [(1,)], [1])


def test_a_hint_is_for_the_same_number_as_a_float_too():
    for wrong in (lambda x: (8.0, 2), lambda x: (8, 2)):
        assert failure(check.function, wrong, [(1,)], [(2, 8)], {"Swapped.": [(8, 2)]}
                       ).endswith("Swapped.")


def test_a_predicate_of_a_hint_may_not_fit_the_answer():
    assert failure(check.value, "x", 16, {"Too many.": lambda got: got > 100}
                   ) == "'x' is not right: a number is asked for, not a text."


def student(source):
    """What a cell of the student's defines."""
    names = {"__name__": "__main__"}
    linecache.cache["<ipython-input-7>"] = (len(source), None, source.splitlines(True), "")
    exec(compile(source, "<ipython-input-7>", "exec"), names)
    return names


def test_an_error_in_an_answer_shows_the_student_s_own_lines():
    names = student("def inner(x):\n    return x.grad.detach()\n\ndef f(x):\n    return inner(x)\n")

    class Leaf:
        grad = None

    names["leaf"] = Leaf()
    exec("def g(n):\n    return f(leaf)", names)
    with pytest.raises(Failed) as failed:
        check.call(names["g"], 1)
    first, advice, *lines = str(failed.value).splitlines()
    assert first == "g(1) raised AttributeError: 'NoneType' object has no attribute 'detach'"
    assert advice.startswith("Something is None here.")
    assert lines[-2:] == ["  line 5 of the cell, in f: return inner(x)",
                          "  line 2 of the cell, in inner: return x.grad.detach()"]


def test_of_a_deep_recursion_only_the_last_lines_are_shown():
    names = student("def f(n):\n    return f(n + 1)")
    with pytest.raises(Failed) as failed:
        check.call(names["f"], 1)
    assert str(failed.value).count("line 2 of the cell") == 1


def test_a_line_in_a_file_of_the_workspace_is_named_by_its_path(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_module.py").write_text("def f(n):\n    return [][n]\n")
    import own_module

    with pytest.raises(Failed, match=r"own_module\.py, line 2, in f: return \[\]\[n\]"):
        check.call(own_module.f, 1)
