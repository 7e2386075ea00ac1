"""Place a run's pipeline stages on nodes, and check that its numbers agree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from lab.submit.conf import HETEROGENEOUS, HOMOGENEOUS, Conf
from labcore.errors import LabError
from minimegatron.arguments.stages import even_split, nearest_split
from pipeline_schedules import empty_stage
from virtualgpu.core import cards
from virtualgpu.core.card import Card
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net.cluster_spec import NodeGroup, parse_cluster


@dataclass(frozen=True)
class JobComponent:
    """Equal nodes for consecutive stages: a component of a heterogeneous job.

    Attributes:
        card: the GPU model.
        kind: its name in the file.
        per_node: GPUs per node.
        nodes: the number of nodes.
        stages: the numbers of the pipeline stages on them.
    """

    card: Card
    kind: str
    per_node: int
    nodes: int
    stages: range

    def __str__(self) -> str:
        first, last = self.stages[0], self.stages[-1]
        stages = f"stage {first}" if first == last else f"stages {first} to {last}"
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"{stages} on {nodes} of {self.per_node} x {self.kind}"


@dataclass(frozen=True)
class RunLayout:
    """The placement of a run's ranks on nodes.

    Attributes:
        conf: the configuration.
        components: the job's components, in the order of the stages, and so of the node ranks.
        data_parallel: the data-parallel size.
        split: the Transformer layers of each stage.
    """

    conf: Conf
    components: tuple[JobComponent, ...]
    data_parallel: int
    split: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks, each on its own GPU."""
        return sum(one.nodes * one.per_node for one in self.components)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return sum(one.nodes for one in self.components)

    @property
    def job(self) -> str:
        """The kind of job: the file's choice, or else by the number of components."""
        return self.conf.job or (HOMOGENEOUS if len(self.components) == 1 else HETEROGENEOUS)


def lay_out(conf: Conf) -> RunLayout:
    """Return a run's layout.

    Raises:
        LabError: the parallel sizes do not multiply to the number of GPUs, the batch is not
            divisible, the partition does not fit, or the stages cannot be placed on whole nodes.
    """
    try:
        groups = parse_cluster(conf.cluster)
    except VirtualGpuError as error:
        raise LabError(f"{conf.file}: cluster: {error}") from error
    data = _data_parallel(conf, sum(group.gpus for group in groups))
    _check_batch(conf, data)
    split = _split(conf)
    kinds = _kinds(conf, groups, data)
    layout = RunLayout(conf, _components(conf, groups, kinds, data), data, split)
    if conf.job == HOMOGENEOUS and len(layout.components) > 1:
        raise conf.error("job", "the cluster has several GPU kinds", '"heterogeneous"')
    if conf.job not in ("", HOMOGENEOUS) and len(layout.components) == 1:
        raise conf.error("job", f"all stages are on {layout.components[0].kind} nodes",
                         '"homogeneous"')
    return layout


def _data_parallel(conf: Conf, gpus: int) -> int:
    model_parallel = conf.tensor_parallel * conf.pipeline_parallel
    if gpus % model_parallel:
        near = next(size for size in range(min(conf.pipeline_parallel, gpus), 0, -1)
                    if gpus % (size * conf.tensor_parallel) == 0 or size == 1)
        raise conf.error("pipeline-parallel", f"{gpus} GPUs are not divisible by tensor-parallel "
                         f"{conf.tensor_parallel} x pipeline-parallel {conf.pipeline_parallel}",
                         near)
    data = gpus // model_parallel
    if conf.data_parallel not in (0, data):
        raise conf.error("data-parallel", f"tensor-parallel {conf.tensor_parallel} x data-parallel "
                         f"{conf.data_parallel} x pipeline-parallel {conf.pipeline_parallel} is "
                         f"{model_parallel * conf.data_parallel}, but the cluster has {gpus} GPUs",
                         data)
    return data


def _check_batch(conf: Conf, data: int) -> None:
    step = conf.micro_batch_size * data
    if conf.global_batch_size % step:
        raise conf.error("global-batch-size", f"not divisible by micro-batch-size "
                         f"{conf.micro_batch_size} x {data} data-parallel replicas",
                         max(1, round(conf.global_batch_size / step)) * step)


