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
    """

    cluster: ModeledCluster
    records: list[CollectiveRecord]

    def group_among(self, groups: Sequence[tuple[int, ...]]) -> Group:
        ranks = next(ranks for ranks in groups if self.rank in ranks)
        return _group(self.cluster, "instance", ranks, self.rank, None)

    def pipeline_group(self, *stages: int) -> Group | None:
        ranks = tuple(self.pp.ranks[stage] for stage in stages) or self.pp.ranks
        if self.rank not in ranks:
            return None
        return _group(self.cluster, "ends", ranks, self.rank, self.records)


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
    """Return the context of the first tensor-parallel rank of a stage.

    Args:
        config: the run's flags.
        stage: the pipeline stage.
        replica: the data-parallel replica.
    """
    sizes = axis_sizes(config)
    rank = _groups("dp", *sizes.items())[stage * sizes["tp"]][replica]
    records: list[CollectiveRecord] = []
    recorded = {name for name in ("pp", "model") if sizes["pp"] > 1}
    if cluster.replicas_differ:
        recorded.add("replicas")
    groups = {}
    for name in GROUPS:
        ranks = next(ranks for ranks in _groups(name, *sizes.items()) if rank in ranks)
        groups[name] = _group(cluster, name, ranks, rank, records if name in recorded else None)
    grid = RepresentativeGrid(rank=rank, world_size=config.world_size, **groups, cluster=cluster,
                              records=records)
    return RepresentativeContext(config, grid, cluster.device, cluster, records)


@lru_cache(maxsize=64)
def _groups(name: str, *sizes: tuple[str, int]) -> list[tuple[int, ...]]:
    """Return the groups of a kind in a grid of these sizes, which all of its stages share."""
    return groups_along(name, dict(sizes))


def _group(cluster: ModeledCluster, name: str, ranks: tuple[int, ...], rank: int,
           records: list[CollectiveRecord] | None) -> RepresentativeGroup:
    index = ranks.index(rank)
    process_group = cluster.communicator(ranks, index) if len(ranks) > 1 else None
    return RepresentativeGroup(ranks, index, process_group, name, records)
