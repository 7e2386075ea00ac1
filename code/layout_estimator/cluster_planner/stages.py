"""Time and memory of every stage, for every number of layers that it might have."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from layout_estimator.cluster_planner.placement import ParallelSizes, Placement, StageSeat
from layout_estimator.cluster_planner.profiles import Key, Profile, Profiles
from minimegatron.formulas import in_flight, state_bytes
from virtualgpu.core.card import Card
from virtualgpu.net.collectives import all_gather, all_reduce, ring, tree

ELEMENT = {"fp32": 4, "fp16": 2, "bf16": 2}  # bytes of an activation


@dataclass(frozen=True)
class ModelSpec:
    """Size of the model and the batch.

    Attributes:
        layers: number of transformer layers.
        hidden: hidden size.
        sequence: tokens of a sample.
        vocabulary: its size, in tokens.
        precision: "fp32", "fp16", or "bf16".
        global_batch: samples per step.
        tied: whether the output layer is the word embedding.
    """

    layers: int
    hidden: int
    sequence: int
    vocabulary: int
    precision: str
    global_batch: int
    tied: bool = True


class TrainingConfig(NamedTuple):
    """The choices besides placement and partition.

    Attributes:
        micro_batch: samples per micro-batch.
        recompute: one of profiles.RECOMPUTE.
        sharded: whether the replicas share the optimizer state (the distributed optimizer).
        schedule: "1f1b" or "gpipe".
    """

    micro_batch: int
    recompute: str
    sharded: bool
    schedule: str


@dataclass(frozen=True)
class Stages:
    """Costs of the stages of a placement; row s, column n: stage s with n layers.

    Attributes:
        micro_batches: of a step.
        schedule: the pipeline schedule.
        forward: seconds of the forward pass of one micro-batch, [p, l + 1].
        backward: seconds of its backward pass, [p, l + 1].
        fits: whether the layers fit the GPUs of the stage and the stage may have them, [p, l + 1].
        memory: bytes at the peak of its fullest GPU, less the memory that this GPU has, [p, l + 1].
        send: seconds of a message across each boundary, [p - 1].
        sync: seconds of the data-parallel communication, [p, l + 1].
        update: seconds of the optimizer step, [p, l + 1].
        ends: seconds of the all-reduce of the tied embedding.
    """

    micro_batches: int
    schedule: str
    forward: np.ndarray
    backward: np.ndarray
    fits: np.ndarray
    memory: np.ndarray
    send: np.ndarray
    sync: np.ndarray
    update: np.ndarray
    ends: float = 0.0
    kinds: tuple[tuple[Card, ...], ...] = field(default=(), repr=False)


def stages_of(model: ModelSpec, placement: Placement, config: TrainingConfig, profiles: Profiles
              ) -> Stages | None:
    """Return the costs of the stages, or None if there is no profile or the batch does not divide.

    A stage whose replicas have unlike GPUs is as slow as the slowest, and each has to fit.
    """
    sizes, p = placement.sizes, placement.sizes.pipeline
    micro_batches, rest = divmod(model.global_batch, config.micro_batch * sizes.data)
    if rest or any(_profile(profiles, sizes, config, card) is None
                   for card in dict.fromkeys(chain(*placement.kinds))):
        return None
    known = _rows(model, sizes, config, micro_batches, profiles)
    rows = [known.row(seat, in_flight(p, stage, micro_batches))
            for stage, seat in enumerate(placement.seats)]
    ends = 0.0
    if p > 1 and model.tied:
        size = model.vocabulary * model.hidden // sizes.tensor * _gradient_bytes(model)
        ends = all_reduce(placement.ends_path, int(size))
    arrays = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    send = np.array(placement.send_seconds(_sent_bytes(model, config)))
    return Stages(micro_batches, config.schedule, send=send,
                  ends=ends, kinds=placement.kinds, **arrays)


def _sent_bytes(model: ModelSpec, config: TrainingConfig) -> int:
    return model.sequence * config.micro_batch * model.hidden * ELEMENT[model.precision]


def _gradient_bytes(model: ModelSpec) -> float:
    return state_bytes(model.precision).gradients


def _profile(profiles: Profiles, sizes: ParallelSizes, config: TrainingConfig, card: Card
             ) -> Profile | None:
    return profiles.get(Key(card.name, sizes.tensor, config.micro_batch, config.recompute))


@lru_cache(maxsize=512)
def _rows(model: ModelSpec, sizes: ParallelSizes, config: TrainingConfig, micro_batches: int,
          profiles: Profiles) -> _Rows:
    return _Rows(model, sizes, config, micro_batches, profiles)


class _Rows:
    """The rows of a layout's stages; equal stages of all placements share them."""

    def __init__(self, model: ModelSpec, sizes: ParallelSizes, config: TrainingConfig,
                 micro_batches: int, profiles: Profiles) -> None:
        self._layout, self._profiles = (model, sizes, config, micro_batches), profiles
        self._known: dict[tuple[StageSeat, int], dict[str, np.ndarray]] = {}

    def row(self, seat: StageSeat, in_flight: int) -> dict[str, np.ndarray]:
        """Return the rows of a stage.

        Args:
            seat: its GPUs.
            in_flight: micro-batches whose activations it keeps in 1F1B.
        """
        if (seat, in_flight) not in self._known:
            model, sizes, config, _ = self._layout
            stage, counts = _Stage(*self._layout, seat, in_flight), np.arange(model.layers + 1)
            costs = [stage.costs(_profile(self._profiles, sizes, config, card), card, counts)
                     for card in seat.kinds]
            pick = {"fits": np.minimum}
            self._known[seat, in_flight] = {
                name: pick.get(name, np.maximum).reduce([kind[name] for kind in costs])
                for name in costs[0]}
        return self._known[seat, in_flight]


