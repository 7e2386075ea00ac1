"""Data parallelism: gradients accumulate in one flat buffer, which is all-reduced in buckets.

Every gradient is a view of the buffer, so the all-reduce, the norm, and clipping are single
operations. A bucket is a range of the buffer that one all-reduce sums over the replicas.

A linear layer delivers its weight gradient as the two factors of a matrix multiplication. It can be
delayed (the W action of a zero-bubble schedule), and it can accumulate inside the matmul.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.context import Context, grads_dtype
from minimegatron.model.linear import matmul, to_compute_dtype
from minimegatron.model.parameters import named_param_specs
from minimegatron.parallel.grid import Group


class DelayedWeightGrads:
    """The delayed matrix multiplications of a model's weight gradients, by key."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = ddp
        self.by_key: dict[Hashable, list[Callable[[], None]]] = {}

    @contextmanager
    def delay(self, key: Hashable) -> Iterator[None]:
        """Delay the weight gradients of backward passes inside until `compute`."""
        self.ddp.delayed = self.by_key.setdefault(key, [])
        try:
            yield
        finally:
            self.ddp.delayed = None

    @torch.no_grad()
    def compute(self, key: Hashable) -> None:
        """Compute the weight gradients delayed under a key; KeyError if there are none."""
        for compute in self.by_key.pop(key):
            compute()


