"""What a run prints and plots: Megatron's lines, and TensorBoard under Megatron's tags."""

from __future__ import annotations

import dataclasses
import math
import os
from datetime import datetime
from typing import TYPE_CHECKING

from minimegatron.arguments import Config
from minimegatron.context import Context

if TYPE_CHECKING:
    from minimegatron.checkpoint.save import Progress


def print_arguments(ctx: Context, extra: dict[str, object]) -> None:
    """The table of all arguments, sorted without regard to case."""
    ctx.say("------------------------ arguments ------------------------")
    values = {**dataclasses.asdict(ctx.config), **extra}
    for name in sorted(values, key=str.lower):
        ctx.say(f"  {name} {'.' * (48 - len(name))} {values[name]}")
    ctx.say("-------------------- end of arguments ---------------------")


def print_datetime(ctx: Context, what: str) -> None:
    ctx.say(f"[{what}] datetime: {datetime.now():%Y-%m-%d %H:%M:%S} ")


def iteration_line(config: Config, *, iteration: int, consumed: int, milliseconds: float,
                   lr: float, loss: float | None, norm: float | None, zeros: float | None,
                   params_norm: float | None, nans: int, throughput: float | None = None,
                   loss_scale: float = 1.0, skipped: int = 0, label: str = "") -> str:
    """One iteration line; a loss or a norm of None (no value on this device) is left out.
    label: of a device whose figures are modeled."""
    core = config.log_format == "core"
    parts = [f" iteration {iteration:8d}/{config.train_iters:8d}",
             f" consumed samples: {consumed:12d}",
             f" elapsed time per iteration (ms): {milliseconds:.1f}",
             *([] if throughput is None else
               [f" throughput per GPU (TFLOP/s/GPU): {throughput:.1f}"]),
             f" learning rate: {lr:.6E}" if core else f" learning rate: {lr:.3E}",
             f" global batch size: {config.global_batch_size:5d}"]
    if loss is not None:
        parts.append(f" lm loss: {loss:.6E}")
    parts.append(f" loss scale: {loss_scale:.1f}")
    for name, value, digits in (("grad norm", norm, 3), ("num zeros", zeros, 1),
                                ("params norm", params_norm, 3)):
        if value is not None:
            parts.append(f" {name}: {value:.{digits}f}")
    parts.append(f" number of skipped iterations: {skipped:3d}")
    parts.append(f" number of nan iterations: {nans:3d}")
    if label:
        parts.append(f" {label}")
    stamp = f" [{datetime.now():%Y-%m-%d %H:%M:%S.%f}]" if core else ""
    return stamp + " |".join(parts) + " |"


def memory_line(ctx: Context, iteration: int) -> str:
    """The line of `[Rank r] memory (MB)`; on the CPU it is the resident set of the process."""
    memory = ctx.device.memory()
    names = ("allocated", "max allocated", "reserved", "max reserved")
    values = " | ".join(f"{name}: {size / 2**20}"
                        for name, size in zip(names, dataclasses.astuple(memory), strict=True))
    label = f" | {ctx.device.label}" if ctx.device.label else ""
    return f"[Rank {ctx.grid.rank}] (after {iteration} iterations) memory (MB) | {values}{label}"


def validation_lines(prefix: str, loss: float) -> list[str]:
    line = (f" validation loss at {prefix} | lm loss value: {loss:.6E} "
            f"| lm loss PPL: {perplexity(loss):.6E} | ")
    rule = "-" * (len(line) + 1)
    return [rule, line, rule]


def perplexity(loss: float) -> float:
    return math.exp(min(20, loss))


class TensorBoard:
    """Scalars of the last rank; does nothing on the other ranks or without --tensorboard-dir."""

    def __init__(self, ctx: Context) -> None:
        self.config, self.writer = ctx.config, None
        if ctx.config.tensorboard_dir and ctx.grid.is_last_rank:
            from torch.utils.tensorboard import SummaryWriter  # slow to import: only where needed

            self.writer = SummaryWriter(ctx.config.tensorboard_dir,
                                        max_queue=ctx.config.tensorboard_queue_size)
            for name, value in dataclasses.asdict(ctx.config).items():
                self.writer.add_text(name, str(value))
            if ctx.device.label:
                self.writer.add_text("times and memory are modeled", ctx.device.label)

    def is_due(self, iteration: int) -> bool:
        """Whether this iteration is plotted: the same answer on every rank."""
        config = self.config
        return bool(config.tensorboard_dir) and iteration % config.tensorboard_log_interval == 0

    def scalar(self, tag: str, value: float | None, iteration: int,
               samples: int | None = None) -> None:
        """One point, and its twin over samples where `samples` is given."""
        if self.writer is None or value is None:
            return
        self.writer.add_scalar(tag, value, iteration)
        if samples is not None:
            self.writer.add_scalar(f"{tag} vs samples", value, samples)

    def validation(self, loss: float, progress: Progress) -> None:
        at = progress.iteration, progress.consumed_train_samples
        self.scalar("lm loss validation", loss, *at)
        if self.config.log_validation_ppl_to_tensorboard:
            self.scalar("lm loss validation ppl", perplexity(loss), *at)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class Profiler:
    """The device's profiler around steps 3 and 4 of every rank, or of --profile-ranks.

    They are workers run_NAME_gpuRANK of one TensorBoard run, run_NAME: its distributed view
    compares the workers of a run. The first step is not watched, the second warms the profiler up.
    """

    def __init__(self, ctx: Context) -> None:
        self.profile = None
        config = ctx.config
        if not config.profile_execution or ctx.grid.rank not in (
                config.profile_ranks or range(ctx.grid.world_size)):
            return
        name = f"run_{config.profile_name}"
        self.profile = ctx.device.profile(os.path.join(config.tensorboard_dir, name),
                                          f"{name}_gpu{ctx.grid.rank}")
        self.profile.start()

    def step(self) -> None:
        if self.profile is not None:
            self.profile.step()

    def stop(self) -> None:
        if self.profile is not None:
            self.profile.stop()

