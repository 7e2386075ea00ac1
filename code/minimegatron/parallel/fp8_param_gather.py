"""--fp8-param-gather: the distributed optimizer's updated weights are all-gathered in FP8.

Each replica rounds the part of every FP8 weight that it owns, with the scale that the next step
uses, and the others receive bytes: half of what 16 bits take. These are the weights of the next
step, to the last bit those that every replica would have rounded itself. The 16-bit weights are
out of date meanwhile; they receive the rounded values before a checkpoint is written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate, groupby

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.context import Context
from minimegatron.errors import UserError
from minimegatron.model import fp8_ops
from minimegatron.model.fp8_linear import Fp8TensorParallel
from minite.quantize import Quantized


class Fp8ParamGather:
    """The FP8 weights of one rank's part of the model, in buckets that hold nothing else.

    Attributes:
        group: the ranks that share the shards; set once data parallelism knows them.
        linears: the layers whose weights are in FP8, by weight.
        spans: where these weights are in the buffers.
        bytes: their number of elements.
        rounded: these weights in FP8, as bytes, from the first one on; None in the first step.
    """

    def __init__(self, ctx: Context, model: nn.Module) -> None:
        self.tp, self.config = ctx.grid.tp, ctx.config
        chunks = model if isinstance(model, nn.ModuleList) else [model]
        self.states = [part.fp8 for part in chunks]
        self.linears: dict[nn.Parameter, Fp8TensorParallel] = {
            linear.weight: linear.tp for state in self.states for linear in state.linears}
        self.bytes = sum(weight.numel() for weight in self.linears)
        self.spans: dict[nn.Parameter, slice] = {}
        self.rounded: torch.Tensor | None = None
        for part in chunks:
            part.register_state_dict_pre_hook(lambda *_: self.write_back())

    def make_buckets(self, params: Collection[nn.Parameter], size: int) -> list[slice]:
        """Return the buckets of the buffers, each of FP8 weights only or without any.

        Args:
            params: in the order of the buffers.
            size: elements of a bucket.
        """
        ends = list(accumulate((p.numel() for p in params), initial=0))
        self.spans = {weight: slice(start, start + weight.numel()) for start, weight in zip(
            ends, params, strict=False) if weight in self.linears}
        ranks, start, buckets = self.group.size, 0, []
        size = -(-size // ranks) * ranks
        runs = [(in_fp8, sum(p.numel() for p in run))
                for in_fp8, run in groupby(params, key=self.linears.__contains__)]
        for number, (in_fp8, elements) in enumerate(runs):
            if elements % ranks and (in_fp8 or number < len(runs) - 1):
                raise UserError(f"--fp8-param-gather: {elements} consecutive parameters cannot be "
                                f"divided among {ranks} data-parallel ranks; nearest: a power of "
                                "two, or no --fp8-param-gather")
            end = start + -(-elements // ranks) * ranks
            buckets += [slice(at, min(at + size, end)) for at in range(start, end, size)]
            start = end
        return buckets

    def all_gather(self, buffer: torch.Tensor, buckets: Sequence[slice], owned: Sequence[slice]
                   ) -> None:
        """All-gather the parameters, FP8 weights as bytes.

        Args:
            buffer: of the 16-bit parameters, [n].
            buckets: of the buffers.
            owned: this rank's range of each bucket, in which `buffer` is up to date.
        """
        if self.rounded is None:
            self.rounded = buffer.new_empty(self.bytes, dtype=torch.uint8)
        scales = self._round(buffer, owned)
        for bucket, mine in zip(buckets, owned, strict=True):
            if self._pieces(mine):
                self._bytes(bucket)[:] = self.group.all_gather(self._bytes(mine))
            else:
                buffer[bucket] = self.group.all_gather(buffer[mine])
        for (weight, linear), scale_inv in zip(self.linears.items(), scales, strict=True):
            data = self._bytes(self.spans[weight]).view(linear.weight.dtype).view(weight.shape)
            rows = Quantized(data, scale_inv)
            linear.weights = rows, rows.t()

    def _bytes(self, span: slice) -> torch.Tensor:
        """Return the bytes of a range of the buffers that has FP8 weights only."""
        before = sum(min(other.stop, span.start) - other.start for other in self.spans.values()
                     if other.start < span.start)
        return self.rounded[before:before + span.stop - span.start]

    def _pieces(self, among: slice) -> list[tuple[nn.Parameter, slice]]:
        """Return the FP8 weights that are in a range of the buffers, each with its part of it."""
        parts = ((weight, slice(max(span.start, among.start), min(span.stop, among.stop)))
                 for weight, span in self.spans.items())
        return [(weight, part) for weight, part in parts if part.start < part.stop]

    def _round(self, buffer: torch.Tensor, owned: Sequence[slice]) -> list[torch.Tensor]:
        """Round what this rank owns of the FP8 weights; return the reciprocals of all scales."""
        mine: dict[nn.Parameter, list[slice]] = {weight: [] for weight in self.linears}
        for weight, part in (piece for span in owned for piece in self._pieces(span)):
            mine[weight].append(part)
        amaxes, scales = self._amaxes(buffer, mine.values()), []
        for (weight, parts), amax in zip(mine.items(), amaxes, strict=True):
            quantizer = self.linears[weight].weight
            scale, scale_inv, recorded = quantizer.scaling(amax)
            scales.append(scale_inv)
            for part in parts:
                rounded = fp8_ops.fp8_cast(buffer[part], scale, recorded, quantizer.dtype)
                self._bytes(part)[:] = rounded.view(torch.uint8)
        for state in self.states:
            if state.histories:  # now, since a checkpoint contains only the first replica's
                self.group.all_reduce(state.histories["fwd"].amax[0], dist.ReduceOp.MAX)
        return scales

    def _amaxes(self, buffer: torch.Tensor, owned: Collection[list[slice]]
                ) -> Sequence[torch.Tensor | None]:
        """Return each weight's amax over all ranks that have parts of it, where its scale depends
        on it; else None."""
        if self.config.fp8_recipe == "delayed":
            return [None] * len(owned)
        amaxes = torch.zeros(len(owned), device=buffer.device)
        for number, parts in enumerate(owned):
            for part in parts:
                amaxes[number] = torch.maximum(amaxes[number], fp8_ops.fp8_amax(buffer[part]))
        for group in (self.group, self.tp):
            group.all_reduce(amaxes, dist.ReduceOp.MAX)
        return amaxes.unbind()

    def write_back(self) -> None:
        """Copy the rounded weights to the 16-bit ones."""
        for weight, linear in self.linears.items():
            if linear.weights is not None:
                weight.data.copy_(linear.weights[0].dequantize(weight.dtype))
