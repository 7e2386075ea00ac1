"""Step time, MFU, and peak memory of whole models, measured and modeled"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks.gpu.parity import AT_ONCE
from benchmarks.gpu.result import Result, Table
from benchmarks.gpu.trainer import Run, TrainerFailed, data_flags, train
from virtualgpu.core import cards
from virtualgpu.core.card import Card

LIMIT = 600
ITERATIONS, WARM = 10, 4  # step times are medians over iterations WARM to ITERATIONS
LENGTH = 1024
COMMON = ("--eval-iters 0 --lr 1e-4 --log-interval 1 --hidden-dropout 0 --attention-dropout 0 "
          "--make-vocab-size-divisible-by 50304 --log-throughput ")
SIZES = {  # GPT-2 small and medium (Radford et al. 2019), GPT-3 XL (Brown et al. 2020)
    "124M": "--num-layers 12 --hidden-size 768 --num-attention-heads 12",
    "350M": "--num-layers 24 --hidden-size 1024 --num-attention-heads 16",
    "1.3B": "--num-layers 24 --hidden-size 2048 --num-attention-heads 16",
}
PRECISIONS = {"fp32": "", "TF32": "", "bf16": "--bf16", "fp16": "--fp16"}
FLASH = "--use-flash-attn"
TF32 = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}  # all matmuls of the trainer are in cuBLAS
COLUMNS = ["model", "precision", "tokens/s", "step (ms)", "virtual step (ms)", "step error", "MFU",
           "allocated (GB)", "virtual allocated (GB)", "allocated error", "reserved (GB)",
           "virtual reserved (GB)", "reserved error"]


def sequences(length: int, micro: int, batch: int, iterations: int = ITERATIONS) -> str:
    """Return the flags of the batch size and the number of steps.

    Args:
        length: tokens per sequence.
        micro: micro-batch size.
        batch: global batch size.
        iterations: training steps.
    """
    return (f"--seq-length {length} --max-position-embeddings {length} --micro-batch-size {micro} "
            f"--global-batch-size {batch} --train-iters {iterations} ")


def cases(quick: bool) -> dict[tuple[str, str], str]:
    """Return the flags of each row by (model, precision)."""
    rows = {("1.3B, flash attention", "bf16"): (
        f"{SIZES['1.3B']} --bf16 {FLASH} {sequences(2048, 4, 16)}")}
    if quick:
        return rows
    for size, micro in (("124M", 8), ("350M", 8)):
        for precision, flags in PRECISIONS.items():
            rows[f"{size}, flash attention", precision] = (
                f"{SIZES[size]} {flags} {FLASH} {sequences(LENGTH, micro, 2 * micro)}")
    rows["124M, core attention", "bf16"] = f"{SIZES['124M']} --bf16 {sequences(LENGTH, 8, 16)}"
    rows["1.3B, full recomputation", "bf16"] = (
        f"{SIZES['1.3B']} --bf16 {FLASH} --recompute-granularity full --recompute-method uniform "
        f"{sequences(2048, 4, 8)}")
    return rows


def run(quick: bool) -> Result:
    """Train each model on GPU 0 and on its virtual twin.

    Args:
        quick: train only the largest model.
    """
    product, result = torch.cuda.get_device_name(0), Result()
    card = cards.card_by_product(product)
    result.notes += [
        f"Step times are medians over steps {WARM} to {ITERATIONS} of a single run. They include "
        "idle time between kernels and the transfer of each batch. MFU is the model FLOP/s "
        "(causal attention counts half) divided by the data sheet's dense peak.",
        "TF32 rows switch TF32 on in cuBLAS; fp32 rows compute in full fp32. 1 GB is 10^9 bytes. "
        "Allocated and reserved memory are PyTorch's peaks.",
        f"Virtual columns come from the same command line with --device virtual:{card.name}."
        if card else f"There is no GPU model of a {product}, so the virtual columns are empty."]
    table = Table(f"The trainer on one {product}", COLUMNS)
    result.tables.append(table)
    with data_flags() as data:
        flags = {key: COMMON + data + row for key, row in cases(quick).items()}
        twins = virtual_runs(card, flags, result) if card else {}
        for (model, precision), words in flags.items():
            try:
                real = train(words, **(TF32 if precision == "TF32" else {}))
            except TrainerFailed as error:
                result.failures.append(f"{model}, {precision}: {error}")
                continue
            add(table, (model, precision), words, real, twins.get((model, precision)), card)
            result.save_so_far()
    return result


def virtual_runs(card: Card, flags: dict[tuple[str, str], str], result: Result
                 ) -> dict[tuple[str, str], Run]:
    """Train every row on a virtual GPU, several at a time, before the real runs need the CPU.

    Args:
        card: the GPU model.
        flags: command lines by (model, precision).
        result: receives a failure for each run that failed.
    """
    def one(key: tuple[str, str]) -> Run | None:
        try:  # the trainer has no flag for TF32 on a virtual GPU
            return None if key[1] == "TF32" else train(flags[key], f"virtual:{card.name}")
        except TrainerFailed as error:
            result.failures.append(f"{', '.join(key)}, on a virtual {card.name}: {error}")
            return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = pool.map(one, flags)
        return {key: run for key, run in zip(flags, runs, strict=True) if run is not None}


def add(table: Table, key: tuple[str, str], flags: str, real: Run, twin: Run | None,
        card: Card | None) -> None:
    """Add one row: measured and modeled figures, and the relative error of the model.

    Args:
        table: receives the row.
        key: (model, precision).
        flags: command line of the run.
        real: the run on the GPU.
        twin: the run on the virtual GPU, if there is one.
        card: the GPU model, if there is one.
    """
    step = real.milliseconds(WARM)
    tokens = number(flags, "--global-batch-size") * number(flags, "--seq-length")
    peak = card and card.tflops.get(key[1].lower())
    rate = re.findall(r"model TFLOP/s per device: (\S+)", real.text)
    # The logged rate is that of the last step; scale it to the median step time.
    last = max(real.steps)
    rate = float(rate[-1].rstrip(",")) * real.steps[last].milliseconds / step if rate else None
    cells: list = [*key, round(1000 * tokens / step), step]
    pairs = [(step, twin and twin.milliseconds(WARM)), (real.allocated, twin and twin.allocated),
             (real.reserved, twin and twin.reserved)]
    for at, (measured, modeled) in enumerate(pairs):
        scale = 1 if at == 0 else 1e9
        if at:
            cells.append(measured and measured / scale)
        cells += [modeled and modeled / scale,
                  f"{modeled / measured - 1:+.1%}" if modeled and measured else None]
        if at == 0:
            cells.append(f"{rate / peak:.1%}" if rate and peak else None)
    table.add(*cells)


def number(flags: str, name: str) -> int:
    """Return the value of an integer flag on a command line."""
    return int(re.search(rf"{name} (\d+)", flags)[1])
