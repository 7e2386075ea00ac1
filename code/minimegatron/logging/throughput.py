"""What --log-throughput shows: FLOP/s against what the device could do, and memory on paper.

All formulas are in formulas.py; the device knows its data sheet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.formulas import (
    Gpt,
    head_activations,
    layer_activations,
    stage_activations,
    stage_parameters,
    state_bytes,
    step_flops,
    teraflops,
)

SIZE, RUNS = 2048, 4  # of the matrices, and of the products, of which the fastest counts


def shape_of(config: Config, vocab_size: int) -> Gpt:
    """vocab_size: padded."""
    return Gpt(config.num_layers, config.hidden_size, config.num_attention_heads,
               config.seq_length, vocab_size, config.ffn_hidden_size, config.kv_channels,
               config.max_position_embeddings)


def model_flops(config: Config, vocab_size: int) -> float:
    """Of one step of all devices, as Megatron core counts: causal attention is half of the
    products, recomputation none. vocab_size: padded."""
    return step_flops(shape_of(config, vocab_size), config.global_batch_size, causal=True)


class Throughput:
    """The run's model FLOP/s per device; with --log-throughput every rank must build it."""

    def __init__(self, ctx: Context, vocab_size: int) -> None:
        config = ctx.config
        self.devices = config.world_size
        self.flops = model_flops(config, vocab_size)
        self.peaks: list[tuple[str, float]] = []
        name = ctx.device.name
        precision = config.precision
        sheet = ctx.device.sheet_peak(precision)
        if sheet is not None:
            self.peaks.append((f"data-sheet peak ({name}, {precision}, {sheet})", sheet))
        elif ctx.device.torch_device.type == "cpu":
            if precision == "fp16":
                precision = "fp32"  # in which the CPU multiplies then, see products.py
            measured = measured_peak(ctx, torch.bfloat16 if config.bf16 else torch.float32)
            threads = torch.get_num_threads()
            self.peaks.append((f"measured matmul peak ({SIZE}^3, {precision}, {threads} thread(s), "
                               f"{measured:.4f})", measured))
        else:
            ctx.print_rank_0(f"--log-throughput: no data-sheet peak of {name!r} in {precision} is "
                             "known")

    def of(self, seconds: float) -> float:
        """TFLOP/s per device of steps that take so long."""
        return teraflops(self.flops, seconds, self.devices)

    def line(self, rate: float) -> str:
        """The shares of `rate` (TFLOP/s per device) in every peak that is known."""
        shares = "".join(f" | share of the {name}: {100 * rate / most:.1f}%"
                         for name, most in self.peaks)
        return f" model TFLOP/s per device: {rate:.4f}{shares} |"


def measured_peak(ctx: Context, dtype: torch.dtype) -> float:
    """TFLOP/s of one square matrix product on rank 0 with its threads, while the others wait."""
    result = [0.0]
    if ctx.grid.rank == 0:
        a, b = (torch.randn(SIZE, SIZE, device=ctx.device.torch_device).to(dtype)
                for _ in range(2))
        seconds = []
        for _ in range(RUNS):
            start = ctx.device.now()
            torch.mm(a, b)
            seconds.append(ctx.device.now() - start)
        result = [teraflops(2 * SIZE**3, min(seconds))]
    dist.broadcast_object_list(result)
    return result[0]


def memory_on_paper(config: Config, vocab_size: int, live: Sequence[int]) -> tuple[float, float]:
    """(weights, gradients and optimizer; activations) of the most loaded rank, in bytes.

    live: the most pairs (micro-batch, chunk) whose activations each stage keeps at once.
    """
    gpt, t = shape_of(config, vocab_size), config.tensor_model_parallel_size
    b, each = config.micro_batch_size, state_bytes(
        # fp16 with fp32 sums holds what bf16 does.
        "bf16" if config.accumulate_allreduce_grads_in_fp32 else config.precision,
        config.data_parallel_size, config.use_distributed_optimizer)
    shared = {"b": b, "t": t, "sequence_parallel": config.sequence_parallel,
              "bytes_each": 4 if config.precision == "fp32" else 2}
    again = config.recompute_granularity
    # Flash attention keeps what selective recomputation keeps.
    selective = "selective" if config.use_flash_attn or again == "selective" else None
    kept = layer_activations(gpt, recompute=selective, **shared,
                             attention_dropout=config.attention_dropout > 0,
                             hidden_dropout=config.hidden_dropout > 0)
    whole = layer_activations(gpt, recompute="full", **shared)
    if config.distribute_saved_activations:
        whole /= t
    loads = []
    for stage, pairs in enumerate(live):
        first, last = stage == 0, stage == len(live) - 1
        chunks = config.layers_per_chunk[stage::len(live)]
        states = each.total * stage_parameters(gpt, sum(chunks), t, first, last)
        activations = pairs / len(chunks) * sum(
            stage_activations(layers, kept, whole, config.recompute_method,
                              config.recompute_num_layers) for layers in chunks)
        loads.append((states, activations + (head_activations(gpt, **shared) if last else 0)))
    return max(loads, key=sum)
