"""The log lines of Megatron-LM, in their exact format.

Scripts and people search logs for these lines, so their text must not change. Functions named
`print_*` print from one rank; the others return the text, because more than one program prints it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import torch.distributed as dist

from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.errors import emit
from minimegatron.timers import LEVELS


def print_world_size(config: Config, notes: Sequence[str]) -> None:
    """Print the first lines, before anything can fail on the network (rank 0 only).

    Args:
        config: the parsed command line.
        notes: remarks on the command line, such as derived values.
    """
    if config.rank != 0:
        return
    sizes = (f"using world size: {config.world_size}, data-parallel-size: "
             f"{config.data_parallel_size}, tensor-model-parallel size: "
             f"{config.tensor_model_parallel_size}, pipeline-model-parallel size: "
             f"{config.pipeline_model_parallel_size} ")
    emit("\n".join([sizes, *notes]))


def print_arguments(ctx: Context, padded_vocab_size: int) -> None:
    """Print the table of all arguments, sorted without regard to case."""
    ctx.print_rank_0("------------------------ arguments ------------------------")
    values = {**dataclasses.asdict(ctx.config), "padded_vocab_size": padded_vocab_size}
    for name in sorted(values, key=str.lower):
        ctx.print_rank_0(f"  {name} {'.' * (48 - len(name))} {values[name]}")
    ctx.print_rank_0("-------------------- end of arguments ---------------------")


def print_initialization(ctx: Context, vocab_size: int, padded_vocab_size: int, seconds: float
                         ) -> None:
    """Print the batch, vocabulary, layout, and seed.

    Args:
        vocab_size: entries of the tokenizer.
        padded_vocab_size: rows of the word embedding.
        seconds: time from the program's start to the end of the initialization.
    """
    config = ctx.config
    ctx.print_rank_0(f"setting number of micro-batches to constant {config.num_micro_batches}")
    ctx.print_rank_0(f"> building {config.tokenizer_type} tokenizer ...")
    ctx.print_rank_0(f" > padded vocab (size: {vocab_size}) with "
                     f"{padded_vocab_size - vocab_size} dummy tokens (new size: "
                     f"{padded_vocab_size})")
    ctx.print_rank_0("> initializing torch distributed ...")
    ctx.print_rank_0("> initializing tensor model parallel with size "
                     f"{config.tensor_model_parallel_size}")
    ctx.print_rank_0("> initializing pipeline model parallel with size "
                     f"{config.pipeline_model_parallel_size}")
    ctx.print_rank_0(f"> setting random seeds to {config.seed} ...")
    ctx.print_rank_0(f"time to initialize megatron (seconds): {seconds:.3f}")


def print_datetime(ctx: Context, event: str) -> None:
    """Print the wall-clock time of an event, such as "after training is done"."""
    ctx.print_rank_0(f"[{event}] datetime: {datetime.now():%Y-%m-%d %H:%M:%S} ")


def print_model(ctx: Context, parameters: int) -> None:
    """Print the number of parameters of this rank's shard, and the learning rate's schedule."""
    if ctx.grid.writes_shard:
        emit(" > number of parameters on (tensor, pipeline) model parallel rank "
             f"({ctx.grid.tp.index}, {ctx.grid.pp.index}): {parameters}")
    ctx.print_rank_0(f"> learning rate decay style: {ctx.config.lr_decay_style}")


def iteration_line(config: Config, *, iteration: int, consumed: int, milliseconds: float,
                   lr: float, loss: float | None, norm: float | None, nans: int,
                   loss_scale: float = 1.0, skipped: int = 0, zeros: float | None = None,
                   params_norm: float | None = None, throughput: float | None = None,
                   label: str = "") -> str:
    """Return one iteration line; quantities that are None are left out.

    Args:
        config: for --log-format, --train-iters, and the batch size.
        iteration: steps taken so far.
        consumed: training samples consumed so far.
        milliseconds: mean time of a step since the last line.
        lr: learning rate of the next step.
        loss: mean loss since the last line, over the steps that were not skipped.
        norm: gradient norm of the last step, None if it was skipped.
        nans: steps since the last line whose loss is not finite.
        loss_scale: after the last step.
        skipped: steps since the last line that were skipped because of an overflow.
        zeros: number of zero gradients, with --log-num-zeros-in-grad.
        params_norm: norm of the parameters, with --log-params-norm.
        throughput: model TFLOP/s per GPU, with --log-throughput.
        label: name of the virtual GPU, if the figures are modeled.
    """
    core = config.log_format == "core"
    parts = [f" iteration {iteration:8d}/{config.train_iters:8d}",
             f" consumed samples: {consumed:12d}",
             f" elapsed time per iteration (ms): {milliseconds:.1f}",
             *([] if throughput is None else
               [f" throughput per GPU (TFLOP/s/GPU): {throughput:.1f}"]),
             f" learning rate: {lr:.6E}" if core else f" learning rate: {lr:.3E}",
             f" global batch size: {config.global_batch_size:5d}",
             *([] if loss is None else [f" lm loss: {loss:.6E}"]), f" loss scale: {loss_scale:.1f}"]
    for name, value, digits in (("grad norm", norm, 3), ("num zeros", zeros, 1),
                                ("params norm", params_norm, 3)):
        if value is not None:
            parts.append(f" {name}: {value:.{digits}f}")
    parts += [f" number of skipped iterations: {skipped:3d}",
              f" number of nan iterations: {nans:3d}", *([f" {label}"] if label else [])]
    stamp = f" [{datetime.now():%Y-%m-%d %H:%M:%S.%f}]" if core else ""
    return stamp + " |".join(parts) + " |"


def memory_line(ctx: Context, iteration: int) -> str:
    """Return this rank's memory line, in MiB; on the CPU it is the resident set of the process."""
    memory = ctx.device.memory()
    names = ("allocated", "max allocated", "reserved", "max reserved")
    values = " | ".join(f"{name}: {size / 2**20}"
                        for name, size in zip(names, dataclasses.astuple(memory), strict=True))
    label = f" | {ctx.device.label}" if ctx.device.label else ""
    return f"[Rank {ctx.grid.rank}] (after {iteration} iterations) memory (MB) | {values}{label}"


