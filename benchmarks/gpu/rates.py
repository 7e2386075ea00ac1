"""Rates of single calls, and what the virtual GPU predicts for them

Each call is timed with CUDA events around many launches that the host has queued beforehand, after
a warm-up, on random operands that rotate through more memory than the L2 cache holds. The median
of the repeats counts. The virtual GPU runs the same code.
"""

from __future__ import annotations

import functools
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
CYCLES = 1.7e9  # of the GPU's clock in a second, roughly: how long it sleeps while the host queues
TITLES = {MATMUL: "Matrix multiplication, m x n x k", ATTENTION: "Attention",
          BANDWIDTH: "Calls that the memory limits", OPTIMIZER: "Optimizer steps"}


@dataclass(frozen=True)
class Rate:
    """One case, measured and predicted, in seconds; a text where it did not run.

    Attributes:
        case: what was called.
        measured: on the GPU.
        predicted: by the virtual GPU.
    """

    case: Case
    measured: float | str
    predicted: float | str


@dataclass(frozen=True)
class Measured:
    """All rates of a machine.

    Attributes:
        product: the GPU's name.
        card: the GPU model that it was compared with.
        rates: of single calls.
        host: measured and predicted costs of the host, by name.
        sheet: the GPU's own properties.
    """

    product: str
    card: Card
    rates: list[Rate]
    host: dict[str, tuple[Costs, Costs]]
    sheet: dict[str, float]


def seconds_on_gpu(case: Case) -> float:
    """Return the time of one call on a real GPU."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    calls = [case.make()]
    size = max(1, torch.cuda.memory_allocated() - before)
    calls += [case.make() for _ in range(min(MOST_SETS, ROTATED // size))]
    one, queued = _timed(calls, 3), max(16, 8 * len(calls))
    launches = max(3, min(queued, 64, int(BATCH / one)))
    return median(_timed(calls, launches) for _ in range(REPEATS))


def _timed(calls: list[Callable[[], object]], launches: int) -> float:
    """Seconds per call, with so many launches between two events.

    The GPU sleeps while the host queues them, so that no launch is late.
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
    """Return the modeled time of one call's kernels."""
    gpu = Ledger.current.gpu
    call = case.make()
    call()
    before = gpu.computing
    call()
    return gpu.computing - before


def each(quick: bool, seconds: Callable[[Case], float]) -> list[float | str]:
    """The time of every case, or why it did not run."""
    found: list[float | str] = []
    for case in cases(quick):
        try:
            found.append(seconds(case))
        except Exception as error:
            found.append(f"{type(error).__name__}: {str(error).splitlines()[0]}"[:90])
    return found


def sheet() -> dict[str, float]:
    """What CUDA reports of the GPU."""
    torch.ones(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    found = torch.cuda.get_device_properties(0)
    named = {name: float(getattr(found, name)) for name in (
        "multi_processor_count", "memory_clock_rate", "memory_bus_width", "clock_rate",
        "L2_cache_size") if hasattr(found, name)}
    return {**named, "total": total, "context": total - free - torch.cuda.memory_reserved()}


@functools.cache
def measure(quick: bool) -> Measured:
    """Measure this machine's first GPU. Raises sides.Failed without one."""
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
    """Measure, and compare with the virtual GPU."""
    began = time.perf_counter()
    found = measure(quick)
    tables = [table(group, [one for one in found.rates if one.case.group == group])
              for group in TITLES]
    tables += [host_table(name, *costs) for name, costs in found.host.items()]
    notes = [f"{found.product}, compared with virtual {found.card.name}; "
             f"torch {torch.__version__}. The error is predicted / measured - 1."]
    for group, title in TITLES.items():
        errors = [error for one in found.rates if one.case.group == group
                  if (error := error_of(one)) is not None]
        if errors:
            notes.append(f"{title}: mean absolute error of the time "
                         f"{mean(map(abs, errors)):.1%}, bias {mean(errors):+.1%}, in "
                         f"{len(errors)} rows.")
    notes.append(f"The part took {time.perf_counter() - began:.0f} s.")
    return Result(tables, notes, [])


def error_of(rate: Rate) -> float | None:
    """Relative error of the predicted time; None where one of the two did not run."""
    if isinstance(rate.measured, str) or isinstance(rate.predicted, str):
        return None
    return rate.predicted / rate.measured - 1


def table(group: str, rates: list[Rate]) -> Table:
    """The rows of one group."""
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
    """Costs of the host."""
    made = Table(title, ["what", "unit", "measured", "predicted", "error"])
    for (name, unit), value in measured.items():
        guess = predicted.get((name, unit))
        error = None if not guess or not value else f"{guess / value - 1:+.1%}"
        made.add(name, unit, round(value, 3), None if guess is None else round(guess, 3), error)
    return made
