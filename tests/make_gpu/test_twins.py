"""`rates`, `calibrate`, and `twins` of `make gpu` on made-up results: what is a failure."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import calibrate, rates, sides, twins
from benchmarks.gpu.cases import ATTENTION, BANDWIDTH, MATMUL, OPTIMIZER, Case, cases
from benchmarks.gpu.rates import Measured, Rate
from virtualgpu.core import cards

H100 = cards.find("h100")
REFUSED = "RuntimeError: no kernel"
BUG = "AttributeError: module 'torch' has no attribute '_scaled_mm'"


def measured(*changed: Rate) -> Measured:
    """Return results in which one case of each group agrees, and these cases."""
    agree = [Rate(case(group, f"{group} that runs"), 1e-3, 1e-3)
             for group in (MATMUL, ATTENTION, BANDWIDTH, OPTIMIZER)]
    costs = {("x + y", "us"): 1.0}
    return Measured("NVIDIA H100 80GB HBM3", H100, [*agree, *changed], {"CPU": (costs, costs)}, {})


def case(group: str, name: str) -> Case:
    return Case(group, name, "bf16", lambda: lambda: None, 10**9, 10**9)


def outcome(monkeypatch: pytest.MonkeyPatch, found: Measured) -> rates.Result:
    monkeypatch.setattr(rates, "measure", lambda quick: found)
    return rates.run(quick=True)


def test_rates_that_ran_on_both_sides_are_no_failure(monkeypatch):
    result = outcome(monkeypatch, measured(Rate(case(MATMUL, "slow"), 1e-3, 2e-3)))
    assert not result.failures and len(result.tables) == 5
    assert "mean absolute error of the time 50.0%, bias +50.0%, in 2 rows" in result.notes[1]


@pytest.mark.parametrize(("on_gpu", "on_model", "failures"), [
    (REFUSED, 1e-3, [f"one did not run on the GPU: {REFUSED}"]),
    (1e-3, REFUSED, [f"one did not run on the virtual GPU: {REFUSED}"]),
    (BUG, BUG, [f"one did not run on the GPU: {BUG}",
                f"one did not run on the virtual GPU: {BUG}"]),
    (BUG, REFUSED, [f"one did not run on the GPU: {BUG}",
                    f"one did not run on the virtual GPU: {REFUSED}"]),
    (REFUSED, "NoValue: the virtual v100 has no fp8 arithmetic", [])])
def test_a_case_that_one_side_refuses_or_that_is_broken_is_a_failure(monkeypatch, on_gpu, on_model,
                                                                     failures):
    result = outcome(monkeypatch, measured(Rate(case(MATMUL, "one"), on_gpu, on_model)))
    assert result.failures == failures
    assert any("1 cases that both sides refuse: one" in note
               for note in result.notes) == (not failures)


def test_a_group_without_any_comparison_is_a_failure(monkeypatch):
    found = Measured("a GPU", H100, [Rate(case(MATMUL, "one"), REFUSED, REFUSED)], {}, {})
    assert outcome(monkeypatch, found).failures == [
        f"{title}: no case ran on both sides" for title in rates.TITLES.values()]


@pytest.mark.parametrize(("gpu", "refused", "names"), [
    ("h100", (), []), ("v100", ("bf16", "fp8", "tf32"), []), ("h100", ("fp8",), ["matmul, fp8"]),
    ("h100", ("bf16", "fp32"), ["matmul, fp32", "matmul, bf16", "vector", "kernel", "attention"])])
def test_a_figure_that_nothing_measured_is_no_silent_copy_of_the_old_one(monkeypatch, gpu, refused,
                                                                         names):
    card = cards.find(gpu)
    every = [Rate(one, REFUSED if one.dtype in refused else 1e-3, 1e-3) for one in cases(True)]
    costs = {("x.add_(1)", "us"): 5.0, ("4096 KiB, pinned, to the GPU", "GB/s"): 50.0}
    sheet = {"total": 2**34, "context": 2**29, "multi_processor_count": 100}
    found = Measured(card.product, card, every, {"CPU": (costs, costs)}, sheet)
    monkeypatch.setattr(calibrate, "measure", lambda quick: found)
    result = calibrate.run(quick=True)
    assert [failure.partition(":")[0] for failure in result.failures] == names


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
    def run(**programs: tuple[dict | str, dict | str]):
        def on(side: int):
            def start(function, card=None):
                found = function()
                if isinstance(found, tuple) and isinstance(found[side], str):
                    raise sides.Failed(found[side])
                return found[side] if isinstance(found, tuple) else found
            return start

        monkeypatch.setattr(twins, "PROGRAMS", {name: lambda seen=seen: seen
                                                for name, seen in programs.items()})
        monkeypatch.setattr(twins, "observe", lambda build: build())
        monkeypatch.setattr(twins, "SEEN", {name: lambda: {"fact": "1"} for name in twins.SEEN})
        monkeypatch.setattr(sides, "product", lambda: H100.product)
        monkeypatch.setattr(sides, "Running", Inline)
        monkeypatch.setattr(sides, "on_cuda", on(0))
        monkeypatch.setattr(sides, "on_virtual", on(1))
        return twins.run(quick=False)
    return run


def test_programs_that_ran_on_both_sides_are_no_failure(run_twins):
    result = run_twins(one=(SEEN, SEEN), two=(SEEN, SEEN))
    assert not result.failures and len(result.tables[0].rows) == 2
    assert [table.title.partition(" (")[0] for table in result.tables[3:]] == list(twins.SEEN)


@pytest.mark.parametrize(("on_cuda", "on_model", "failures"), [
    (REFUSED, SEEN, [f"one did not run on CUDA: {REFUSED}"]),
    (SEEN, BUG, [f"one did not run on the virtual GPU: {BUG}"]),
    (BUG, BUG, [f"one did not run on CUDA: {BUG}", f"one did not run on the virtual GPU: {BUG}"]),
    (REFUSED, REFUSED, [])])
def test_a_program_that_did_not_run_is_a_failure(run_twins, on_cuda, on_model, failures):
    result = run_twins(one=(on_cuda, on_model), two=(SEEN, SEEN))
    assert result.failures == failures and len(result.tables[0].rows) == 1
    assert any("one runs on neither side" in note for note in result.notes) == (not failures)


def test_twins_without_any_comparison_fail(run_twins):
    assert run_twins(one=(REFUSED, REFUSED)).failures == ["no program ran on both sides"]


def test_gpus_refuse_with_a_few_errors_only():
    for error in (torch.OutOfMemoryError("full"), RuntimeError("x"), NotImplementedError("x")):
        assert sides.refused(f"{type(error).__name__}: {error}")
    assert not sides.refused("ModuleNotFoundError: no module transformers")
    assert not sides.refused("still running after 180 s")
