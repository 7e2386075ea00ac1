"""Flags of --estimate, which the trainer itself does not have."""

from __future__ import annotations

from dataclasses import dataclass

from minimegatron.arguments.table.bounds import AT_LEAST_1, NOT_NEGATIVE
from minimegatron.arguments.table.flag import (
    HARDWARE,
    NOTHING,
    PASSES,
    RESULTS,
    RelatedFlags,
    flag,
)

ESTIMATE = RelatedFlags(("estimate",), "{flag} belongs to --estimate, which is not given")


@dataclass(frozen=True)
class Planning:
    """Estimates (no training happens)."""

    estimate: bool = flag(
        False, "do not train: estimate the run's time and memory on --world-size virtual GPUs; "
        "data, vocabulary, and --lr are not needed", affects=RESULTS)
    world_size: int = flag(
        1, "with --estimate: number of GPUs (otherwise, the ranks that torchrun starts)",
        affects=HARDWARE, bounds=AT_LEAST_1, largest=100_000, needs=ESTIMATE)
    gpus_per_node: int = flag(
        8, "with --estimate: GPUs per node", affects=HARDWARE, bounds=AT_LEAST_1, needs=ESTIMATE)
    cluster: str | None = flag(
        None, "with --estimate: nodes in rank order instead of --device, --world-size, and "
        "--gpus-per-node, such as a100:4x2,a10:4x4", affects=HARDWARE, needs=ESTIMATE)
    vocab_size: int = flag(50257, "with --estimate: vocabulary size", affects=PASSES,
                           bounds=AT_LEAST_1, needs=ESTIMATE)
    tokens: float | None = flag(
        None, "with --estimate: tokens to train on (default: those of the iterations)",
        affects=NOTHING, bounds=AT_LEAST_1, needs=ESTIMATE)
    price_per_gpu_hour: float | None = flag(
        None, "with --estimate: dollars (default: a list price, if there is one)", affects=NOTHING,
        bounds=NOT_NEGATIVE, needs=ESTIMATE)
    json: bool = flag(False, "with --estimate: print JSON", affects=NOTHING, needs=ESTIMATE)
    plot: str | None = flag(None, "with --estimate: draw a figure to this .svg or .png file",
                            affects=NOTHING, needs=ESTIMATE)
