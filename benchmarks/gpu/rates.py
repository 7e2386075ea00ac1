"""Throughput of single calls, measured and predicted by the virtual GPU

After a warm-up, CUDA events time a batch of launches that the host queued beforehand, on random
operands that rotate through more memory than the L2 cache holds. The result is the median of the
repeats. The virtual GPU runs the same code.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median

import torch

from benchmarks.gpu import sides
from benchmarks.gpu.cases import ATTENTION, BANDWIDTH, MATMUL, OPTIMIZER, Case, cases
from benchmarks.gpu.host import HOST, Costs
from benchmarks.gpu.result import Result, Table
from virtualgpu.core.card import Card
from virtualgpu.export.ledger import Ledger

ROTATED = 2**27  # bytes: the L2 cache of an H100 holds 50 MB
MOST_SETS = 24
BATCH = 8e-3  # seconds of kernels between two events
REPEATS = 5
CYCLES = 1.7e9  # rough GPU clock rate in Hz, for the sleep during which the host queues launches
TITLES = {MATMUL: "Matrix multiplication, m x n x k", ATTENTION: "Attention",
          BANDWIDTH: "Bandwidth-bound calls", OPTIMIZER: "Optimizer steps"}


@dataclass(frozen=True)
class Rate:
    """Time of one case in seconds, or the error message if it did not run.

    Attributes:
        case: the call.
        measured: time on the GPU.
        predicted: time modeled by the virtual GPU.
    """

    case: Case
    measured: float | str
    predicted: float | str


@dataclass(frozen=True)
class Measured:
    """Everything measured on one machine.

    Attributes:
        product: the GPU's name.
        card: the GPU model to compare with.
        rates: times of single calls.
        host: measured and predicted CPU costs, by table title.
        sheet: properties that CUDA reports.
    """

    product: str
    card: Card
    rates: list[Rate]
    host: dict[str, tuple[Costs, Costs]]
    sheet: dict[str, float]


def seconds_on_gpu(case: Case) -> float:
    """Return the time of one call on a real GPU, in seconds."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    calls = [case.make()]
    size = max(1, torch.cuda.memory_allocated() - before)
    calls += [case.make() for _ in range(min(MOST_SETS, ROTATED // size))]
    one, queued = _timed(calls, 3), max(16, 8 * len(calls))
    launches = max(3, min(queued, 64, int(BATCH / one)))
    return median(_timed(calls, launches) for _ in range(REPEATS))


def _timed(calls: list[Callable[[], object]], launches: int) -> float:
    """Return the seconds per call of a batch of launches between two events.

    The GPU sleeps while the host queues the batch, so it never waits for a launch.

    Args:
        calls: the same call on different operands, used in turn.
        launches: size of the batch.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    calls[0]()
    torch.cuda.synchronize()
    start = time.perf_counter()
    calls[0]()
    host = time.perf_counter() - start
    torch.cuda._sleep(int(CYCLES * min(0.2, 1.5 * launches * host + 1e-4)))
    begin.record()
    for at in range(launches):
        calls[at % len(calls)]()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / launches


def seconds_of_model(case: Case) -> float:
    """Return the modeled time of one call's kernels, in seconds."""
    gpu = Ledger.current.gpu
    call = case.make()
    call()
    before = gpu.computing
    call()
    return gpu.computing - before


def each(quick: bool, seconds: Callable[[Case], float]) -> list[float | str]:
    """Return the time of every case, or the error message if it did not run.

    Args:
        quick: time fewer cases.
        seconds: times one case.
    """
    found: list[float | str] = []
    for case in cases(quick):
        try:
            found.append(seconds(case))
        except Exception as error:
            found.append(f"{type(error).__name__}: {str(error).splitlines()[0]}"[:90])
    return found


def sheet() -> dict[str, float]:
    """Return the properties that CUDA reports for the GPU, and the memory of its context."""
    torch.ones(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    found = torch.cuda.get_device_properties(0)
    named = {name: float(getattr(found, name)) for name in (
        "multi_processor_count", "memory_clock_rate", "memory_bus_width", "clock_rate",
        "L2_cache_size") if hasattr(found, name)}
    return {**named, "total": total, "context": total - free - torch.cuda.memory_reserved()}


def measure(quick: bool) -> Measured:
    """Measure this machine's first GPU, and run the same cases on its virtual twin.

    Raises:
        sides.Failed: The machine has no GPU, or no GPU model matches it.
    """
    product = sides.product()
    card = sides.model_of(product)
    host = {name: (sides.on_cuda(cost), sides.on_virtual(cost, card))
            for name, cost in HOST.items()}
    modeled = sides.Running(lambda: sides.on_virtual(
        lambda: each(quick, seconds_of_model), card))
    found = sides.on_cuda(lambda: each(quick, seconds_on_gpu), 400)
    rates = [Rate(*three) for three in zip(cases(quick), found, modeled.result(), strict=True)]
    return Measured(product, card, rates, host, sides.on_cuda(sheet))


def run(quick: bool) -> Result:
    """Compare measured times with the virtual GPU's predictions.

    Args:
        quick: time fewer cases.
    """
    began = time.perf_counter()
    found = measure(quick)
    result = Result(notes=[
        f"{found.product}, compared with virtual {found.card.name}; torch {torch.__version__}. "
        "The error is predicted / measured - 1."])
    for group in TITLES:
        assess(group, [one for one in found.rates if one.case.group == group], found.card, result)
    for title, (measured, predicted) in found.host.items():
        result.tables.append(host_table(title, measured, predicted))
        result.failures += [f"{title}: {name}: the virtual GPU has no figure in {unit}"
                            for name, unit in measured if (name, unit) not in predicted]
    result.notes.append(f"The part took {time.perf_counter() - began:.0f} s.")
    return result


def assess(group: str, rates: list[Rate], card: Card, result: Result) -> None:
    """Add the table of a group, its mean error, and a failure for each case that failed.

    A case that both sides refuse is no failure if the GPU model lacks the case's arithmetic, such
    as fp8 on a V100.

    Args:
        group: one of TITLES.
        rates: times of the group's cases.
        card: the GPU model.
        result: receives the table, notes, and failures.
    """
    title = TITLES[group]
    result.tables.append(table(group, rates))
    errors = [error for one in rates if (error := error_of(one)) is not None]
    if errors:
        result.notes.append(f"{title}: mean absolute error of the time "
                            f"{mean(map(abs, errors)):.1%}, bias {mean(errors):+.1%}, over "
                            f"{len(errors)} row(s).")
    else:
        result.failures.append(f"{title}: no case ran on both sides")
    refused = []
    for one in rates:
        wrong = {side: value for side, value in (
            ("the GPU", one.measured), ("the virtual GPU", one.predicted))
            if isinstance(value, str)}
        if one.case.dtype not in card.tflops and len(wrong) == 2 and (
                all(map(sides.refused, wrong.values()))):
            refused.append(one.case.name)
        else:
            result.failures += [f"{one.case.name} did not run on {side}: {error}"
                                for side, error in wrong.items()]
    if refused:
        result.notes.append(f"{title}: refused by both sides: {'; '.join(refused)}.")


def error_of(rate: Rate) -> float | None:
    """Return the relative error of the predicted time, or None if either side did not run."""
    if isinstance(rate.measured, str) or isinstance(rate.predicted, str):
        return None
    return rate.predicted / rate.measured - 1


def table(group: str, rates: list[Rate]) -> Table:
    """Return the table of one group's cases."""
    by_flops = group in (MATMUL, ATTENTION)
    unit = "TFLOP/s" if by_flops else "GB/s"
    made = Table(TITLES[group], ["call", "measured, us", "predicted, us", "error",
                                 f"measured, {unit}", f"predicted, {unit}"])
    for one in rates:
        amount = one.case.flops / 1e12 if by_flops else one.case.bytes / 1e9
        times = (one.measured, one.predicted)
        micro = [time if isinstance(time, str) else round(1e6 * time, 2) for time in times]
        speeds = [None if isinstance(time, str) else round(amount / time, 1) for time in times]
        error = error_of(one)
        made.add(one.case.name, *micro, None if error is None else f"{error:+.1%}", *speeds)
    return made


def host_table(title: str, measured: Costs, predicted: Costs) -> Table:
    """Return a table of CPU costs, measured beside predicted."""
    made = Table(title, ["operation", "unit", "measured", "predicted", "error"])
    for (name, unit), value in measured.items():
        guess = predicted.get((name, unit))
        error = None if not guess or not value else f"{guess / value - 1:+.1%}"
        made.add(name, unit, round(value, 3), None if guess is None else round(guess, 3), error)
    return made
