"""Check the pipeline schedules that a student's function returns by what they do.

Several orders may be correct (GPipe's backward passes may run in either order), so an answer must
be valid, have no larger bubble than required, and keep no more activations. docs/writing-labs.md is
the guide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from labkit.check.checks import Case, Failed, arguments_of, call, passed, spelled
from labkit.check.same import difference
from labkit.check.sides import current_side
from pipeline_schedules import (
    BACKWARD,
    BUILT_IN,
    FORWARD,
    Durations,
    Schedule,
    ScheduleError,
    Timeline,
    parse,
    peak_live,
    problems,
    simulate,
)

PerCase = Sequence[Any] | Callable[..., Any]  # one value per case, or a function of the case

# Costs of a forward pass and the two halves of a backward: the usual 1:2, and 1:1.
CLOCKS = {"twice as long as": Durations(1, 1, 1), "as long as": Durations(1, 0.5, 0.5)}
FORWARDS_FIRST = ("gpipe",)  # every stage runs all forwards before its first backward
NEAR = 1e-9  # relative: chunks take fractions of a time
LARGEST = 2_000  # forward passes in a case: simulating them takes about a second
MOST_TEXT = 1_500  # characters
MOST_TRIED = 6  # other cases in which to try the answer

Sizes = tuple[int, int, int]  # stages, micro-batches, chunks

# An answer is refused unread beyond this many times the actions that it needs, and beyond this
# many characters per action.
MOST_ACTIONS, MOST_PER_ACTION = 4, 20

PROPERTIES = ("no schedule", "wrong stages", "incomplete", "wrong order", "deadlock",
              "forwards first", "bubble", "memory", "one at a time", "no overlap",
              "serial forwards", "serial backwards", "some sizes")


@dataclass(frozen=True)
class Fault:
    """The first error in one answer.

    Attributes:
        kind: one of PROPERTIES.
        text: the description that the student reads.
        schedule: the parsed answer; None where it is not a schedule or cannot run.
    """

    kind: str
    text: str
    schedule: Schedule | None = None


@dataclass(frozen=True)
class Requirements:
    """The requirements of one case.

    Attributes:
        time: the longest time, by name in CLOCKS.
        bubble: the largest bubble fraction.
        live: the most in-flight activations per stage.
        ends: the latest end where F, B, and W take 1.
        stage_time: the longest time from a stage's first action to its last one, there.
    """

    forwards_first: bool
    time: Mapping[str, float]
    bubble: float | None
    live: int | Sequence[int] | None
    ends: float | None = None
    stage_time: float | None = None


def schedule(f: Any, cases: Sequence[Case], like: str | None = None, *,
             bubble: PerCase | None = None, live: PerCase | None = None,
             ends: PerCase | None = None, stage_time: PerCase | None = None,
             on_rank: bool = False,
             hints: Mapping[str, PerCase | str] | None = None) -> None:
    """Assert that `f` returns a schedule that meets the requirements in every case.

    A case gives the numbers of stages, micro-batches and, if `f` takes a third argument, chunks.

    Args:
        f: the student's function.
        cases: its arguments.
        like: a built-in schedule; the answer must be as fast, and store no more activations on any
            stage.
        bubble: the largest share of idle time: one value per case, or a function of the case.
        live: the largest number of in-flight activations, as a number for all stages or a list;
            one value per case, or a function of the case.
        ends: the latest end of the schedule where F, B, and W take 1; as for `bubble`.
        stage_time: the longest time from a stage's first action to its own last one, there; as for
            `bubble`.
        on_rank: call `f` on one rank, as check.ranks does, which imports the student's files anew.
            Then each case is a dictionary.
        hints: maps each text to what triggers it: a name in PROPERTIES, a built-in schedule that is
            wrong here, or wrong schedules, one per case.

    Raises Failed at the first case that fails.
    """
    if not cases:
        raise ValueError("check.schedule: no cases, so nothing would be checked")
    limits = [replace(_limits(cases, number, like, bubble, live),
                      ends=None if ends is None else _of_case(ends, cases, number),
                      stage_time=None if stage_time is None
                      else _of_case(stage_time, cases, number))
              for number in range(len(cases))]
    for hint in (hints or {}).values():
        if isinstance(hint, str) and hint not in (*PROPERTIES, *BUILT_IN):
            raise ValueError(f"check.schedule: {hint!r} is none of {', '.join(PROPERTIES)}, "
                             f"{', '.join(BUILT_IN)}")
    if on_rank:
        f = _OnRank(f)
    for number in range(len(cases)):
        got, fault = _answer(f, cases[number], limits[number])
        if fault:
            raise Failed(_failure_message(f, cases, limits, number, got, fault, hints or {}))
    passed(f"{current_side().title(_named(f))}: right in {len(cases)} "
           f"case{'s' if len(cases) > 1 else ''}")


def sizes(case: Case) -> tuple[Sizes, list[int]]:
    """Return a case's sizes, and those that it gives explicitly. Raises ValueError."""
    positional, keywords = arguments_of(case)
    given = [*positional, *keywords.values()]
    if len(given) not in (2, 3) or not all(type(size) is int and size >= 1 for size in given):
        raise ValueError(f"check.schedule: a case is stages, micro-batches and perhaps chunks, "
                         f"whole numbers of at least 1, not {case!r}")
    stages, micro_batches, chunks = (*given, 1)[:3]
    if stages * micro_batches * chunks > LARGEST:
        raise ValueError(f"check.schedule: {case!r} has more than {LARGEST:,} forwards")
    return (stages, micro_batches, chunks), given


