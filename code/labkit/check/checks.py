"""The functions that a check cell calls. docs/writing-labs.md is the guide."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labcore.colors import bad, good, result, strong
from labkit.check.cases import require_none
from labkit.check.hints import advice, nearest, relation
from labkit.check.same import NEAR, difference
from labkit.check.sides import Raised, current_side
from labkit.check.wire import CannotCross

Case = Mapping[str, Any] | Sequence[Any]
Answers = Sequence[Any] | Callable[..., Any]  # one value per case, or a function of the case
HIDDEN = "in a hidden test: "  # before the message of one
HIDDEN_FAILED = "a hidden test failed: it tries other cases than those you can see."
NO_RETURN = "(does the function end without `return`? print does not return anything)"
FAR = 30  # factor beyond which a guess is probably in another unit
MOST_SHOWN = 300  # characters of a value in a message


class Failed(AssertionError):
    """Raised by a check that fails. Notebooks show only its message, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"{bad('✗')} {self}"]


class _Tally:
    """What the running check has tested since it began, or since it last printed a verdict."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.conditions, self.has_verdict = 0, False
        self.subjects: dict[int, Any] = {}  # the functions that it called, and the files, by ID

    def note(self, subject: Any) -> None:
        """Note a student's function or the path of a script that is being checked."""
        self.subjects.setdefault(id(subject), subject)


tally = _Tally()


def begin() -> None:
    """Begin a check cell."""
    tally.begin()


def conclude(is_check: bool = True) -> None:
    """Print the verdict on a check cell that raised nothing, unless its last line is one.

    Args:
        is_check: whether the cell is known to be a check, even if it used no function from here.
    """
    if tally.conditions or (is_check and not tally.has_verdict):
        count = f"{tally.conditions} test{'' if tally.conditions == 1 else 's'}"
        # (A name on the trusted side refuses isinstance.)
        subjects = dict.fromkeys(subject if type(subject) is str else current_side().title(subject)
                                 for subject in tally.subjects.values())
        passed(f"{', '.join(subjects) or 'this check'}: "
               + (f"passed {count}" if tally.conditions else "passed"))


def passed(what: str) -> None:
    tally.conditions, tally.has_verdict = 0, True
    print(f"{good('✓')} {what}")


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def that(condition: bool, hint: str) -> None:
    """Assert `condition`, computed from values that `call` or `script` returned. Raises Failed."""
    if not condition:
        raise Failed(hint)
    tally.conditions += 1


def pass_mark(figure: float, hint: str, *, error: float | None, below: float | None = None,
              above: float | None = None) -> None:
    """Assert that a modeled figure is on the right side of a pass mark.

    tests/labs/test_pass_marks.py makes sure that the distance from the mark to the reference, and
    to every mutant that the mark rejects, is at least twice the error.

    Args:
        figure: a modeled time, memory, or share, or a ratio of them.
        hint: what a figure on the wrong side of the mark means.
        error: expected relative error of such figures, mostly `cost.error` for times and shares
            and `cost.memory_error` for memory; None if it is not known.
        below: the pass mark; the figure must be less.
        above: the pass mark instead, if the figure must be at least that large.

    Raises Failed.
    """
    if (below is None) == (above is None):
        raise ValueError("check.pass_mark: give one pass mark, either below= or above=")
    that(figure < below if above is None else figure >= above, hint)


def value(x: Any, expected: Any, hints: Mapping[str, Any] | None = None, *,
          rel: float = NEAR) -> None:
    """Assert that the student's `x` is `expected`.

    `hints` maps each text to the wrong value that triggers it, or to a predicate of the value.
    Raises Failed.
    """
    try:
        got = current_side().value(x)
    except CannotCross as error:
        raise Failed(str(error)) from None
    if isinstance(got, Raised):
        raise Failed(f"the answer above is not there: {got}")
    mismatch = difference(got, expected, rel)
    if mismatch is None:
        passed(f"{shown(got)} is right")
        return
    for text, wrong in (hints or {}).items():
        if _holds(wrong, got) if callable(wrong) else difference(got, wrong, rel) is None:
            raise Failed(f"{shown(got)} is not right. {text}")
    wrongs = {text: wrong for text, wrong in (hints or {}).items() if not callable(wrong)}
    if (text := nearest(got, expected, wrongs, rel)) is not None:
        raise Failed(f"{shown(got)} is not right. {text}")
    raise Failed(f"{shown(got)} is not right: {with_relation(mismatch, got, expected)}.")


def _holds(predicate: Callable[[Any], Any], got: Any) -> bool:
    """Return whether a hint applies to a value; False if the predicate cannot take its kind."""
    try:
        return bool(predicate(got))
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
        return False


