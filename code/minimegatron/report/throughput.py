"""--log-throughput: model FLOP/s, the device's peak, and the memory that the formulas predict.

The formulas are in formulas.py, and data-sheet peaks are the device's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
from minimegatron.model.linear import IN_FP32
from minimegatron.report.log_lines import theoretical_memory_line, throughput_line
from minimegatron.report.step_log import Report
from pipeline_schedules import peak_live

if TYPE_CHECKING:
    from minimegatron.context import Progress
    from minimegatron.report.step_log import Run, StepLog

SIZE, RUNS = 2048, 4  # of the measured matmul: rows and columns; repetitions, the fastest counts


def shape_of(config: Config, vocab_size: int) -> Gpt:
    """Return the model's shape.

    Args:
        vocab_size: rows of the word embedding, including padding.
    """
    return Gpt(config.num_layers, config.hidden_size, config.num_attention_heads,
               config.seq_length, vocab_size, config.ffn_hidden_size, config.kv_channels,
               0 if config.position_embedding_type == "rope" else config.max_position_embeddings,
               config.num_query_groups if config.group_query_attention else None, config.swiglu,
               not config.untie_embeddings_and_output_weights, config.add_bias_linear,
               config.normalization == "LayerNorm", config.qk_layernorm)


def model_flops(config: Config, vocab_size: int) -> float:
    """Return the model FLOPs of a step on all devices, counted as in Megatron Core.

    Causal attention counts half, and recomputation does not count.

    Args:
        vocab_size: rows of the word embedding, including padding.
    """
    return step_flops(shape_of(config, vocab_size), config.global_batch_size, causal=True)


class Throughput:
    """Model FLOP/s per device, and the peaks to compare them with.

    Attributes:
        flops: model FLOPs of a step on all devices.
        peaks: name and TFLOP/s of each known peak of the device.
    """

    def __init__(self, ctx: Context, vocab_size: int) -> None:
        """Look up the device's peak, or measure the CPU's; every rank must call it.

        Args:
            vocab_size: rows of the word embedding, including padding.
        """
        config = self.config = ctx.config
        self.vocab_size = vocab_size
        self.devices = config.world_size
        self.flops = model_flops(config, vocab_size)
        self.peaks: list[tuple[str, float]] = []
        name = ctx.device.name
        precision = config.precision
        sheet = ctx.device.sheet_peak(precision)
        if sheet is not None:
            self.peaks.append((f"data-sheet peak ({name}, {precision}, {sheet})", sheet))
        elif ctx.device.torch_device.type == "cpu":
            is_bf16 = config.bf16 and torch.bfloat16 not in IN_FP32
            measured = measured_peak(ctx, torch.bfloat16 if is_bf16 else torch.float32)
            precision, threads = "bf16" if is_bf16 else "fp32", torch.get_num_threads()
            self.peaks.append((f"measured matmul peak ({SIZE}^3, {precision}, {threads} thread(s), "
                               f"{measured:.4f})", measured))
        else:
            ctx.print_rank_0(f"--log-throughput: no data-sheet peak of {name!r} in {precision} is "
                             "known")

    def rate(self, seconds: float) -> float:
        """Return the model TFLOP/s per device if a step takes `seconds`."""
        return teraflops(self.flops, seconds, self.devices)

    def line(self, rate: float) -> str:
        """Return the log line of a rate in model TFLOP/s per device."""
        return throughput_line(rate, self.peaks)

    def memory_line(self, in_flight: Sequence[int]) -> str:
        """Return the log line of `theoretical_memory`."""
        return theoretical_memory_line(
            *theoretical_memory(self.config, self.vocab_size, in_flight))


class ThroughputReport(Report):
    """Adds the throughput to the log line, and prints the memory that the formulas predict."""

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.memory_reported = ctx, False

    def start(self, run: Run) -> None:
        self.throughput = Throughput(self.ctx, run.vocab_size)
        self.in_flight = peak_live(run.schedule)

    def quantities(self, log: StepLog) -> dict[str, float | None]:
        return {"throughput": self.throughput.rate(log.seconds / len(log.losses))}

    def line(self, progress: Progress, values: Mapping[str, float | None],
             times: Mapping[str, float]) -> None:
        self.ctx.print_rank_last(self.throughput.line(values["throughput"]))
        if values["lr"] > 0 and not self.memory_reported:
            self.memory_reported = True
            self.ctx.print_rank_0(self.throughput.memory_line(self.in_flight))


def measured_peak(ctx: Context, dtype: torch.dtype) -> float:
    """Return the TFLOP/s of a square matmul in `dtype` on rank 0, while the other ranks wait."""
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


def theoretical_memory(config: Config, vocab_size: int, in_flight: Sequence[int]
                       ) -> tuple[float, float]:
    """Return the memory of the fullest rank, in bytes, that the formulas predict.

    Args:
        vocab_size: rows of the word embedding, including padding.
        in_flight: most pairs (micro-batch, chunk) whose activations each stage holds at once.

    Returns:
        Parameters, gradients, and optimizer states during the passes; and activations.
    """
    gpt, t = shape_of(config, vocab_size), config.tensor_model_parallel_size
    b, per_parameter = config.micro_batch_size, state_bytes(
        # fp16 with fp32 gradients takes as many bytes as bf16.
        "bf16" if config.accumulate_allreduce_grads_in_fp32 else config.precision,
        config.sharding_size, config.zero_stage, config.offloaded_fraction)
    common = {"b": b, "t": t, "sequence_parallel": config.sequence_parallel,
              "bytes_each": 4 if config.precision == "fp32" else 2}
    granularity = config.recompute_granularity
    # Flash attention saves as much for backward as selective recomputation.
    selective = "selective" if config.use_flash_attn or granularity == "selective" else None
    saved = layer_activations(gpt, recompute=selective, **common,
                              attention_dropout=config.attention_dropout > 0,
                              hidden_dropout=config.hidden_dropout > 0)
    checkpointed = layer_activations(gpt, recompute="full", **common)
    if config.distribute_saved_activations:
        checkpointed /= t
    loads = []
    for stage, pairs in enumerate(in_flight):
        first, last = stage == 0, stage == len(in_flight) - 1
        chunks = config.layers_per_chunk[stage::len(in_flight)]
        states = per_parameter.resident * stage_parameters(gpt, sum(chunks), t, first, last)
        # Of the offloaded layers, one is computed while the one before it is copied.
        offloaded, kept = config.cpu_offloading_num_layers, min(2, *chunks)
        activations = pairs / len(chunks) * sum(
            stage_activations(max(layers - offloaded, kept), saved, checkpointed,
                              config.recompute_method, config.recompute_num_layers)
            for layers in chunks)
        loads.append((states, activations + (head_activations(gpt, **common) if last else 0)))
    return max(loads, key=sum)
