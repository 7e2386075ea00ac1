"""A representative rank: all ranks of a pipeline stage do the same work, so one is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.distributed as dist

from layout_estimator.cluster import ModeledCluster
from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.grid import GROUPS, Grid, Group, axis_sizes, groups_along
from virtualgpu.net.collectives import CommunicationPath
from virtualgpu.net.work import Work


@dataclass(frozen=True)
class CollectiveRecord:
    """A collective whose ranks may reach it at different times. Times are in seconds.

    Attributes:
        group: name of its process group.
        ready: when this rank reached it.
        seconds: its duration.
        waited: when this rank began to wait for it.
        ended: when this rank stopped waiting.
    """

    group: str
    ready: float
    seconds: float
    waited: float
    ended: float


class RecordedCollective:
    """A collective that this rank has started and will wait for later."""

    def __init__(self, group: RepresentativeGroup, work: Work) -> None:
        self.group, self.work, self.clock = group, work, work.group.gpu.clock
        self.ready = self.clock.ready()

    def wait(self) -> None:
        """Wait for the collective and record it; a group runs one collective at a time."""
        waited, free = self.clock.ready(), self.work.group.communicator.last_end
        self.work.wait()
        self.group.records.append(CollectiveRecord(
            self.group.name, self.ready, self.work.end - max(free, self.ready), waited,
            self.clock.ready()))


@dataclass(frozen=True)
class RepresentativeGroup(Group):
    """A group whose other ranks are modeled: they reach every collective when this rank does.

    Attributes:
        name: name of the group.
        records: its collectives, if its ranks may reach them at different times; else None.
    """

    name: str = ""
    records: list[CollectiveRecord] | None = None

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM) -> None:
        if self.process_group is not None:
            self._wait(self.process_group.allreduce([tensor]))

    def start_all_reduce(self, tensor: torch.Tensor) -> dist.Work:
        return self._started(self.process_group.allreduce([tensor]))

    def start_reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor) -> dist.Work:
        return self._started(self.process_group.reduce_scatter_single(part, whole))

    def start_all_gather(self, whole: torch.Tensor, part: torch.Tensor) -> dist.Work:
        return self._started(self.process_group.all_gather_single(whole, part))

    def start_exchange(self, sent: torch.Tensor, received: torch.Tensor) -> list[dist.Work]:
        group, last = self.process_group, self.size - 1
        return [group.send([sent], (self.index + 1) % self.size),
                group.recv([received], (self.index + last) % self.size)]

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        if self.process_group is None:
            return part
        whole = part.new_empty(part.shape[0] * self.size, *part.shape[1:])
        self._wait(self.process_group.all_gather_single(whole, part.contiguous()))
        return whole

    def reduce_scatter(self, whole: torch.Tensor) -> torch.Tensor:
        if self.process_group is None:
            return whole
        part = whole.new_empty(whole.shape[0] // self.size, *whole.shape[1:])
        self._wait(self.process_group.reduce_scatter_single(part, whole.contiguous()))
        return part

    def _started(self, work: Work) -> Work | RecordedCollective:
        return work if self.records is None else RecordedCollective(self, work)

    def _wait(self, work: Work) -> None:
        self._started(work).wait()


@dataclass(frozen=True, kw_only=True)
class RepresentativeGrid(Grid):
    """The grid of a representative rank.

    Attributes:
        cluster: as in RepresentativeContext.
        records: as in RepresentativeContext.
        alike: the tensor-parallel ranks of its node that it stands for, itself included.
    """

    cluster: ModeledCluster
    records: list[CollectiveRecord]
    alike: Sequence[int]

    def group_among(self, groups: Sequence[tuple[int, ...]]) -> Group:
        return _group(self.cluster, "instance", groups, self.alike, None)

    def pipeline_group(self, *stages: int) -> Group | None:
        groups = self._of_stages(stages or range(self.pp.size))
        return (_group(self.cluster, "ends", groups, self.alike, self.records)
                if self.rank in groups[0] else None)

    @property
    def path_of_ends(self) -> CommunicationPath | None:
        """The path between the first and the last stage; None if there is only one stage."""
        if self.pp.size == 1:
            return None
        return self.cluster.topology.path(self.cluster.slowest(self._of_stages((0, -1))))

    def _of_stages(self, stages: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the ranks of these stages in each pipeline of `alike`."""
        return [tuple(self.pp.ranks[stage] + other - self.rank for stage in stages)
                for other in self.alike]


@dataclass(frozen=True)
class RepresentativeContext(Context):
    """The context of the first rank of a stage, or of one of its replicas.

    Attributes:
        cluster: the cluster of the rank's device.
        records: the collectives that ranks may reach at different times, in order.
    """

    cluster: ModeledCluster
    records: list[CollectiveRecord]


def representative_context(config: Config, cluster: ModeledCluster, stage: int, replica: int = 0
                           ) -> RepresentativeContext:
    """Return the context of the first tensor-parallel rank of a stage, which has the links of the
    slowest one.

    Args:
        config: the run's flags.
        stage: the pipeline stage.
        replica: the data-parallel replica.
    """
    sizes = axis_sizes(config)
    rank = _groups("dp", *sizes.items())[stage * sizes["tp"]][replica]
    alike = cluster.alike(rank, sizes["tp"])
    records: list[CollectiveRecord] = []
    recorded = {name for name in ("pp", "model") if sizes["pp"] > 1}
    if cluster.replicas_differ:
        recorded.add("replicas")
    groups = {}
    for name in GROUPS:
        groups[name] = _group(cluster, name, _groups(name, *sizes.items()), alike,
                              records if name in recorded else None)
    grid = RepresentativeGrid(rank=rank, world_size=config.world_size, **groups, cluster=cluster,
                              records=records, alike=alike)
    return RepresentativeContext(config, grid, cluster.device, cluster, records)


@lru_cache(maxsize=64)
def _groups(name: str, *sizes: tuple[str, int]) -> list[tuple[int, ...]]:
    """Return the groups of a kind in a grid of these sizes, which all of its stages share."""
    return groups_along(name, dict(sizes))


def _group(cluster: ModeledCluster, name: str, groups: Sequence[tuple[int, ...]],
           alike: Sequence[int], records: list[CollectiveRecord] | None) -> RepresentativeGroup:
    """Return the group of the first of `alike`, with the links of the slowest group of them all.

    Args:
        cluster: the cluster.
        name: the group's name.
        groups: the groups of this kind.
        alike: ranks that do the same work at the same time.
        records: as in RepresentativeGroup.
    """
    others = set(alike)
    like = [ranks for ranks in groups if not others.isdisjoint(ranks)]
    mine = next(ranks for ranks in like if alike[0] in ranks)
    index = mine.index(alike[0])
    process_group = cluster.communicator(cluster.slowest(like), index) if len(mine) > 1 else None
    return RepresentativeGroup(mine, index, process_group, name, records)