def call(f: Any, *arguments: Any, **keywords: Any) -> Any:
    """Return a plain copy of what the student's `f` returns for the arguments. Raises Failed."""
    tally.note(f)
    result = _outcome(f, arguments, keywords)
    if isinstance(result, Raised):
        raise Failed(f"{spelled(f, arguments, keywords)} raised {result}{_advice(result)}")
    return result


def function(f: Any, cases: Sequence[Case], expected: Answers,
             hints: Mapping[str, Answers] | None = None, *, rel: float = NEAR) -> None:
    """Assert that `f` returns the expected value in every case. Raises Failed at the first wrong
    one.

    Args:
        f: the student's function.
        cases: its arguments: dicts of keywords, or sequences of positional arguments.
        expected: one value per case, or a function of the case. Outside hidden tests, give values:
            a formula there would be the answer.
        hints: maps each text to the wrong values (or the wrong function) that trigger it.
        rel: the relative tolerance for numbers.
    """
    if not cases:
        raise ValueError("check.function: no cases, so nothing would be checked")
    for number, case in enumerate(cases):
        arguments, keywords = arguments_of(case)
        got, right = call(f, *arguments, **keywords), _answer(expected, cases, number)
        mismatch = difference(got, right, rel)
        if mismatch is not None:
            number, got, hint = _best_hint(f, cases, expected, hints or {}, number, got, rel)
            arguments, keywords = arguments_of(cases[number])
            where = f"{spelled(f, arguments, keywords)} returned {shown(got)}"
            if got is None and not hint:
                mismatch += f" {NO_RETURN}"
            raise Failed(f"{where}. {hint}" if hint else
                         f"{where}: {with_relation(mismatch, got, right)}.")
    passed(f"{current_side().title(f)}: right in {len(cases)} case{'s' if len(cases) > 1 else ''}")


def _best_hint(f: Any, cases: Sequence[Case], expected: Answers, hints: Mapping[str, Answers],
               number: int, got: Any, rel: float) -> tuple[int, Any, str | None]:
    """Return the case to show, what `f` returned there, and the hint that explains it best.

    That is a hint for this case's complete result, or else the one that explains the most wrong
    numbers of all cases.

    Args:
        f: the student's function.
        cases, expected, hints, rel: as for `function`.
        number: the first case in which `f` is wrong.
        got: what it returned there.
    """
    if hint := _hint(got, hints, cases, number, rel):
        return number, got, hint
    results = {number: got}
    for other in range(number + 1, len(cases) if hints else 0):
        arguments, keywords = arguments_of(cases[other])
        with contextlib.suppress(Failed):
            results[other] = call(f, *arguments, **keywords)
    wrongs: dict[str, list[Any]] = {}
    for text, wrong in hints.items():
        with contextlib.suppress(ArithmeticError):  # this mistake has no result in some case
            wrongs[text] = [_floats(_answer(wrong, cases, one)) for one in results]
    right = [_answer(expected, cases, one) for one in results]
    hint = nearest(list(results.values()), right, wrongs, rel)
    if hint is not None:  # show a case that has this mistake and no other, if there is one
        for (other, result), wrong, correct in zip(results.items(), wrongs[hint], right,
                                                   strict=True):
            if difference(result, wrong, rel) is None and difference(result, correct, rel):
                return other, result, hint
    return number, got, hint


def with_relation(mismatch: str, got: Any, expected: Any) -> str:
    """Return a mismatch with what all wrong numbers have in common, if anything."""
    common = relation(got, expected)
    return f"{mismatch}: {common}" if common else mismatch


def _answer(answers: Answers, cases: Sequence[Case], number: int) -> Any:
    if callable(answers):
        arguments, keywords = arguments_of(cases[number])
        return answers(*arguments, **keywords)
    if len(answers) != len(cases):
        raise ValueError(f"check.function: {len(answers)} values for {len(cases)} cases")
    return answers[number]


def raises(f: Any, kind: type[Exception], case: Case, *, mentions: str | None = None,
           hint: str = "") -> None:
    """Assert that `f` raises `kind` (or a subclass) for `case`, with the words `mentions` in its
    message.

    Raises Failed.
    """
    arguments, keywords = arguments_of(case)
    result, call_text = _outcome(f, arguments, keywords), spelled(f, arguments, keywords)
    if not isinstance(result, Raised):
        raise Failed(f"{call_text} returned {shown(result)}, but this is not valid input: "
                     f"raise {kind.__name__}. {hint}".rstrip())
    if kind.__name__ not in result.names:
        raise Failed(f"{call_text} raised {result}: raise {kind.__name__} instead{_advice(result)}")
    if mentions is not None and not re.search(rf"(?<!\w){re.escape(mentions)}(?!\w)", result.text):
        raise Failed(f"{call_text} raised {result}: its message must mention {mentions}")
    passed(f"{current_side().title(f)} refuses {call_text}")


