"""Peak memory of a rank by use, and what nvidia-smi shows for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layout_estimator.estimate import Estimate, Estimator
from layout_estimator.mixed import MixedEstimator
from minimegatron.arguments.table import EstimateConfig
from minimegatron.formulas import state_bytes

PARTS = ("weights", "gradients", "optimizer", "activations", "update", "outside")


@dataclass(frozen=True)
class MemoryBreakdown:
    """Peak memory of one rank of a stage, in bytes, by use.

    Activations are freed before the optimizer step, and what the step allocates is freed after it,
    so the peak is in one or the other.

    Attributes:
        weights: parameters in the training precision.
        gradients: gradients, as the backward pass accumulates them.
        optimizer: Adam's moments and, in mixed precision, fp32 master weights.
        activations: activations, and everything else that PyTorch allocates at the peak of the
            passes.
        update: what PyTorch allocates at the peak of the step's end, such as the fp32 main
            gradients of fp16.
        outside: the CUDA context, and NCCL's buffers.
        stage: the pipeline stage.
        card: the GPU model; a stage may have several.
        capacity: memory of the GPU.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    update: float
    outside: float
    stage: int
    card: str
    capacity: int

    @property
    def total(self) -> float:
        """Bytes at the peak."""
        return (self.weights + self.gradients + self.optimizer + self.outside
                + max(self.activations, self.update))

    def stage_label(self, mixed: bool) -> str:
        """Return the stage, with its GPU model if the cluster has several."""
        return f"stage {self.stage}" + (f" ({self.card})" if mixed else "")

    @property
    def parts(self) -> dict[str, float]:
        """The bytes that add up to the peak, by name."""
        freed = "update" if self.activations >= self.update else "activations"
        return {name: getattr(self, name) for name in PARTS if name != freed}


def fullest(memory: Sequence[MemoryBreakdown]) -> MemoryBreakdown:
    """Return the memory of the rank with the least free memory."""
    return min(memory, key=lambda rank: rank.capacity - rank.total)


def memory_breakdown(config: EstimateConfig, estimate: Estimate, stages: list[int]
                     ) -> tuple[MemoryBreakdown, ...]:
    """Return each stage's memory: states by the formula, and the rest of the measured peak.

    Args:
        config: the run's flags.
        estimate: the run's estimate.
        stages: number of parameters on a rank of each stage.
    """
    each = state_bytes("bf16" if config.accumulate_allreduce_grads_in_fp32 else config.precision,
                       config.sharding_size, config.zero_stage, config.offloaded_fraction)
    rows = zip(estimate.ranks, estimate.passes_peak, estimate.end_peak, estimate.outside,
               strict=True)
    return tuple(MemoryBreakdown(
        each.weights * stages[stage], each.gradients * stages[stage],
        each.optimizer * stages[stage],
        *(max(0.0, peak - each.resident * stages[stage]) for peak in peaks), outside, stage,
        card.name, card.memory) for (stage, card), *peaks, outside in rows)


def reserved_bytes(config: EstimateConfig, vocab_size: int, estimator: Estimator | MixedEstimator,
                   estimate: Estimate, rank: MemoryBreakdown) -> float:
    """Return the bytes of a rank's GPU that nvidia-smi shows.

    Args:
        config: the run's flags.
        vocab_size: the padded vocabulary size.
        estimator: the cluster it runs on.
        estimate: the estimator's result for these flags.
        rank: the memory that the rank's tensors, CUDA, and NCCL need.
    """
    if isinstance(estimator, MixedEstimator):
        estimator = Estimator(next(card for _, card in estimate.ranks if card.name == rank.card))
    unallocated = estimator.unallocated_bytes(config, vocab_size, rank.stage)
    # Where the GPU is full, the allocator returns segments to CUDA and requests others.
    return min(rank.total + unallocated, rank.capacity)
