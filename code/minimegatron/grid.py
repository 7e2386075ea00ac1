"""The process grid: the ranks as a tensor over named axes, and the process groups along them.

AXES is the one place that knows which axes there are, and in which order ranks are numbered:
tensor-parallel ranks are neighbors, as in Megatron-LM. With 16 ranks, TP 2, and PP 4, the
tensor-parallel groups are [0,1], [2,3], ..; the data-parallel ones [0,2], [1,3], ..; and the
pipeline ones [0,4,8,12], ... (Narayanan et al. 2021, section 3).

The default process group is always gloo and carries control traffic only: flags, objects, and
barriers. Tensors use the process groups of this grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod

import torch
import torch.distributed as dist

from minimegatron.arguments import Config

# From the outermost axis to the innermost (Megatron core's order "tp-cp-ep-dp-pp", from right to
# left), each with the setting that has its size. Expert and context parallelism have none yet:
# their axes have one rank.
AXES = {"pp": "pipeline_model_parallel_size", "dp": "data_parallel_size", "ep": None, "cp": None,
        "tp": "tensor_model_parallel_size"}
# Groups along one axis, and along several: `model` holds one copy of the model, and `replicas` have
# the same parameters, experts apart, and see different tokens.
GROUPS = {axis: (axis,) for axis in AXES} | {"model": ("pp", "tp"), "replicas": ("dp", "ep", "cp")}


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
        world_size: number of ranks, the product of the sizes of all axes.
        pp: the stages of this rank's pipeline.
        dp: the ranks that see other samples.
        ep: the ranks that hold other experts: this rank alone.
        cp: the ranks that see other tokens of the same samples: this rank alone.
        tp: the ranks that partition this stage's layers.
        model: the ranks that together hold one copy of the model.
        replicas: the ranks that hold the same part of the model, experts apart.
        backend: backend of the groups that carry tensors: "gloo", "nccl", or a registered one.
        timeout: for a peer that does not respond; the default group's does not apply here.
    """

    rank: int
    world_size: int
    pp: Group
    dp: Group
    ep: Group
    cp: Group
    tp: Group
    model: Group
    replicas: Group
    backend: str = "gloo"
    timeout: timedelta | None = None

    @property
    def is_last_rank(self) -> bool:
        """Return whether this is the last rank, which holds the last stage in every layout."""
        return self.rank == self.world_size - 1

    @property
    def writes_shard(self) -> bool:
        """Return whether this rank saves its part of the model: the first replica does."""
        return self.replicas.index == 0

    @property
    def position(self) -> dict[str, int]:
        """This rank's index along each axis that a setting can divide."""
        return {axis: getattr(self, axis).index for axis, setting in AXES.items() if setting}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of ranks along each axis."""
        return {axis: getattr(self, axis).size for axis in AXES}

    def pipeline_group(self, *stages: int) -> Group | None:
        """Create a process group of these stages (default: all of them) of every pipeline.

        Every rank must call it. Returns None if this rank's stage is not one of `stages`.
        """
        return make_group([tuple(ranks[stage] for stage in stages) or ranks for ranks in
                           groups_along("pp", self.sizes)],
                          self.backend, self.timeout)

    def group_among(self, groups: Sequence[tuple[int, ...]]) -> Group:
        """Create process groups of global ranks, and return this rank's. All ranks call it."""
        if len(groups[0]) == 1:
            return Group((self.rank,), 0, None)
        return make_group(groups, self.backend, self.timeout)


def axis_sizes(config: Config) -> dict[str, int]:
    """Return the number of ranks along each axis."""
    return {axis: getattr(config, setting) if setting else 1 for axis, setting in AXES.items()}


def groups_along(name: str, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Return the ranks of every group of a kind.

    Args:
        name: one of GROUPS.
        sizes: the number of ranks along each axis; 1 along those that it leaves out.
    """
    shape = [sizes.get(axis, 1) for axis in AXES]
    ranks = torch.arange(prod(shape)).view(shape)
    along = [at for at, axis in enumerate(AXES) if axis in GROUPS[name]]
    apart = [at for at in range(len(AXES)) if at not in along]
    rows = ranks.permute(*apart, *along).flatten(len(apart)).flatten(0, -2)
    return [tuple(map(int, row)) for row in rows]


def make_group(groups: Sequence[tuple[int, ...]], backend: str | None,
               timeout: timedelta | None = None) -> Group | None:
    """Create process groups, and return the one that includes this rank; None if none does.

    Collective: every rank creates all groups, including those it does not belong to. The groups of
    global ranks are disjoint. Without a backend, they have the default group's.
    """
    rank, mine = dist.get_rank(), None
    for ranks in groups:
        process_group = dist.new_group(list(ranks), timeout=timeout, backend=backend)
        if rank in ranks:
            mine = Group(ranks, ranks.index(rank), process_group)
    return mine


def make_grid(sizes: Mapping[str, int], backend: str, timeout: timedelta | None = None) -> Grid:
    """Build the grid over the ranks of the default group; every rank must call it.

    Args:
        sizes: as in `groups_along`.
        backend: as in Grid.
        timeout: as in Grid.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine: dict[str, Group] = {}
    made: dict[tuple, Group] = {}  # without pipeline stages the model group is the tp group
    for name in GROUPS:
        groups = tuple(groups_along(name, sizes))
        if len(groups[0]) == 1:
            mine[name] = Group((rank,), 0, None)
            continue
        if groups not in made:
            made[groups] = make_group(groups, backend, timeout)
        mine[name] = made[groups]
    return Grid(rank, world_size, **mine, backend=backend, timeout=timeout)
