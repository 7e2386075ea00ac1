"""Gradients: one flat buffer, filled by the backward pass and reduced over the replicas.

Every parameter's gradient is a view of the buffer, so the all-reduce, the norm and the clipping
are single operations. A linear layer hands in its weight gradient as the two factors of a matrix
product: the product can wait (a zero-bubble schedule's W action drains the queue), and where both
have one type it accumulates inside the product instead of after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from minimegatron.context import Context
from minimegatron.dtypes import grads_dtype
from minimegatron.model import matmul as products
from minimegatron.parallel.buckets import Buckets


class Gradients:
    """The gradients of one rank's parameters.

    flat: [number of elements, padded for the buckets]; `parameter.main_grad` is its view.
    """

    def __init__(self, ctx: Context, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.buckets = Buckets(ctx, sum(p.numel() for p in parameters))
        self.flat = torch.zeros(self.buckets.total, dtype=grads_dtype(ctx.config),
                                device=parameters[0].device)
        self.overlap = ctx.config.overlap_grad_reduce
        self._writes = dict.fromkeys(parameters, 0)  # of this step
        self._last_step: dict[nn.Parameter, int] | None = None
        self._buckets_of: dict[nn.Parameter, list[int]] = {}
        self._missing: list[set[nn.Parameter]] = [set() for _ in self.buckets.ranges]
        self._queue: list[Callable[[], None]] | None = None
        self._waiting: dict[Hashable, list[Callable[[], None]]] = {}
        offset = 0
        for parameter in parameters:
            parameter.main_grad = self.flat[offset:offset + parameter.numel()].view_as(parameter)
            parameter.sink = self
            parameter.register_post_accumulate_grad_hook(self._take)
            end = offset + parameter.numel()
            self._buckets_of[parameter] = [
                number for number, bucket in enumerate(self.buckets.ranges)
                if bucket.start < end and offset < bucket.stop]
            offset = end
        self.begin()

    def begin(self) -> None:
        """Start an optimizer step: what is written first replaces what is there."""
        self._writes = dict.fromkeys(self.parameters, 0)
        for parameter, numbers in self._buckets_of.items():
            for number in numbers:
                self._missing[number].add(parameter)

    def add(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        """Accumulate a finished gradient of the parameter's shape."""
        if self._is_first(parameter):
            parameter.main_grad.copy_(gradient)
        else:
            parameter.main_grad.add_(gradient)
        self._wrote(parameter)

    def add_product(self, weight: nn.Parameter, grad_output: torch.Tensor,
                    inputs: torch.Tensor) -> None:
        """Accumulate grad_output^T @ inputs ([n, out], [n, in]), now or when drained."""
        if self._queue is None:
            self._product(weight, grad_output, inputs)
        else:
            self._queue.append(lambda: self._product(weight, grad_output, inputs))

    def add_rows(self, weight: nn.Parameter, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        """Accumulate `gradient` [n, h] into the given rows (int64 [n]) of an embedding."""
        if self._is_first(weight):
            weight.main_grad.zero_()
        weight.main_grad.index_add_(0, rows, gradient.to(weight.main_grad.dtype))
        self._wrote(weight)

    @contextmanager
    def deferred(self, name: Hashable) -> Iterator[None]:
        """The weight gradients of a backward inside wait for drain(name)."""
        self._queue = self._waiting.setdefault(name, [])
        try:
            yield
        finally:
            self._queue = None

    @torch.no_grad()
    def drain(self, name: Hashable) -> None:
        """Compute the weight gradients that wait under this name; KeyError when none ever did."""
        for compute in self._waiting.pop(name):
            compute()

    def grad_ready(self, parameter: nn.Parameter) -> None:
        """The parameter's gradient of this step is complete: its buckets may be, too."""
        for number in self._buckets_of[parameter]:
            missing = self._missing[number]
            missing.discard(parameter)
            if not missing:
                self.buckets.start(number, self.flat)

    def finish(self) -> None:
        """All micro-batches are done: sum over the replicas, whose losses are already shares."""
        for parameter, writes in self._writes.items():
            if not writes:
                parameter.main_grad.zero_()
        for number, missing in enumerate(self._missing):
            if missing:
                missing.clear()
                self.buckets.start(number, self.flat)
                if self.buckets.sharded:  # one at a time: each needs room for a copy
                    self.buckets.finish(self.flat)
        self.buckets.finish(self.flat)
        self._last_step = self._writes

    def _is_first(self, parameter: nn.Parameter) -> bool:
        if not any(parameter in self._missing[number] for number in self._buckets_of[parameter]):
            raise RuntimeError("a gradient came in after its bucket was sent: the schedule changed")
        return self._writes[parameter] == 0

    def _wrote(self, parameter: nn.Parameter) -> None:
        """Count. Every step does the same work, so a gradient is complete when it was written as
        often as in the step before: once per micro-batch, a tied embedding twice, and so on."""
        self._writes[parameter] += 1
        if (self.overlap and self._last_step and not getattr(parameter, "is_tied", False)
                and self._writes[parameter] == self._last_step[parameter]):
            self.grad_ready(parameter)

    def _product(self, weight: nn.Parameter, grad_output: torch.Tensor,
                 inputs: torch.Tensor) -> None:
        first, grad = self._is_first(weight), weight.main_grad
        if grad.dtype != inputs.dtype or products.widen(inputs) is not inputs:
            self.add(weight, products.matmul(grad_output.t(), inputs))
            return
        if first:
            torch.mm(grad_output.t(), inputs, out=grad)
        else:
            grad.addmm_(grad_output.t(), inputs)
        self._wrote(weight)

    def _take(self, parameter: nn.Parameter) -> None:
        """Autograd finished a small gradient (norms, biases): move it into the buffer."""
        if parameter.grad is None:  # it came through a sink instead
            return
        self.add(parameter, parameter.grad)
        parameter.grad = None
