"""A rank that stands for a whole grid: its groups cost time, and the others in them are as far as
it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.device.virtual import VirtualDevice
from minimegatron.parallel.grid import GROUPS, Grid, Group, groups_along


@dataclass(frozen=True)
class Meeting:
    """A collective in which other stages take part. ready: when this rank was; seconds: of it."""

    group: str
    ready: float
    seconds: float


@dataclass(frozen=True)
class Solo(Group):
    """name: the axis. meetings: where collectives are noted, for groups with other stages in
    them; else None."""

    name: str = ""
    meetings: list[Meeting] | None = None

    def _wait(self, work: dist.Work) -> None:
        clock = self.channel.gpu.clock
        ready = clock.ready()
        work.wait()
        if self.meetings is not None:
            self.meetings.append(Meeting(self.name, ready, clock.ready() - ready))

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM) -> None:
        if self.channel is not None:
            self._wait(self.channel.allreduce([tensor]))

    def start_all_reduce(self, tensor: torch.Tensor) -> dist.Work:
        return self.channel.allreduce([tensor])

    def start_reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor) -> dist.Work:
        return self.channel.reduce_scatter_single(part, whole)

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        if self.channel is None:
            return part
        whole = part.new_empty(part.shape[0] * self.size, *part.shape[1:])
        self._wait(self.channel.all_gather_single(whole, part.contiguous()))
        return whole

    def reduce_scatter(self, whole: torch.Tensor) -> torch.Tensor:
        if self.channel is None:
            return whole
        part = whole.new_empty(whole.shape[0] // self.size, *whole.shape[1:])
        self._wait(self.channel.reduce_scatter_single(part, whole.contiguous()))
        return part


@dataclass(frozen=True)
class SoloContext(Context):
    """The context of the first replica's first rank on one stage."""

    meetings: list[Meeting]

    def pipeline_group(self, *stages: int) -> Group | None:
        ranks = tuple(self.grid.pp.ranks[stage] for stage in stages) or self.grid.pp.ranks
        if self.grid.rank not in ranks:
            return None
        return solo(self.device, "ends", ranks, self.grid.rank, self.meetings)


def solo(device: VirtualDevice, name: str, ranks: tuple[int, ...], rank: int,
         meetings: list[Meeting] | None = None) -> Solo:
    index = ranks.index(rank)
    channel = device.stand_in(ranks, index) if len(ranks) > 1 else None
    return Solo(ranks, index, channel, name, meetings)


def solo_context(config: Config, device: VirtualDevice, stage: int) -> SoloContext:
    """The context of stage `stage` on a device that has a topology."""
    sizes = (config.pipeline_model_parallel_size, config.data_parallel_size,
             config.tensor_model_parallel_size)
    rank = stage * sizes[1] * sizes[2]
    meetings: list[Meeting] = []
    groups = {}
    for name in GROUPS:
        ranks = next(ranks for ranks in groups_along(name, *sizes) if rank in ranks)
        crosses = meetings if name in ("pp", "model") and sizes[0] > 1 else None
        groups[name] = solo(device, name, ranks, rank, crosses)
    return SoloContext(config, Grid(rank, config.world_size, **groups), device, meetings)