def _limits(cases: Sequence[Case], number: int, like: str | None, bubble: PerCase | None,
            live: PerCase | None) -> Requirements:
    _, given = sizes(cases[number])
    bubble_limit = None if bubble is None else _of_case(bubble, cases, number)
    live_limit = None if live is None else _of_case(live, cases, number)
    if like is None:
        return Requirements(False, {}, bubble_limit, live_limit)
    if like not in BUILT_IN:
        raise ValueError(f"check.schedule: like={like!r} is none of {', '.join(BUILT_IN)}")
    if live is not None:
        raise ValueError("check.schedule: give one of like= and live=")
    try:
        model = BUILT_IN[like](*given)
    except (ScheduleError, TypeError) as error:
        raise ValueError(f"check.schedule: {like} has no {cases[number]!r}: {error}") from error
    time = {name: simulate(model, clock).total for name, clock in CLOCKS.items()}
    return Requirements(like in FORWARDS_FIRST, time, bubble_limit, peak_live(model))


def _of_case(values: PerCase, cases: Sequence[Case], number: int) -> Any:
    if callable(values):
        positional, keywords = arguments_of(cases[number])
        return values(*positional, **keywords)
    if len(values) != len(cases):
        raise ValueError(f"check.schedule: {len(values)} values for {len(cases)} cases")
    return values[number]


@dataclass(frozen=True)
class _OnRank:
    """A student's function that is called on a rank of its own."""

    function: Any

    def __call__(self, **case: int) -> Any:
        from labkit.check.distributed import ranks

        (run,) = ranks(self.function, ranks=1, cases=[case], expected=None)
        return run.values[0]


def _named(f: Any) -> Any:
    # Not isinstance: a proxy of a student's function refuses to be asked for its class.
    return f.function if type(f) is _OnRank else f


def _answer(f: Any, case: Case, limits: Requirements) -> tuple[Any, Fault | None]:
    positional, keywords = arguments_of(case)
    got = (f(**keywords) if type(f) is _OnRank else call(f, *positional, **keywords))
    return got, judge(got, sizes(case)[0], limits)


def judge(got: Any, of: Sizes, limits: Requirements) -> Fault | None:
    """Return the first fault of an answer, which may be any plain value; None if it is correct."""
    try:
        parsed = parse_answer(got, of)
    except ScheduleError as error:
        return Fault("no schedule", str(error))
    return validity_fault(parsed, of) or next(_faults(parsed, limits), None)