def print_times(ctx: Context, seconds: Mapping[str, float], label: str = "") -> None:
    """Print times by timer, and the name of the virtual GPU that models them; collective.

    Without --timing-log-level these are the last rank's, otherwise those of all ranks.
    """
    if ctx.config.timing_log_level is None:
        ctx.print_rank_last(time_line(seconds) + (f" | {label}" if label else ""))
        return
    print_times_of_ranks(ctx, seconds, label)


def time_line(seconds: Mapping[str, float]) -> str:
    """Return Megatron-LM's line of 2021: the milliseconds of every timer."""
    return "time (ms)" + "".join(
        f" | {name}: {1000 * value:.2f}" for name, value in seconds.items())


def print_loading(ctx: Context, root: Path, iteration: int) -> None:
    ctx.print_rank_0(f" loading checkpoint from {root} at iteration {iteration}")


def print_checkpoint_version(ctx: Context, version: float) -> None:
    ctx.print_rank_0(f" checkpoint version {version}")


def print_resharding(ctx: Context, saved: str, here: str) -> None:
    ctx.print_rank_0(f" resharding the checkpoint: saved as {saved}, loaded as {here}")


def print_loaded(ctx: Context, root: Path, iteration: int) -> None:
    ctx.print_rank_0(f"  successfully loaded checkpoint from {root} at iteration {iteration}")


def print_no_checkpoint(ctx: Context, tracker: Path) -> None:
    ctx.print_rank_0(f"WARNING: could not find the metadata file {tracker} ")
    ctx.print_rank_0("    will not load any checkpoints and will start from random")


def print_saving(ctx: Context, root: Path, iteration: int) -> None:
    ctx.print_rank_0(f"saving checkpoint at iteration {iteration:7d} to {root}")


def print_scheduled(ctx: Context, root: Path, iteration: int) -> None:
    ctx.print_rank_0(f"  scheduled an async checkpoint save at iteration {iteration:7d} to {root}")


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
