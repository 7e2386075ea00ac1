"""Time of one training step of data-parallel replicas that differ in their GPUs or links."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from layout_estimator.stage_cost import StageCost, StepCollective
from layout_estimator.step_time import StepClock
from pipeline_schedules import replay
from pipeline_schedules.interpreter import Item

STEPS = 4  # enough for the step time to become steady


class StageReplica(NamedTuple):
    """A pipeline stage of one data-parallel replica."""

    replica: int
    stage: int


@dataclass(frozen=True)
class Replica:
    """Costs of one replica of the model.

    Attributes:
        costs: costs of its stages.
        send_seconds: per stage, {receiving stage: seconds of a send}.
        count: number of replicas with these costs.
    """

    costs: tuple[StageCost, ...]
    send_seconds: Sequence[dict[int, float]]
    count: int = 1


@dataclass(frozen=True)
class ReplicasTime:
    """Time of one step, in seconds.

    Attributes:
        seconds: duration of the step.
        waited: per replica and stage, how long a GPU waits for other stages or replicas.
    """

    seconds: float
    waited: list[list[float]]


def time_step(replicas: Sequence[Replica], program: Sequence[Sequence[Item]], micro_batches: int,
              synchronous: bool) -> ReplicasTime:
    """Return the steady-state time of a step.

    A replica begins its next step when its own last collective has ended, so a fast one begins
    before a slow one. The step's time is that between the ends of two steps.

    Args:
        replicas: the distinct replicas.
        program: the program of each stage, with communication.
        micro_batches: micro-batches per step.
        synchronous: whether the host waits for the GPU around every pass.
    """
    ends = [[0.0] * len(program) for _ in replicas]
    seconds, waited = 0.0, []
    for _ in range(STEPS):
        clocks = [StepClock(replica.costs, micro_batches, replica.send_seconds, synchronous, starts)
                  for replica, starts in zip(replicas, ends, strict=True)]
        for clock in clocks:
            replay(program, clock)
        before, tail = max(map(max, ends)), StepEnd(clocks)
        ends = tail.run()
        seconds, waited = max(map(max, ends)) - before, [clock.waited for clock in clocks]
    return ReplicasTime(seconds, waited)


class StepEnd:
    """The collectives at the end of a step, between the stages of a replica and between replicas.

    Attributes:
        now: per stage of a replica, when its last collective ended.
    """

    def __init__(self, clocks: Sequence[StepClock]) -> None:
        """Begin when each stage has ended its passes.

        Args:
            clocks: one per replica; their `waited` grows by the time spent waiting here.
        """
        self.clocks, self.stages = clocks, len(clocks[0].costs)
        self.passes = {StageReplica(replica, stage): end for replica, clock in enumerate(clocks)
                       for stage, end in enumerate(clock.ends())}
        self.now = dict(self.passes)
        self.queues = {member: deque(clocks[member.replica].costs[member.stage].step.collectives)
                       for member in self.now}
        self.free: defaultdict[tuple[StageReplica, ...], float] = defaultdict(float)  # by group

    def run(self) -> list[list[float]]:
        """Run all collectives, and return when the last one ends, per replica and stage."""
        while any(self.queues.values()):
            groups = {self._members(member, queue[0].group): queue[0].group
                      for member, queue in self.queues.items() if queue}
            ready = [(members, name) for members, name in groups.items()
                     if all(self.queues[member] and self.queues[member][0].group == name
                            for member in members)]
            if not ready:
                raise RuntimeError(f"no collective has all of its ranks: {groups}")
            for members, _ in ready:
                self._collective(members)
        return [[self.now[StageReplica(replica, stage)] for stage in range(self.stages)]
                for replica in range(len(self.clocks))]

    def _members(self, member: StageReplica, group: str) -> tuple[StageReplica, ...]:
        """Return the members of the group of this name."""
        if group == "replicas":
            return tuple(StageReplica(replica, member.stage) for replica in range(len(self.clocks)))
        # The all-reduce of the tied embedding has only the first and the last stage.
        stages = (0, self.stages - 1) if group == "ends" else range(self.stages)
        return tuple(StageReplica(member.replica, stage) for stage in stages)

    def _collective(self, members: tuple[StageReplica, ...]) -> None:
        """Run the next collective of these ranks; it starts when the slowest of them is ready."""
        heads: dict[StageReplica, StepCollective] = {
            member: self.queues[member].popleft() for member in members}
        waits = {member: self.now[member] + collective.before
                 for member, collective in heads.items()}
        ready = {member: (self.passes if collective.in_passes else waits)[member] - collective.ahead
                 for member, collective in heads.items()}
        start = max(self.free[members], *ready.values())
        end = start + max(collective.seconds for collective in heads.values())
        self.free[members] = end
        for member in members:
            idle = min(start - ready[member], end - waits[member])
            self.clocks[member.replica].waited[member.stage] += max(0.0, idle)
            self.now[member] = max(waits[member], end)
