"""A GPU model in the format of virtualgpu/core/cards, fitted to this machine's GPU

The file is only printed. To apply it, edit the GPU model in models.py there by hand, and cite the
source.
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
    """Measure the GPU's rates, and propose a GPU model.

    Args:
        quick: time fewer cases.
    """
    found = measure(quick)
    proposed = propose(found)
    table = Table("Proposed figures", ["figure", f"virtual {found.card.name}", "proposed"])
    old, new = found.card.efficiency, proposed.efficiency
    for kind in sorted({*old.matmul, *new.matmul}):
        table.add(f"matmul, {kind}, fraction of the peak", old.matmul.get(kind),
                  new.matmul.get(kind))
    for name in ("vector", "attention", "kernel", "dispatch"):
        table.add(name, getattr(old, name), getattr(new, name))
    for name in ("memory", "context", "sms", "bandwidth", "pcie"):
        table.add(name, getattr(found.card, name), getattr(proposed, name))
    file = Table("The file", ["line"], [[line] for line in source(proposed).splitlines()])
    return Result([table, file], [
        "Fractions are relative to the data sheet's peaks, which this part does not measure. The "
        f"matmul fractions are medians over multiplications of more than {LARGE:.0e} FLOPs with "
        "sizes divisible by 8, in bursts of a few milliseconds; a GPU under load for minutes is "
        "slower. `dispatch` is the launch overhead of a small addition; most operations cost the "
        "CPU more (see `rates`).",
        "Nothing was applied."], [
        f"{name}: not measured, so the proposed figure is that of virtual {found.card.name}"
        for name in unmeasured(found)])


def propose(found: Measured) -> Card:
    """Return the GPU model with the measured figures in place of its own."""
    card, sheet = found.card, found.sheet
    matmul = {kind: fraction for kind in KINDS if kind in card.tflops
              and (fraction := fraction_of_peak(found, kind)) is not None}
    vector, attention = vector_fractions(found), attention_fractions(found)
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


def unmeasured(found: Measured) -> list[str]:
    """Return the figures that nothing measured, though the GPU has the arithmetic for them."""
    figures = {f"matmul, {kind}": fraction_of_peak(found, kind) for kind in KINDS
               if kind in found.card.tflops}
    figures |= {"vector": vector_fractions(found), "kernel": ran(found, BANDWIDTH),
                "bandwidth": memory_speed(found.sheet)}
    if "bf16" in found.card.tflops:
        figures["attention"] = attention_fractions(found)
    return [name for name, measured in figures.items() if not measured]


def vector_fractions(found: Measured) -> list[float]:
    """Return the fractions of the memory bandwidth that large elementwise kernels reach."""
    return [one.case.bytes / one.measured / found.card.bandwidth for one in ran(found, BANDWIDTH)
            if one.case.name.startswith(("copy", "add", "mul by", "GELU"))
            and one.case.bytes > 2**28]


def attention_fractions(found: Measured) -> list[float]:
    """Return the fractions of the bf16 peak that PyTorch's choice of attention kernel reaches."""
    return [one.case.flops / one.measured / (found.card.tflops["bf16"] * 1e12)
            for one in ran(found, ATTENTION) if one.case.name.startswith("default bf16")
            and "bf16" in found.card.tflops]


def ran(found: Measured, group: str) -> list[Rate]:
    """Return the cases of a group that ran on the GPU."""
    return [one for one in found.rates
            if one.case.group == group and not isinstance(one.measured, str)]


def fraction_of_peak(found: Measured, kind: str) -> float | None:
    """Return the fraction of the peak that large, aligned matrix multiplications reach."""
    reached = [one.case.flops / one.measured / (found.card.tflops[kind] * 1e12)
               for one in ran(found, MATMUL) if one.case.dtype == kind and one.case.flops > LARGE
               and all(int(word) % 8 == 0 for word in one.case.name.split() if word.isdigit())]
    return round(median(reached), 3) if reached else None


def memory_speed(sheet: dict[str, float]) -> float | None:
    """Return the bytes/s of memory with this clock and bus width, at two transfers per cycle."""
    clock, width = sheet.get("memory_clock_rate"), sheet.get("memory_bus_width")
    return 2 * clock * 1e3 * width / 8 if clock and width else None


def source(card: Card) -> str:
    """Return a GPU model as the source code of its file in virtualgpu/core/cards."""
    best = card.efficiency
    fields = {name: getattr(card, name) for name in (
        "name", "product", "architecture", "memory", "bandwidth", "tflops", "sms", "nvlink",
        "pcie", "peer", "network", "node", "context")}
    efficiency = {name: getattr(best, name) for name in (
        "matmul", "vector", "attention", "kernel", "dispatch", "link", "p2p", "pace")}
    lines = [f'"""{card.product}, as measured."""', "",
             "from virtualgpu.core.card import Card, Efficiency", "", "CARD = Card("]
    lines += [f"    {name}={value!r}," for name, value in fields.items()]
    lines += ["    efficiency=Efficiency("]
    lines += [f"        {name}={value!r}," for name, value in efficiency.items()]
    lines += ["    ),", f"    sources={card.sources!r},", ")"]
    return "\n".join(lines)
