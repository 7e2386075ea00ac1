"""What must hold between the flags of the number formats, and of the data-parallel sums."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from minimegatron.arguments.flags import Config
from minimegatron.errors import UserError

OF_THE_SCALER = ("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")
LARGEST = 2.0**127  # of fp32's powers of two


def check_precision(config: Config) -> Config:
    """Raises UserError; fills in what --bf16 and the number of replicas imply."""
    if config.fp16 and config.bf16:
        raise UserError("--fp16 with --bf16: weights have one type; nearest: --bf16 alone")
    check_scaler(config)
    if config.accumulate_allreduce_grads_in_fp32 and not (config.fp16 or config.bf16):
        raise UserError("--accumulate-allreduce-grads-in-fp32: without --fp16 or --bf16 everything "
                        "is in fp32; nearest: leave it out")
    size = config.ddp_bucket_size
    if size is None:
        size = max(40_000_000, 1_000_000 * config.data_parallel_size)
    return replace(config, ddp_bucket_size=size, accumulate_allreduce_grads_in_fp32=(
        config.accumulate_allreduce_grads_in_fp32 or config.bf16))


def check_scaler(config: Config) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(Config)}
    for name in ("loss_scale", *OF_THE_SCALER):
        value, spelling = getattr(config, name), "--" + name.replace("_", "-")
        if value == defaults[name]:
            continue
        if not config.fp16:
            raise UserError(f"{spelling} {value} belongs to --fp16, which is not given; "
                            f"nearest: --fp16 {spelling} {value}")
        if name in OF_THE_SCALER and config.loss_scale is not None:
            raise UserError(f"{spelling} {value} with --loss-scale {config.loss_scale}: a fixed "
                            f"scale never changes; nearest: leave out one of them")
        if name.endswith("loss_scale") and not 0 < value <= LARGEST:
            raise UserError(f"{spelling} {value}: must be greater than 0 and at most 2**127; "
                            f"nearest: {spelling} {1.0 if value <= 0 else LARGEST}")
        if name in ("loss_scale_window", "hysteresis") and value < 1:
            raise UserError(f"{spelling} {value}: must be at least 1; nearest: {spelling} 1")
    if config.min_loss_scale > config.initial_loss_scale:
        raise UserError(f"--min-loss-scale {config.min_loss_scale} is greater than "
                        f"--initial-loss-scale {config.initial_loss_scale}; nearest: "
                        f"--min-loss-scale {config.initial_loss_scale}")
