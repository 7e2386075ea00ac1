"""Predict published FP8 speed-ups on virtual GPUs, and write the errors.

    python benchmarks/fp8.py > benchmarks/results/fp8_speedups.md

Every row runs the forward and backward passes of its linear layers on a virtual GPU, in bf16 and in
FP8. FP8 adds one kernel per tensor for the amax ("tensorwise"), one for the cast, and one for the
copy of the transpose that the backward pass needs; block scales are computed within casts from
bf16, one along the rows and one along the columns. The time is that of all kernels, so the host is
assumed to run ahead.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F

from virtualgpu.core import kernels
from virtualgpu.core.cards import CARDS
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.precisions import mx_scales

PUBLISHED = Path(__file__).with_name("fp8_speedups.json")
BF16, E4M3, E5M2, MX = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
BLOCKS = ("blockwise", "mxfp8")
ABOUT = """# FP8 speed-ups, published and predicted

Made by `python benchmarks/fp8.py`. A speed-up is the time in bf16 over the time in FP8. Nothing
was fitted to these rows: the rates are those of single GEMMs from other sources
(`virtualgpu/core/cards`). But all rows were known when the program was written, so none is a blind
prediction. B300 rows are predicted with the b200, and H200 NVL rows with the h200, which draws
more power. Steps are those of one GPU, without the optimizer, recomputation, and communication.
The smallest layer is predicted too slow in FP8: its kernels take 2 us or more each, and nothing is
fused.

""".splitlines()


def empty(*shape: int, dtype: torch.dtype = BF16, grad: bool = False) -> torch.Tensor:
    """Return a tensor on the virtual GPU."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def scales(recipe: str, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales of [m, k] x [k, n] under a recipe."""
    if recipe == "blockwise":
        blocks = -(-k // 128)
        return empty(m, blocks, dtype=torch.float), empty(blocks, n, dtype=torch.float)
    if recipe == "mxfp8":
        return tuple(empty(mx_scales(rows, -(-k // 32)), dtype=MX) for rows in (m, n))
    return empty(dtype=torch.float), empty(dtype=torch.float)


def quantize(x: torch.Tensor, recipe: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return x [m, k] and its transpose [k, m] in FP8, both with contiguous rows."""
    if recipe == "tensorwise":
        x.amax()
    elif recipe in BLOCKS:
        return [x.to(E4M3), empty(*x.t().shape).to(E4M3)]
    by_row = x.to(dtype)
    return [by_row, by_row.t().contiguous()]


def multiply(a: torch.Tensor, b: torch.Tensor, recipe: str) -> torch.Tensor:
    """Multiply a [m, k] with the transpose of b [n, k]."""
    factors = scales(recipe, a.shape[0], b.shape[0], a.shape[1])
    return torch._scaled_mm(a, b.t(), *factors, out_dtype=BF16)


def linear(tokens: int, inputs: int, outputs: int, recipe: str, casts: bool) -> None:
    """Run both passes of a linear layer, with or without the casts to FP8."""
    x, w, g = empty(tokens, inputs), empty(outputs, inputs), empty(tokens, outputs)
    if recipe == "bf16":
        x @ w.t(), g @ w, g.t() @ x
        return
    grad = E4M3 if recipe in BLOCKS else E5M2
    pairs = [quantize(one, recipe, dtype) if casts else
             [empty(*one.shape, dtype=dtype), empty(*one.t().shape, dtype=dtype)]
             for one, dtype in ((x, E4M3), (w, E4M3), (g, grad))]
    (x8, x8_t), (w8, w8_t), (g8, g8_t) = pairs
    multiply(x8, w8, recipe), multiply(g8, w8_t, recipe), multiply(g8_t, x8_t, recipe)


def rest(step: dict, tokens: int) -> None:
    """Run what stays in bf16 of one Llama layer: attention, norms, SwiGLU, and residuals.

    Args:
        step: the model.
        tokens: of the micro-batch.
    """
    width = step["hidden"]
    x = empty(tokens, width, grad=True)
    heads = [empty(tokens // step["sequence"], step["heads"], step["sequence"],
                   width // step["heads"], grad=True) for _ in "qkv"]
    out = torch.ops.aten._scaled_dot_product_flash_attention(*heads, 0.0, True)[0]
    out.backward(empty(*out.shape))
    for _ in range(2):
        normed = F.rms_norm(x, (width,), empty(width, grad=True)) + x
        normed.backward(empty(*x.shape))
    gated = kernels.swiglu(empty(tokens, 7 * width, grad=True))
    gated.backward(empty(*gated.shape))


def seconds(row: dict, recipe: str) -> float:
    """Return the time of all kernels of a published row under a recipe or "bf16"."""
    step = row.get("step")
    with VirtualGpu(CARDS[row["card"]]) as gpu:
        for inputs, outputs in row["shapes"]:
            linear(row["tokens"], inputs, outputs, recipe, row["casts"])
        if step:
            rest(step, row["tokens"])
            layer = gpu.computing
            linear(row["tokens"], step["hidden"], step["vocabulary"], "bf16", False)
            return step["layers"] * layer + gpu.computing - layer
    return gpu.computing


def predict(row: dict) -> float:
    """Return the speed-up that virtual GPUs predict for a published row."""
    return seconds(row, "bf16") / seconds(row, row["recipe"])


def report() -> str:
    """Return the table of published and predicted speed-ups, as Markdown."""
    published = json.loads(PUBLISHED.read_text())
    lines = [*ABOUT,
             "| row | GPU | recipe | tokens | published | predicted | error | source |",
             "|---|---|---|---|---|---|---|---|"]
    errors = []
    for row in published["rows"]:
        found = predict(row)
        errors.append(found / row["published"] - 1)
        what = row["what"]
        if len(row["shapes"]) == 1:
            what += " from {} to {}".format(*row["shapes"][0])
        lines.append(f"| {what} | {row['measured_on']} | {row['recipe']} | "
                     f"{row['tokens']:,} | {row['published']:.2f} | {found:.2f} | "
                     f"{errors[-1]:+.1%} | {row['source']} |")
    mean = sum(map(abs, errors)) / len(errors)
    lines += ["", f"The mean error is {mean:.1%}, the largest {max(errors, key=abs):+.1%}.", ""]
    lines += [f"- {name}: {text}" for name, text in published["sources"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(report(), end="")
