"""The published rows are complete, and the page of results is that of their figures."""

from __future__ import annotations

import json
from collections import defaultdict
from statistics import mean

import pytest

from benchmarks import gpu_models, layer_times
from benchmarks.accuracy import __main__ as command
from benchmarks.accuracy.evaluate import error_of, pair_errors, predict, ratios, regrets, summarize
from benchmarks.accuracy.report import by_gpu, of_pairs, overview, section
from benchmarks.accuracy.rows import (
    CALIBRATION,
    FOLDER,
    INFERRED,
    TEST,
    BadRowSet,
    RowSet,
    card_of,
    cluster_of,
    load_set,
    load_sets,
    published_memory,
    published_seconds,
)
from benchmarks.accuracy.trainer import NotYet, configure
from virtualgpu.core.accuracy import COMPILED, MEMORY, TIME
from virtualgpu.core.cards import CARDS, find
from virtualgpu.core.stacks import STACKS

SETS = {rows.name: rows for rows in load_sets()}
# A row of each software stack and of each program that costs the least processor time.
RECOMPUTED = {"classic_v100": 0, "dgxc_h100": 5, "fasop_a10": 0, "fms_fsdp_a100": 1,
              "korthikanti_2022": 0, "llm_foundry": 103, "narayanan_2021": 0, "vtrain_multi": 0}
KEPT_OUT = {"llm_foundry": 105, "vtrain_multi": 55, "dgxc_h100": 11}  # even rows of larger tables


def outcome(predicted: float, published: float | None, split: str = TEST, fits: bool = True):
    return {"name": "a", "layout": "b", "split": split, "predicted": predicted,
            "published": published, "fits": fits, "published_fits": published is not None}


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_a_source_and_rows_that_can_be_run(name):
    rows = SETS[name]
    assert rows.facts["source"] and rows.facts["date"] and rows.facts["about"]
    for row in rows.rows:
        cluster = cluster_of(row, card_of(rows.facts, row))
        assert cluster.world == row["gpus"]
        assert published_seconds(row) or published_memory(row) or row["fits"] is False
        if rows.facts["program"] == "trainer":
            assert configure(row).world_size == row["gpus"]


@pytest.mark.parametrize(("text", "problem"), [
    ("{", "no JSON"),
    ("[1.5]", "a list instead of an object"),
    ('{"rows": [{"gemm": 8192}]}', "no text 'title'"),
    ({"use": "tset"}, "use 'tset' instead of 'test'"),
    ({"rows": []}, "no list 'rows'"),
    ({"rows": [{"gpus": 8}]}, "row 0 has no"),
    ({"memory_counts": "used"}, "memory_counts is 'used' instead of one of allocated"),
])
def test_a_file_that_is_no_set_is_named_with_what_it_lacks(text, problem, tmp_path):
    if isinstance(text, dict):
        text = json.dumps(json.loads((FOLDER / "bloom_node_2022.json").read_text()) | text)
    (tmp_path / "speedups.json").write_text(text)
    with pytest.raises(BadRowSet, match=r"speedups\.json: ") as raised:
        load_sets(tmp_path)
    assert problem in str(raised.value)


def test_only_even_rows_of_three_sets_and_every_other_image_model_calibrate():
    models = [row["model"] for row in SETS["timm_rtx3090"].rows]
    chosen = sorted(set(models))[::2]
    assert models == sorted(models)
    for name, rows in SETS.items():
        splits = [rows.split(index) for index in range(len(rows.rows))]
        if name in KEPT_OUT:
            assert len(splits) == KEPT_OUT[name]
            assert splits[::2] == [CALIBRATION] * len(splits[::2]) and set(splits[1::2]) == {TEST}
        else:
            assert splits == [
                INFERRED if "inferred" in row else
                CALIBRATION if name == "timm_rtx3090" and row["model"] in chosen else TEST
                for row in rows.rows]


def test_an_unknown_flag_is_skipped_with_its_name():
    row = {**load_set("classic_v100").rows[0], "more_flags": "--no-such-flag"}
    with pytest.raises(NotYet, match="--no-such-flag"):
        configure(row)


def test_a_summary_keeps_inferred_rows_apart():
    found = summarize([outcome(1.1, 1.0, CALIBRATION), outcome(0.8, 1.0), outcome(9.0, None),
                       outcome(2.0, 1.0, INFERRED)])
    assert set(found) == {CALIBRATION, TEST, INFERRED, "all"}
    assert found[INFERRED]["worst"] == pytest.approx(1.0)
    assert found["test"]["worst"] == pytest.approx(-0.2) and found["test"]["within"] == 0
    assert found["all"]["rows"] == 2 and found["all"]["error"] == pytest.approx(0.15)
    assert found["all"]["bias"] == pytest.approx(-0.05)
    assert found["all"]["fits_as_published"] == 2 and found["all"]["all_rows"] == 3


def test_regret_is_what_the_chosen_plan_takes_longer():
    job = {"layers": 1, "hidden": 1, "heads": 1, "gpus": 8, "batch": 8}
    rows = RowSet("plans", {}, (job, job, {**job, "batch": 4}))
    found = regrets(rows, [outcome(1.0, 3.0), outcome(2.0, 2.0), outcome(1.0, 1.0)])
    assert found == [pytest.approx(0.5)]