def _faults(parsed: Schedule, limits: Requirements) -> Iterator[Fault]:
    """Yield the requirements that a valid schedule does not meet."""
    if limits.forwards_first:
        for stage, actions in enumerate(parsed):
            kinds = [action.kind == FORWARD for action in actions]
            if any(kinds[kinds.index(False):]):
                late = kinds.index(True, kinds.index(False))
                yield Fault("forwards first", f"stage {stage} runs {actions[late]} (position "
                            f"{late}) after a backward: all forwards come first here", parsed)
    for name, clock in CLOCKS.items():
        timeline = simulate(parsed, clock)
        if name in limits.time and timeline.total > limits.time[name] * (1 + NEAR):
            yield Fault("bubble", _idle(timeline, name), parsed)
        if limits.bubble is not None and timeline.bubble_fraction > limits.bubble + NEAR:
            yield Fault("bubble", _idle(timeline, name), parsed)
    timeline = simulate(parsed)
    for limit, got, what in (
            (limits.ends, timeline.total, "the schedule takes"),
            (limits.stage_time, timeline.longest, "a stage takes, from its first action to its "
             "last,")):
        if limit is not None and got > limit * (1 + NEAR):
            yield Fault("bubble", f"where F, B, and W take 1 each, {what} {float(got):.4g}, and "
                        f"{float(limit):.4g} is possible", parsed)
    if limits.live is not None:
        errors = problems(parsed, max_live=limits.live)
        if errors:
            yield Fault("memory", errors[0], parsed)


def _idle(timeline: Timeline, clock: str) -> str:
    """Describe the idle time of the stages, and the longest wait between two actions.

    Args:
        timeline: the schedule's timeline.
        clock: the cost of a backward pass, for the text.
    """
    waits = [(after.start - before.end, stage, before, after)
             for stage, spans in timeline.spans.items()
             for before, after in pairwise(spans)]
    text = (f"the stages are idle for {float(timeline.bubble_fraction):.1%} of the time where a "
            f"backward is {clock} a forward, and it can be less")
    if not waits:
        return text
    length, stage, before, after = max(waits, key=lambda wait: wait[0])
    if length > 0:
        text += (f". The longest wait: stage {stage} is idle for {length:.3g} forwards between "
                 f"{_name(before)} and {_name(after)}")
    return text


def _name(span: Any) -> str:
    return f"{span.kind}{span.micro_batch}" + (f".{span.chunk}" if span.chunk else "")


def _failure_message(f: Any, cases: Sequence[Case], limits: Sequence[Requirements], number: int,
                     got: Any,
                     fault: Fault, hints: Mapping[str, PerCase | str]) -> str:
    right = _right_elsewhere(f, cases, limits, number)
    message = f"{spelled(_named(f), *arguments_of(cases[number]))}: {fault.text}."[:MOST_TEXT]
    if right is not None:
        message += f" For {spelled(_named(f), *arguments_of(cases[right]))} it is right."
    for text, wrong in hints.items():
        if _is_for(wrong, got, fault, right is not None, cases, number):
            return f"{message} {text}"
    return message


def _right_elsewhere(f: Any, cases: Sequence[Case], limits: Sequence[Requirements], number: int
                     ) -> int | None:
    """Return the index of a case in which the answer is right, or None.

    Cases with another number of stages come first. Cases with one stage or one micro-batch do not
    count, because nearly every answer is right there.
    """
    stages = sizes(cases[number])[0][0]
    others = [other for other in range(len(cases))
              if other != number and min(sizes(cases[other])[0][:2]) > 1]
    others.sort(key=lambda other: sizes(cases[other])[0][0] == stages)
    for other in others[:MOST_TRIED]:
        try:
            if _answer(f, cases[other], limits[other])[1] is None:
                return other
        except Failed:
            continue
    return None


