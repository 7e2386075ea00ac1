"""Time and memory of one pipeline stage, and the handler that looks them up for a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

from pipeline_schedules import Action, Handler
from virtualgpu.core.card import Efficiency


@dataclass(frozen=True)
class PassCost:
    """Time and memory of a pass, or of other work of one rank.

    Attributes:
        host: CPU time spent launching kernels, in seconds.
        latency: seconds until an initially idle GPU finishes.
        busy: GPU seconds when the host is far ahead.
        communication: seconds of `busy` spent waiting for collectives.
        retained: bytes that it allocates and does not free.
        peak: bytes allocated at its peak, beyond those allocated before it.
        gathered: bytes of `retained` that are gathered parameters (ZeRO-3); negative if it frees
            them. However many micro-batches are in flight, a chunk has them once.
    """

    host: float = 0.0
    latency: float = 0.0
    busy: float = 0.0
    communication: float = 0.0
    retained: float = 0.0
    peak: float = 0.0
    gathered: float = 0.0

    def plus(self, other: PassCost, times: float = 1) -> PassCost:
        """Return this cost plus `times` the other."""
        return PassCost(*(a + times * b for a, b in zip(astuple(self), astuple(other),
                                                        strict=True)))


@dataclass(frozen=True)
class ChunkCost:
    """Costs of one model chunk's passes for one micro-batch, by kind (F, B, W).

    Attributes:
        passes: costs for every micro-batch but the first.
        first: costs for the step's first micro-batch, whose gradients overwrite the last step's
            instead of accumulating.
    """

    passes: dict[str, PassCost]
    first: dict[str, PassCost]


class StepCollective(NamedTuple):
    """A collective at the end of a step whose ranks may reach it at different times.

    Attributes:
        before: seconds from the previous collective's end until the rank waits for this one.
        seconds: its duration.
        group: name of its process group.
        ahead: seconds between reaching it and waiting for it; 0 if it blocks.
        in_passes: whether it starts during the passes, `ahead` seconds before their end.
    """

    before: float
    seconds: float
    group: str
    ahead: float = 0.0
    in_passes: bool = False


@dataclass(frozen=True)
class StepCost:
    """Costs of a step besides its passes.

    Attributes:
        draw: cost of drawing one micro-batch.
        collectives: collectives at the end of the step whose ranks may reach them at different
            times.
        after: seconds from the end of the last of them to the end of the step.
        communication: seconds that collectives take at the end of the step.
        state_bytes: bytes of parameters, gradients, and optimizer state during the passes.
        batch_bytes: bytes of one micro-batch.
        peak: further bytes at the peak of the step's end, such as fp32 main gradients.
    """

    draw: PassCost
    collectives: tuple[StepCollective, ...]
    after: float
    communication: float
    state_bytes: int
    batch_bytes: float
    peak: float


@dataclass(frozen=True)
class StageCost:
    """Costs of one pipeline stage.

    Attributes:
        chunks: costs of its model chunks' passes.
        step: costs of a step besides the passes.
        efficiency: launch overheads of its GPU model.
    """

    chunks: tuple[ChunkCost, ...]
    step: StepCost
    efficiency: Efficiency

    def pass_cost(self, action: Action, is_first: bool) -> PassCost:
        """Return the cost of an action.

        Args:
            is_first: whether the action is the step's first of its kind on its chunk.
        """
        chunk = self.chunks[action.chunk]
        return (chunk.first if is_first else chunk.passes)[action.kind]

    def seconds(self, *kinds: str) -> float:
        """Return the time of the passes of these kinds for one micro-batch on all chunks."""
        return sum(chunk.passes[kind].latency for chunk in self.chunks for kind in kinds
                   if kind in chunk.passes)

    def communication(self, micro_batches: int) -> float:
        """Return how many seconds of a step its GPU waits for collectives."""
        return self.step.communication + micro_batches * sum(
            cost.communication for chunk in self.chunks for cost in chunk.passes.values())


class CostHandler(Handler):
    """Looks up the measured cost of each action of a program."""

    def __init__(self, costs: Sequence[StageCost]) -> None:
        self.costs = costs
        self._begun: set[tuple[int, str, int]] = set()

    def pass_cost(self, stage: int, action: Action) -> PassCost:
        """Return the cost of the stage's next action; the first of its kind costs differently.

        Args:
            stage: the stage that runs it.
        """
        key = stage, action.kind, action.chunk
        is_first = key not in self._begun
        self._begun.add(key)
        return self.costs[stage].pass_cost(action, is_first)
