"""The process grid: ranks as a (pipeline, data, tensor) tensor, and the groups along each axis.

Megatron's order: tensor-parallel ranks are neighbors, then data-parallel, then pipeline. With 16
ranks, TP 2 and PP 4 the tensor-parallel groups are [0,1], [2,3], ..; the data-parallel ones
[0,2], [1,3], ..; the pipeline ones [0,4,8,12], ... (Narayanan et al. 2021, section 3).

Control and data travel apart: the default process group is always gloo and carries flags,
objects and barriers; tensors travel through the groups of this grid only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

AXES = ("pp", "dp", "tp")
# Before torch 2.13 both had other names, which it deprecates.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = (getattr(dist, "reduce_scatter_single", None)
                         or dist.reduce_scatter_tensor)
GROUPS = {"pp": ("pp",), "dp": ("dp",), "tp": ("tp",), "model": ("pp", "tp")}


@dataclass(frozen=True)
class Group:
    """The ranks that this rank meets along one axis, and the channel between them.

    Alone (size 1) every collective is the identity, and no message is sent.
    """

    ranks: tuple[int, ...]
    index: int  # of this rank in `ranks`
    channel: dist.ProcessGroup | None  # None when alone

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM) -> None:
        """Sum (or another `op`) of `tensor` over the group, in place."""
        if self.channel is not None:
            dist.all_reduce(tensor, op=op, group=self.channel)

    def start_all_reduce(self, tensor: torch.Tensor) -> dist.Work:
        """all_reduce (sum) that goes on while others compute; size > 1 only."""
        return dist.all_reduce(tensor, group=self.channel, async_op=True)

    def start_reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor) -> dist.Work:
        """reduce_scatter into `part` that goes on while others compute; size > 1 only."""
        return reduce_scatter_single(part, whole, group=self.channel, async_op=True)

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        """Every rank's `part` [n, ..], in the group's order: [size * n, ..]."""
        if self.channel is None:
            return part
        whole = part.new_empty(part.shape[0] * self.size, *part.shape[1:])
        all_gather_single(whole, part.contiguous(), group=self.channel)
        return whole

    def reduce_scatter(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the sum over the group: [size * n, ..] to [n, ..]."""
        if self.channel is None:
            return whole
        part = whole.new_empty(whole.shape[0] // self.size, *whole.shape[1:])
        reduce_scatter_single(part, whole.contiguous(), group=self.channel)
        return part


@dataclass(frozen=True)
class Grid:
    """This rank's place in the world, and its groups."""

    rank: int
    world_size: int
    pp: Group
    dp: Group
    tp: Group
    model: Group  # pp x tp: together they hold one copy of the model

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

    def pipeline_group(self, stages: Sequence[int], backend: str, timeout: timedelta
                       ) -> Group | None:
        """Create a process group of some stages of every pipeline; every rank must call it.

        Args:
            stages: their numbers; none means all stages.
            backend: of torch.distributed.
            timeout: how long to wait for a peer that does not respond.

        Returns:
            This rank's group, or None if its stage is not one of `stages`.
        """
        chosen = [tuple(ranks[stage] for stage in stages) or ranks
                  for ranks in groups_along("pp", self.pp.size, self.dp.size, self.tp.size)]
        return make_group(chosen, backend, timeout)


def groups_along(name: str, pp: int, dp: int, tp: int) -> list[tuple[int, ...]]:
    """Every group `name` ("pp", "dp", "tp" or "model") of the (pp, dp, tp) grid, as ranks."""
    ranks = torch.arange(pp * dp * tp).view(pp, dp, tp)
    along = [AXES.index(axis) for axis in GROUPS[name]]
    apart = [at for at in range(len(AXES)) if at not in along]
    rows = ranks.permute(*apart, *along).flatten(len(apart)).flatten(0, -2)
    return [tuple(map(int, row)) for row in rows]


def any_rank(condition: bool) -> bool:
    """Whether `condition` holds on any rank: control, so it goes through the default group."""
    flag = torch.tensor([int(condition)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag[0])


def make_group(groups: Sequence[tuple[int, ...]], backend: str, timeout: timedelta | None = None
               ) -> Group | None:
    """The one of `groups` that this rank is in, with a channel of its own; None: it is in none.

    Collective: every rank makes every group, also those that it is not in.
    """
    rank, mine = dist.get_rank(), None
    for ranks in groups:
        channel = dist.new_group(list(ranks), timeout=timeout, backend=backend)
        if rank in ranks:
            mine = Group(ranks, ranks.index(rank), channel)
    return mine


def make_grid(pp: int, dp: int, tp: int, backend: str, timeout: timedelta | None = None
              ) -> Grid:
    """Build the grid over the default group's ranks; every rank must call it.

    backend: of the tensor traffic, "gloo", "nccl" or a registered one. timeout: patience with a
    silent peer (the default group's does not carry over).
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine: dict[str, Group] = {}
    made: dict[tuple, Group] = {}  # without pipeline stages the model group is the tp group
    for name in GROUPS:
        groups = tuple(groups_along(name, pp, dp, tp))
        if len(groups[0]) == 1:
            mine[name] = Group((rank,), 0, None)
            continue
        if groups not in made:
            made[groups] = make_group(groups, backend, timeout)
        mine[name] = made[groups]
    return Grid(rank, world_size, **mine)
