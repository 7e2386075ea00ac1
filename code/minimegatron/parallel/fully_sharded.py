"""ZeRO stages 2 and 3 (Rajbhandari et al. 2020), or fully sharded data parallelism (FSDP).

Every bucket is one unit (units.py), mostly a transformer layer. Stage 2 reduce-scatters a unit's
gradients as soon as a backward pass has completed them, frees them, and accumulates only the owned
shard over the micro-batches. Stage 3 also keeps only a shard of the parameters. It all-gathers a
unit before its forward and its backward pass, and frees it afterward. Per micro-batch this moves
three times the parameters, where stages 1 and 2 move twice as much.

A unit's full tensors are views of a buffer whose storage is freed and allocated again. So a
parameter stays the same object, whoever holds it, while its memory comes and goes.

Only --data-parallel-sharding-strategy and --overlap-param-gather import this file.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.context import Context
from minimegatron.model.linear import DelayedWeightGrads, GradAccumulator
from minimegatron.model.parameters import ParamSpec
from minimegatron.parallel.ddp import length
from minimegatron.parallel.sharding import ShardedDataParallel
from minimegatron.parallel.units import Call, make_units


def in_backward() -> bool:
    """Return whether autograd is running a backward pass, in which layers may be recomputed."""
    return torch._C._current_graph_task_id() != -1


class UnitShardedDataParallel(ShardedDataParallel):
    """ZeRO stage 1 by unit: the all-gather of updated parameters overlaps the next forward pass.

    Attributes:
        calls: the parts of the forward pass, and the units that each needs.
        units: the names of each unit's parameters.
        gathers: by the number of a unit that is being all-gathered, the collective.
    """

    def __init__(self, ctx: Context, model: nn.Module) -> None:
        self.calls, self.units = make_units(ctx.config, model)
        self.unit_of = {name: at for at, names in enumerate(self.units) for name in names}
        self.overlaps_gather = ctx.config.overlap_param_gather
        self.gathers: dict[int, dist.Work] = {}
        super().__init__(ctx, model)
        for call in self.calls:
            if call.units:
                self._add_hooks(call)

    def _sort_key(self, name: str, spec: ParamSpec) -> tuple:
        return self.unit_of[name], spec.group

    def _make_buckets(self, size: int) -> list[slice]:
        buckets, start = [], 0
        for names in self.units:
            elements = sum(self.params[name].numel() for name in names)
            padded = -(-elements // self.alignment) * self.alignment
            buckets.append(slice(start, start + padded))
            start += padded
        return buckets

    def _place_params(self) -> dict[str, slice]:
        places, unit, start = {}, None, 0
        for name, parameter in self.params.items():
            if self.unit_of[name] != unit:
                unit = self.unit_of[name]
                start = self.buckets[unit].start
            places[name] = slice(start, start + parameter.numel())
            start = places[name].stop
        return places

    def _add_hooks(self, call: Call) -> None:
        if self.overlaps_gather:
            call.first.register_forward_pre_hook(lambda module, args: self.wait_for(call))

    def wait_for(self, call: Call) -> None:
        """Wait until the units that a call needs have been all-gathered."""
        for unit in call.units:
            if unit in self.gathers:
                self.gathers.pop(unit).wait()

    def gather_params(self, buffer: torch.Tensor) -> None:
        if not self.overlaps_gather:
            self.all_gather(buffer)
            return
        for unit, (bucket, owned) in enumerate(zip(self.buckets, self.owned, strict=True)):
            self.gathers[unit] = self.group.start_all_gather(buffer[bucket], buffer[owned].clone())

    @contextmanager
    def full_params(self, write_back: bool = False) -> Iterator[None]:
        for call in self.calls:
            self.wait_for(call)
        yield


class UnitAccumulator(GradAccumulator):
    """Accumulates the gradient of a parameter whose memory exists only in the backward pass.

    Attributes:
        uses: how often a backward pass writes it: twice where one stage holds both ends of a tied
            embedding.
        grads: the gradients of its unit.
    """

    def __init__(self, delayed: DelayedWeightGrads, main_grad: torch.Tensor, buckets: list[int],
                 tied: bool, uses: int, grads: UnitGrads) -> None:
        super().__init__(delayed, main_grad, buckets, tied)
        self.uses, self.grads = uses, grads
        self.written = grads.written

    # A schedule that delays weight gradients delays all of them, or the unit's gradients would
    # occupy memory until then.
    def take(self, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            self.add_later(lambda: self.add(gradient))

    def add_rows(self, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        self.add_later(partial(super().add_rows, rows, gradient))

    def _is_first_write(self) -> bool:
        self.grads.allocate()
        return super()._is_first_write()


class UnitGrads:
    """The full gradients of one unit, which exist while a backward pass computes them.

    Attributes:
        buffer: the gradients, [u] with padding; without memory between backward passes.
        shard: the sum of this rank's part over the micro-batches, [u/d].
        pending: the accumulators that this backward pass has not completed yet.
        is_summed: whether a micro-batch of this step has contributed to `shard`.
    """

    def __init__(self, ddp: GradShardedDataParallel, buffer: torch.Tensor, shard: torch.Tensor
                 ) -> None:
        # Weak, as the collector does not see a cycle that leads through a parameter's hooks.
        self.ddp, self.buffer, self.shard = weakref.proxy(ddp), buffer, shard
        self.elements = buffer.numel()
        self.is_allocated = self.is_summed = False
        self.accumulators: list[UnitAccumulator] = []
        self.pending: set[UnitAccumulator] = set()

    def allocate(self) -> None:
        """Make room for the gradients, before the first one is written."""
        if not self.is_allocated:
            self.ddp.wait_until_reduced(self)
            self.ddp.device.resize(self.buffer, self.elements)
            self.is_allocated, self.pending = True, set(self.accumulators)

    def written(self, accumulator: UnitAccumulator) -> None:
        """Reduce the unit's gradients if this write completes the last of them."""
        if accumulator.writes >= accumulator.uses:
            self.pending.discard(accumulator)
        if not self.pending:
            self.ddp.start_reduce_unit(self)

    def complete(self) -> torch.Tensor:
        """Return the gradients [u], with zeros where nothing was written."""
        end = 0
        for accumulator in self.accumulators:
            end += accumulator.main_grad.numel()
            if not accumulator.writes:
                accumulator.main_grad.zero_()
            accumulator.writes = 0
        if end < self.elements:
            self.buffer[end:].zero_()
        self.is_allocated = False
        return self.buffer

    def add(self, total: torch.Tensor) -> None:
        """Add the sum over the replicas of one backward pass [u/d], and free the gradients."""
        if self.is_summed:
            self.shard.add_(total)
        else:
            self.shard.copy_(total)
        self.is_summed = True
        self.ddp.device.resize(self.buffer, 0)