def _is_for(wrong: PerCase | str, got: Any, fault: Fault, elsewhere: bool, cases: Sequence[Case],
            number: int) -> bool:
    """Return whether a hint applies to this answer.

    Args:
        wrong: the wrong answer that triggers the hint, or its name.
        got: the answer.
        fault: its first fault.
        elsewhere: whether the answer is right for another case.
        number: the index of the case.
    """
    if not isinstance(wrong, str):
        other = _of_case(wrong, cases, number)
        return difference(got, other) is None or (
            fault.kind != "no schedule" and _same(got, other))
    if wrong in BUILT_IN:
        try:
            return fault.schedule is not None and _same(
                fault.schedule, BUILT_IN[wrong](*sizes(cases[number])[1]))
        except (ScheduleError, TypeError):  # it has no such sizes
            return False
    return (wrong == fault.kind or (wrong == "some sizes" and elsewhere)
            or (fault.schedule is not None and wrong in overlaps(fault.schedule)))


def _same(one: Any, other: Any) -> bool:
    """Return whether every stage runs the same kinds of actions in the same order, for any
    micro-batch.

    Args:
        one: a schedule.
        other: another one.
    """
    try:
        return [[(action.kind, action.chunk) for action in stage] for stage in parse(one)] == [
            [(action.kind, action.chunk) for action in stage] for stage in parse(other)]
    except ScheduleError:
        return False


def overlaps(parsed: Schedule) -> set[str]:
    """Return the properties of a schedule that say which of its work does not overlap.

    "serial forwards", "serial backwards": no two stages run forwards, or backwards, at the same
    time. "no overlap": no two stages run anything at the same time. "one at a time": in addition,
    no stage keeps more than one activation.
    """
    spans = [span for stage in simulate(parsed).spans.values() for span in stage]
    if len(parsed) == 1 or max(span.micro_batch for span in spans) == 0:
        return set()  # nothing could overlap
    found = {name for name, kind in (("serial forwards", FORWARD), ("serial backwards", BACKWARD))
             if _serial([span for span in spans if span.kind == kind])}
    if _serial(spans):
        found |= {"no overlap", *["one at a time"] * (max(peak_live(parsed)) == 1)}
    return found


def _serial(spans: list[Any]) -> bool:
    ordered = sorted(spans, key=lambda span: (span.start, span.end))
    return all(before.end <= after.start + NEAR for before, after in pairwise(ordered))


def parse_answer(got: Any, of: Sizes) -> Schedule:
    """Parse an answer, which may be any value that a check can receive.

    Args:
        got: the answer.
        of: the sizes that it should have; an answer that is far too large is not parsed.

    Raises:
        ScheduleError: it is not a schedule, or it is far too large.
    """
    _refuse_huge(got, of)
    return parse(got, "the answer")


def validity_fault(schedule: Schedule, of: Sizes) -> Fault | None:
    """Return why a schedule cannot run: missing or repeated work, or a deadlock; None if it can.

    Args:
        of: the sizes that the schedule should have.
    """
    stages, micro_batches, chunks = of
    errors = problems(schedule, stages=stages, micro_batches=micro_batches, chunks=chunks)
    if not errors:
        return None
    kind = ("wrong stages" if len(schedule) != stages else
            "deadlock" if errors[0].startswith("deadlock") else
            "wrong order" if "which it needs" in errors[0] else "incomplete")
    more = f" (and {len(errors) - 2} more like it)" if len(errors) > 2 else ""
    return Fault(kind, ". ".join(errors[:2]) + more)


def _refuse_huge(got: Any, of: Sizes) -> None:
    stages, micro_batches, chunks = of
    if isinstance(got, dict):  # a V-shaped schedule
        got = got.get("stages")
    if not isinstance(got, list | tuple):
        return  # parse reports it
    if len(got) > 4 * stages + 100:
        raise ScheduleError(f"the answer has {len(got):,} stages, not {stages}")
    most = MOST_ACTIONS * 3 * micro_batches * chunks + 100
    for stage, entry in enumerate(got):
        if isinstance(entry, list | tuple) and len(entry) > most:
            raise ScheduleError(f"stage {stage} has {len(entry):,} actions: far too many")
        if isinstance(entry, str) and len(entry) > MOST_PER_ACTION * most:
            raise ScheduleError(f"stage {stage} is a string of {len(entry):,} characters: far too "
                                "long")