class _Stage(NamedTuple):
    """One stage of a placement."""

    model: ModelSpec
    sizes: ParallelSizes
    config: TrainingConfig
    micro_batches: int
    seat: StageSeat
    in_flight: int

    def costs(self, profile: Profile, card: Card, counts: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows of this stage on one GPU model, for these numbers of layers."""
        sizes, first, last = self.sizes, self.seat.first, self.seat.last

        def total(name: str) -> np.ndarray:
            edges = first * getattr(profile.embedding, name) + last * getattr(profile.head, name)
            return edges + counts * getattr(profile.layer, name)

        weights = total("parameters")
        if first and last and self.model.tied:  # one copy of the word embedding
            weights = weights - self.model.vocabulary * self.model.hidden // sizes.tensor
        memory = self._memory(profile, card, weights, total("activation_bytes"))
        shards = sizes.data if self.config.sharded else 1
        return {"forward": total("forward"), "backward": total("backward"),
                "fits": (memory <= 0) & ((counts > 0) | ((first or last) and not (first and last))),
                "memory": memory, "sync": self._sync(weights),
                "update": total("step_seconds") / shards}

    def _memory(self, profile: Profile, card: Card, weights: np.ndarray, saved: np.ndarray
                ) -> np.ndarray:
        sizes, first, last = self.sizes, self.seat.first, self.seat.last
        states = state_bytes(self.model.precision, sizes.data, self.config.sharded)
        live = (self.micro_batches if self.config.schedule == "gpipe"
                else self.in_flight)
        transient = max(profile.layer.transient_bytes, first * profile.embedding.transient_bytes,
                        last * profile.head.transient_bytes)
        # A sender holds the tensors of its last messages, and a receive is posted early.
        sent = _sent_bytes(self.model, self.config)
        messages = (sizes.pipeline > 1) * (min(sizes.pipeline, self.micro_batches) + 1) * sent
        passes = live * saved + transient + messages
        return (card.context + self.seat.buffers + states.resident * weights
                + np.maximum(passes, states.main_gradients * weights) - card.memory)

    def _sync(self, weights: np.ndarray) -> np.ndarray:
        path = self.seat.path
        if path is None:
            return np.zeros(len(weights))
        each = state_bytes(self.model.precision)
        if self.config.sharded:  # a reduce-scatter of the gradients, an all-gather of the weights
            return all_gather(path, weights * each.gradients) + all_gather(
                path, weights * each.weights)
        by_ring = ring(path, weights * each.gradients, 2)
        by_tree = tree(path, weights * each.gradients)
        return np.minimum(by_ring, by_tree) if path.nodes > 1 else by_ring  # as all_reduce does
