"""Flags of sharded data parallelism, and what they imply.

Names and meanings are Megatron-LM's, whose FSDP asks for --use-megatron-fsdp besides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minimegatron.arguments.flag import AT_LEAST_1, NOTHING, PASSES, RelatedFlags, flag
from minimegatron.errors import near_divisors, require

if TYPE_CHECKING:
    from minimegatron.arguments.table import Config

# By ZeRO's stage (Rajbhandari et al. 2020).
SHARDING_STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
MEGATRON_FSDP = RelatedFlags(
    ("use_megatron_fsdp",), "{flag} {value} has an effect only with --use-megatron-fsdp, as in "
    "Megatron-LM; nearest: --use-megatron-fsdp {flag} {value}")


@dataclass(frozen=True)
class Sharding:
    """Sharding of training state over data-parallel ranks, and its communication."""

    use_distributed_optimizer: bool = flag(
        False, "shard the optimizer state over the data-parallel ranks (ZeRO-1)", affects=PASSES)
    use_megatron_fsdp: bool = flag(
        False, "let --data-parallel-sharding-strategy choose what is sharded", affects=NOTHING)
    data_parallel_sharding_strategy: str = flag(
        "no_shard", "what is sharded over the data-parallel ranks: nothing, the optimizer state "
        "(ZeRO-1, as --use-distributed-optimizer), gradients too (ZeRO-2), parameters too (ZeRO-3, "
        "FSDP)", choices=SHARDING_STRATEGIES, affects=PASSES, needs=MEGATRON_FSDP,
        sets=("use_distributed_optimizer",))
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
        return self.zero_stage > 1 or (self.zero_stage == 1 and self.overlap_param_gather)

    @property
    def sharding_size(self) -> int:
        """Return over how many data-parallel ranks the sharded state is divided."""
        return self.data_parallel_size // self.num_distributed_optimizer_instances


def derive_sharding(config: Config) -> Config:
    """Fill in what the sharding strategy implies, and refuse what cannot be combined with it."""
    replicas, instances = config.data_parallel_size, config.num_distributed_optimizer_instances
    strategy, stage = config.data_parallel_sharding_strategy, config.zero_stage
    chosen = f"--data-parallel-sharding-strategy {strategy}"
    require(instances == 1 or stage > 0,
            f"--num-distributed-optimizer-instances {instances}: nothing is sharded; nearest: "
            f"--use-distributed-optimizer --num-distributed-optimizer-instances {instances}")
    require(replicas % instances == 0,
            f"data parallel size ({replicas}) is not divisible by "
            f"--num-distributed-optimizer-instances {instances}; nearest: "
            f"--num-distributed-optimizer-instances {near_divisors(instances, replicas)}")
    require(not config.overlap_param_gather or stage > 0,
            "--overlap-param-gather only supported with distributed optimizer or megatron fsdp; "
            "nearest: --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather")
    require(not config.overlap_param_gather or config.overlap_grad_reduce,
            "--overlap-grad-reduce should be turned on when using --overlap-param-gather; nearest: "
            "--overlap-grad-reduce --overlap-param-gather")
    require(config.reshard_after_forward or stage == 3,
            "--torch-fsdp2-no-reshard-after-forward: only --data-parallel-sharding-strategy "
            "optim_grads_params gathers parameters in the forward pass; nearest: leave it out")
    require(config.ddp_bucket_size is None or not config.shards_by_unit,
            f"--ddp-bucket-size {config.ddp_bucket_size} with "
            f"{chosen if stage > 1 else '--overlap-param-gather'}: the buckets are the transformer "
            "layers; nearest: leave it out")
    require(stage < 3 or config.fp8_format is None,
            f"{chosen} with --fp8-format {config.fp8_format}: weights are rounded once per step, "
            "and their FP8 copies would stay in memory unsharded; nearest: "
            "--data-parallel-sharding-strategy optim_grads")
    require(not config.fp8_param_gather or not config.shards_by_unit,
            "--fp8-param-gather with "
            f"{chosen if stage > 1 else '--overlap-param-gather'}: FP8 weights are gathered in "
            "buckets of their own; nearest: --use-distributed-optimizer --fp8-param-gather")
    return replace(config, use_distributed_optimizer=stage > 0)