def _split(conf: Conf) -> tuple[int, ...]:
    """Return the layers of each stage."""
    layers, stages = conf.shape.layers, conf.pipeline_parallel
    even = "-".join(map(str, even_split(layers, stages)))
    if not conf.partition:
        if layers % stages:
            raise conf.error("pipeline-parallel", f"the {layers} layers do not divide into that "
                             "many equal stages", f'partition = "{even}"')
        return (layers // stages,) * stages
    if not re.fullmatch(r"[0-9]{1,6}(-[0-9]{1,6})*", conf.partition):
        raise conf.error("partition", "not the layers of each stage, joined by hyphens",
                         f'"{even}"')
    split = tuple(map(int, conf.partition.split("-")))
    if len(split) != stages:
        raise conf.error("partition", f"it has {len(split)} stages, but pipeline-parallel is "
                         f"{stages}", f'"{even}"')
    if sum(split) != layers:
        near = "-".join(map(str, nearest_split(split, layers)))
        raise conf.error("partition", f"it has {sum(split)} layers, but the model has {layers}",
                         f'"{near}"')
    if empty_stage(split) is not None:
        raise conf.error("partition", "only the first stage (the embedding) and the last one (the "
                         "output layer) can be without a Transformer layer", f'"{even}"')
    return split


def _kinds(conf: Conf, groups: tuple[NodeGroup, ...], data: int) -> list[NodeGroup]:
    """Return the group of nodes for each stage."""
    ranks = conf.tensor_parallel * data  # per stage
    if not conf.stages:
        starts = range(0, conf.pipeline_parallel * ranks, ranks)
        group_of_rank = [group for group in groups for _ in range(group.gpus)]
        for stage, start in enumerate(starts):
            if group_of_rank[start] != group_of_rank[start + ranks - 1]:
                raise conf.error(
                    "cluster", f"stage {stage} has {ranks} ranks (tensor-parallel x data-parallel),"
                    f" which would be on both {group_of_rank[start]} and "
                    f"{group_of_rank[start + ranks - 1]}",
                    f"a multiple of {ranks} GPUs of each kind")
        return [group_of_rank[start] for start in starts]
    if len(conf.stages) != conf.pipeline_parallel:
        raise conf.error("stages", f"it names {len(conf.stages)} stages, but pipeline-parallel is "
                         f"{conf.pipeline_parallel}", f"{conf.pipeline_parallel} names")
    stage_groups = [_find_group(conf, kind, groups) for kind in conf.stages]
    for group in groups:
        if stage_groups.count(group) * ranks != group.gpus:
            raise conf.error(
                "stages", f"{stage_groups.count(group)} stage(s) of {ranks} ranks on "
                f"{group.card.name}, of which the cluster has {group.gpus} GPUs",
                f"{group.gpus // ranks} stage(s) on {group.card.name}")
    return stage_groups


def _find_group(conf: Conf, kind: str, groups: tuple[NodeGroup, ...]) -> NodeGroup:
    try:
        card = cards.find(kind)
    except VirtualGpuError as error:
        raise LabError(f"{conf.file}: stages: {error}") from error
    for group in groups:
        if group.card == card:
            return group
    near = ", ".join(group.card.name for group in groups)
    raise conf.error("stages", f"the cluster has no {kind}", near)


def _components(conf: Conf, groups: tuple[NodeGroup, ...], kinds: list[NodeGroup], data: int
                ) -> tuple[JobComponent, ...]:
    """Return consecutive stages on the same kind of GPU, each on whole nodes."""
    names = dict(zip(groups, (part.partition(":")[0].strip().lower()
                              for part in conf.cluster.split(",")), strict=True))
    components, first = [], 0
    for group, run in groupby(kinds):
        count = len(list(run))
        ranks = count * conf.tensor_parallel * data
        if ranks % group.per_node:
            raise conf.error("stages", f"stages {first} to {first + count - 1} have {ranks} ranks, "
                             f"which do not fill nodes of {group.per_node} {names[group]}",
                             f"adjacent stages on {names[group]}")
        components.append(JobComponent(group.card, names[group], group.per_node,
                                       ranks // group.per_node, range(first, first + count)))
        first += count
    return tuple(components)
