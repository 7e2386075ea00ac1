"""Checkpoints of your own model (lab 09): whole tensors, which any layout can load.

The files are those of checkpoints.py, as one rank writes them, with a unit for each tensor of your
Llama. To save, the ranks sum their parts of a tensor on rank 0: tensor-parallel parts, stages, and
shards of ZeRO alike, since what a rank does not have is 0. To load, every rank reads one tensor
after another, and keeps its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from lab.mytrainer import pieces
from lab.mytrainer.checkpoints import (
    KINDS,
    MUST_MATCH,
    Checkpoints,
    Progress,
    Read,
    Units,
    agree,
    resharded,
)
from lab.mytrainer.own_model import FUSED, LAYER, NAMES, OwnLlama, default_group
from minimegatron.context import Context
from minimegatron.errors import UserError

PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "layers_per_chunk")
VOCABULARY = ("embedding.weight", "head.weight")


class OwnCheckpoints(Checkpoints):
    """Saves and loads your Llama in any layout; every rank must make every call."""

    must_match = tuple(name for name in MUST_MATCH if name not in PARALLEL)

    def __init__(self, ctx: Context, gpt: OwnLlama, model: nn.Module,
                 masters: Sequence[torch.Tensor], adam: torch.optim.Optimizer) -> None:
        """Args: as for Checkpoints; the default process group is that of the replicas."""
        self.world, self.replicas = gpt.world, dist.group.WORLD
        self.whole: dict[tuple[str, str], torch.Tensor] = {}  # by kind and name, on rank 0
        super().__init__(ctx, gpt, model, masters, adam)

    def _named(self, gpt: OwnLlama) -> dict[str, nn.Parameter]:
        return {name: one for part in gpt.parts for name, one in part.named_parameters()}

    def _arrange(self, named: dict[str, nn.Parameter]) -> None:
        self.rank, self.ranks, self.named = 0, 1, named
        # Which elements of a flat parameter this rank updates.
        self.pieces = dict.fromkeys(named, slice(None))
        if self.sharded:
            names, rank = {one: name for name, one in named.items()}, self.ctx.grid.dp.index
            for unit in self.model.units:
                layout = unit.layout
                for one, start, part in zip(unit.parameters, layout.starts, layout.parts(rank),
                                            strict=True):
                    first = layout.owned(rank).start + part.start - start
                    self.pieces[names[one]] = slice(first, first + part.stop - part.start)
        self._set_shapes({name: list(one.full_shape) for name, one in named.items()})

    def _set_shapes(self, shapes: dict[str, list[int]]) -> None:
        layout = pieces.load("shards").ShardLayout
        self.shapes = shapes
        self.units = [([name], layout([torch.Size(shape)], 1)) for name, shape in shapes.items()]

    def save(self, progress: Progress) -> None:
        mine = self.shapes
        with default_group(self.world):
            super().save(progress)
        self.whole = {}
        self._set_shapes(mine)

    def _collect(self) -> None:
        """Sum the ranks' parts of every tensor on rank 0, in host memory."""
        shapes: dict[str, list[int]] = {}
        for other in agree(None, self.shapes):
            shapes |= other
        self._set_shapes(shapes)
        for kind in KINDS:
            for name, shape in shapes.items():
                whole = torch.zeros(shape, device=self.ctx.device.torch_device)
                if name in self.named:
                    self._add(kind, name, whole)
                dist.reduce(whole, dst=0)
                if self.ctx.grid.rank == 0:
                    self.whole[kind, name] = whole.cpu()

    def _add(self, kind: str, name: str, whole: torch.Tensor) -> None:
        """Copy this rank's elements into a whole tensor, unless another rank has the same ones."""
        one, master, grid = self.named[name], self.masters[name], self.ctx.grid
        value = master if kind == "masters" else self.adam.state[master].get(kind)
        is_copy = grid.tp.index % one.sharing_ranks or (grid.dp.index and not self.sharded)
        if value is None or is_copy:  # there are no moments before the first update
            return
        part = torch.zeros(one.numel(), device=whole.device)
        part[self.pieces[name]] = value.detach().flatten()
        whole[one.part] = part.view(one.shape)

    def _shard(self, kind: str, names: list[str], layout: object) -> torch.Tensor:
        return self.whole[kind, names[0]].flatten()

    def load(self) -> Progress:
        with default_group(self.world):
            return super().load()

    def _gather(self) -> None:
        with default_group(self.replicas):
            super()._gather()

    def _shards(self, read: Read, old: Units) -> Iterator[torch.Tensor]:
        for unit in self.units:  # only one whole tensor at a time is in memory
            yield from resharded(read, old, [unit], 0)

    def _own_part(self, name: str, value: torch.Tensor) -> torch.Tensor:
        one = self.named[name]
        return value.view(one.full_shape)[one.part].flatten()[self.pieces[name]]

    def _compared(self, saved: dict) -> Iterable[str]:
        """Return the names of this rank's tensors.

        Raises UserError if the checkpoint's padded vocabulary has another size; the message gives
        the flag that matches it.
        """
        size = self.ctx.grid.tp.size
        for name in VOCABULARY:
            rows, own = saved.get(name, [0])[0], self.shapes.get(name, [0])[0]
            if rows and own and rows != own and rows % size == 0:
                raise UserError(f"its vocabulary was padded to {rows:,} tokens, and this run's to "
                                f"{own:,}; nearest: --make-vocab-size-divisible-by {rows // size}")
        return self.shapes


def trainer_weights(weights: Mapping[str, torch.Tensor], flags: Mapping[str, object]
                    ) -> dict[str, torch.Tensor]:
    """Return the tensors of your Llama under the names of pretrain_gpt.py, some of them fused.

    Args:
        weights: whole tensors by the names of llama.py.
        flags: the model's flags, as the checkpoint stores them.

    Raises UserError if there are tensors that pretrain_gpt.py's model does not have.
    """
    heads, d = flags["num_attention_heads"], flags["kv_channels"]
    groups = flags["num_query_groups"] if flags["group_query_attention"] else heads
    found, left = {}, dict(weights)
    for name, other in NAMES.items():
        if name != "head.weight" or flags["untie_embeddings_and_output_weights"]:
            found[other] = left[name]
        left.pop(name, None)
    for number in range(flags["num_layers"]):
        layer = {name: left.pop(f"layers.{number}.{name}.weight") for name in (*LAYER, *FUSED)}
        path = f"decoder.layers.{number}."
        found |= {f"{path}{other}.weight": layer[name] for name, other in LAYER.items()}
        query, key, value = (layer[f"attention.{name}"].unflatten(0, (groups, -1, d))
                             for name in ("query", "key", "value"))
        # Per group: its queries, its key, and its value.
        found[f"{path}{FUSED['attention.query']}.weight"] = torch.cat(
            [query, key, value], 1).flatten(0, 2)
        found[f"{path}{FUSED['mlp.gate']}.weight"] = torch.cat([layer["mlp.gate"], layer["mlp.up"]])
    if left:
        raise UserError(f"your llama.py has {next(iter(left))}, which pretrain_gpt.py's "
                        "model does not have, so generate.py cannot run it")
    return found
