"""The published schedules say what their papers say, in order, time and memory."""

import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import pipeline_schedules as schedules
from pipeline_schedules import (
    BUILT_IN,
    V_SHAPED,
    Durations,
    ScheduleError,
    gpipe,
    interleaved,
    load,
    one_f_one_b,
    peak_live,
    problems,
    simulate,
    to_text,
    zb_h1,
)

STAGES, MICRO_BATCHES, CHUNKS = st.integers(1, 7), st.integers(1, 14), st.integers(1, 4)
TIMES = st.fractions(Fraction(1, 7), 5, max_denominator=7)


@st.composite
def built_in(draw):
    """(stages, micro-batches, chunks, schedule) of any schedule that ships."""
    name = draw(st.sampled_from(sorted(BUILT_IN)))
    stages, number = draw(STAGES), draw(MICRO_BATCHES)
    if name != "interleaved":
        return stages, number, 1, BUILT_IN[name](stages, number)
    chunks, number = draw(CHUNKS), stages * draw(st.integers(1, 4))
    return stages, number, chunks, interleaved(stages, number, chunks)


def bubble(schedule, micro_batches, durations):
    """Return the time by which the pipeline exceeds one stage's work."""
    work = durations.forward + durations.backward + durations.weight
    return simulate(schedule, durations).total - micro_batches * work


def test_one_stage_is_gradient_accumulation():
    assert to_text(one_f_one_b(1, 3)) == ["F0 B0 F1 B1 F2 B2"]
    assert to_text(zb_h1(1, 2)) == ["F0 B0 W0 F1 B1 W1"]


def test_gpipe_runs_its_backwards_from_the_last_micro_batch_to_the_first():
    assert to_text(gpipe(2, 3)) == ["F0 F1 F2 B2 B1 B0"] * 2


