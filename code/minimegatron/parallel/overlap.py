"""Gradients are summed over the replicas while the backward pass goes on.

What can start when is learned from the step before, since all steps do the same work. Only
--overlap-grad-reduce imports this file.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable

import torch.distributed as dist

from minimegatron.model.linear import GradAccumulator


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

    def __init__(self, ddp) -> None:
        self.ddp = weakref.proxy(ddp)  # no cycle through a parameter's hooks, see UnitGrads
        self.expected: dict[GradAccumulator, int] = {}
        for accumulator in ddp.accumulators.values():
            accumulator.written = self.written

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


class InstanceOverlap:
    """Hybrid sharding: sums a unit's shard over the instances once its last micro-batch is in it.

    All steps do the same work, so that is after as many reductions as in the last step. The first
    step does not overlap.

    Attributes:
        expected: reductions of each unit in the last step.
        counts: reductions of each unit so far in this step.
        works: the all-reduces of this step, by unit.
    """

    def __init__(self, ddp) -> None:
        self.ddp = weakref.proxy(ddp)
        self.expected: dict[Hashable, int] = {}

    def begin_step(self) -> None:
        self.counts = dict.fromkeys(self.ddp.grads, 0)
        self.works: dict[Hashable, dist.Work] = {}

    def added(self, grads) -> None:
        """Start the unit's all-reduce if its shard is final; a tied parameter's is not yet.

        Raises RuntimeError if the all-reduce was started before.
        """
        if grads in self.works:
            raise RuntimeError("gradients arrived after their all-reduce over the instances had "
                               "started: this step has more micro-batches than the last one; "
                               "leave out --overlap-grad-reduce")
        self.counts[grads] += 1
        is_tied = any(accumulator.tied for accumulator in grads.accumulators)
        if not is_tied and self.counts[grads] == self.expected.get(grads):
            self._start(grads)

    def _start(self, grads) -> None:
        self.works[grads] = self.ddp.outer.start_all_reduce(grads.shard)

    def finish(self) -> None:
        """Start the all-reduces that remain at the end of a step, and wait for all of them."""
        for grads in self.ddp.grads:
            if grads not in self.works:
                self._start(grads)
        for work in self.works.values():
            work.wait()
        self.expected = self.counts
