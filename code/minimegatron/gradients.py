"""Gradients: one flat buffer, filled by the backward pass and reduced over the replicas.

Every parameter's gradient is a view of the buffer, so the all-reduce, the norm and the clipping
are single operations. A linear layer hands in its weight gradient as the two factors of a matrix
product: the product can wait (a zero-bubble schedule's W action drains the queue), and it
accumulates inside the product instead of after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from minimegatron.grid import Group


class Gradients:
    """The gradients of one rank's parameters.

    flat: fp32 [total number of elements]; `parameter.main_grad` is its view.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        total = sum(p.numel() for p in parameters)
        self.flat = torch.zeros(total, dtype=torch.float32, device=parameters[0].device)
        self._written: set[nn.Parameter] = set()
        self._queue: list[Callable[[], None]] | None = None
        self._waiting: dict[Hashable, list[Callable[[], None]]] = {}
        offset = 0
        for parameter in parameters:
            parameter.main_grad = self.flat[offset:offset + parameter.numel()].view_as(parameter)
            parameter.sink = self
            parameter.register_post_accumulate_grad_hook(self._take)
            offset += parameter.numel()

    def begin(self) -> None:
        """Start an optimizer step: what is written first replaces what is there."""
        self._written.clear()

    def add(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        """Accumulate a finished gradient of the parameter's shape."""
        if self._is_first(parameter):
            parameter.main_grad.copy_(gradient)
        else:
            parameter.main_grad.add_(gradient)

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
        weight.main_grad.index_add_(0, rows, gradient)

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

    def finish(self, replicas: Group) -> None:
        """All micro-batches are done: sum over the replicas, whose losses are already shares."""
        for parameter in self.parameters:
            if parameter not in self._written:
                parameter.main_grad.zero_()
        replicas.all_reduce(self.flat)

    def _is_first(self, parameter: nn.Parameter) -> bool:
        first = parameter not in self._written
        self._written.add(parameter)
        return first

    def _product(self, weight: nn.Parameter, grad_output: torch.Tensor,
                 inputs: torch.Tensor) -> None:
        if self._is_first(weight):
            torch.mm(grad_output.t(), inputs, out=weight.main_grad)
        else:
            weight.main_grad.addmm_(grad_output.t(), inputs)

    def _take(self, parameter: nn.Parameter) -> None:
        """Autograd finished a small gradient (norms, biases): move it into the buffer."""
        if parameter.grad is None:  # it came through a sink instead
            return
        self.add(parameter, parameter.grad)
        parameter.grad = None


def start_from(out: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """A root whose backward() starts at `out` with `gradient`.

    out.backward(gradient) would do, and so would torch.autograd.backward and .grad, but all three
    compare the two shapes with the compiler's symbolic ones, whose import takes each rank 0.3 s.
    """
    return _Start.apply(out, gradient)


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, gradient):
        ctx.gradient = gradient
        return out.new_empty(())

    @staticmethod
    def backward(ctx, _):
        return ctx.gradient, None
