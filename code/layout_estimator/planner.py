"""The plan that `--estimate` prints, as text, JSON, or a figure: a run's time, memory, and cost.

One process represents all ranks (estimate.py); nothing is trained.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from layout_estimator.estimate import Estimate, Estimator
from layout_estimator.memory_breakdown import (
    MemoryBreakdown,
    fullest,
    memory_breakdown,
    reserved_bytes,
)
from layout_estimator.mixed import MixedEstimator
from layout_estimator.prices import dollars
from minimegatron.arguments.table import EstimateConfig
from minimegatron.arguments.virtual_device import virtual_card, virtual_link
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.errors import UserError
from minimegatron.formulas import parameters, stage_parameters, teraflops
from minimegatron.report.throughput import model_flops, shape_of
from virtualgpu.core import accuracy, stacks
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net.cluster_spec import parse_nodes
from virtualgpu.net.nodes import max_gpus

GIB = 2**30


@dataclass(frozen=True)
class RunPlan:
    """The fields of `--json`; `format_plan` formats them for people.

    Attributes:
        share_of_peak: MFU, from 0 to 1, against the sum of all GPUs' data-sheet peaks.
        gpus_per_node: GPUs per node; None if the cluster has several kinds of nodes.
        capacity: memory, in bytes, of the GPU with the least free memory.
        reserved: bytes that nvidia-smi shows for that GPU, with what PyTorch has reserved and not
            allocated; None with `--json`, which is for programs that cost many layouts, or if the
            run does not fit.
        expected_error: mean relative error of modeled times on published results; None if those of
            a GPU's generation were not compared.
    """

    card: str
    gpus: dict[str, int]
    nodes: int
    software: str
    network: str
    world_size: int
    gpus_per_node: int | None
    tensor: int
    pipeline: int
    data: int
    micro_batches: int
    schedule: str
    parameters: int
    parameters_of_rank: int
    seconds_per_iteration: float
    teraflops_per_gpu: float
    share_of_peak: float
    communication: float
    bubble: float
    memory: tuple[MemoryBreakdown, ...]
    capacity: int
    fits: bool
    tokens: float
    days: float
    gpu_hours: float
    dollars: float | None
    reserved: float | None
    expected_error: float | None

    @property
    def capacities(self) -> dict[str, int]:
        """Bytes of the GPUs of each model that a stage has."""
        return {stage.card: stage.capacity for stage in self.memory}

    @property
    def fullest(self) -> MemoryBreakdown:
        """The rank with the least free memory."""
        return fullest(self.memory)


def make_estimator(config: EstimateConfig) -> Estimator | MixedEstimator:
    """Return the estimator of the cluster that the flags describe or, where they leave it open, the
    variables VIRTUAL_GPU and VIRTUAL_NETWORK.

    Raises:
        UserError: no GPU is named, a variable names something that does not exist, or the nodes
            of this GPU model have fewer GPUs than --gpus-per-node.
    """
    if config.cluster is not None:
        return cluster_estimator(config)
    name, source = config.device.partition(":")[2], ""
    if not name:
        name = os.environ.get("VIRTUAL_GPU", "")
        source = f"VIRTUAL_GPU={name}"
    if not name:
        raise UserError("--device virtual: VIRTUAL_GPU is not set, so no GPU is declared here; "
                        "nearest: --device virtual:a100-80gb")
    card = virtual_card(config, name, source)
    most, reason = max_gpus(card)
    if config.gpus_per_node > most:
        raise UserError(f"--gpus-per-node {config.gpus_per_node}: {reason}; "
                        f"nearest: --gpus-per-node {most}")
    return Estimator(card, virtual_link(config), config.gpus_per_node)


def cluster_estimator(config: EstimateConfig) -> Estimator | MixedEstimator:
    """Return the estimator of --cluster.

    Raises:
        UserError: --cluster describes no cluster, or one of its GPUs lacks the precision.
    """
    source = f"--cluster {config.cluster}"
    try:
        groups = parse_nodes(config.cluster)
    except VirtualGpuError as error:
        raise UserError(f"--cluster: {error}") from error
    groups = tuple(dataclasses.replace(group, card=virtual_card(config, group.card.name, source))
                   for group in groups)
    link = virtual_link(config)
    if len(groups) == 1:
        return Estimator(groups[0].card, link, groups[0].per_node)
    return MixedEstimator(groups, link)


def as_json(plan: RunPlan) -> dict:
    """Return the plan as a dictionary, with the total of each stage's memory."""
    return {**dataclasses.asdict(plan), "memory": [
        {**dataclasses.asdict(stage), "total": stage.total} for stage in plan.memory]}


def padded_vocabulary(config: EstimateConfig) -> int:
    """Return the vocabulary size of the model that these flags describe."""
    return pad_vocab_size(config.vocab_size, config.make_vocab_size_divisible_by,
                          config.tensor_model_parallel_size)