class GradShardedDataParallel(UnitShardedDataParallel):
    """ZeRO stage 2: every rank accumulates only its shard of the gradients.

    Attributes:
        grad_buffer: this rank's shards of all units, [m].
        grads: the full gradients of every unit.
    """

    shards_grads = True

    def __init__(self, ctx: Context, model: nn.Module) -> None:
        self.overlaps_reduce = ctx.config.overlap_grad_reduce
        self.reducing: tuple[UnitGrads, dist.Work, torch.Tensor] | None = None
        super().__init__(ctx, model)

    def _make_overlap(self):
        # When a unit is reduced within the instance does not have to be learned from a first step.
        if self.outer.size == 1:
            return None
        from minimegatron.parallel.overlap import InstanceOverlap

        return InstanceOverlap(self)

    def _shards(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Return each unit's part [u/d] of a buffer [m] of what this rank owns."""
        return list(buffer.split([length(owned) for owned in self.owned]))

    def _main_grads(self) -> dict[str, torch.Tensor]:
        self.grads, views = [], {}
        for unit, shard in enumerate(self._shards(self.grad_buffer)):
            buffer = shard.new_empty(length(self.buckets[unit]))
            views |= self.views_of_unit(unit, buffer)
            self.device.resize(buffer, 0)
            self.grads.append(UnitGrads(self, buffer, shard))
        return views

    def views_of_unit(self, unit: int, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return {name: the parameter's elements of its unit's buffer [u], in its shape}."""
        start = self.buckets[unit].start
        return {name: buffer[place.start - start:place.stop - start].view(self.params[name].shape)
                for name, place in self.places.items() if self.unit_of[name] == unit}

    def _make_accumulator(self, name: str, main_grad: torch.Tensor, buckets: list[int]
                          ) -> GradAccumulator:
        grads = self.grads[self.unit_of[name]]
        uses = sum(name in call.names for call in self.calls)
        made = UnitAccumulator(self.delayed, main_grad, buckets, self.specs[name].tied, uses, grads)
        grads.accumulators.append(made)
        return made

    def zero_grad(self) -> None:
        for grads in self.grads:
            grads.is_summed = False
        if self.overlap is not None:
            self.overlap.begin_step()

    def start_reduce_unit(self, grads: UnitGrads) -> None:
        """Start to reduce-scatter a unit's gradients, after those of the unit before.

        At most two units' full gradients are in memory: one is reduced while the backward pass
        computes the other.
        """
        self._finish_reduce()
        whole = grads.complete()
        total = torch.empty_like(grads.shard)
        self.reducing = grads, self.group.start_reduce_scatter(total, whole), total
        if not self.overlaps_reduce:
            self._finish_reduce()

    def _finish_reduce(self) -> None:
        if self.reducing is not None:
            (grads, work, total), self.reducing = self.reducing, None
            work.wait()
            grads.add(total)
            if self.overlap is not None:
                self.overlap.added(grads)

    def wait_until_reduced(self, grads: UnitGrads) -> None:
        """Wait for a reduction that still reads the unit's gradients, if there is one."""
        if self.reducing is not None and self.reducing[0] is grads:
            self._finish_reduce()

    def end_backward(self) -> None:
        for grads in self.grads:
            if grads.is_allocated:  # a part of the unit got no gradient
                self.start_reduce_unit(grads)
        self._finish_reduce()

    def summed_over_stages(self, accumulator: UnitAccumulator) -> torch.Tensor:
        self._zero_unused()
        return accumulator.grads.shard

    def _zero_unused(self) -> None:
        for grads in self.grads:
            if not grads.is_summed:
                grads.shard.zero_()
                grads.is_summed = True

    def finish_grad_sync(self) -> None:
        self.end_backward()
        self._zero_unused()
        if self.overlap is None:
            self.outer.all_reduce(self.grad_buffer)
        else:
            self.overlap.finish()


class FullyShardedDataParallel(GradShardedDataParallel):
    """ZeRO stage 3: a unit's parameters are complete only while a pass uses them.

    Attributes:
        full: each unit's parameters, [u] with padding; without memory while they are sharded.
        shards: this rank's part of them, [u/d].
        gathered: the units whose parameters have memory.
    """

    shards_params = True

    def __init__(self, ctx: Context, model: nn.Module) -> None:
        self.reshards = ctx.config.reshard_after_forward
        self.gathered: set[int] = set()
        super().__init__(ctx, model)
        parameter = next(iter(model.parameters()))
        self.param_buffer = torch.zeros(sum(map(length, self.owned)), dtype=parameter.dtype,
                                        device=self.grad_buffer.device)
        self.shards = self._shards(self.param_buffer)
        self.full = self._shard_params()
        for frozen in model.parameters():
            if not frozen.requires_grad:
                # Until here, it was not in the device's memory.
                frozen.data = torch.empty_like(frozen, device=self.grad_buffer.device).copy_(frozen)

    @torch.no_grad()
    def _shard_params(self) -> list[torch.Tensor]:
        """Move the parameters into the units' buffers, one unit at a time."""
        full = []
        for unit, shard in enumerate(self.shards):
            buffer = shard.new_zeros(length(self.buckets[unit]))
            for name, view in self.views_of_unit(unit, buffer).items():
                view.copy_(self.params[name].data)
                self.params[name].data = view
            self._write_back(unit, buffer)
            self.device.resize(buffer, 0)
            full.append(buffer)
        return full

    def _write_back(self, unit: int, buffer: torch.Tensor) -> None:
        """Copy this rank's part of a unit's complete parameters [u] to its shard."""
        size = len(self.shards[unit])
        self.shards[unit].copy_(buffer[self.group.index * size:(self.group.index + 1) * size])

    def make_param_buffer(self, dtype: torch.dtype) -> torch.Tensor:
        return self.param_buffer

    def _add_hooks(self, call: Call) -> None:
        call.first.register_forward_pre_hook(partial(self._before_forward, call))
        call.last.register_forward_hook(partial(self._after_forward, call))

    def _before_forward(self, call: Call, module: nn.Module, args: tuple) -> None:
        recomputes = in_backward()
        following = call.next_recompute if recomputes else call.next_forward
        if recomputes and following is None:
            following = call.next_backward
        self._use(call, following)
        if call.backward and torch.is_grad_enabled() and args[0].requires_grad:
            args[0].register_hook(lambda grad: self._release(call))

    def _after_forward(self, call: Call, module: nn.Module, args: tuple, out: torch.Tensor) -> None:
        if call.backward and out.requires_grad:
            out.register_hook(lambda grad: self._use(call, call.next_backward))
        stays = call.stays and out.requires_grad
        if self.reshards and not stays and not in_backward():
            self._release(call)

    def _use(self, call: Call, following: int | None) -> None:
        """Complete the units of a call, and start to all-gather those of the following one."""
        for unit in call.units:
            self._start_gather(unit)
        self.wait_for(call)
        if self.overlaps_gather and following is not None:
            for unit in self.calls[following].units:
                self._start_gather(unit)

    def _start_gather(self, unit: int) -> None:
        if unit not in self.gathered:
            self.gathered.add(unit)
            self.device.resize(self.full[unit], length(self.buckets[unit]))
            self.gathers[unit] = self.group.start_all_gather(self.full[unit], self.shards[unit])

    def _release(self, call: Call) -> None:
        self._free(call.units)

    def _free(self, units: tuple[int, ...]) -> None:
        for unit in units:
            if unit in self.gathered:
                if unit in self.gathers:  # a collective may still write to it
                    self.gathers.pop(unit).wait()
                self.gathered.discard(unit)
                self.device.resize(self.full[unit], 0)

    def end_backward(self) -> None:
        super().end_backward()
        if self.reshards:
            self._free(tuple(self.gathered))

    def gather_params(self, buffer: torch.Tensor) -> None:
        """After an update: what is still gathered is out of date."""
        self._free(tuple(self.gathered))

    @contextmanager
    def full_params(self, write_back: bool = False) -> Iterator[None]:
        for unit in range(len(self.units)):
            self._start_gather(unit)
        for call in self.calls:
            self.wait_for(call)
        try:
            yield
            if write_back:
                for unit, buffer in enumerate(self.full):
                    self._write_back(unit, buffer)
        finally:  # or this rank would gather less than the others after an error
            self._free(tuple(self.gathered))


BY_STAGE = {1: UnitShardedDataParallel, 2: GradShardedDataParallel, 3: FullyShardedDataParallel}