def test_1f1b_warms_up_alternates_and_drains():
    assert to_text(one_f_one_b(3, 4)) == [
        "F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]


def test_1f1b_with_fewer_micro_batches_than_stages():
    assert to_text(one_f_one_b(4, 2)) == ["F0 F1 B0 B1"] * 3 + ["F0 B0 F1 B1"]


def test_interleaved_deals_micro_batches_out_in_groups_as_megatron_does():
    assert to_text(interleaved(2, 4, 2)) == [
        "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3",
        "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3"]


@pytest.mark.parametrize("stages, micro_batches, chunks", [(2, 4, 2), (4, 8, 2), (3, 9, 3)])
def test_interleaved_warms_up_as_long_as_megatron_does(stages, micro_batches, chunks):
    for stage, actions in enumerate(interleaved(stages, micro_batches, chunks)):
        forwards = [action.kind for action in actions].index("B")
        # One forward of the alternating part stands before the first backward.
        assert forwards == 2 * (stages - stage - 1) + (chunks - 1) * stages + 1


def test_interleaved_is_all_warm_up_with_as_many_micro_batches_as_stages():
    for actions in interleaved(4, 4, 2):
        assert "".join(action.kind for action in actions) == "F" * 8 + "B" * 8


def test_interleaved_with_one_chunk_is_1f1b():
    assert interleaved(3, 4, 1) == one_f_one_b(3, 4)


@pytest.mark.parametrize("micro_batches, near", [(10, "use 8 or 12"), (3, "use 4")])
def test_interleaved_refuses_groups_that_are_not_whole(micro_batches, near):
    with pytest.raises(ScheduleError, match=f"{micro_batches} micro-batches .* 4 stages; {near}"):
        interleaved(4, micro_batches, 2)


@pytest.mark.parametrize("number", [0, -1, 2.0, True, "4"])
def test_a_number_below_one_is_refused_by_name(number):
    for make in (gpipe, one_f_one_b, zb_h1):
        with pytest.raises(ScheduleError, match=r"^stages: .* at least 1"):
            make(number, 4)
        with pytest.raises(ScheduleError, match=r"^micro-batches: "):
            make(4, number)
    with pytest.raises(ScheduleError, match=r"^chunks: "):
        interleaved(4, 4, number)


def test_zb_h1_delays_the_weight_gradients_of_later_stages():
    assert to_text(zb_h1(3, 4)) == [
        "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3",
        "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
        "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"]


@given(built_in())
def test_every_schedule_is_complete_and_free_of_deadlock(case):
    stages, micro_batches, chunks, schedule = case
    assert not problems(schedule, stages=stages, micro_batches=micro_batches, chunks=chunks)


@given(STAGES, MICRO_BATCHES, TIMES, TIMES, TIMES)
def test_bubble_of_gpipe_and_1f1b(p, m, forward, backward, weight):
    for schedule in (gpipe(p, m), one_f_one_b(p, m)):
        timeline = simulate(schedule, Durations(forward, backward, weight))
        assert timeline.bubble_fraction == Fraction(p - 1, m + p - 1)
        assert timeline.bubble_overhead == Fraction(p - 1, m)


@pytest.mark.slow
@given(STAGES, st.integers(1, 4), CHUNKS, TIMES, TIMES, TIMES)
def test_interleaving_divides_the_bubble_by_the_chunks(p, groups, v, forward, backward, weight):
    m = p * groups
    timeline = simulate(interleaved(p, m, v), Durations(forward, backward, weight))
    assert timeline.bubble_overhead == Fraction(p - 1, v * m)
    assert timeline.bubble_fraction == Fraction(p - 1, v * m + p - 1)


@given(STAGES, MICRO_BATCHES, TIMES, TIMES, TIMES)
def test_bubble_of_zb_h1_where_w_is_the_shortest(p, m, forward, backward, weight):
    """Qi et al. 2023, table 2: (p-1)(F+B-W) for m >= p; with fewer there are fewer W to fill in."""
    assume(weight <= min(forward, backward))
    durations = Durations(forward, backward, weight)
    filled = min(p, m) - 1
    assert bubble(zb_h1(p, m), m, durations) == (p - 1) * (forward + backward) - filled * weight
    if m >= p:
        assert bubble(zb_h1(p, m), m, durations) == (p - 1) * (forward + backward - weight)


@given(STAGES, MICRO_BATCHES)
def test_zb_h1_keeps_no_more_than_1f1b_and_has_a_third_of_its_bubble(p, m):
    assert max(peak_live(zb_h1(p, m))) == max(peak_live(one_f_one_b(p, m))) == min(p, m)
    if m >= p:
        thirds = Durations(1, 1, 1)
        assert 3 * bubble(zb_h1(p, m), m, thirds) == bubble(one_f_one_b(p, m), m, thirds)


@given(STAGES, MICRO_BATCHES)
def test_peak_live_activations(p, m):
    assert peak_live(gpipe(p, m)) == [m] * p
    assert peak_live(one_f_one_b(p, m)) == [min(p - stage, m) for stage in range(p)]


def test_peak_live_activations_of_the_textbook():
    assert peak_live(gpipe(4, 8)) == [8, 8, 8, 8]
    assert peak_live(one_f_one_b(4, 8)) == [4, 3, 2, 1]


@given(st.integers(2, 7), st.integers(2, 4), st.integers(2, 4))
def test_interleaving_costs_memory(p, groups, v):
    """Korthikanti et al. 2022, section 4.2.3: stage 0 keeps 1 + (p-1)/(p v) of 1F1B's."""
    kept = Fraction(peak_live(interleaved(p, p * groups, v))[0], v)
    assert kept == p * (1 + Fraction(p - 1, p * v))


def test_the_package_loads_neither_torch_nor_matplotlib():
    code = ("import sys, pipeline_schedules; "
            "print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_modules_are_imported_on_first_use():
    code = ("import sys, pipeline_schedules as schedules; "
            "print(sorted(name.rpartition('.')[2] for name in sys.modules "
            "if name.startswith('pipeline_schedules.'))); "
            "print(schedules.simulate(schedules.gpipe(2, 2)).total); "
            "print('pipeline_schedules.drawing' in sys.modules); "
            "from pipeline_schedules import *; print(draw.__module__)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "[]", "9", "False", "pipeline_schedules.drawing"], done.stderr


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'simulation_of'"):
        _ = schedules.simulation_of


PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()


def test_the_examples_of_the_page_run_and_print_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, own, order, plots = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "plots.pipeline(" in plots  # of runs: tests/lablib/test_plots.py tries these
    exec(first, {})
    printed = capsys.readouterr().out.splitlines()
    said = re.findall(r"^print.*# (.*)$", first, re.MULTILINE)
    assert printed[:3] == said
    assert printed[3] == "27.3% of the time, 37.5% of the work"
    assert (tmp_path / "1f1b.svg").stat().st_size
    (tmp_path / "mine.py").write_text(own)
    assert problems(load("mine.py", 3, 4), stages=3, micro_batches=4) == []
    exec(order, {})
    assert capsys.readouterr().out.splitlines() == [
        "stage 0 runs F0", "stage 1 runs F0 after F0 of stage 0", "stage 1 runs B0",
        "stage 0 runs B0 after B0 of stage 1"]


@pytest.mark.parametrize("name", [*BUILT_IN, *V_SHAPED])
def test_the_table_of_the_page_is_what_the_simulator_says(name):
    schedule = load(name, 4, 8, 2 if name == "interleaved" else 1)
    timeline = simulate(schedule)
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}`")]
    assert (f"| {timeline.bubble_fraction:.1%} | {timeline.bubble_overhead:.1%} | "
            + ", ".join(map(str, timeline.peak_live))) in row
