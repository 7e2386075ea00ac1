"""Time and memory of every stage, for every number of layers that it might have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from cluster_planner.placement import ParallelSizes, Placement, StageSeat
from cluster_planner.profiles import Key, ModelSpec, Profile, Profiles
from minimegatron.formulas import in_flight, state_bytes
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, Action, zb_h1
from virtualgpu.core import stacks
from virtualgpu.core.card import Card
from virtualgpu.net.collectives import all_gather, all_reduce, ring, tree


class TrainingConfig(NamedTuple):
    """The choices besides placement and partition.

    Attributes:
        micro_batch: samples per micro-batch.
        recompute: a key of profiles.RECOMPUTE.
        sharded: whether the replicas share the optimizer state (the distributed optimizer).
        schedule: "1f1b", "gpipe", "zb-h1", or "interleaved".
        chunks: model chunks per stage, more than one with "interleaved" alone.
    """

    micro_batch: int
    recompute: str
    sharded: bool
    schedule: str
    chunks: int = 1


@dataclass(frozen=True)
class Stages:
    """Costs of the stages of a placement; row s, column n: stage s with n layers.

    Times are in seconds here, and in ms for a case (case_model.py).

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
        kinds: the GPU models of every stage.
        weight: seconds of the weight gradients' pass, if the backward pass is split, [p, l + 1].
        chunks: model chunks per stage; with several, `send` ends with the way from the last stage
            to the first, [p].
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
    weight: np.ndarray | float = 0.0
    chunks: int = 1

    @property
    def both(self) -> np.ndarray:
        """Seconds of all passes of one micro-batch, [p, l + 1]."""
        return self.forward + self.backward + self.weight


def stages_of(model: ModelSpec, placement: Placement, config: TrainingConfig, profiles: Profiles
              ) -> Stages | None:
    """Return the costs of the stages, or None if there is no profile or the batch does not divide.

    A stage whose replicas have unlike GPUs is as slow as the slowest, and each has to fit.
    """
    sizes = placement.sizes
    seats = [(seat, stage) for stage, seat in enumerate(placement.seats)]
    arrays = rows_of(model, sizes, config, profiles, seats)
    if arrays is None:
        return None
    micro_batches = model.global_batch // (config.micro_batch * sizes.data)
    sent = model.sent_bytes(config.micro_batch)
    sends = placement.send_seconds(sent, wrap=config.chunks > 1)
    if config.chunks > 1:
        more = np.array(placement.pipeline_buffers)  # every chunk has communicators of its own
        arrays["memory"] = arrays["memory"] + (config.chunks - 1) * more[:, None]
        arrays["fits"] &= arrays["memory"] <= 0
    return Stages(micro_batches, config.schedule, send=np.array(sends),
                  ends=ends_seconds(model, placement),
                  kinds=placement.kinds, chunks=config.chunks, **arrays)


def rows_of(model: ModelSpec, sizes: ParallelSizes, config: TrainingConfig, profiles: Profiles,
            seats: Sequence[tuple[StageSeat, int]]) -> dict[str, np.ndarray] | None:
    """Return the rows of Stages for these seats, or None as stages_of does, [s, l + 1].

    Args:
        model: the model and the batch.
        sizes: the layout.
        config: the choices besides it.
        profiles: costs of the model's parts.
        seats: seats of stages, with the numbers of the stages.
    """
    micro_batches, rest = divmod(model.global_batch, config.micro_batch * sizes.data)
    kinds = dict.fromkeys(chain.from_iterable(seat.kinds for seat, _ in seats))
    if rest or any(_profile(profiles, sizes, config, card) is None for card in kinds):
        return None
    known = _rows(model, sizes, config, micro_batches, profiles)
    live = kept(config.schedule, sizes.pipeline, micro_batches, config.chunks)
    rows = [known.row(seat, live[stage]) for seat, stage in seats]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def ends_seconds(model: ModelSpec, placement: Placement) -> float:
    """Return the time of the all-reduce of the tied embedding, in seconds."""
    if placement.sizes.pipeline == 1 or not model.tied:
        return 0.0
    elements = model.vocabulary * model.hidden // placement.sizes.tensor
    return all_reduce(placement.ends_path, int(elements * state_bytes(model.precision).gradients))