def make_plan(config: EstimateConfig, estimator: Estimator | MixedEstimator, estimate: Estimate,
              with_reserved: bool = False) -> RunPlan:
    """Return the plan of a run.

    Args:
        config: the run's flags.
        estimator: the cluster it runs on.
        estimate: the estimator's result for these flags.
        with_reserved: whether to estimate the reserved memory, too, which takes longer.
    """
    vocabulary, world = padded_vocabulary(config), config.world_size
    gpt, gpus = shape_of(config, vocabulary), estimator.gpus(world)
    seconds = estimate.seconds
    rate = teraflops(model_flops(config, vocabulary), seconds, world)
    peak = sum(count / world * card.tflops[config.precision] for card, count in gpus.items())
    stages = [stage_parameters(
        gpt, sum(config.layers_per_chunk[stage::config.pipeline_model_parallel_size]),
        config.tensor_model_parallel_size, stage == 0,
        stage == config.pipeline_model_parallel_size - 1)
        for stage in range(config.pipeline_model_parallel_size)]
    batch_tokens = config.global_batch_size * config.seq_length
    tokens = config.tokens or batch_tokens * (
        config.train_iters or config.train_samples // config.global_batch_size)
    hours = tokens / batch_tokens * seconds / 3600
    per_stage = memory_breakdown(config, estimate, stages)
    reserved = None
    if with_reserved and estimate.fits:
        reserved = reserved_bytes(config, vocabulary, estimator, estimate, fullest(per_stage))
    return RunPlan(
        f"virtual {' and '.join(card.name for card in gpus)}",
        {card.name: count for card, count in gpus.items()}, estimator.nodes(world),
        "; ".join(dict.fromkeys(map(stacks.describe, gpus))), estimator.network.name, world,
        estimator.per_node, config.tensor_model_parallel_size, config.pipeline_model_parallel_size,
        config.data_parallel_size, config.num_micro_batches, config.schedule, parameters(gpt),
        max(stages), seconds, rate, rate / peak, estimate.communication, estimate.bubble,
        per_stage, fullest(per_stage).capacity, estimate.fits, tokens, hours / 24,
        hours * world, dollars(gpus, hours, config.price_per_gpu_hour), reserved,
        accuracy.expected_error(gpus))


def format_plan(plan: RunPlan) -> str:
    """Return the plan as text, one quantity per line."""
    rank, mixed = plan.fullest, len(plan.gpus) > 1
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in rank.parts.items()
                      if name != "outside")
    gpus = " + ".join(f"{count} virtual {name}" for name, count in plan.gpus.items())
    rows = {
        "cluster": f"{gpus} on {plan.nodes} node(s), {plan.network}",
        "software stack": plan.software,
        "layout": f"tensor {plan.tensor} x pipeline {plan.pipeline} x data {plan.data}, schedule "
                  f"{plan.schedule}, {plan.micro_batches} micro-batch(es) per step",
        "parameters": f"{plan.parameters / 1e9:,.3f} billion, {plan.parameters_of_rank / 1e9:,.3f} "
                      "on the fullest rank",
        "time per iteration": f"{plan.seconds_per_iteration:.4g} s",
        "throughput": f"{plan.teraflops_per_gpu:.1f} TFLOP/s per GPU, {plan.share_of_peak:.1%} of "
                      "the data-sheet peak, counting the model's FLOPs",
        "communication": f"{plan.communication:.1%} of the time, waiting for collectives",
        "bubble": f"{plan.bubble:.1%} of the time, waiting for other stages",
        "memory": f"{rank.total / GIB:.2f} of {rank.capacity / GIB:.2f} GiB at the peak on "
                  f"{rank.stage_label(mixed)} ({parts}, CUDA's and NCCL's own "
                  f"{rank.outside / GIB:.2f})",
        **({} if plan.reserved is None else {
            "reserved": f"{plan.reserved / GIB:.2f} GiB there, with what PyTorch reserves and does "
                        "not use; nvidia-smi shows this"}),
        "fits": "yes" if plan.fits else "NO: CUDA out of memory"
                + (f" on {rank.stage_label(mixed)}" if mixed else ""),
        "training": f"{plan.tokens:.4g} tokens: {plan.days:,.2f} days, "
                    f"{plan.gpu_hours:,.0f} GPU-hours"
                    + ("" if plan.dollars is None else f", {plan.dollars:,.0f} dollars"),
    }
    lines = [f"estimate on {plan.card}: modeled, nothing was run",
             *(f"  {name:<20}{value}" for name, value in rows.items())]
    if mixed:
        lines += [f"  {rank.stage_label(mixed):<24}{rank.total / GIB:8.2f} of "
                  f"{rank.capacity / GIB:6.2f} GiB"
                  + ("" if rank.total <= rank.capacity else "  does not fit")
                  for rank in plan.memory]
    return "\n".join(lines)
