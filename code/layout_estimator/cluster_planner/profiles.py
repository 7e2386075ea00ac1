"""Profiles: what each part of a model costs on a GPU model, for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

RECOMPUTE = ("none", "selective", "full")  # as in layout_estimator.cli.RECOMPUTE


class Key(NamedTuple):
    """Arguments that select a profile.

    Attributes:
        gpu: name of the GPU model.
        tensor: tensor-parallel size.
        micro_batch: samples per micro-batch.
        recompute: one of RECOMPUTE.
        split: whether the schedule computes weight gradients in passes of their own, as ZB-H1 does.
    """

    gpu: str
    tensor: int
    micro_batch: int
    recompute: str
    split: bool = False


@dataclass(frozen=True)
class PartProfile:
    """One part of the model on one tensor-parallel rank.

    Attributes:
        forward: seconds of its forward pass.
        backward: seconds of its backward pass, with recomputation; if it is split, without the
            weight gradients.
        parameters: number of its parameters on the rank.
        activation_bytes: bytes that its forward pass saves for the backward pass.
        transient_bytes: bytes that a pass needs besides, at its peak.
        step_seconds: seconds of the optimizer step, without data-parallel communication.
        weight: seconds of its pass of weight gradients, if the backward pass is split.
        held_bytes: bytes that wait for that pass once the backward pass has ended.
    """

    forward: float
    backward: float
    parameters: int
    activation_bytes: float
    transient_bytes: float
    step_seconds: float
    weight: float = 0.0
    held_bytes: float = 0.0

    @property
    def both(self) -> float:
        """Seconds of the forward and the backward pass."""
        return self.forward + self.backward + self.weight


@dataclass(frozen=True)
class Profile:
    """The parts of a model; all its transformer layers cost the same."""

    embedding: PartProfile
    layer: PartProfile
    head: PartProfile


class Profiles(Protocol):
    """A source of profiles."""

    def get(self, key: Key) -> Profile | None:
        """Return a profile, or None if the model cannot be divided this way, or is not known."""