class GradAccumulator:
    """Accumulates the gradient of one parameter over a step's micro-batches.

    Attributes:
        main_grad: the gradient, a view of the gradient buffer in the parameter's shape.
        buckets: the numbers of those that hold a part of it.
        tied: whether another stage holds the same parameter.
        writes: how often it was written in this step.
        complete: whether it is final and may have been all-reduced.
    """

    def __init__(self, ddp: DistributedDataParallel, main_grad: torch.Tensor,
                 buckets: list[int], tied: bool) -> None:
        self.ddp, self.main_grad, self.buckets, self.tied = ddp, main_grad, buckets, tied
        self.writes, self.complete = 0, False

    def add(self, gradient: torch.Tensor) -> None:
        """Add a gradient of the parameter's shape."""
        if self._is_first_write():
            self.main_grad.copy_(gradient)
        else:
            self.main_grad.add_(gradient)
        self._count_write()

    def add_product(self, grad_output: torch.Tensor, inputs: torch.Tensor) -> None:
        """Add grad_output [n, out]^T @ inputs [n, in], a linear layer's weight gradient."""
        self.add_later(lambda: self._add_product(grad_output, inputs))

    def add_later(self, add: Callable[[], None]) -> None:
        """Call `add` at once, or later if a list of `delayed` gradients is being filled."""
        if self.ddp.delayed is None:
            add()
        else:
            self.ddp.delayed.append(add)

    def add_rows(self, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add a gradient [n, h] to the given rows (int64 [n]) of an embedding's gradient."""
        if self._is_first_write():
            self.main_grad.zero_()
        self.main_grad.index_add_(0, rows, gradient.to(self.main_grad.dtype))
        self._count_write()

    def take(self, parameter: nn.Parameter) -> None:
        """Move a gradient that autograd accumulated in `parameter.grad` (norms, biases)."""
        if parameter.grad is not None:
            self.add(parameter.grad)
            parameter.grad = None

    def _add_product(self, grad_output: torch.Tensor, inputs: torch.Tensor) -> None:
        if self.main_grad.dtype != inputs.dtype or to_compute_dtype(inputs) is not inputs:
            self.add(matmul(grad_output.t(), inputs))
            return
        if self._is_first_write():
            torch.mm(grad_output.t(), inputs, out=self.main_grad)
        else:
            self.main_grad.addmm_(grad_output.t(), inputs)
        self._count_write()

    def _is_first_write(self) -> bool:
        """Return whether to replace the last step's gradient instead of adding to it.

        Raises RuntimeError if the gradient may have been all-reduced already.
        """
        if self.complete:
            raise RuntimeError("a gradient arrived after its all-reduce started: this step writes "
                               "it more often than the last one did; leave out "
                               "--overlap-grad-reduce")
        return self.writes == 0

    def _count_write(self) -> None:
        self.writes += 1
        if self.ddp.overlap is not None:
            self.ddp.overlap.written(self)


class DistributedDataParallel:
    """Owns the gradients of one rank's part of the model, and sums them over its replicas.

    Unlike PyTorch's class of this name, it does not wrap the forward pass: the gradients reach it
    through the accumulators. A step is `zero_grad`, the backward passes, `finish_grad_sync`.

    Attributes:
        params: {name: parameter} of those that are trained, in the order of the buffers, which is
            that of `ParamGroup`.
        specs: {name: spec} in the same order.
        accumulators: {name: accumulator} in the same order.
        grad_buffer: all gradients, [n].
        buckets: the ranges of the buffer that one collective each reduces.
        owned: the ranges of the buffers whose parameters this rank updates: here all of them.
        shard_groups: groups whose ranks own different ranges: here none.
        overlap: with --overlap-grad-reduce, starts to all-reduce buckets in the backward pass.
        delayed: collects weight gradients to compute later (DelayedWeightGrads); None to
            compute them at once.
    """

    alignment = 1  # every bucket's size is a multiple of it
    one_bucket_at_a_time = False

    def __init__(self, ctx: Context, model: nn.Module) -> None:
        """Create the gradient buffer, and set every trained parameter's accumulator in its spec."""
        specs = named_param_specs(model)
        self.group: Group = ctx.grid.replicas
        self.params = dict(sorted(
            ((name, parameter) for name, parameter in model.named_parameters()
             if parameter.requires_grad_(specs[name].trained).requires_grad),
            key=lambda item: specs[item[0]].group))
        self.specs = {name: specs[name] for name in self.params}
        self.buckets = self._make_buckets(ctx.config.ddp_bucket_size)
        self.owned, self.shard_groups = self._owned_ranges(), []
        self.grad_buffer = torch.zeros(self.size, dtype=grads_dtype(ctx.config),
                                       device=ctx.device.torch_device)
        self.delayed: list[Callable[[], None]] | None = None
        self._in_flight: list[tuple[int, dist.Work, torch.Tensor]] = []
        self.accumulators = self._make_accumulators()
        self.overlap: GradReduceOverlap | None = None
        if ctx.config.overlap_grad_reduce:
            self.overlap = GradReduceOverlap(self)
        self.zero_grad()

    def _make_buckets(self, size: int) -> list[slice]:
        elements = sum(parameter.numel() for parameter in self.params.values())
        size, total = (-(-number // self.alignment) * self.alignment for number in (size, elements))
        return [slice(start, min(start + size, total)) for start in range(0, total, size)]

    @property
    def size(self) -> int:
        """Elements of the buffers; 0 if this rank trains nothing."""
        return self.buckets[-1].stop if self.buckets else 0

    def _owned_ranges(self) -> list[slice]:
        return [slice(0, self.size)]

    def _make_accumulators(self) -> dict[str, GradAccumulator]:
        made, start = {}, 0
        for name, main_grad in self.named_views(self.grad_buffer).items():
            end = start + main_grad.numel()
            buckets = [number for number, bucket in enumerate(self.buckets)
                       if bucket.start < end and start < bucket.stop]
            spec, start = self.specs[name], end
            made[name] = spec.accumulator = GradAccumulator(self, main_grad, buckets, spec.tied)
            self.params[name].main_grad = main_grad  # Megatron-LM's name: tools look for it
            self.params[name].register_post_accumulate_grad_hook(spec.accumulator.take)
        return made

    def named_views(self, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return {name: the parameter's elements of a flat buffer [n], in its shape}."""
        sizes = [parameter.numel() for parameter in self.params.values()]
        pieces = buffer[:sum(sizes)].split(sizes)
        return {name: piece.view_as(parameter)
                for (name, parameter), piece in zip(self.params.items(), pieces, strict=True)}

    def zero_grad(self) -> None:
        """Begin a step: each gradient's first write replaces the last step's gradient."""
        for accumulator in self.accumulators.values():
            accumulator.writes, accumulator.complete = 0, False
        if self.overlap is not None:
            self.overlap.begin_step()

    def finish_grad_sync(self) -> None:
        """After the last backward pass: reduce the remaining buckets, and wait for all of them.

        Losses are divided by the number of replicas beforehand, so the sum is the mean.
        """
        for accumulator in self.accumulators.values():
            if not accumulator.writes:
                accumulator.main_grad.zero_()
            accumulator.complete = True
        numbers = range(len(self.buckets)) if self.overlap is None else self.overlap.remaining()
        for number in numbers:
            self.start_reduce(number)
            if self.one_bucket_at_a_time:
                self._wait()
        self._wait()

    def start_reduce(self, number: int) -> None:
        """Start the collective of a bucket; all replicas start them in the same order."""
        if self.group.size > 1:
            total = self.grad_buffer[self.buckets[number]]
            self._in_flight.append((number, self.group.start_all_reduce(total), total))

    def _wait(self) -> None:
        """Wait for all collectives; the buffer then holds the sums in the `owned` ranges."""
        for _, work, _ in self._in_flight:
            work.wait()
        self._in_flight.clear()

    def copy_owned(self, buffer: torch.Tensor, out: torch.Tensor) -> None:
        """Copy what this rank owns of a buffer [n] into `out` [n], or [n/d] when sharded."""
        out.copy_(buffer)

    def unshard(self, shard: torch.Tensor) -> torch.Tensor:
        """Return the buffer [n] whose owned ranges are `shard` [m]; every replica must call it."""
        return shard

    def all_gather(self, buffer: torch.Tensor) -> None:
        """Fill a buffer [n], valid in this rank's owned ranges, with the other replicas' ranges."""


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
