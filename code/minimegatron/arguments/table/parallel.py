"""Flags of devices, of parallelism, and of activation recomputation."""

from __future__ import annotations

from dataclasses import dataclass

from minimegatron.arguments.table.bounds import AT_LEAST_1, POSITIVE, UP_TO_A_YEAR
from minimegatron.arguments.table.flag import (
    HARDWARE,
    NOTHING,
    PASSES,
    RESULTS,
    SCHEDULE,
    STATE,
    flag,
)


@dataclass(frozen=True)
class Distributed:
    """Devices and parallelism."""

    device: str = flag(
        "auto", "cpu, cuda, virtual:GPU (`lab devices` lists them), virtual (the node's declared "
        "card), or auto: cuda where there is one, else the declared card where the job asked for "
        "GPUs or for nccl, else cpu", affects=HARDWARE)
    virtual_network: str | None = flag(
        None, "between nodes of virtual GPUs, such as ethernet:25gbit or infiniband:8x200gbit "
        "(what the cluster declares, else what is usual for the card)", affects=HARDWARE)
    tensor_model_parallel_size: int = flag(
        1, "tensor-parallel ranks", affects=PASSES | STATE, bounds=AT_LEAST_1)
    sequence_parallel: bool = flag(
        False, "tensor-parallel ranks divide the sequence where they would repeat each other",
        affects=PASSES)
    pipeline_model_parallel_size: int = flag(
        1, "pipeline stages", affects=SCHEDULE | STATE, bounds=AT_LEAST_1)
    schedule: str | None = flag(
        None, "order of a pipeline's work: gpipe, 1f1b, interleaved, zb-h1, or a .py or .json "
        "file with one of yours (1f1b; interleaved with --num-layers-per-virtual-pipeline-stage)",
        affects=SCHEDULE)
    num_layers_per_virtual_pipeline_stage: int | None = flag(
        None, "layers of one chunk: a stage holds several, dealt out in turn", affects=SCHEDULE,
        bounds=AT_LEAST_1, sets=("layers_per_chunk",))
    balance: str | None = flag(
        None, "layers of every stage, such as 0-5-7 (all alike)", affects=SCHEDULE,
        sets=("layers_per_chunk",))
    pipeline_model_parallel_layout: str | None = flag(
        None, "what every stage holds, such as E|(t|)*3,tt|L: embedding, layers, loss",
        affects=SCHEDULE, sets=("layers_per_chunk",))
    distributed_backend: str | None = flag(
        None, "of the tensor traffic (nccl on GPUs, gloo on the CPU)", choices=("nccl", "gloo"),
        affects=RESULTS)
    use_distributed_optimizer: bool = flag(
        False, "main weights and moments divided among the replicas (ZeRO-1)", affects=PASSES)
    overlap_grad_reduce: bool = flag(
        False, "sum gradients while others are being computed", affects=PASSES)
    ddp_bucket_size: int | None = flag(
        None, "gradients of one message (40 million, or 1 million per replica)", affects=PASSES,
        bounds=AT_LEAST_1)
    DDP_impl: str = flag("local", "whose data parallelism", choices=("local",), affects=RESULTS)
    distributed_timeout_minutes: float = flag(
        10, "patience with a silent peer", affects=NOTHING, bounds=(POSITIVE, UP_TO_A_YEAR))
    local_rank: int | None = flag(
        None, "set by torch.distributed.launch", "--local-rank", "--local_rank", affects=NOTHING)


@dataclass(frozen=True)
class Recompute:
    """Activation recomputation."""

    recompute_granularity: str | None = flag(
        None, "what the backward pass computes again: full (layers) or selective (core attention)",
        choices=("full", "selective"), affects=PASSES)
    recompute_method: str | None = flag(
        None, "of full: uniform (all layers, in groups) or block (the first layers of a stage)",
        choices=("uniform", "block"), affects=PASSES)
    recompute_num_layers: int = flag(
        1, "layers of a group (uniform) or of each stage (block)",
        "--activations-checkpoint-num-layers", affects=PASSES, bounds=AT_LEAST_1,
        today={"--activations-checkpoint-num-layers": "--recompute-num-layers"})
    recompute_activations: bool = flag(
        False, "the same as --recompute-granularity selective", affects=PASSES,
        sets=("recompute_granularity",))
    activations_checkpoint_method: str | None = flag(
        None, "the same as --recompute-granularity full --recompute-method",
        choices=("uniform", "block"), affects=PASSES,
        sets=("recompute_granularity", "recompute_method"),
        today={"--activations-checkpoint-method":
               "--recompute-granularity full --recompute-method"})
    distribute_saved_activations: bool = flag(
        False, "tensor-parallel ranks divide what full recomputation keeps",
        "--distribute-checkpointed-activations", affects=PASSES,
        today={"--distribute-checkpointed-activations": "--distribute-saved-activations"})
