"""A GPU file in the format of virtualgpu/core/cards, from the rates of this machine's GPU

It is only printed: nothing is applied. Change a model's file by hand, and name the source there.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from benchmarks.gpu.cases import ATTENTION, BANDWIDTH, MATMUL
from benchmarks.gpu.rates import Measured, Rate, measure
from benchmarks.gpu.result import Result, Table
from virtualgpu.core.card import Card

LARGE = 1e12  # FLOPs of a matrix multiplication that fills the GPU
KINDS = ("fp32", "tf32", "bf16", "fp16", "fp8")


def run(quick: bool) -> Result:
    """Propose a GPU model."""
    found = measure(quick)
    proposed = propose(found)
    table = Table("Proposed figures", ["figure", f"virtual {found.card.name}", "proposed"])
    old, new = found.card.efficiency, proposed.efficiency
    for kind in sorted({*old.matmul, *new.matmul}):
        table.add(f"matmul, {kind}, share of the peak", old.matmul.get(kind), new.matmul.get(kind))
    for name in ("vector", "attention", "kernel", "dispatch"):
        table.add(name, getattr(old, name), getattr(new, name))
    for name in ("memory", "context", "sms", "bandwidth", "pcie"):
        table.add(name, getattr(found.card, name), getattr(proposed, name))
    file = Table("The file", ["line"], [[line] for line in source(proposed).splitlines()])
    return Result([table, file], [
        "Shares are of the data sheet's peaks, which this part does not measure. The matmul shares "
        f"are medians over multiplications of at least {LARGE:.0e} FLOPs with sizes divisible "
        "by 8, in bursts of some milliseconds: a GPU that runs for minutes is slower. The launch "
        "cost is that of a small addition; most operations cost the host more (rates).",
        "Nothing was applied."])


def propose(found: Measured) -> Card:
    """The GPU model with the figures that were measured."""
    card, sheet = found.card, found.sheet
    matmul = {kind: share for kind in KINDS if kind in card.tflops
              and (share := share_of(found, kind)) is not None}
    vector = [one.case.bytes / one.measured / card.bandwidth for one in ran(found, BANDWIDTH)
              if one.case.name.startswith(("copy", "add", "mul by", "GELU")) and
              one.case.bytes > 2**28]
    attention = [one.case.flops / one.measured / (card.tflops["bf16"] * 1e12)
                 for one in ran(found, ATTENTION) if one.case.name.startswith("default bf16")]
    shortest = min((one.measured for one in ran(found, BANDWIDTH)), default=None)
    measured = {name: value for costs, _ in found.host.values() for (name, _), value in
                costs.items()}
    host = measured["x.add_(1)"] / 1e6
    copies = max(value for name, value in measured.items() if "pinned" in name) * 1e9
    old = card.efficiency
    return replace(
        card, memory=int(sheet["total"]), context=int(sheet["context"]),
        sms=int(sheet["multi_processor_count"]), pcie=round(copies, -8),
        bandwidth=round(memory_speed(sheet) or card.bandwidth, -9), sources=(
            f"measured on {found.product} by benchmarks/gpu/calibrate.py",),
        efficiency=replace(
            old, matmul={**old.matmul, **matmul},
            vector=round(median(vector), 3) if vector else old.vector,
            attention=round(median(attention), 3) if attention else old.attention,
            kernel=round(shortest, 8) if shortest else old.kernel, dispatch=round(host, 8)))


def ran(found: Measured, group: str) -> list[Rate]:
    """The cases of a group that ran."""
    return [one for one in found.rates
            if one.case.group == group and not isinstance(one.measured, str)]


def share_of(found: Measured, kind: str) -> float | None:
    """The share of the peak that large, aligned matrix multiplications reach."""
    shares = [one.case.flops / one.measured / (found.card.tflops[kind] * 1e12)
              for one in ran(found, MATMUL) if one.case.dtype == kind and one.case.flops > LARGE
              and all(int(word) % 8 == 0 for word in one.case.name.split() if word.isdigit())]
    return round(median(shares), 3) if shares else None


def memory_speed(sheet: dict[str, float]) -> float | None:
    """Bytes/s from the clock and width of the memory; two transfers per cycle."""
    clock, width = sheet.get("memory_clock_rate"), sheet.get("memory_bus_width")
    return 2 * clock * 1e3 * width / 8 if clock and width else None


def source(card: Card) -> str:
    """A Python file for core/cards."""
    best = card.efficiency
    fields = {name: getattr(card, name) for name in (
        "name", "product", "architecture", "memory", "bandwidth", "tflops", "half", "sms", "nvlink",
        "pcie", "peer", "network", "context")}
    shares = {name: getattr(best, name) for name in (
        "matmul", "vector", "attention", "kernel", "dispatch", "link", "p2p", "pace")}
    lines = [f'"""{card.product}, as measured."""', "",
             "from virtualgpu.core.card import Card, Efficiency", "", "CARD = Card("]
    lines += [f"    {name}={value!r}," for name, value in fields.items()]
    lines += ["    efficiency=Efficiency("]
    lines += [f"        {name}={value!r}," for name, value in shares.items()]
    lines += ["    ),", f"    sources={card.sources!r},", ")"]
    return "\n".join(lines)
