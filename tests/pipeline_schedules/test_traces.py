"""Drawings of schedules, and traces of them that are read back."""

import json

import pytest

from pipeline_schedules import (
    Action,
    Durations,
    ScheduleError,
    Timeline,
    export,
    gpipe,
    interleaved,
    measured,
    one_f_one_b,
    replayed,
    simulate,
    timeline_of,
    to_text,
    zb_h1,
)


def orders(timeline):
    return [[Action(*span[:3]) for span in spans] for spans in timeline.spans.values()]


def test_a_schedule_a_record_and_a_timeline_are_read_alike(tmp_path):
    simulated = simulate(one_f_one_b(2, 3))
    recorded = {stage: [tuple(span) for span in spans] for stage, spans in simulated.spans.items()}
    for thing in (one_f_one_b(2, 3), to_text(one_f_one_b(2, 3)), recorded, simulated):
        assert timeline_of(thing) == simulated
    assert timeline_of(gpipe(1, 1), Durations(5, 1, 1)).total == 7


@pytest.mark.parametrize("schedule", [one_f_one_b(3, 4), interleaved(2, 4, 2), zb_h1(2, 3)])
def test_an_export_is_a_trace_that_is_read_back(tmp_path, schedule):
    export(schedule, tmp_path / "mine.json", milliseconds=2.5)
    result, simulated = timeline_of(tmp_path / "mine.json"), simulate(schedule)
    assert orders(result) == schedule
    assert result.total == pytest.approx(2.5 * simulated.total)
    assert result.bubble_fraction == pytest.approx(simulated.bubble_fraction)
    events = json.loads((tmp_path / "mine.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert events[0]["args"]["name"] == "rank 0: stage 0, dp 0, tp 0 (simulated)"
    assert len([event for event in events if event["ph"] == "X"]) == sum(map(len, schedule))


def test_a_folder_stands_for_its_trace(tmp_path):
    export(gpipe(2, 2), tmp_path / "timeline.json")
    assert timeline_of(tmp_path) == timeline_of(str(tmp_path / "timeline.json"))
    with pytest.raises(ScheduleError, match="--timeline FOLDER writes"):
        timeline_of(tmp_path / "none")
    with pytest.raises(ScheduleError, match="No such file"):
        export(gpipe(2, 2), tmp_path / "none" / "x.json")


@pytest.mark.parametrize("thing", ["F0", 7, [7], [], {0: []}, {0: [("F", 0)]}])
def test_what_is_no_timeline_is_refused(thing):
    with pytest.raises(ScheduleError):
        timeline_of(thing)


@pytest.mark.parametrize("schedule", [gpipe(3, 4), interleaved(2, 4, 2), zb_h1(3, 3)])
def test_times_are_measured_per_stage_and_replayed(schedule):
    """A run whose links took time: its replay is the simulation without them."""
    stages = len(schedule)
    without = Durations([2.0 + stage for stage in range(stages)], 3.0, 1.0)
    ran = simulate(schedule, Durations(without.forward, 3.0, 1.0, link=0.5))
    result = measured(ran)
    split = any(action.kind == "W" for actions in schedule for action in actions)
    assert result.forward == pytest.approx(without.forward)
    assert result.backward == pytest.approx([3.0 if split else 4.0] * stages)
    assert result.weight == pytest.approx([1.0 if split else 0.0] * stages)
    again = replayed(ran)
    assert again.total == pytest.approx(simulate(schedule, without).total)
    assert again.total < ran.total and orders(again) == orders(ran) == schedule


def test_a_stage_without_backwards_has_no_time_to_replay():
    with pytest.raises(ScheduleError, match="stage 0 has no B"):
        measured(Timeline.of({0: [("F", 0, 0, 0, 1)]}))
