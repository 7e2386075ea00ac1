"""Flags of devices, of parallelism, and of activation recomputation; the sizes of the grid."""

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
    derived,
    flag,
)


@dataclass(frozen=True)
class Distributed:
    """Devices and parallelism."""

    device: str = flag(
        "auto", "cpu, cuda, virtual:GPU (`lab devices` lists the GPU models), virtual (the virtual "
        "GPU that the node declares), or auto: cuda if there is a GPU, else the declared virtual "
        "GPU if the job requested GPUs or nccl, else cpu", affects=HARDWARE)
    virtual_network: str | None = flag(
        None, "network between nodes of virtual GPUs, such as infiniband:8x200gbit (default: the "
        "one that the cluster declares, else the usual one for the GPU)", affects=HARDWARE)
    software_stack: str | None = flag(
        None, "software whose efficiency virtual GPUs have, such as transformer-engine (default: "
        "Megatron-LM's of the GPU's time; docs/virtual-gpus.md)", affects=HARDWARE)
    tensor_model_parallel_size: int = flag(
        1, "tensor-parallel size", affects=PASSES | STATE, bounds=AT_LEAST_1)
    sequence_parallel: bool = flag(
        False, "shard the sequence over the tensor-parallel ranks outside the tensor-parallel "
        "regions", affects=PASSES)
    tp_comm_overlap: bool = flag(
        False, "overlap --sequence-parallel's communication with GEMMs", affects=PASSES)
    pipeline_model_parallel_size: int = flag(
        1, "pipeline stages", affects=SCHEDULE | STATE, bounds=AT_LEAST_1)
    schedule: str | None = flag(
        None, "gpipe, 1f1b, interleaved, zb-h1, or a .py or .json file with your own (default: "
        "1f1b; interleaved with --num-layers-per-virtual-pipeline-stage)", affects=SCHEDULE)
    num_layers_per_virtual_pipeline_stage: int | None = flag(
        None, "layers per chunk (virtual stage); stages take turns with chunks", affects=SCHEDULE,
        bounds=AT_LEAST_1, sets=("layers_per_chunk",))
    balance: str | None = flag(
        None, "layers of every stage, such as 0-5-7 (default: equal)", affects=SCHEDULE,
        sets=("layers_per_chunk",))
    pipeline_model_parallel_layout: str | None = flag(
        None, "layout of the stages, such as E|(t|)*3,tt|L: embedding, layers, loss",
        affects=SCHEDULE, sets=("layers_per_chunk",))
    scatter_gather_tensors_in_pipeline: bool = flag(
        False, "send 1/t of the activations from each tensor-parallel rank to the next stage, and "
        "all-gather them there (no effect with --sequence-parallel)", affects=PASSES)
    distributed_backend: str | None = flag(
        None, "backend of tensor communication (default: nccl on GPUs, gloo on the CPU)",
        choices=("nccl", "gloo"), affects=RESULTS)
    use_distributed_optimizer: bool = flag(
        False, "shard the optimizer state over the data-parallel ranks (ZeRO-1)", affects=PASSES)
    overlap_grad_reduce: bool = flag(
        False, "overlap the gradient all-reduce with the backward pass", affects=PASSES)
    ddp_bucket_size: int | None = flag(
        None, "gradients per bucket (default: the larger of 40 million and 1 million per "
        "data-parallel rank)", affects=PASSES, bounds=AT_LEAST_1)
    DDP_impl: str = flag(
        "local", "implementation of data parallelism", choices=("local",), affects=RESULTS)
    distributed_timeout_minutes: float = flag(
        10, "timeout of communication", affects=NOTHING, bounds=(POSITIVE, UP_TO_A_YEAR))
    local_rank: int | None = flag(
        None, "set by torch.distributed.launch", "--local-rank", "--local_rank", affects=NOTHING)


@dataclass(frozen=True)
class Recompute:
    """Activation recomputation."""

    recompute_granularity: str | None = flag(
        None, "what the backward pass recomputes: full (layers) or selective (core attention)",
        choices=("full", "selective"), affects=PASSES)
    recompute_method: str | None = flag(
        None, "for full: uniform (all layers, in groups) or block (the first layers of a stage)",
        choices=("uniform", "block"), affects=PASSES)
    recompute_num_layers: int = flag(
        1, "layers per group (uniform) or per stage (block)",
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
        False, "shard the activations that full recomputation saves over the tensor-parallel ranks",
        "--distribute-checkpointed-activations", affects=PASSES,
        today={"--distribute-checkpointed-activations": "--distribute-saved-activations"})


@dataclass(frozen=True)
class Derived:
    """Fields that are not flags: the checks compute them from the flags and the number of ranks."""

    rank: int = derived(0, affects=NOTHING)
    world_size: int = derived(1, affects=HARDWARE)
    data_parallel_size: int = derived(1, affects=PASSES)
    layers_per_chunk: tuple[int, ...] = derived((), affects=SCHEDULE | STATE)