def _profile(profiles: Profiles, sizes: ParallelSizes, config: TrainingConfig, card: Card
             ) -> Profile | None:
    return profiles.get(Key(card.name, sizes.tensor, config.micro_batch, config.recompute,
                            config.schedule == "zb-h1"))


@lru_cache(maxsize=512)
def _rows(model: ModelSpec, sizes: ParallelSizes, config: TrainingConfig, micro_batches: int,
          profiles: Profiles) -> _Rows:
    return _Rows(model, sizes, config, micro_batches, profiles)


class _Rows:
    """The rows of a layout's stages; equal stages of all placements share them."""

    def __init__(self, model: ModelSpec, sizes: ParallelSizes, config: TrainingConfig,
                 micro_batches: int, profiles: Profiles) -> None:
        self._layout, self._profiles = (model, sizes, config, micro_batches), profiles
        self._seats: dict[StageSeat, _SeatCosts] = {}
        self._known: dict[tuple[StageSeat, Live], dict[str, np.ndarray]] = {}

    def row(self, seat: StageSeat, live: Live) -> dict[str, np.ndarray]:
        """Return the rows of a stage.

        Args:
            seat: its GPUs.
            live: its peaks.
        """
        if (seat, live) not in self._known:
            if seat not in self._seats:
                model, sizes, config, _ = self._layout
                stage, counts = _Stage(*self._layout, seat), np.arange(model.layers + 1)
                self._seats[seat] = _SeatCosts.slowest([
                    stage.costs(_profile(self._profiles, sizes, config, card), card, counts)
                    for card in seat.kinds])
            self._known[seat, live] = self._seats[seat].row(live)
        return self._known[seat, live]


KindMemory = tuple[np.ndarray, np.ndarray, np.ndarray, int, float, np.ndarray]


class _SeatCosts(NamedTuple):
    """Costs of a stage for every number of layers, [l + 1], whatever it keeps of activations.

    Attributes:
        times: its rows of Stages that are times.
        memory: for each of its GPU models: bytes besides the passes, less the GPU's memory; bytes
            that a micro-batch saves; bytes that wait for its weight gradients; bytes of a message;
            further bytes of the passes; and bytes of the optimizer step.
        allowed: whether a stage may have so many layers.
    """

    times: dict[str, np.ndarray]
    memory: list[KindMemory]
    allowed: np.ndarray

    @staticmethod
    def slowest(kinds: list[_SeatCosts]) -> _SeatCosts:
        """Return the costs of a stage with several GPU models."""
        times = {name: np.maximum.reduce([kind.times[name] for kind in kinds])
                 for name in kinds[0].times}
        return _SeatCosts(times, [one for kind in kinds for one in kind.memory], kinds[0].allowed)

    def row(self, live: Live) -> dict[str, np.ndarray]:
        """Return the rows of a stage with these peaks."""
        memory = np.maximum.reduce([
            fixed + np.maximum(peak.saved * saved + (peak.edges - peak.saved) * saved[0]
                               + peak.waiting * held + peak.messages * sent + passes, step)
            for fixed, saved, held, sent, passes, step in self.memory for peak in live])
        return {**self.times, "memory": memory, "fits": (memory <= 0) & self.allowed}


