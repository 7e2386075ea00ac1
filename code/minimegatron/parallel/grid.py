"""The process grid: ranks as a (pipeline, data, tensor) tensor, and the groups along each axis.

Megatron's order: tensor-parallel ranks are neighbors, then data-parallel, then pipeline. With 16
ranks, TP 2 and PP 4 the tensor-parallel groups are [0,1], [2,3], ..; the data-parallel ones
[0,2], [1,3], ..; the pipeline ones [0,4,8,12], ... (Narayanan et al. 2021, section 3).

The default process group is always gloo and carries control traffic only: flags, objects, and
barriers. Tensors use the process groups of this grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

AXES = ("pp", "dp", "tp")
GROUPS = {"pp": ("pp",), "dp": ("dp",), "tp": ("tp",), "model": ("pp", "tp")}


@dataclass(frozen=True)
class Group:
    """This rank's process group along one axis of the grid.

    In a group of one rank, every collective is the identity and communicates nothing.

    Attributes:
        ranks: its global ranks, in order.
        index: this rank's position in `ranks`.
        process_group: torch.distributed's; None for a single rank.
    """

    ranks: tuple[int, ...]
    index: int
    process_group: dist.ProcessGroup | None

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM) -> None:
        """All-reduce a tensor of any shape in place, with a sum or another `op`."""
        if self.process_group is not None:
            dist.all_reduce(tensor, op=op, group=self.process_group)

    def start_all_reduce(self, tensor: torch.Tensor) -> dist.Work:
        """Start an all-reduce (sum) in place; needs at least two ranks. Wait for the result."""
        return dist.all_reduce(tensor, group=self.process_group, async_op=True)

    def start_reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor) -> dist.Work:
        """Start a reduce-scatter (sum); needs at least two ranks. Wait for the result.

        Args:
            part: receives this rank's part of the sum, [n, ..].
            whole: this rank's addend, [size * n, ..].
        """
        return dist.reduce_scatter_single(part, whole, group=self.process_group, async_op=True)

    def start_all_gather(self, whole: torch.Tensor, part: torch.Tensor) -> dist.Work:
        """Start an all-gather of every rank's `part` [n, ..] into `whole` [size * n, ..]."""
        return dist.all_gather_single(whole, part, group=self.process_group, async_op=True)

    def start_exchange(self, sent: torch.Tensor, received: torch.Tensor) -> Sequence[dist.Work]:
        """Start to send one tensor to the next rank in a ring, and to receive another one from the
        previous rank; wait for all the works."""
        return dist.batch_isend_irecv([
            dist.P2POp(start, tensor, self.ranks[(self.index + step) % self.size],
                       self.process_group)
            for start, tensor, step in ((dist.isend, sent, 1), (dist.irecv, received, -1))])

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        """Concatenate every rank's `part` [n, ..] in the order of `ranks`: [size * n, ..]."""
        if self.process_group is None:
            return part
        whole = part.new_empty(part.shape[0] * self.size, *part.shape[1:])
        dist.all_gather_single(whole, part.contiguous(), group=self.process_group)
        return whole

    def reduce_scatter(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part [n, ..] of the sum over the group of `whole` [size * n, ..]."""
        if self.process_group is None:
            return whole
        part = whole.new_empty(whole.shape[0] // self.size, *whole.shape[1:])
        dist.reduce_scatter_single(part, whole.contiguous(), group=self.process_group)
        return part


@dataclass(frozen=True)
class Grid:
    """This rank's process groups along the axes of the process grid.

    Attributes:
        rank: the global rank.
        world_size: number of ranks, pp.size * dp.size * tp.size.
        pp: the stages of this rank's pipeline.
        dp: the replicas of this rank's part of the model.
        tp: the ranks that partition this stage's layers.
        model: pp x tp, the ranks that together hold one copy of the model.
        backend: backend of the groups that carry tensors: "gloo", "nccl", or a registered one.
        timeout: for a peer that does not respond; the default group's does not apply here.
    """

    rank: int
    world_size: int
    pp: Group
    dp: Group
    tp: Group
    model: Group
    backend: str = "gloo"
    timeout: timedelta | None = None

    @property
    def is_last_rank(self) -> bool:
        """Return whether this is the last rank, which holds the last stage in every layout."""
        return self.rank == self.world_size - 1

    @property
    def writes_shard(self) -> bool:
        """Return whether this rank saves its part of the model: the first replica does."""
        return self.dp.index == 0

    def pipeline_group(self, *stages: int) -> Group | None:
        """Create a process group of these stages (default: all of them) of every pipeline.

        Every rank must call it. Returns None if this rank's stage is not one of `stages`.
        """
        return make_group([tuple(ranks[stage] for stage in stages) or ranks for ranks in
                           groups_along("pp", self.pp.size, self.dp.size, self.tp.size)],
                          self.backend, self.timeout)


def groups_along(name: str, pp: int, dp: int, tp: int) -> list[tuple[int, ...]]:
    """Return the ranks of every group along one axis of the grid.

    Args:
        name: "pp", "dp", "tp", or "model" (pp x tp).
        pp: number of pipeline stages.
        dp: number of data-parallel replicas.
        tp: number of tensor-parallel ranks.
    """
    ranks = torch.arange(pp * dp * tp).view(pp, dp, tp)
    along = [AXES.index(axis) for axis in GROUPS[name]]
    apart = [at for at in range(len(AXES)) if at not in along]
    rows = ranks.permute(*apart, *along).flatten(len(apart)).flatten(0, -2)
    return [tuple(map(int, row)) for row in rows]


def make_group(groups: Sequence[tuple[int, ...]], backend: str, timeout: timedelta | None = None
               ) -> Group | None:
    """Create process groups, and return the one that includes this rank; None if none does.

    Collective: every rank creates all groups, including those it does not belong to. The groups of
    global ranks are disjoint.
    """
    rank, mine = dist.get_rank(), None
    for ranks in groups:
        process_group = dist.new_group(list(ranks), timeout=timeout, backend=backend)
        if rank in ranks:
            mine = Group(ranks, ranks.index(rank), process_group)
    return mine


def make_grid(pp: int, dp: int, tp: int, backend: str, timeout: timedelta | None = None) -> Grid:
    """Build the grid over the ranks of the default group; every rank must call it.

    Args:
        pp: number of pipeline stages.
        dp: number of data-parallel replicas.
        tp: number of tensor-parallel ranks.
        backend: as in Grid.
        timeout: as in Grid.
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
    return Grid(rank, world_size, **mine, backend=backend, timeout=timeout)
