"""Overlap of the gradient all-reduce with the backward pass (Li et al. 2020, section 3.2.3).

Only --overlap-grad-reduce imports this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minimegatron.parallel.ddp import DistributedDataParallel, GradAccumulator


class GradReduceOverlap:
    """Starts a bucket's all-reduce when its last gradient is complete.

    All steps do the same work, so a gradient is complete after as many writes as in the last step:
    one per micro-batch, two where one stage holds both ends of a tied embedding. The first step
    does not overlap.

    Attributes:
        expected: writes of each gradient in the last step.
        pending: by the number of a bucket that is not being reduced yet, the accumulators whose
            gradients in it are not complete.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = ddp
        self.expected: dict[GradAccumulator, int] = {}

    def begin_step(self) -> None:
        self.pending: dict[int, set[GradAccumulator]] = {
            number: set() for number in range(len(self.ddp.buckets))}
        for accumulator in self.ddp.accumulators.values():
            for number in accumulator.buckets:
                self.pending[number].add(accumulator)

    def written(self, accumulator: GradAccumulator) -> None:
        """Start to reduce the buckets of which this write completes the last gradient.

        The gradient of a tied parameter is complete only after the backward pass, when the other
        stage's gradient has been added.
        """
        if accumulator.tied or accumulator.writes != self.expected.get(accumulator):
            return
        accumulator.complete = True
        for number in accumulator.buckets:
            self.pending[number].discard(accumulator)
            if not self.pending[number]:
                del self.pending[number]
                self.ddp.start_reduce(number)

    def remaining(self) -> list[int]:
        """Return the buckets that no write has completed in this step, at its end."""
        self.expected = {accumulator: accumulator.writes
                         for accumulator in self.ddp.accumulators.values()}
        return list(self.pending)