def test_the_error_of_a_ratio():
    assert ratios([outcome(3.0, 2.0), outcome(1.0, 1.0)]) == [pytest.approx(0.5)]


def test_pairs_are_test_rows_of_one_job():
    job = {"layers": 1, "gpus": 8, "batch": 8, "tp": 1}
    rows = RowSet("plans", {}, (job, {**job, "checkpointing": "full"}, {**job, "tp": 2},
                                {**job, "batch": 4}, job))
    outcomes = [{**outcome(predicted, 1.0, split), "row": row} for row, (predicted, split) in
                enumerate([(1.0, TEST), (2.0, TEST), (4.0, TEST), (5.0, TEST), (6.0, CALIBRATION)])]
    assert pair_errors(rows, outcomes) == {True: [-0.5], False: [-0.75, -0.5]}


def test_the_page_is_that_of_its_figures():
    last, first = command.load(command.LAST), command.load(command.FIRST)
    written = command.PAGE.read_text()
    assert "\n".join(overview(list(SETS.values()), last, first)) in written
    assert "\n".join(by_gpu(list(SETS.values()), last)) in written
    assert "\n".join(of_pairs(list(SETS.values()), last)) in written
    for name in SETS.keys() & last.keys():
        rows, found = SETS[name], last[name]
        assert "\n".join(section(rows, found, first.get(name, {}))) in written
        if "skipped" not in found:
            assert found["summary"] == summarize(found["outcomes"])
            for row, one in zip(rows.rows, found["outcomes"], strict=True):
                assert one["published"] == published_seconds(row)


@pytest.mark.parametrize("name", RECOMPUTED)
def test_the_results_are_those_of_todays_model(name):
    row = RECOMPUTED[name]
    kept, found = command.load(command.LAST)[name]["outcomes"][row], predict(
        SETS[name], SETS[name].rows[row])
    assert found.fits == kept["fits"]
    assert found.seconds == pytest.approx(kept["predicted"], rel=1e-4), (
        "run python -m benchmarks.accuracy, and correct the figures that changed")
    if "memory" in kept:
        modeled = found.memory(SETS[name].facts["memory_counts"])
        assert modeled == pytest.approx(kept["memory"], rel=1e-4)


def test_a_stack_states_its_error_on_the_gpu_models_of_rows_that_nothing_was_fitted_to():
    errors, last = defaultdict(list), command.load(command.LAST)
    for name in SETS.keys() & last.keys():
        compiled = SETS[name].facts["program"].endswith("_compiled")
        for one in last[name]["outcomes"]:
            gpu, error = SETS[name].rows[one["row"]]["gpu"], error_of(one)
            if one["split"] == TEST and error is not None:
                stack = "compiled" if compiled else SETS[name].facts["stack"]
                errors[stack, find(gpu).name].append(abs(error))
    stated = {(stack, gpu): error for stack, by_gpu in {**TIME, "compiled": COMPILED}.items()
              for gpu, error in by_gpu.items()}
    assert stated == {key: (round(mean(found), 3), len(found)) for key, found in errors.items()}
    assert TIME.keys() <= STACKS.keys()


def test_memory_states_its_error_on_rows_that_nothing_was_fitted_to():
    errors, last = defaultdict(list), command.load(command.LAST)
    for name in SETS.keys() & last.keys():
        for one in last[name]["outcomes"]:
            if one["split"] == TEST and "memory" in one:
                errors[find(SETS[name].rows[one["row"]]["gpu"]).name].append(
                    abs(one["memory"] / one["published_memory"] - 1))
    assert {key: (round(mean(found), 3), len(found)) for key, found in errors.items()} == MEMORY


@pytest.mark.parametrize("name", CARDS)
def test_a_gpu_model_s_figure_changes_only_together_with_its_table(name):
    written = gpu_models.PAGE.read_text()
    for stack in gpu_models.stacks_of(name):
        row = written.partition(f"| {name} | {stack} | ")[2].partition(" |\n")[0]
        milliseconds, error = row.split(" | ")
        assert 1000 * gpu_models.step_seconds(name, stack) == pytest.approx(
            float(milliseconds), rel=gpu_models.TOLERANCE), (
            "run python -m benchmarks.gpu_models, and say in its HISTORY what changed")
        assert error == str(TIME.get(stack, {}).get(name, "no published run"))


def test_the_page_of_gpu_models_is_what_its_program_writes():
    written = gpu_models.PAGE.read_text()
    assert written.startswith(gpu_models.HEAD) and written.endswith(f"\n{gpu_models.HISTORY}\n")


def test_the_published_layer_times_are_compared_with_todays_model():
    assert layer_times.PAGE.read_text() == layer_times.report()


def test_a_first_comparison_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "FIRST", tmp_path / "first.json")
    command.save(command.FIRST, {"a": {"summary": 1, "outcomes": [outcome(1.0, 2.0)]}})
    command.keep_first("a", {"summary": 2})
    command.keep_first("b", {"skipped": "why"})
    command.keep_first("c", {"summary": 3})
    found = command.load(command.FIRST)
    assert found["a"]["summary"] == 1 and set(found) == {"a", "c"}
    assert error_of(found["a"]["outcomes"][0]) == pytest.approx(-0.5)
