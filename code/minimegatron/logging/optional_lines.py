"""Log lines of optional features: checkpoints, --log-throughput, validation, --timing-log-level.

As in megatron.py, scripts and people search logs for these lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch.distributed as dist

from minimegatron.context import Context
from minimegatron.logging.timers import LEVELS


def print_loading(ctx: Context, root: Path, iteration: int) -> None:
    ctx.print_rank_0(f" loading checkpoint from {root} at iteration {iteration}")


def print_checkpoint_version(ctx: Context, version: float) -> None:
    ctx.print_rank_0(f" checkpoint version {version}")


def print_loaded(ctx: Context, root: Path, iteration: int) -> None:
    ctx.print_rank_0(f"  successfully loaded checkpoint from {root} at iteration {iteration}")


def print_no_checkpoint(ctx: Context, tracker: Path) -> None:
    ctx.print_rank_0(f"WARNING: could not find the metadata file {tracker} ")
    ctx.print_rank_0("    will not load any checkpoints and will start from random")


def print_saving(ctx: Context, root: Path, iteration: int) -> None:
    ctx.print_rank_0(f"saving checkpoint at iteration {iteration:7d} to {root}")


def print_saved(ctx: Context, root: Path, iteration: int) -> None:
    ctx.print_rank_0(f"  successfully saved checkpoint at iteration {iteration:7d} to {root}")


def throughput_line(rate: float, peaks: Sequence[tuple[str, float]]) -> str:
    """Return the line of --log-throughput, which Megatron-LM does not have.

    Args:
        rate: model TFLOP/s per device.
        peaks: name and TFLOP/s of each known peak of the device.
    """
    shares = "".join(f" | share of the {name}: {100 * rate / peak:.1f}%" for name, peak in peaks)
    return f" model TFLOP/s per device: {rate:.4f}{shares} |"


def theoretical_memory_line(states: float, activations: float) -> str:
    """Return the line of the memory that the formulas predict.

    Args:
        states: parameters, gradients, and optimizer states of the fullest rank, in bytes.
        activations: saved for backward on that rank, in bytes.
    """
    return (f"Theoretical memory footprints: weight and optimizer={states / 2**20:.2f} MB, "
            f"activation={activations / 2**20:.2f} MB, "
            f"total={(states + activations) / 2**20:.2f} MB")


def validation_lines(prefix: str, loss: float) -> list[str]:
    """Return the validation line between two rules.

    Args:
        prefix: when and on which data, such as "iteration 100".
        loss: mean loss per token.
    """
    line = (f" validation loss at {prefix} | lm loss value: {loss:.6E} "
            f"| lm loss PPL: {perplexity(loss):.6E} | ")
    rule = "-" * (len(line) + 1)
    return [rule, line, rule]


def perplexity(loss: float) -> float:
    """Return exp(loss), limited to exp(20) as in Megatron-LM."""
    return math.exp(min(20, loss))


def print_times_of_ranks(ctx: Context, seconds: Mapping[str, float], label: str) -> None:
    """Print the times of a step on all ranks, for --timing-log-level; every rank must call it.

    Args:
        seconds: by timer, on this rank.
        label: name of the virtual GPU, if the times are modeled.
    """
    ranks: list[Mapping[str, float]] = [{}] * ctx.grid.world_size
    dist.all_gather_object(ranks, seconds)
    lines = times_of_ranks(ctx.config.timing_log_option, ranks)
    if lines:
        lines[0] += f" {label}" if label else ""
        ctx.print_rank_last("\n".join(lines))  # one write, so that no other rank prints in between


def times_of_ranks(option: str, ranks: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the time lines of today's Megatron-LM.

    Args:
        option: --timing-log-option: "max", "minmax", or "all".
        ranks: seconds by timer on each rank; a timer that did not run on a rank is left out.
    """
    names = [name for name in LEVELS if any(name in rank for rank in ranks)]
    if not names:
        return []
    lines = [{"max": "max time across ranks (ms):", "all": "times across ranks (ms):",
              "minmax": "(min, max) time across ranks (ms):"}[option]]
    for name in names:
        times = {at: 1000 * rank[name] for at, rank in enumerate(ranks) if name in rank}
        low, high = min(times.values()), max(times.values())
        if option == "all":
            lines.append(f"  {name}:")
            lines += [f"     rank {at:2d}: {value:.2f}" for at, value in times.items()]
        else:
            value = f"{high:.2f}" if option == "max" else f"({low:.2f}, {high:.2f})"
            lines.append(f"    {(name + ' ').ljust(48, '.')}: {value}")
    return lines
