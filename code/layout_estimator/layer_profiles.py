"""Profiles of virtual GPUs: the trainer's own code runs the parts of a model once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cluster_planner.profiles import RECOMPUTE, Key, PartProfile, Profile
from layout_estimator.cluster import ModeledCluster, modeled_cluster
from layout_estimator.estimate import UNLIMITED_MEMORY
from layout_estimator.measurement import chunk_cost, step_cost
from layout_estimator.planner import make_estimator, padded_vocabulary
from layout_estimator.representative import representative_context
from layout_estimator.requests import EstimateError, read_flags
from layout_estimator.stage_cost import ChunkCost, StepCost
from minimegatron.arguments import Config
from minimegatron.formulas import Gpt, layer_parameters, stage_parameters
from minimegatron.report.throughput import shape_of
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT
from virtualgpu.core import stacks


class VirtualProfiles:
    """Measures each profile when it is first asked for, and keeps it.

    Attributes:
        flags: the trainer's flags of the model and its precision, without a layout.
        per_node: {GPU model's name: GPUs of a node}.
        known: every profile so far.
        software: the software stacks of their GPUs, with the expected errors of modeled times.
    """

    def __init__(self, flags: Sequence[str], per_node: Mapping[str, int]) -> None:
        self.flags, self.per_node = list(flags), per_node
        self.known: dict[Key, Profile | None] = {}
        self.software: dict[str, None] = {}  # in the order of their first profiles
        self._ends: dict[tuple, tuple[ChunkCost, ChunkCost]] = {}  # by key without `recompute`
        self._steps: dict[tuple, list[StepCost]] = {}

    def get(self, key: Key) -> Profile | None:
        if key not in self.known:
            try:
                self.known[key] = self._measure(key)
            except EstimateError:  # such as heads that this many ranks cannot share
                self.known[key] = None
        return self.known[key]

    def _config(self, key: Key, layers: int) -> Config:
        """Return a pipeline of three stages, of which only the middle one has layers."""
        return read_flags([
            *self.flags, "--num-layers", str(layers), "--balance", f"0-{layers}-0",
            "--pipeline-model-parallel-size", "3", "--world-size", str(3 * key.tensor),
            "--tensor-model-parallel-size", str(key.tensor), "--micro-batch-size",
            str(key.micro_batch), "--global-batch-size", str(key.micro_batch),
            "--device", f"virtual:{key.gpu}", "--gpus-per-node", str(self.per_node[key.gpu]),
            *RECOMPUTE[key.recompute]])

    def _measure(self, key: Key) -> Profile:
        one, two = self._config(key, 1), self._config(key, 2)
        vocabulary = padded_vocabulary(one)
        card, link = make_estimator(one).card, make_estimator(one).link
        self.software[stacks.describe(card)] = None
        card = replace(card, memory=UNLIMITED_MEMORY)
        with modeled_cluster(card, link, one.world_size, one.gpus_per_node) as cluster:

            def passes(config: Config, stage: int) -> ChunkCost:
                ctx = representative_context(config, cluster, stage)
                return chunk_cost(ctx, vocabulary, 0, split=key.split)

            near = key.gpu, key.tensor, key.micro_batch, key.split
            if near not in self._ends:  # recomputation does not change them
                self._ends[near] = passes(one, 0), passes(one, 2)
            if near[:2] not in self._steps:
                self._steps[near[:2]] = _steps(one, two, cluster, vocabulary)
            small, large = passes(one, 1), passes(two, 1)
            cluster.device.closing()
        layer = ChunkCost({kind: large.passes[kind].plus(small.passes[kind], -1)
                           for kind in large.passes}, {})
        gpt, steps = shape_of(one, vocabulary), self._steps[near[:2]]
        first, last = self._ends[near]
        return Profile(
            _part(first, first, _edge(gpt, key.tensor, first=True), _seconds(steps[0])),
            _part(layer, small, layer_parameters(gpt, key.tensor),
                  _seconds(steps[2]) - _seconds(steps[1])),
            _part(last, last, _edge(gpt, key.tensor, first=False), _seconds(steps[3])))


def _steps(one: Config, two: Config, cluster: ModeledCluster, vocabulary: int) -> list[StepCost]:
    """Return the step costs of the embedding, of one layer, of two layers, and of the head."""
    places = ((one, 0), (one, 1), (two, 1), (one, 2))
    return [step_cost(representative_context(config, cluster, stage), vocabulary)
            for config, stage in places]


def _seconds(step: StepCost) -> float:
    """Return the time of a step's end without the all-reduce of the tied embedding."""
    return step.after + sum(one.before + (0.0 if one.group == "ends" else one.seconds)
                            for one in step.collectives)


def _edge(gpt: Gpt, tensor: int, first: bool) -> int:
    """Return the parameters of a stage that has only the embedding, or only the head."""
    return stage_parameters(gpt, 0, tensor, first, not first)


def _part(cost: ChunkCost, whole: ChunkCost, parameters: int, step: float) -> PartProfile:
    """Return the profile of a part.

    Args:
        cost: of the part; a GPU that launches slower than it computes waits for its host.
        whole: of a stage with the part.
        parameters: of the part on a rank.
        step: seconds of its optimizer step.
    """
    seconds = {kind: max(one.busy, one.host) for kind, one in cost.passes.items()}
    forward, backward = whole.passes[FORWARD], whole.passes[BACKWARD]
    transient = max(forward.peak - forward.retained, backward.peak, 0.0)
    if WEIGHT in whole.passes:
        transient = max(transient, whole.passes[WEIGHT].peak)
    saved = cost.passes[FORWARD].retained
    held = saved + cost.passes[BACKWARD].retained if WEIGHT in seconds else 0.0
    return PartProfile(seconds[FORWARD], seconds[BACKWARD], parameters, saved, transient, step,
                       seconds.get(WEIGHT, 0.0), max(held, 0.0))
