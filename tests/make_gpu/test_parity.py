"""`make gpu` on made-up runs: what counts as agreement between two training runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from benchmarks.gpu import layouts, parity, paths
from benchmarks.gpu.result import SO_FAR, Result, Table
from benchmarks.gpu.trainer import Run, TrainerFailed, parse
from job_monitor.logs import Iteration
from minimegatron.arguments import parse_arguments
from minimegatron.report.log_lines import iteration_line

MODEL = ("--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 8 "
         "--max-position-embeddings 8 --micro-batch-size 1 --train-iters 9 --lr 1e-3 "
         "--data-path a --vocab-file v --merge-file m")
SKIPPED = {"loss": None, "grad_norm": None, "skipped": 1}


def run_of(*numbers: int, changed: dict[int, dict] | None = None) -> Run:
    """Return a run with these steps; `changed` replaces figures of some of them."""
    return Run("", 0, {number: replace(
        Iteration(number, milliseconds=1.0, loss=8 / number, grad_norm=2.0, loss_scale=1.0,
                  skipped=0), **(changed or {}).get(number, {})) for number in numbers})


def whole(changed: dict[int, dict] | None = None) -> Run:
    return run_of(*range(1, parity.ITERATIONS + 1), changed=changed)


def compared(run: Run, reference: Run, **options: int) -> Result:
    table, result = Table("", parity.COLUMNS), Result()
    check = parity.Check("run", "reference", parity.CLOSE, **options)
    parity.row(table, check, run, reference, result)
    assert table.rows[0][-1] is (not result.failures)
    return result


def test_equal_runs_agree_and_so_do_equally_skipped_steps():
    assert not compared(whole(), whole()).failures
    assert not compared(whole({2: SKIPPED}), whole({2: SKIPPED})).failures
    assert not compared(whole({2: {"grad_norm": 2.0009}}), whole()).failures  # rounding


@pytest.mark.parametrize(("change", "problem"), [
    ({"loss": math.nan}, "loss nan"), ({"loss": math.inf}, "loss inf"), ({"loss": None}, "loss No"),
    ({"grad_norm": math.nan}, "gradient norm nan"), ({"grad_norm": None}, "gradient norm None")])
def test_a_figure_that_is_no_number_never_agrees_not_even_with_itself(change, problem):
    for run, reference in ((whole({3: change}), whole({3: change})), (whole({3: change}), whole()),
                           (whole(), whole({3: change}))):
        (failure,) = compared(run, reference).failures
        assert "step 3: " in failure and "not a finite number" in failure
    assert f"step 3: {problem}" in compared(whole({3: change}), whole()).failures[0]


@pytest.mark.parametrize(("change", "problem"), [
    ({"loss": 2.67}, "the loss differs by"), ({"grad_norm": 2.1}, "the norm by 4.95e-02"),
    ({"grad_norm": 0.0}, "the norm by"), ({"loss_scale": 2.0}, "step 3: loss scale 2.0 instead"),
    (SKIPPED, "step 3: only one of the runs skipped it")])
def test_steps_that_differ_are_a_failure_on_either_side(change, problem):
    assert problem in compared(whole({3: change}), whole()).failures[0]
    assert compared(whole(), whole({3: change})).failures


@pytest.mark.parametrize("steps", [range(1, 10), [*range(1, 5), *range(6, 11)], range(2, 11), []])
def test_a_run_with_missing_steps_never_agrees(steps):
    for run, reference in ((run_of(*steps), whole()), (whole(), run_of(*steps)),
                           (run_of(*steps), run_of(*steps))):
        assert "did not log step(s)" in compared(run, reference).failures[0]


def test_a_resumed_run_must_not_have_started_over():
    assert not compared(run_of(*range(6, 11)), whole(), first=6).failures
    assert "began with step 1 instead of 6" in compared(whole(), whole(), first=6).failures[0]


def test_skipped_steps_alone_show_nothing():
    every = {number: SKIPPED for number in range(1, 11)}
    assert "only 0 steps could be compared" in compared(whole(every), whole(every)).failures[0]


@pytest.mark.parametrize("loss", [math.nan, math.inf, 5.25])
@pytest.mark.parametrize("form", ["core", "2021"])
def test_the_trainers_log_is_parsed_with_losses_that_are_no_numbers(loss, form):
    config = parse_arguments([*MODEL.split(), "--log-format", form], {})
    line = iteration_line(config, iteration=7, consumed=7, milliseconds=12.5, lr=1e-3, loss=loss,
                          norm=1.0, zeros=None, params_norm=None, nans=0, loss_scale=4.0)
    memory = "[Rank 0] (after 7 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | " \
             "reserved: 3.0 | max reserved: 4.0"
    run = parse(f"noise\n{line}\n{memory}\n", 0)
    step = run.steps[7]
    assert repr(step.loss) == repr(loss) and (step.grad_norm, step.loss_scale) == (1.0, 4.0)
    assert (run.milliseconds(1), run.allocated, run.reserved) == (12.5, 2 * 2**20, 4 * 2**20)


@pytest.fixture
def trained(monkeypatch):
    """Replace the trainer, and return the (flags, device) of each run."""
    given: list[tuple[str, str]] = []

    def train(flags: str, device: str = "cuda", **options) -> Run:
        given.append((flags, device))
        last = int(flags.partition("--train-iters ")[2].split()[0])
        first = parity.ITERATIONS // 2 + 1 if "--load" in flags else 1
        return run_of(*range(first, last + 1))

    monkeypatch.setattr(parity, "train", train)
    monkeypatch.setattr(layouts, "train", train)
    return given


def test_parity_compares_every_run_and_quick_leaves_repetitions_out(trained):
    result = parity.run(quick=False)
    assert not result.failures and [len(table.rows) for table in result.tables] == [13, 9]
    assert len(trained) == len(parity.RUNS) + 2 * 9
    trained.clear()
    result = parity.run(quick=True)
    assert not result.failures and [len(table.rows) for table in result.tables] == [3, 1]
    assert len(trained) == 6 + 2
    assert [row[0] for row in result.tables[0].rows] == list(parity.QUICK)


def test_a_checkpoint_is_saved_halfway_and_the_comparison_before_it(trained, monkeypatch, tmp_path):
    monkeypatch.setenv(SO_FAR, str(tmp_path / "result.json"))
    seen = []
    train = parity.train

    def look(flags: str, device: str) -> Run:
        if "--save " in flags:
            tables = json.loads((tmp_path / "result.json").read_text())["tables"]
            seen.append((len(tables[0]["rows"]), "--exit-interval 5" in flags, "--load" in flags))
        return train(flags, device)

    monkeypatch.setattr(parity, "train", look)
    parity.run(quick=True)
    assert seen == [(3, True, False), (3, False, True)]


def test_what_could_not_be_compared_is_a_failure(trained, monkeypatch):
    result = Result()
    parity.checkpoints("--train-iters 10", {}, result)
    assert len(result.failures) == 9
    assert result.failures[0] == ("fp32: cuda to cpu was not compared with fp32: "
                                  "fp32 did not finish")

    def fail(flags: str, device: str) -> Run:
        raise TrainerFailed("exit code 1")

    monkeypatch.setattr(parity, "train", fail)
    result = parity.run(quick=True)
    assert "fp32: exit code 1" in result.failures
    assert "fp32 was not compared with fp32 on the CPU: fp32 and fp32 on the CPU did not finish" \
        in result.failures
    assert sum("cuda to cpu" in failure for failure in result.failures) == 2


@pytest.mark.parametrize(("count", "rows", "rows_of_quick"), [(1, 7, 2), (2, 11, 3), (8, 16, 4)])
def test_layouts_run_as_far_as_the_gpus_suffice(trained, monkeypatch, count, rows, rows_of_quick):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for quick, expected in ((False, rows), (True, rows_of_quick)):
        result = layouts.run(quick)
        assert not result.failures and len(result.tables[0].rows) == expected
    assert any("Not run over NCCL" in note for note in result.notes) == (count < 8)


def test_a_layout_that_ends_early_is_a_failure(trained, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    train = layouts.train

    def shorter(flags: str, **options) -> Run:
        run = train(flags, **options)
        return run_of(*list(run.steps)[:-1]) if options else run

    monkeypatch.setattr(layouts, "train", shorter)
    assert len(layouts.run(quick=True).failures) == 2


def test_paths_runs_fewer_checks_with_quick_and_reports_each_failure(monkeypatch):
    def works(folder) -> str:
        return "works"

    def fails(folder) -> str:
        raise paths.Wrong("exit code 0, not 1")

    monkeypatch.setattr(paths, "CHECKS", {**dict.fromkeys(paths.CHECKS, works), "SIGTERM": fails})
    assert len(paths.run(quick=False).tables[0].rows) == 8
    result = paths.run(quick=True)
    assert [row[:2] for row in result.tables[0].rows] == [
        ["out of memory", "works"], ["status file", "works"], ["SIGTERM", "FAILED"]]
    assert result.failures == ["SIGTERM: Wrong: exit code 0, not 1"]
