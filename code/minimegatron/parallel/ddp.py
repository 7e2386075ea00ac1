"""Data parallelism: gradients accumulate in one flat buffer, which is all-reduced in buckets.

Every gradient is a view of the buffer, so the all-reduce, the norm, and clipping are single
operations. A bucket is a range of the buffer that one all-reduce sums over the replicas.

The gradients reach the buffer through accumulators (model/linear.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.context import Context, grads_dtype
from minimegatron.grid import Group
from minimegatron.model.linear import DelayedWeightGrads, GradAccumulator
from minimegatron.model.parameters import ParamGroup, ParamSpec, named_param_specs


class DistributedDataParallel:
    """Owns the gradients of one rank's part of the model, and sums them over its replicas.

    Unlike PyTorch's class of this name, it does not wrap the forward pass: the gradients reach it
    through the accumulators. A step is `zero_grad`, the backward passes, `finish_grad_sync`.

    Attributes:
        params: {name: parameter} of those that are trained, in the order of the buffers: by
            `ParamGroup`, or by unit and then by it.
        specs: {name: spec} in the same order.
        places: {name: its elements in the buffers} in the same order.
        accumulators: {name: accumulator} in the same order.
        grad_buffer: all gradients, [n].
        buckets: the ranges of the buffer that one collective each reduces.
        owned: the ranges of the buffers whose parameters this rank updates: here all of them.
        shard_groups: groups whose ranks own different ranges: here none.
        shards_grads, shards_params: whether the buffers of gradients and of parameters hold only
            the owned ranges, one after another: [m] instead of [n].
        overlap: with --overlap-grad-reduce, starts to all-reduce buckets in the backward pass.
        delayed: the weight gradients that a schedule computes later.
    """

    alignment = 1  # every bucket's size is a multiple of it
    one_bucket_at_a_time = False
    shards_grads = shards_params = False

    def __init__(self, ctx: Context, model: nn.Module) -> None:
        """Create the gradient buffer, and set every trained parameter's accumulator in its spec.

        Raises NotImplementedError for gradients that are reduced over other groups.
        """
        specs = named_param_specs(model)
        self.device, self.group = ctx.device, self._shard_group(ctx)
        self.params = dict(sorted(
            ((name, parameter) for name, parameter in model.named_parameters()
             if parameter.requires_grad_(specs[name].trained).requires_grad),
            key=lambda item: self._sort_key(item[0], specs[item[0]])))
        self.specs = {name: specs[name] for name in self.params}
        for name, spec in self.specs.items():
            if set(spec.reduced_over) - {"tp"} != {"replicas"}:
                raise NotImplementedError(f"{name}: gradients are summed over the replicas, and "
                                          f"over tp, but not over {spec.reduced_over}")
        self.buckets = self._make_buckets(ctx.config.ddp_bucket_size)
        self.places = self._place_params()
        self.owned, self.shard_groups = self._owned_ranges(), []
        held = sum(map(length, self.owned)) if self.shards_grads else self.size
        self.grad_buffer = torch.zeros(held, dtype=grads_dtype(ctx.config),
                                       device=ctx.device.torch_device)
        self.delayed = DelayedWeightGrads()
        self._in_flight: list[tuple[int, dist.Work, torch.Tensor]] = []
        self.accumulators = self._make_accumulators()
        self.overlap = self._make_overlap() if ctx.config.overlap_grad_reduce else None
        self.zero_grad()

    def _shard_group(self, ctx: Context) -> Group:
        """Return the group over which gradients are summed bucket by bucket: all replicas."""
        return ctx.grid.replicas

    def _sort_key(self, name: str, spec: ParamSpec) -> tuple:
        return (spec.group,)

    def _make_buckets(self, size: int | None) -> list[slice]:
        elements = sum(parameter.numel() for parameter in self.params.values())
        size = size or elements or 1  # None: units were to be the buckets, but there is one replica
        size, total = (-(-number // self.alignment) * self.alignment for number in (size, elements))
        return [slice(start, min(start + size, total)) for start in range(0, total, size)]

    @property
    def size(self) -> int:
        """Elements of the buffers; 0 if this rank trains nothing."""
        return self.buckets[-1].stop if self.buckets else 0

    def _place_params(self) -> dict[str, slice]:
        places, start = {}, 0
        for name, parameter in self.params.items():
            places[name] = slice(start, (start := start + parameter.numel()))
        return places

    def _owned_ranges(self) -> list[slice]:
        return [slice(0, self.size)]

    def _make_accumulators(self) -> dict[str, GradAccumulator]:
        made = {}
        for name, main_grad in self._main_grads().items():
            place, spec = self.places[name], self.specs[name]
            buckets = [number for number, bucket in enumerate(self.buckets)
                       if bucket.start < place.stop and place.start < bucket.stop]
            made[name] = spec.accumulator = self._make_accumulator(name, main_grad, buckets)
            self.params[name].main_grad = main_grad  # Megatron-LM's name: tools look for it
            self.params[name].register_post_accumulate_grad_hook(spec.accumulator.take)
        return made

    def _make_overlap(self):
        from minimegatron.parallel.overlap import GradReduceOverlap

        return GradReduceOverlap(self)

    def _main_grads(self) -> dict[str, torch.Tensor]:
        return self.named_views(self.grad_buffer)

    def _make_accumulator(self, name: str, main_grad: torch.Tensor, buckets: list[int]
                          ) -> GradAccumulator:
        return GradAccumulator(self.delayed, main_grad, buckets, self.specs[name].tied)

    def make_param_buffer(self, dtype: torch.dtype) -> torch.Tensor:
        """Return a flat buffer [n] of the parameters in their dtype, which become views of it."""
        buffer = torch.zeros(self.size, dtype=dtype, device=self.grad_buffer.device)
        for name, view in self.named_views(buffer).items():
            view.copy_(self.params[name].data)
            self.params[name].data = view
        return buffer

    def named_views(self, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return {name: the parameter's elements of a flat buffer [n], in its shape}."""
        return {name: buffer[place].view(self.params[name].shape)
                for name, place in self.places.items()}

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

    def end_backward(self) -> None:
        """After a backward pass, or a delayed pass of weight gradients: here nothing is due."""

    def summed_over_stages(self, accumulator: GradAccumulator) -> torch.Tensor:
        """Return the part of a tied parameter's gradient that the stages' copies add up."""
        return accumulator.main_grad

    @contextmanager
    def full_params(self, write_back: bool = False) -> Iterator[None]:
        """Return a context in which all parameters have their values, and with `write_back` may be
        changed; every replica must enter it."""
        yield

    def gather_params(self, buffer: torch.Tensor) -> None:
        """After the update of what each replica owns of the parameters: all-gather them."""
        self.all_gather(buffer)

    def copy_owned(self, buffer: torch.Tensor, out: torch.Tensor) -> None:
        """Copy what this rank owns, [m], from a buffer [n], or from one that is sharded itself."""
        out.copy_(buffer)

    def all_gather(self, buffer: torch.Tensor) -> None:
        """Fill a buffer [n], valid in this rank's owned ranges, with the other replicas' ranges."""


def length(elements: slice) -> int:
    """Return the number of elements of a range."""
    return elements.stop - elements.start


def joined(ranges: Iterable[slice]) -> list[slice]:
    """Return the ranges with neighbors joined."""
    result: list[slice] = []
    for each in ranges:
        start = result.pop().start if result and result[-1].stop == each.start else each.start
        result.append(slice(start, each.stop))
    return result


@dataclass(frozen=True)
class BufferRange:
    """Consecutive elements that this rank updates, all of one parameter group.

    The optimizer cuts what a rank owns into such ranges. The buffers of what it owns, of gradients,
    and of parameters may have different lengths, so a range has a place in all three.

    Attributes:
        shard: where they are in the buffers of what this rank owns.
        grads, params: where they are in the gradient and the parameter buffer, which hold
            everything, or what this rank owns.
        group: the parameter group.
        counted: whether this rank counts them in sums over the model (norms, zeros).
        partial: whether their gradients are summed over the tensor-parallel ranks, too.
    """

    shard: slice
    grads: slice
    params: slice
    group: ParamGroup
    counted: bool
    partial: bool
