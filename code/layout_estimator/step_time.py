"""Time of one training step: the clocks of every stage's host and GPU."""

from __future__ import annotations

from collections.abc import Sequence

from layout_estimator.stage_cost import CostHandler, StageCost, StepCollective
from pipeline_schedules import Action, Message
from pipeline_schedules.actions import StageAction
from pipeline_schedules.messages import Queue


class StepClock(CostHandler):
    """Clocks of the stages over one iteration, between the last collectives of two steps.

    Attributes:
        waited: seconds that each stage's GPU waits for other stages.
    """

    def __init__(self, costs: Sequence[StageCost], micro_batches: int,
                 send_seconds: Sequence[dict[int, float]], synchronous: bool,
                 starts: Sequence[float] | None = None) -> None:
        """Start the clocks.

        Args:
            micro_batches: micro-batches per step.
            send_seconds: per stage, {receiving stage: seconds of a send}.
            synchronous: whether the host waits for the GPU around every pass.
            starts: when the previous step's last collective ended on each stage; None for 0.
        """
        super().__init__(costs)
        self.send_seconds, self.synchronous = send_seconds, synchronous
        self.waited = [0.0] * len(costs)
        self.host, self.gpu = [], []
        for start, cost in zip(starts or [0.0] * len(costs), costs, strict=True):
            draw = cost.step.draw
            step_start = start + cost.step.after + cost.efficiency.step
            gpu = step_start + (micro_batches - 1) * draw.host + draw.latency
            self.gpu.append(gpu)
            self.host.append(max(step_start + micro_batches * draw.host, gpu))
        self.arrivals: dict[StageAction, float] = {}
        self.queue_free: dict[Queue, float] = {}
        self.last_sent = [0.0] * len(costs)

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        host, gpu = self.host[stage], self.gpu[stage]
        if source is not None:
            arrival = self.arrivals[source]
            host += self.costs[stage].efficiency.dispatch
            if self.synchronous:
                host = max(host, gpu, self.last_sent[stage])
            self.waited[stage] += max(0.0, arrival - max(host, gpu))
            gpu = max(gpu, arrival)
        if self.synchronous:
            # The host waits for the GPU, including its sends.
            host = max(host, gpu, self.last_sent[stage])
        cost = self.pass_cost(stage, action)
        gpu = max(host + cost.latency, gpu + cost.busy)
        host += cost.host
        if self.synchronous:
            host = max(host, gpu)
        self.host[stage], self.gpu[stage] = host, gpu

    def send(self, stage: int, message: Message) -> None:
        self.host[stage] += self.costs[stage].efficiency.dispatch
        free = self.queue_free.get(message.queue, 0.0)
        arrival = (max(self.host[stage], self.gpu[stage], free)
                   + self.send_seconds[stage][message.target])
        self.arrivals[stage, message.action] = self.queue_free[message.queue] = arrival
        self.last_sent[stage] = max(self.last_sent[stage], arrival)

    def ends(self) -> list[float]:
        """Return when each stage ends its passes."""
        return [max(*times) for times in zip(self.host, self.gpu, self.last_sent, strict=True)]

    def finish(self) -> float:
        """Return when the last collective of all stages ends, or the step of a single stage."""
        ends = self.ends()
        if len(ends) == 1:
            return ends[0] + sum(collective.before + collective.seconds
                                 for collective in self.costs[0].step.collectives)
        queues = [list(cost.step.collectives) for cost in self.costs]
        while any(queues):
            self._collective(ends, queues)
        return max(ends)

    def _collective(self, ends: list[float], queues: list[list[StepCollective]]) -> None:
        """Run the next collective; it starts when its last stage is ready.

        Args:
            ends: when each stage finished what came before.
            queues: the collectives that each stage has yet to run.
        """
        # The all-reduce of the tied embedding has only the first and the last stage.
        members = [stage for stage, queue in enumerate(queues)
                   if queue and queue[0].group == "ends"] or list(range(len(ends)))
        collectives = {stage: queues[stage].pop(0) for stage in members}
        ready = {stage: ends[stage] + collective.before
                 for stage, collective in collectives.items()}
        start = max(ready.values())
        for stage, collective in collectives.items():
            self.waited[stage] += start - ready[stage]
            ends[stage] = start + collective.seconds
