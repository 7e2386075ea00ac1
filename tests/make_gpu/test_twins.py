"""`rates`, `calibrate`, and `twins` of `make gpu` on made-up results: what is a failure."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import calibrate, rates, sides, twins
from benchmarks.gpu.cases import ATTENTION, BANDWIDTH, MATMUL, OPTIMIZER, Case, cases
from benchmarks.gpu.programs import PROGRAMS
from benchmarks.gpu.rates import Measured, Rate
from virtualgpu.core import cards
from virtualgpu.core.errors import NoValue

H100, V100 = cards.find("h100"), cards.find("v100")
REFUSED = "RuntimeError: no kernel"
NO_FP8 = "NoValue: the virtual v100-sxm2-16gb has no fp8 arithmetic"
FULL = "OutOfMemoryError: CUDA out of memory"
BUG = "AttributeError: module 'torch' has no attribute '_scaled_mm'"


def measured(*changed: Rate, card=H100, predicted: dict | None = None) -> Measured:
    """Return results in which one case of each group agrees, and these cases.

    Args:
        changed: more cases.
        card: the GPU model.
        predicted: CPU costs of the virtual GPU; None: as measured.
    """
    agree = [Rate(case(group, f"{group} that runs"), 1e-3, 1e-3)
             for group in (MATMUL, ATTENTION, BANDWIDTH, OPTIMIZER)]
    costs = {("x + y", "us"): 1.0}
    return Measured(card.product, card, [*agree, *changed],
                    {"CPU": (costs, costs if predicted is None else predicted)}, {})


def case(group: str, name: str, dtype: str = "bf16") -> Case:
    return Case(group, name, dtype, lambda: lambda: None, 10**9, 10**9)


def outcome(monkeypatch: pytest.MonkeyPatch, found: Measured) -> rates.Result:
    monkeypatch.setattr(rates, "measure", lambda quick: found)
    return rates.run(quick=True)


def test_rates_that_ran_on_both_sides_are_no_failure(monkeypatch):
    result = outcome(monkeypatch, measured(Rate(case(MATMUL, "slow"), 1e-3, 2e-3)))
    assert not result.failures and len(result.tables) == 5
    assert "mean absolute error of the time 50.0%, bias +50.0%, over 2 row(s)" in result.notes[1]


def test_a_cpu_cost_that_the_virtual_gpu_lacks_is_a_failure(monkeypatch):
    actual = measured(predicted={("x + y", "ms"): 1.0})
    assert outcome(monkeypatch, actual).failures == [
        "CPU: x + y: the virtual GPU has no figure in us"]


@pytest.mark.parametrize(("card", "on_gpu", "on_model", "failed"), [
    (V100, REFUSED, 1e-3, "the GPU"), (V100, 1e-3, REFUSED, "the virtual GPU"),
    (V100, BUG, BUG, "both"), (V100, BUG, REFUSED, "both"), (V100, REFUSED, BUG, "both"),
    (V100, FULL, FULL, "both"), (H100, REFUSED, REFUSED, "both"), (H100, REFUSED, NO_FP8, "both"),
    (V100, REFUSED, NO_FP8, ""), (V100, REFUSED, REFUSED, "")])
def test_only_arithmetic_that_the_gpu_lacks_may_be_refused(monkeypatch, card, on_gpu, on_model,
                                                           failed):
    """All other cases that did not run on both sides are failures."""
    one = Rate(case(MATMUL, "one", "fp8"), on_gpu, on_model)
    result = outcome(monkeypatch, measured(one, card=card))
    assert result.failures == [
        f"one did not run on {side}: {error}"
        for side, error in (("the GPU", on_gpu), ("the virtual GPU", on_model))
        if failed in (side, "both")]
    assert (f"{rates.TITLES[MATMUL]}: refused by both sides: one." in result.notes) == (not failed)


def test_a_group_without_any_comparison_is_a_failure(monkeypatch):
    actual = Measured("a GPU", V100, [Rate(case(MATMUL, "one"), REFUSED, REFUSED)], {}, {})
    assert outcome(monkeypatch, actual).failures == [
        f"{title}: no case ran on both sides" for title in rates.TITLES.values()]


@pytest.mark.parametrize(("gpu", "refused", "names"), [
    ("h100", (), []), ("v100", ("bf16", "fp8", "tf32"), []), ("h100", ("fp8",), ["matmul, fp8"]),
    ("h100", ("bf16", "fp32"), ["matmul, fp32", "matmul, bf16", "vector", "kernel", "attention"])])
@pytest.mark.parametrize("clock", [{"memory_clock_rate": 2e6, "memory_bus_width": 4096.0}, {}],
                         ids=["a clock", "no clock"])
def test_a_figure_that_nothing_measured_is_no_silent_copy_of_the_old_one(monkeypatch, gpu, refused,
                                                                         names, clock):
    card = cards.find(gpu)
    every = [Rate(one, REFUSED if one.dtype in refused else 1e-3, 1e-3) for one in cases(True)]
    costs = {("x.add_(1)", "us"): 5.0, ("4096 KiB, pinned, to the GPU", "GB/s"): 50.0}
    sheet = {"total": 2**34, "context": 2**29, "multi_processor_count": 100, **clock}
    actual = Measured(card.product, card, every, {"CPU": (costs, costs)}, sheet)
    monkeypatch.setattr(calibrate, "measure", lambda quick: actual)
    result = calibrate.run(quick=True)
    unmeasured = {failure.partition(":")[0] for failure in result.failures}
    assert unmeasured == {*names, *([] if clock else ["bandwidth"])}
    proposed = {row[0]: row[2] for row in result.tables[0].rows}
    assert proposed["bandwidth"] == (2048e9 if clock else card.bandwidth)


SEEN = {"marks": [("second step, at the end", (1, 2, 3, 4))], "launches": [], "seconds": 1e-3}


class Inline:
    """Replaces sides.Running: runs the function here."""

    def __init__(self, function) -> None:
        self.value = function()

    def result(self, limit: float = 0) -> object:
        return self.value


@pytest.fixture
def run_twins(monkeypatch):
    """Return twins.run for programs given as {name: (on CUDA, on the virtual GPU)}."""
    def run(card=H100, /, **programs: tuple[dict | str, dict | str]):
        def on(side: int):
            def start(function, card=None):
                actual = function()
                if isinstance(actual, tuple) and isinstance(actual[side], str):
                    raise sides.Failed(actual[side])
                return actual[side] if isinstance(actual, tuple) else actual
            return start

        monkeypatch.setattr(twins, "PROGRAMS", {name: lambda seen=seen: seen
                                                for name, seen in programs.items()})
        monkeypatch.setattr(twins, "observe", lambda build: build())
        monkeypatch.setattr(twins, "SEEN", {name: lambda: {"fact": "1"} for name in twins.SEEN})
        monkeypatch.setattr(sides, "product", lambda: card.product)
        monkeypatch.setattr(sides, "Running", Inline)
        monkeypatch.setattr(sides, "on_cuda", on(0))
        monkeypatch.setattr(sides, "on_virtual", on(1))
        return twins.run(quick=False)
    return run


def test_programs_that_ran_on_both_sides_are_no_failure(run_twins):
    result = run_twins(one=(SEEN, SEEN), two=(SEEN, SEEN))
    assert not result.failures and len(result.tables[0].rows) == 2
    assert [table.title.partition(" (")[0] for table in result.tables[3:]] == list(twins.SEEN)


@pytest.mark.parametrize(("card", "name", "on_cuda", "on_model", "failed"), [
    (V100, twins.FP8, REFUSED, SEEN, "CUDA"), (V100, twins.FP8, SEEN, BUG, "the virtual GPU"),
    (V100, twins.FP8, BUG, BUG, "both"), (V100, twins.FP8, FULL, FULL, "both"),
    (H100, twins.FP8, REFUSED, REFUSED, "both"), (V100, "one", REFUSED, REFUSED, "both"),
    (V100, twins.FP8, REFUSED, REFUSED, ""), (V100, twins.FP8, REFUSED, NO_FP8, "")])
def test_a_program_that_did_not_run_is_a_failure(run_twins, card, name, on_cuda, on_model, failed):
    """Except for fp8 on a GPU without that arithmetic."""
    result = run_twins(card, **{name: (on_cuda, on_model), "two": (SEEN, SEEN)})
    assert result.failures == [
        f"{name} did not run on {side}: {error}"
        for side, error in (("CUDA", on_cuda), ("the virtual GPU", on_model))
        if failed in (side, "both")]
    assert len(result.tables[0].rows) == 1
    assert (f"{name}: refused by both sides: {on_cuda}" in result.notes) == (not failed)


def test_the_fp8_program_is_one_of_the_programs():
    assert twins.FP8 in PROGRAMS


def test_twins_without_any_comparison_fail(run_twins):
    actual = run_twins(V100, **{twins.FP8: (REFUSED, REFUSED)})
    assert actual.failures == ["no program ran on both sides"]


def test_gpus_refuse_with_a_few_errors_only():
    for error in (NoValue("x"), RuntimeError("x"), NotImplementedError("x")):
        assert sides.refused(f"{type(error).__name__}: {error}")
    assert not sides.refused(f"{torch.OutOfMemoryError.__name__}: full")
    assert not sides.refused("ModuleNotFoundError: no module transformers")
    assert not sides.refused("still running after 180 s")