class _Stage(NamedTuple):
    """One stage of a placement."""

    model: ModelSpec
    sizes: ParallelSizes
    config: TrainingConfig
    micro_batches: int
    seat: StageSeat

    def costs(self, profile: Profile, card: Card, counts: np.ndarray) -> _SeatCosts:
        """Return the costs of this stage on one GPU model, for these numbers of layers."""
        sizes, first, last = self.sizes, self.seat.first, self.seat.last

        def total(name: str) -> np.ndarray:
            edges = first * getattr(profile.embedding, name) + last * getattr(profile.head, name)
            return edges + counts * getattr(profile.layer, name)

        weights = total("parameters")
        if first and last and self.model.tied:  # one copy of the word embedding
            weights = weights - self.model.vocabulary * self.model.hidden // sizes.tensor
        shards = sizes.data if self.config.sharded else 1
        return _SeatCosts(
            {"forward": total("forward"), "backward": total("backward"), "weight": total("weight"),
             "sync": self._sync(weights), "update": total("step_seconds") / shards},
            [self._memory(profile, card, weights, total("activation_bytes"), total("held_bytes"))],
            (counts > 0) | ((first or last) and not (first and last)))

    def _memory(self, profile: Profile, card: Card, weights: np.ndarray, saved: np.ndarray,
                held: np.ndarray) -> KindMemory:
        sizes, first, last = self.sizes, self.seat.first, self.seat.last
        states = state_bytes(self.model.precision, sizes.data, self.config.sharded)
        transient = max(profile.layer.transient_bytes, first * profile.embedding.transient_bytes,
                        last * profile.head.transient_bytes)
        context = stacks.under_megatron(card, self.model.stack).context
        return (context + self.seat.buffers + states.resident * weights - card.memory, saved,
                held, self.model.sent_bytes(self.config.micro_batch), transient,
                states.main_gradients * weights)

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


class Peak(NamedTuple):
    """Activations that a stage keeps for backward passes at one of its peaks.

    Attributes:
        saved: micro-batches whose layers' activations it keeps, in units of all its layers.
        waiting: micro-batches that wait for their weight gradients.
        edges: micro-batches whose activations of the embedding and the head it keeps.
        messages: tensors of sends that only their queue still holds, and of posted receives.
    """

    saved: float
    waiting: float
    edges: float
    messages: int


Live = tuple[Peak, ...]


@lru_cache(maxsize=4096)
def kept(schedule: str, p: int, m: int, chunks: int) -> tuple[Live, ...]:
    """Return the peaks of every stage."""
    sent = [_messages(schedule, p, m, chunks, stage) for stage in range(p)]
    if schedule == "zb-h1":
        return tuple(_split_peaks(actions, messages)
                     for actions, messages in zip(zb_h1(p, m), sent, strict=True))
    whole = [m if schedule == "gpipe" else in_flight(p, stage, m, chunks) for stage in range(p)]
    # The last chunk's forward passes are followed by their backward passes, unless all come first.
    last = 1.0 if chunks > 1 and m > p else whole[-1]
    return tuple((Peak(count, 0, last if stage == p - 1 else count, sent[stage]),)
                 for stage, count in enumerate(whole))


def _messages(schedule: str, p: int, m: int, chunks: int, stage: int) -> int:
    """Return the messages of a stage at its peak.

    A queue holds a stage's last p sends: gradients, and outputs whose backward pass has ended, of
    which a stage further ahead has fewer, but it has posted as many more receives. In ZB-H1,
    outputs also wait for their weight gradients.
    """
    if p == 1:
        return 0
    if chunks > 1:
        return chunks * (min(p, m) + 1)
    if stage == 0:
        return 1
    if schedule == "gpipe":
        return 1 if stage == p - 1 else m
    if stage == p - 1:
        return min(p, m) + 1
    return 2 * min(p, m) + (stage if schedule == "zb-h1" else 0)


def _split_peaks(actions: Sequence[Action], messages: int) -> Live:
    """Return the peaks of a stage that computes weight gradients in passes of their own."""
    saved, held, peaks = 0, 0, set()
    for action in actions:
        saved += action.kind == FORWARD
        peaks.add(Peak(saved, held, saved, messages))  # a pass frees what it has read when it ends
        if action.kind == BACKWARD:
            saved, held = saved - 1, held + 1
        held -= action.kind == WEIGHT
    return tuple(one for one in peaks if not any(
        one != other and one[0] <= other[0] and one[1] <= other[1] for other in peaks))
