"""The process grid: ranks as a (pipeline, data, tensor) tensor, and the groups along each axis.

Megatron's order: tensor-parallel ranks are neighbours, then data-parallel, then pipeline. With 16
ranks, TP 2 and PP 4 the tensor-parallel groups are [0,1], [2,3], ..; the data-parallel ones
[0,2], [1,3], ..; the pipeline ones [0,4,8,12], ... (Narayanan et al. 2021, section 3).

Control and data travel apart: the default process group is always gloo and carries flags,
objects and barriers; tensors travel through the groups of this grid only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

AXES = ("pp", "dp", "tp")


@dataclass(frozen=True)
class Group:
    """The ranks that this rank meets along one axis, and the channel between them."""

    ranks: tuple[int, ...]
    index: int  # of this rank in `ranks`
    channel: dist.ProcessGroup | None  # None when alone

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum `tensor` over the group, in place."""
        if self.channel is not None:
            dist.all_reduce(tensor, group=self.channel)


@dataclass(frozen=True)
class Grid:
    """This rank's place in the world, and its three groups."""

    rank: int
    world_size: int
    pp: Group
    dp: Group
    tp: Group

    @property
    def is_last_rank(self) -> bool:
        """The rank that prints losses: the last stage lives there in every layout."""
        return self.rank == self.world_size - 1

    @property
    def shard(self) -> tuple[int, int]:
        """(tensor, pipeline) rank: which part of the model lives here."""
        return self.tp.index, self.pp.index

    @property
    def writes_shard(self) -> bool:
        """One rank of those that hold the same part of the model speaks for it."""
        return self.dp.index == 0


def groups_along(axis: str, pp: int, dp: int, tp: int) -> list[tuple[int, ...]]:
    """Every group along `axis` of the (pp, dp, tp) grid, as tuples of ranks."""
    ranks = torch.arange(pp * dp * tp).view(pp, dp, tp)
    at = AXES.index(axis)
    rows = ranks.movedim(at, -1).reshape(-1, (pp, dp, tp)[at])
    return [tuple(map(int, row)) for row in rows]


def any_rank(condition: bool) -> bool:
    """Whether `condition` holds on any rank: control, so it goes through the default group."""
    flag = torch.tensor([int(condition)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag[0])


def make_grid(pp: int, dp: int, tp: int, backend: str, timeout: timedelta | None = None
              ) -> Grid:
    """Build the grid over the default group's ranks; every rank must call it.

    backend: of the tensor traffic, "gloo", "nccl" or a registered one. timeout: patience with a
    silent peer (the default group's does not carry over).
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = {}
    for axis in AXES:
        for ranks in groups_along(axis, pp, dp, tp):
            # new_group is collective: every rank makes every group, also those it is not in.
            channel = None
            if len(ranks) > 1:
                channel = dist.new_group(list(ranks), timeout=timeout, backend=backend)
            if rank in ranks:
                mine[axis] = Group(ranks, ranks.index(rank), channel)
    return Grid(rank, world_size, **mine)
