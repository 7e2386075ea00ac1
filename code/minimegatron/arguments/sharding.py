"""Flags of sharded data parallelism and of offloading to host memory, and what they imply.

Names and meanings are Megatron-LM's, whose FSDP asks for --use-megatron-fsdp besides.
"""

from __future__ import annotations

from dataclasses import dataclass

from minimegatron.arguments.flag import (
    AT_LEAST_1,
    NOT_NEGATIVE,
    NOTHING,
    PASSES,
    Bound,
    RelatedFlags,
    flag,
)

# By ZeRO's stage (Rajbhandari et al. 2020).
SHARDING_STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
MEGATRON_FSDP = RelatedFlags(
    ("use_megatron_fsdp",), "{flag} {value} has an effect only with --use-megatron-fsdp, as in "
    "Megatron-LM; nearest: --use-megatron-fsdp {flag} {value}")

CPU_OFFLOAD = RelatedFlags(
    ("optimizer_cpu_offload",), "{flag} belongs to --optimizer-cpu-offload, which is not given; "
    "nearest: --optimizer-cpu-offload {flag}")


@dataclass(frozen=True)
class Offload:
    """Optimizer state and activations in host memory."""

    optimizer_cpu_offload: bool = flag(
        False, "keep optimizer state in host memory, and update it on the CPU", affects=PASSES)
    optimizer_offload_fraction: float = flag(
        1.0, "fraction of each rank's optimizer state that is in host memory", affects=PASSES,
        bounds=Bound("must be from 0 to 1", low=0, high=1), needs=CPU_OFFLOAD)
    overlap_cpu_optimizer_d2h_h2d: bool = flag(
        False, "overlap copies of gradients and weights with the update on the CPU",
        affects=PASSES, needs=CPU_OFFLOAD)
    cpu_offloading_num_layers: int = flag(
        0, "layers whose activations are in host memory between their forward and backward pass: "
        "the first N", affects=PASSES, bounds=NOT_NEGATIVE)

    @property
    def offloaded_fraction(self) -> float:
        """Return the fraction of the optimizer state in host memory; 0 without offloading."""
        return self.optimizer_offload_fraction if self.optimizer_cpu_offload else 0.0


@dataclass(frozen=True)
class Sharding:
    """Sharding of training state over data-parallel ranks, and its communication."""

    use_distributed_optimizer: bool = flag(
        False, "shard the optimizer state over the data-parallel ranks (ZeRO-1)", affects=PASSES,
        sets=("data_parallel_sharding_strategy",))
    use_megatron_fsdp: bool = flag(
        False, "let --data-parallel-sharding-strategy choose what is sharded", affects=NOTHING)
    data_parallel_sharding_strategy: str = flag(
        "no_shard", "what is sharded over the data-parallel ranks: nothing, the optimizer state "
        "(ZeRO-1, as --use-distributed-optimizer), gradients too (ZeRO-2), parameters too (ZeRO-3, "
        "FSDP)", choices=SHARDING_STRATEGIES, affects=PASSES, needs=MEGATRON_FSDP)
    num_distributed_optimizer_instances: int = flag(
        1, "hybrid sharding: shard within each of N groups of data-parallel ranks, and replicate "
        "the shards across the groups", affects=PASSES, bounds=AT_LEAST_1)
    outer_dp_sharding_strategy: str = flag(
        "no_shard", "what is sharded across the groups of hybrid sharding", choices=("no_shard",),
        affects=NOTHING)
    reshard_after_forward: bool = flag(
        True, "optim_grads_params: keep the gathered parameters from the forward to the backward "
        "pass", off=("--torch-fsdp2-no-reshard-after-forward",), affects=PASSES)
    overlap_grad_reduce: bool = flag(
        False, "overlap the reduction of gradients with the backward pass", affects=PASSES)
    overlap_param_gather: bool = flag(
        False, "overlap the all-gather of sharded parameters with computation", affects=PASSES)

    @property
    def zero_stage(self) -> int:
        """Return ZeRO's stage: 1 shards the optimizer state, 2 gradients too, 3 parameters too."""
        return max(int(self.use_distributed_optimizer),
                   SHARDING_STRATEGIES.index(self.data_parallel_sharding_strategy))

    @property
    def shards_by_unit(self) -> bool:
        """Return whether collectives of sharded state cover one transformer layer each."""
        return self.sharding_size > 1 and (
            self.zero_stage > 1 or (self.zero_stage == 1 and self.overlap_param_gather))

    @property
    def shards_new_params(self) -> bool:
        """Return whether parameters are sharded before they get memory on the device."""
        return self.zero_stage == 3 and self.sharding_size > 1

    @property
    def sharding_size(self) -> int:
        """Return over how many data-parallel ranks the sharded state is divided."""
        return self.data_parallel_size // self.num_distributed_optimizer_instances
