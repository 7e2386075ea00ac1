"""Layers are split exactly, and bounds are bounds."""

from dataclasses import replace

import numpy as np
import pytest

from cluster_planner import partition
from cluster_planner.stages import kept
from cluster_planner.timing import step_times
from pipeline_schedules import BUILT_IN, Durations, simulate, zb_h1
from tests.cluster_planner.cases import every_split, random_stages

CASES = [(schedule, seed) for schedule in ("1f1b", "gpipe") for seed in range(12)]


def case(schedule, seed):
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 5))
    return random_stages(random, count, int(random.integers(count, 10)),
                         int(random.integers(1, 13)), schedule)


@pytest.mark.parametrize("schedule, seed", CASES)
def test_the_program_finds_the_optimum_of_its_cost_model(schedule, seed):
    stages = case(schedule, seed)
    splits = every_split(stages)
    optima = partition.exact(stages)
    if not splits:
        assert optima == [] and partition.best(stages) is None
        assert max(partition.lower_bounds(stages)) == float("inf")
        return
    optimum = min(partition.modeled_time(stages, split) for split in splits)
    assert optima[0][0] == pytest.approx(optimum, rel=1e-12)
    times = step_times(stages, splits)
    made = partition.best(stages)
    assert made.layers in splits
    assert max(partition.lower_bounds(stages)) <= times.min() * (1 + 1e-12)
    assert times.min() * (1 - 1e-12) <= made.time
    assert made.time <= float(step_times(stages, [optima[0][1]])[0]) * (1 + 1e-12)
    even = partition.even(stages)
    assert even is None or even.layers in splits


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_no_partition_is_faster_than_its_bound(schedule, seed):
    stages = case(schedule, seed)
    if schedule == "zb-h1":
        stages = replace(stages, weight=0.7 * stages.forward)
    splits = np.array(every_split(stages)).reshape(-1, len(stages.forward))
    if len(splits):
        times = step_times(stages, splits)
        tight, loose = (partition.bounds(stages, splits, loose=loose) for loose in (False, True))
        assert (tight <= times).all() and (loose <= times).all()
        assert (tight > 0.4 * times).all() and (loose > 0.4 * times).all()


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_step_takes_what_the_schedules_simulation_says(schedule):
    stages = random_stages(np.random.default_rng(3), 4, 8, 7, schedule)
    stages.send[:] = 0.25
    splits, rows = [(2, 2, 2, 2), (0, 3, 4, 1)], range(4)
    for split, time in zip(splits, step_times(stages, splits), strict=True):
        timeline = simulate(BUILT_IN[schedule](4, 7), Durations(
            stages.forward[rows, split].tolist(), stages.backward[rows, split].tolist(), 0, 0.25))
        ends = np.array([max(span.end for span in timeline.spans[stage]) for stage in rows])
        ends[[0, 3]] = max(ends[0], ends[3]) + stages.ends
        step = (ends + stages.sync[rows, split]).max() + stages.update[rows, split].max()
        assert time == pytest.approx(step)
        assert time == pytest.approx(step_times(stages, [split])[0])


@pytest.mark.parametrize("schedule, chunks", [("zb-h1", 1), ("interleaved", 2)])
def test_a_step_of_other_schedules_takes_what_their_simulation_says(schedule, chunks):
    stages = random_stages(np.random.default_rng(3), 3, 12, 6, schedule)
    stages = replace(stages, chunks=chunks, send=np.full(2 + (chunks > 1), 0.25),
                     weight=0.7 * stages.forward if schedule == "zb-h1" else 0.0)
    splits, rows = [(4, 4, 4), (6, 2, 4)], range(3)
    for split, time in zip(splits, step_times(stages, splits), strict=True):
        def chosen(times, split=split):
            return times[rows, split].tolist()
        edges = [stages.forward[:, 0], stages.backward[:, 0]]
        if chunks > 1:  # simulate() has equal chunks
            stages.forward[:] -= edges[0][:, None]
            stages.backward[:] -= edges[1][:, None]
            time = step_times(stages, [split])[0]
        weight = chosen(stages.weight) if schedule == "zb-h1" else 0
        actions = BUILT_IN[schedule](*((3, 6, 2) if chunks > 1 else (3, 6)))
        timeline = simulate(actions, Durations(
            chosen(stages.forward), chosen(stages.backward), weight, 0.25))
        ends = np.array([max(span.end for span in timeline.spans[stage]) for stage in rows])
        ends[[0, 2]] = max(ends[0], ends[2]) + stages.ends
        step = (ends + stages.sync[rows, split]).max() + stages.update[rows, split].max()
        assert time == pytest.approx(step)
        assert time == pytest.approx(step_times(stages, [split])[0])


@pytest.mark.parametrize("p, m", [(4, 8), (4, 2), (3, 3), (1, 4)])
def test_zb_h1_keeps_what_its_actions_have_not_freed(p, m):
    for peaks, actions in zip(kept("zb-h1", p, m, 1), zb_h1(p, m), strict=True):
        saved, waiting, most = 0, 0, 0
        for action in actions:
            saved += action.kind == "F"
            most = max(most, 10 * saved + 4 * waiting)
            saved, waiting = (saved - (action.kind == "B"),
                              waiting + (action.kind == "B") - (action.kind == "W"))
        assert max(10 * peak.saved + 4 * peak.waiting for peak in peaks) == most


def test_gpipe_without_a_step_s_end_takes_what_the_cost_model_says():
    stages = random_stages(np.random.default_rng(5), 3, 8, 9, "gpipe")
    stages.sync[:] = stages.update[:] = 0
    splits = every_split(stages)
    modeled = [partition.modeled_time(stages, split) + stages.ends for split in splits]
    assert step_times(stages, splits) == pytest.approx(modeled)


@pytest.mark.parametrize("seed", range(12))
def test_published_partitions_are_no_faster_than_ours(seed):
    stages = case("1f1b", seed)
    ours = partition.best(stages)
    for planner in (partition.fasop, partition.amp):
        made = planner(stages)
        if made is not None:
            assert stages.fits[range(len(made.layers)), made.layers].all()
            assert ours.time <= partition.simulated(stages, made).time * (1 + 1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_amp_minimizes_its_formula_and_leaves_memory_to_a_trial(schedule):
    stages = random_stages(np.random.default_rng(7), 3, 7, 9, schedule)
    stages.fits[:, 1:] = True
    splits = [split for split in every_split(stages) if min(split) > 0]
    made = partition.amp(stages)
    modeled = partition.modeled_time(stages, made.layers)
    assert modeled == pytest.approx(
        min(partition.modeled_time(stages, split) for split in splits), rel=1e-12)
    assert made.time > modeled
    stages.fits[0, made.layers[0]] = False
    assert partition.amp(stages) is None


def test_fasop_gives_up_where_its_partition_does_not_fit():
    stages = random_stages(np.random.default_rng(7), 3, 7, 9, "1f1b")
    stages.fits[:, 1:] = True
    made = partition.fasop(stages)
    assert made.time == pytest.approx(float(step_times(stages, [made.layers])[0]))
    stages.fits[0, made.layers[0]] = False
    assert partition.fasop(stages) is None
    short = random_stages(np.random.default_rng(7), 4, 3, 9, "1f1b")
    assert partition.fasop(short) is None and partition.amp(short) is None
