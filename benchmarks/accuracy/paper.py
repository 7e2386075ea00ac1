"""Activation memory, ZeRO's memory, and parameters against the papers' formulas and figures."""

from __future__ import annotations

from benchmarks.accuracy.report import signed, table
from benchmarks.accuracy.rows import gpt_of, load_set
from benchmarks.accuracy.trainer import configure, estimator
from minimegatron.formulas import layer_activations, parameters, zero_bytes
from virtualgpu.core.cards import find

FULL = "--recompute-granularity full --recompute-method uniform "
SELECTIVE = "--recompute-activations --sequence-parallel "
# Korthikanti et al.'s table 2, by its rows: flags, and what formulas.layer_activations is told.
MODES = {
    "no parallelism": ("", 1, {}),
    "tensor": ("", 8, {}),
    "tensor + sequence": ("--sequence-parallel", 8, {"sequence_parallel": True}),
    "tensor + selective": ("--recompute-activations", 8, {"recompute": "selective"}),
    "tensor + sequence + selective": (SELECTIVE, 8, {"sequence_parallel": True,
                                                     "recompute": "selective"}),
    "full": (FULL, 8, {"recompute": "full"}),
}
# Rajbhandari et al. 2020 (ZeRO), figure 1 and section 3: GB per GPU of a 7.5B model, mixed
# precision with Adam (K = 12): {GPUs: (stage 0, 1, 2, 3)}.
ZERO_PARAMETERS = 7.5e9
ZERO_GB = {64: (120, 31.4, 16.6, 1.9)}


def measured_layer(row: dict, tp: int, flags: str) -> float:
    """Return the bytes that one more layer saves for the backward of a micro-batch.

    Args:
        row: a model of Korthikanti et al.
        tp: tensor-parallel size.
        flags: of the mode.
    """
    saved = []
    for layers in (2, 3):
        shape = {**row, "layers": layers, "tp": tp, "pp": 1, "gpus": tp, "more_flags": flags,
                 "batch": row["micro_batch"]}
        saved.append(estimator(find("a100-80gb")).activation_bytes(
            configure(shape), row["vocabulary"]))
    return saved[1] - saved[0]


def activations() -> list[str]:
    """Return the comparison with Korthikanti et al.'s table 2."""
    rows, errors = [], []
    for row in load_set("korthikanti_2022").rows[::2]:
        for mode, (flags, tp, told) in MODES.items():
            measured = measured_layer(row, tp, flags)
            paper = layer_activations(gpt_of(row), row["micro_batch"], tp, **told)
            errors.append(abs(measured / paper - 1))
            rows.append([row["name"].split(",")[0], mode, f"{measured / 2**20:.1f}",
                         f"{paper / 2**20:.1f}", signed(measured / paper - 1)])
    return ["## Korthikanti et al. 2022, table 2: MiB that a layer saves for the backward pass", "",
            f"Largest error {max(errors):.1%}.", "",
            *table("model|mode|virtual memory|formula|error", rows)]


def formulas() -> list[str]:
    """Return the comparison with the figures of ZeRO and of Narayanan et al."""
    rows, errors = [], []
    for gpus, published in ZERO_GB.items():
        for stage, gigabytes in enumerate(published):
            found = zero_bytes(stage, gpus).total * ZERO_PARAMETERS / 1e9
            errors.append(abs(found / gigabytes - 1))
            rows.append([f"{gpus}", f"{stage}", f"{found:.2f}", f"{gigabytes}",
                         signed(found / gigabytes - 1)])
    models = load_set("narayanan_2021").rows
    exact = sum(f"{parameters(gpt_of(row)) / 1e9:.1f}B" == row["name"] for row in models)
    return ["## Formulas", "",
            f"ZeRO, 7.5 billion parameters: largest error {max(errors):.1%}. Parameters in "
            f"Narayanan et al.'s table 1: {exact} of {len(models)} exact to the digits given.", "",
            *table("GPUs|ZeRO stage|GB|published|error", rows)]
