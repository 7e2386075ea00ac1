"""The log lines of Megatron-LM, in their exact format.

Scripts and people search logs for these lines, so their text must not change. Functions named
`print_*` print from one rank; the others return the text, because more than one program prints it.
The lines of optional features are in optional_lines.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime

from minimegatron.arguments import Config
from minimegatron.console import emit
from minimegatron.context import Context


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
    from minimegatron.logging.optional_lines import print_times_of_ranks

    print_times_of_ranks(ctx, seconds, label)


def time_line(seconds: Mapping[str, float]) -> str:
    """Return Megatron-LM's line of 2021: the milliseconds of every timer."""
    return "time (ms)" + "".join(
        f" | {name}: {1000 * value:.2f}" for name, value in seconds.items())
