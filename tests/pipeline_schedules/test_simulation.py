"""The clock: when things happen, what is waited for, and what cannot be a time."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_schedules import (
    Durations,
    ScheduleError,
    Span,
    Timeline,
    gpipe,
    interleaved,
    last_ends,
    one_f_one_b,
    parse,
    passes,
    simulate,
    zb_h1,
)


def test_every_action_has_its_start_and_end():
    timeline = simulate(parse(["F0 B0", "F0 B0"]), Durations(1, 2, 3, link=0.5))
    assert timeline.spans == {0: [Span("F", 0, 0, 0, 1), Span("B", 0, 0, 8, 13)],
                              1: [Span("F", 0, 0, 1.5, 2.5), Span("B", 0, 0, 2.5, 7.5)]}
    assert timeline.total == 13
    assert timeline.busy == [6, 6]


def test_fraction_and_overhead_of_the_same_bubble():
    timeline = simulate(one_f_one_b(4, 8))
    assert timeline.bubble_fraction == 3 / 11  # of the total
    assert timeline.bubble_overhead == 3 / 8  # of the ideal
    assert simulate(gpipe(4, 8)).bubble_fraction == timeline.bubble_fraction


def test_the_backward_of_a_schedule_without_w_computes_both_gradients():
    (span,) = simulate(parse(["F0 B0"]), Durations(1, 2, 3)).spans[0][1:]
    assert span.end - span.start == 5


def test_more_micro_batches_shrink_the_bubble_larger_ones_do_not():
    few, more = simulate(one_f_one_b(4, 8)), simulate(one_f_one_b(4, 16))
    larger = simulate(one_f_one_b(4, 8), Durations(2, 2, 2))
    assert more.bubble_fraction < few.bubble_fraction == larger.bubble_fraction


def test_the_slowest_stage_sets_the_pace():
    timeline = simulate(one_f_one_b(3, 10), Durations(forward=[1, 4, 1]))
    assert timeline.busy == [30, 60, 30]
    # F0 on stage 0, all of stage 1, its one wait for the last backward, B9 on stage 0.
    assert timeline.total == 1 + 60 + 1 + 2


def test_a_link_per_stage_counts_where_it_ends():
    timeline = simulate(parse(["F0 B0", "F0 B0"]), Durations(link=[5, 7]))
    assert [span.start for span in timeline.spans[1]] == [8, 9]
    assert timeline.spans[0][1].start == 16


def test_a_chunk_takes_its_share_of_the_stage_s_time():
    spans = simulate(interleaved(2, 4, 2), Durations(forward=4)).spans[0]
    assert {span.end - span.start for span in spans if span.kind == "F"} == {2}


@given(st.integers(1, 5), st.integers(1, 8), st.data())
def test_nothing_starts_before_what_it_needs_and_no_stage_does_two_things(p, m, data):
    per_stage = st.lists(st.floats(0, 9), min_size=p, max_size=p)
    link = data.draw(st.floats(0, 3))
    durations = Durations(data.draw(per_stage), data.draw(per_stage), data.draw(per_stage), link)
    spans = simulate(zb_h1(p, m), durations).spans
    at = {(stage, span.kind, span.micro_batch): span
          for stage, row in spans.items() for span in row}
    for (stage, kind, k), span in at.items():
        if kind == "F" and stage:
            assert span.start >= at[stage - 1, "F", k].end + link
        if kind == "B" and stage + 1 < p:
            assert span.start >= at[stage + 1, "B", k].end + link
        if kind != "F":
            assert span.start >= at[stage, "F" if kind == "B" else "B", k].end
    for row in spans.values():
        assert all(one.end <= two.start for one, two in pairwise(row))


@pytest.mark.parametrize("durations, message", [
    ({"forward": -1}, "forward has -1, which is not a length of time"),
    ({"backward": float("nan")}, "backward has nan"),
    ({"weight": float("inf")}, "weight has inf"),
    ({"forward": [1, 2]}, r"forward is one number or a list of 3, one per stage, not \[1, 2\]"),
    ({"forward": "1"}, "forward is one number or a list of 3"),
    ({"forward": [1, "2", 3]}, "forward has '2'"),
    ({"link": True}, "link has True"),
    ({"link": None}, "link is one number"),
])
def test_durations_that_are_no_times_are_refused_by_name(durations, message):
    with pytest.raises(ScheduleError, match=f"^durations: {message}"):
        simulate(one_f_one_b(3, 3), Durations(**durations))


RECORDED = {0: [("F", 0, 0, 100.0, 101.0), ("B", 0, 0, 104.0, 106.0)],
            1: [("F", 0, 0, 101.5, 102.0), ("B", 0, 0, 102.0, 103.5)]}


def test_a_recorded_run_has_a_bubble_too():
    timeline = Timeline.of(RECORDED)
    assert timeline.total == 6
    assert timeline.busy == [3, 2]
    assert timeline.bubble_fraction == pytest.approx(7 / 12)
    assert timeline.bubble_overhead == pytest.approx(7 / 5)
    assert timeline.peak_live == [1, 1]


def test_a_simulated_run_that_is_recorded_is_the_same():
    timeline = simulate(zb_h1(3, 4))
    assert Timeline.of({stage: [tuple(span) for span in reversed(row)]
                        for stage, row in timeline.spans.items()}) == timeline


def test_rounding_of_a_clock_is_no_overlap():
    Timeline.of({0: [("F", 0, 0, 0.1, 0.1 + 0.2), ("B", 0, 0, 0.3, 0.4)]})


@pytest.mark.parametrize("recorded, message", [
    ({}, "no stage has any spans"),
    ({0: []}, "no stage has any spans"),
    ({0: [("F", 0, 0, 1.0)]}, r"stage 0, position 0: .* is not \(kind, micro_batch, chunk, start"),
    ({0: [3]}, "stage 0, position 0: 3 is not"),
    ({2: [("X", 0, 0, 0, 1)]}, "stage 2, position 0: an action's kind is F, B, or W, not 'X'"),
    ({0: [("F", "0", 0, 0, 1)]}, "stage 0, position 0: micro_batch is an integer, not '0'"),
    ({0: [("F", 0, 0, 0, "1")]}, "stage 0, position 0: '1' is not a time"),
    ({0: [("F", 0, 0, 0, float("nan"))]}, "stage 0, position 0: nan is not a time"),
    ({0: [("F", 3, 0, 2, 1)]}, "stage 0, position 0: F3 ends at 1, before its start at 2"),
    ({0: [("F", 0, 0, 0, 2), ("F", 1, 0, 1, 3)]},
     "stage 0 starts F1 at 1, before F0 ends at 2"),
])
def test_a_recording_that_cannot_be_is_refused(recorded, message):
    with pytest.raises(ScheduleError, match=f"^recorded: {message}"):
        Timeline.of(recorded)


@pytest.mark.parametrize(("schedule", "build"), [
    ("1f1b", one_f_one_b), ("gpipe", gpipe), ("zb-h1", zb_h1)])
def test_the_last_ends_are_those_of_the_timeline(schedule, build):
    forward, backward, weight, link = [1, 2, 1.5], [2.5, 3, 1], [1, 0.5, 2], 0.25
    timeline = simulate(build(3, 5), Durations(forward, backward, weight, link))
    if schedule != "zb-h1":
        backward = [one + other for one, other in zip(backward, weight, strict=True)]
    assert last_ends(passes(schedule, 3, 5), {"F": forward, "B": backward, "W": weight},
                     [link] * 2) == [stage[-1].end for stage in timeline.spans.values()]
