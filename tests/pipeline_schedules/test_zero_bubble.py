"""ZB-H2, ZBV, and DualPipeV have the bubbles and the memory that are published, by simulation."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_schedules import (
    V_SHAPED,
    Action,
    Durations,
    Handler,
    Message,
    ScheduleError,
    VShaped,
    add_communication,
    check,
    dualpipev,
    load,
    parse,
    peak_live,
    problems,
    replay,
    simulate,
    to_text,
    zb_h1,
    zb_h2,
    zbv,
)

STAGES, MICRO_BATCHES = st.integers(1, 7), st.integers(1, 14)
TIMES = st.fractions(Fraction(1, 7), 5, max_denominator=7)


def idle(timeline):
    """Return each stage's idle time between its first and its last action."""
    return [spans[-1].end - spans[0].start - sum(span.end - span.start for span in spans)
            for spans in timeline.spans.values()]


def test_zb_h2_fills_the_wait_for_the_first_gradient():
    assert to_text(zb_h2(2, 4)) == ["F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3",
                                    "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"]


@given(STAGES, st.integers(0, 8))
def test_zb_h2_has_no_bubble_and_2p_minus_1_in_flight(p, more):
    """Qi et al. 2023, sections 2.2 and 2.3."""
    m = 2 * p - 1 + more
    schedule = zb_h2(p, m)
    timeline = simulate(schedule)
    assert idle(timeline) == [0] * p and timeline.longest == 3 * m
    assert peak_live(schedule) == [2 * p - 1] * p
    assert timeline.total == 3 * m + p - 1  # the stages begin one after the other


@given(STAGES, st.integers(0, 8), TIMES, TIMES, TIMES)
def test_the_published_bubbles_of_zb_h1_and_zb_h2(p, more, forward, backward, weight):
    """Qi et al. 2023, section 2.3: (p-1)(F+B-W) and (p-1)(F+B-2W), if W is the shortest."""
    weight = min(forward, backward, weight)
    m = 2 * p - 1 + more
    durations = Durations(forward, backward, weight)
    work = m * (forward + backward + weight)
    assert simulate(zb_h1(p, m), durations).total - work == (p - 1) * (
        forward + backward - weight)
    assert simulate(zb_h2(p, m), durations).longest - work == (p - 1) * (
        forward + backward - 2 * weight)


@given(STAGES, st.integers(0, 8))
def test_zbv_has_no_bubble_and_the_memory_of_1f1b(p, more):
    """Qi et al. 2023, section 6: p whole-stage activations, here 2p halves."""
    m = 2 * p + more
    schedule = zbv(p, m)
    timeline = simulate(schedule, Durations(Fraction(1), Fraction(1), Fraction(1)))
    assert idle(timeline) == [0] * p
    assert peak_live(schedule) == [2 * p] * p
    assert timeline.total == 3 * m + Fraction(p - 1, 2)


@given(STAGES, st.integers(0, 8))
def test_dualpipev_has_half_the_bubble_of_zb_h1_and_one_more_chunk(p, more):
    """2p + 1 chunks are the PP + 1 of DeepSeek's table, whose PP counts the model's 2p parts."""
    m = 2 * p + more
    schedule = dualpipev(p, m)
    timeline = simulate(schedule, Durations(Fraction(1), Fraction(1), Fraction(1)))
    assert peak_live(schedule) == [2 * p + 1] * p
    # Without pairs, a gradient is sent before W also where the two are one pass.
    assert max(idle(timeline)) == Fraction(p - 1, 2)
    assert timeline.total == 3 * m + Fraction(p - 1, 2)


@settings(max_examples=30)
@given(STAGES, st.integers(0, 8), TIMES, TIMES, TIMES, st.fractions(0, 1, max_denominator=7))
def test_the_published_bubble_of_dualpipev(p, more, forward, backward, weight, hidden):
    """DeepSeek's table: (PP/2-1)(F&B + B - 3W), with passes of PP = 2p parts, if W <= F <= B."""
    forward = min(forward, backward)
    weight = min(forward, weight)
    pair = forward + backward + weight - hidden * weight
    timeline = simulate(dualpipev(p, 2 * p + more),
                        Durations(forward, backward, weight, pair=pair))
    waits = [timeline.total - busy for busy in timeline.busy]
    assert max(waits) == waits[-1] == (p - 1) * (pair + backward + weight - 3 * weight) / 2


def test_pairs_are_refused_where_a_schedule_has_none():
    with pytest.raises(ScheduleError, match="durations: this schedule has no overlapping pairs"):
        simulate(zbv(3, 6), Durations(pair=3))
    cut = dualpipev(2, 4)
    cut[0].reverse()
    with pytest.raises(ScheduleError):
        simulate(cut, Durations(pair=3))


@pytest.mark.parametrize("name", V_SHAPED)
@given(STAGES, MICRO_BATCHES)
def test_v_shaped_schedules_fit_any_sizes(name, p, m):
    schedule = load(name, p, m)
    assert isinstance(schedule, VShaped)
    assert not problems(schedule, stages=p, micro_batches=m, chunks=2, v_shaped=True)


class Transfers(Handler):
    """Note what crosses between stages."""

    def __init__(self):
        self.sent, self.consumed = [], []

    def compute(self, stage, action, source):
        if source is not None:
            self.consumed.append((source[0], stage, source[1]))

    def send(self, stage, message):
        self.sent.append((stage, message.target, message.action))


def test_the_turn_is_local():
    """The last stage's chunk 0 feeds its own chunk 1; everything else crosses to a neighbor."""
    p, m = 4, 8
    program = add_communication(zbv(p, m))
    assert isinstance(program, VShaped)
    assert any(isinstance(item, Message) for item in program[0])
    noted = Transfers()
    replay(program, noted)
    assert sorted(noted.sent, key=str) == sorted(noted.consumed, key=str)
    assert len(noted.sent) == 2 * m * (2 * p - 2)
    for source, target, action in noted.sent:
        down = (action.kind == "F") == (action.chunk == 0)
        assert target - source == (1 if down else -1)
    assert not any(action == Action("F", 0, 0) and source == p - 1
                   for source, _, action in noted.sent)


def test_a_link_delays_no_turn():
    schedule = parse({"placement": "v", "stages": [["F0", "F0.1", "B0.1", "B0"]]})
    assert simulate(schedule, Durations(link=100)).total == 3


def test_a_dictionary_is_a_v_shaped_schedule_and_anything_else_in_it_is_refused():
    made = zbv(3, 6)
    assert parse({"placement": "v", "stages": to_text(made)}) == made
    assert isinstance(parse(made), VShaped)
    for wrong in ({"placement": "w", "stages": []}, {"placement": "v"},
                  {"placement": "v", "stages": [], "more": 1}):
        with pytest.raises(ScheduleError, match="V-shaped"):
            parse(wrong)


def test_the_same_lists_mean_something_else_round_robin():
    made = zbv(3, 6)
    assert problems(list(made))[0].startswith("deadlock")
    with pytest.raises(ScheduleError, match="nearest that works is zb-h1"):
        check(made, v_shaped=False)
    with pytest.raises(ScheduleError, match="must be placed in a V"):
        check(zb_h1(3, 6), v_shaped=True)


def test_v_shaped_schedules_have_two_chunks():
    assert load("zbv", 4, 8, 2) == load("zbv", 4, 8) == zbv(4, 8)
    with pytest.raises(ScheduleError, match="zbv has 2 chunks per stage, not 3"):
        load("zbv", 4, 8, 3)