def compare(what: str, guess: Any, measured: float, *, power: int | None = None) -> None:
    """Print how far off a prediction was. Never fails, and gives no points.

    Args:
        what: the quantity that was predicted.
        guess: the prediction; anything but a number counts as none.
        measured: the right value.
        power: if both are exponents, the base, such as 2.
    """
    is_number = isinstance(guess, int | float) and not isinstance(guess, bool)
    if not is_number or not abs(guess) < 2**1000:  # NaN, inf, or an int beyond every float
        print(f"No prediction of {what} yet: write a number first. Guesses are not graded.")
        return
    print(f"{strong(what)}: you guessed {_rounded(guess)}, it is {result(_rounded(measured))}")
    print("Spot on." if guess == measured else _how_far_off(guess, measured, power))


def _how_far_off(guess: float, measured: float, power: int | None) -> str:
    """Return a sentence on a wrong guess: a percentage up to a factor of 2, and a factor beyond."""
    high = "high" if guess > measured else "low"
    if power is not None:
        off = abs(guess - measured)
        return f"Your guess was {_rounded(off)} too {high}, which is a factor of " \
               f"{_rounded(power**min(off, 300))}."
    if guess * measured <= 0:  # no factor leads from one to the other
        return f"Your guess was {_rounded(abs(guess - measured))} too {high}."
    factor = max(guess / measured, measured / guess)
    if factor <= 1.1:
        return f"Your guess was close: {100 * (factor - 1):.2g}% too {high}."
    if factor < 2:
        return f"Your guess was {100 * abs(guess - measured) / abs(measured):.0f}% too {high}."
    if factor < FAR:
        return f"Your guess was too {high} by a factor of {_rounded(factor)}."
    return (f"Your guess was too {high} by a factor of {_rounded(factor)}, "
            f"{math.log10(factor):.1f} orders of magnitude. Is it in the same unit?")


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def arguments_of(case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(case, Mapping):
        return (), dict(case)
    if isinstance(case, str) or not isinstance(case, Sequence):
        raise TypeError(f"a case is a dict of keywords or a tuple of arguments, not {case!r}")
    return tuple(case), {}


def _outcome(f: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any | Raised:
    require_none((arguments, keywords), "check.function")
    try:
        return current_side().call(f, arguments, keywords)
    except CannotCross as error:
        raise Failed(f"{spelled(f, arguments, keywords)}: {error}") from None


def _hint(got: Any, hints: Mapping[str, Answers], cases: Sequence[Case], number: int, rel: float
          ) -> str | None:
    for text, wrong in hints.items():
        try:
            # A hint for the wrong answer 1 also applies to 1.0.
            wrong_way = _floats(_answer(wrong, cases, number))
            if difference(got, wrong_way, rel) is None:
                return text
        except ArithmeticError:  # this mistake has no result in this case
            continue
    return None


def _floats(value: Any) -> Any:
    """Return `value` with its ints as floats, so that the comparison accepts both."""
    if isinstance(value, list | tuple):
        return [_floats(item) for item in value]
    if type(value) is int and abs(value) < 2**53:
        return float(value)
    return value


def spelled(f: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    words = [shown(argument) for argument in arguments]
    words += [f"{name}={shown(argument)}" for name, argument in keywords.items()]
    return f"{current_side().title(f)}({', '.join(words)})"


def drive(driver: Any, case: Case, where: str,
          run: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> tuple[str, Any]:
    """Run a driver. Return its call as shown in messages, and the outcome.

    Args:
        driver: the function.
        case: its arguments.
        where: what it runs on, such as "on 4 ranks".
        run: a function that runs the driver with given positional and keyword arguments.

    Raises Failed for a value that cannot cross.
    """
    arguments, keywords = arguments_of(case)
    what = f"{spelled(driver, arguments, keywords)} {where}"
    try:
        return what, run(arguments, keywords)
    except CannotCross as error:
        raise Failed(f"{what}: {error}") from None


def _advice(result: Raised) -> str:
    """Return what to read below an error: advice, and the student's own lines that led to it."""
    text = ("Keep the line that begins with def as it was."
            if "TypeError" in result.names and "argument" in result.text
            else advice(" ".join([*result.names, str(result)])))
    unanswered = "NotImplementedError" in result.names
    return "".join(f"\n{line}" for line in (text, "" if unanswered else result.trace) if line)
