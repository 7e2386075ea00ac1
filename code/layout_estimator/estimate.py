"""What a run would cost on a cluster that is not there: a whole grid in one process.

All ranks of a pipeline stage do the same at the same time, so one of them stands for all. Each
stage is built as the trainer builds it, on a virtual card of its own and with groups whose other
ranks are as far as it is; one micro-batch's passes and the end of a step are run once; and the
schedule puts them together, as the ranks' clocks would (virtualgpu/core/clock.py). Stages with the
same layers and ends are alike and are run once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from layout_estimator.memory import communicator_bytes, message_bytes, peak, receiver
from layout_estimator.solo import solo_context
from layout_estimator.stage_cost import (
    Chunk,
    Pass,
    Step,
    chunk_cost,
    on,
    runs_timers,
    step_cost,
)
from minimegatron.arguments import Config
from minimegatron.arguments.table.flag import PASSES, names_affecting
from minimegatron.device.virtual import VirtualDevice
from minimegatron.errors import UserError
from pipeline_schedules import (
    BACKWARD,
    FORWARD,
    Schedule,
    ScheduleError,
    add_communication,
    check,
    load,
    splits_backward,
)
from pipeline_schedules.actions import Action, needs
from pipeline_schedules.simulation import run_order
from virtualgpu.core.card import Card

ENOUGH = 1 << 60  # bytes: stages are measured on a card on which everything fits


@dataclass(frozen=True)
class Estimate:
    """seconds: of one iteration. forward, backward: of each stage for one micro-batch. peak: bytes
    of each stage's ranks, allocated; taken: CUDA's and NCCL's own; fits: whether both fit the card.
    communication: share of the time in which a card waits for collectives; bubble: in which it
    waits for other stages; both on the average of all."""

    seconds: float
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    peak: tuple[int, ...]
    taken: tuple[int, ...]
    fits: bool
    communication: float
    bubble: float


@dataclass(frozen=True)
class Costs:
    """Of one stage."""

    chunks: tuple[Chunk, ...]
    step: Step

    def of(self, action: Action, first: bool) -> Pass:
        chunk = self.chunks[action.chunk]
        return (chunk.first if first else chunk.passes)[action.kind]

    def seconds(self, *kinds: str) -> float:
        """Of one micro-batch on all chunks."""
        return sum(chunk.passes[kind].alone for chunk in self.chunks for kind in kinds
                   if kind in chunk.passes)


@dataclass
class Estimator:
    """Estimates for one card and one kind of cluster; keeps what it has measured.

    link: between nodes, as --virtual-network; None: what the card's nodes have. per_node: cards.
    scatter_gather: between stages every tensor-parallel rank sends its part, and the receivers
    gather them, as Megatron-LM does (Narayanan et al. 2021, section 4.1) and this trainer does not.
    """

    card: Card
    link: str | None = None
    per_node: int = 8
    scatter_gather: bool = False
    _chunks: dict = field(default_factory=dict)
    _steps: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._roomy = replace(self.card, memory=ENOUGH)

    def estimate(self, config: Config, vocab_size: int) -> Estimate:
        """config: as parse_arguments gives it for the whole world. vocab_size: padded. Raises
        UserError for a schedule that does not fit, and VirtualGpuError where too much of the time
        would be a guess."""
        stages, micro_batches = config.pipeline_model_parallel_size, config.num_micro_batches
        try:
            schedule = load(config.schedule, stages, micro_batches, config.chunks)
            check(schedule, stages=stages, micro_batches=micro_batches, chunks=config.chunks,
                  source=f"--schedule {config.schedule}")
        except ScheduleError as error:
            raise UserError(str(error)) from error
        device = VirtualDevice(self._roomy, self.link)
        with on(device):
            device.imagine(config.world_size, self.per_node)
            split = splits_backward(schedule)
            costs = [self._costs(config, vocab_size, device, stage, split)
                     for stage in range(stages)]
            taken = tuple(self.card.context + communicator_bytes(config, device, stage)
                          for stage in range(stages))
            device.closing()
            wires = message_seconds(config, device, self.scatter_gather)
            dispatch = self.card.efficiency.dispatch
        pipeline = run(schedule, costs, wires, dispatch, runs_timers(config))
        return self._summary(config, schedule, costs, pipeline, taken)

    def kept(self, config: Config, vocab_size: int) -> float:
        """Bytes that the first stage's first chunk keeps of a micro-batch after its forward."""
        device = VirtualDevice(self._roomy, self.link)
        with on(device):
            device.imagine(config.world_size, self.per_node)
            chunk = chunk_cost(solo_context(config, device, 0), vocab_size, 0, False)
        return chunk.passes[FORWARD].kept

    def _costs(self, config: Config, vocab_size: int, device: VirtualDevice, stage: int,
               split: bool) -> Costs:
        ctx = solo_context(config, device, stage)
        stages = config.pipeline_model_parallel_size
        ends = len(config.layers_per_chunk) - 1
        held = tuple((config.layers_per_chunk[at], at == 0, at == ends)
                     for at in range(stage, ends + 1, stages))
        like = (*(getattr(config, name) for name in names_affecting(PASSES, type(config))),
                vocab_size, split, path(ctx.grid.tp))
        chunks = []
        for number, what in enumerate(held):
            # What a pass needs from other stages depends on where it stands.
            key = *like, what, stages > 1
            if key not in self._chunks:
                self._chunks[key] = chunk_cost(ctx, vocab_size, number, split)
            chunks.append(self._chunks[key])
        key = (*like, held, path(ctx.grid.dp), path(ctx.grid.model))
        if key not in self._steps:
            self._steps[key] = step_cost(ctx, vocab_size)
        return Costs(tuple(chunks), self._steps[key])

    def _summary(self, config: Config, schedule: Schedule, costs: Sequence[Costs],
                 pipeline: tuple[float, list[float]], taken: tuple[int, ...]) -> Estimate:
        seconds, waits = pipeline
        m, stages = config.num_micro_batches, len(costs)
        messages = sum(
            cost.step.messages + m * sum(one.messages for chunk in cost.chunks
                                         for one in chunk.passes.values()) for cost in costs)
        programs = add_communication(schedule)
        peaks = tuple(peak(config, programs[stage], cost, stage)
                      for stage, cost in enumerate(costs))
        return Estimate(
            seconds, tuple(cost.seconds(FORWARD) for cost in costs),
            tuple(cost.seconds(BACKWARD, "W") for cost in costs), peaks, taken,
            max(map(sum, zip(peaks, taken, strict=True))) <= self.card.memory,
            messages / stages / seconds, sum(waits) / stages / seconds)


def path(group) -> object:
    """What decides about a group's messages."""
    return None if group.channel is None else group.channel.path


def message_seconds(config: Config, device: VirtualDevice, scatter_gather: bool
                    ) -> list[dict[int, float]]:
    """Per stage: seconds of a message to each of the stages that it sends to."""
    stages = config.pipeline_model_parallel_size
    size = config.data_parallel_size * config.tensor_model_parallel_size
    length, after = message_bytes(config), 0.0
    if scatter_gather and not config.sequence_parallel:
        tp = config.tensor_model_parallel_size
        length //= tp
        after = device.gather_seconds(range(tp), length * tp) if tp > 1 else 0.0
    return [{other: device.message_seconds(stage * size, other * size, length) + after
             for other in {(stage + 1) % stages, (stage - 1) % stages} - {stage}}
            for stage in range(stages)]


def run(schedule: Schedule, costs: Sequence[Costs], wires: Sequence[dict[int, float]],
        dispatch: float, synchronous: bool) -> tuple[float, list[float]]:
    """(seconds of one iteration in the steady state, seconds that each stage waits for others).

    It is counted from the last collective in which all stages meet to the next one.
    """
    stages, chunks = len(schedule), len(costs[0].chunks)
    micro_batches = sum(action.kind == FORWARD for action in schedule[0]) // chunks
    waited = [0.0] * stages
    host, card = [], []
    for cost in costs:
        begin = cost.step.begin
        host.append(cost.step.rest + micro_batches * begin.host)
        card.append(cost.step.rest + (micro_batches - 1) * begin.host + begin.alone)
        host[-1] = max(host[-1], card[-1])
    arrivals: dict[tuple[int, Action], float] = {}
    wire_free: dict[tuple[int, int, str, int], float] = {}
    seen: set[tuple[int, str, int]] = set()
    last = [0.0] * stages  # when the last message left
    for stage, action in run_order(schedule):
        here, there = host[stage], card[stage]
        for place in needs(stage, action, stages, chunks):
            if place[0] == stage:
                continue
            came, here = arrivals[place], here + dispatch
            if synchronous:
                here = max(here, there, last[stage])
            waited[stage] += max(0.0, came - max(here, there))
            there = max(there, came)
        if synchronous:
            # The host waits for the card, also for what is being sent.
            here = max(here, there, last[stage])
        begins = (stage, action.kind, action.chunk)
        cost = costs[stage].of(action, begins not in seen)
        seen.add(begins)
        there = max(here + cost.alone, there + cost.busy)
        here += cost.host
        if synchronous:
            here = max(here, there)
        target = receiver(stage, action, stages, chunks)
        if target is not None:
            here += dispatch
            channel = stage, target, action.kind, action.chunk
            left = max(here, there, wire_free.get(channel, 0.0)) + wires[stage][target]
            arrivals[stage, action] = wire_free[channel] = left
            last[stage] = max(last[stage], left)
        host[stage], card[stage] = here, there
    ends = [max(*times) for times in zip(host, card, last, strict=True)]
    return finish(costs, ends, waited), waited


def finish(costs: Sequence[Costs], ends: Sequence[float], waited: list[float]) -> float:
    """When the last collective of all stages is over; alone, when the step is."""
    if len(ends) == 1:
        step = costs[0].step
        return ends[0] + sum(before + length for before, length, _ in step.ends)
    times = list(ends)
    queues = [list(cost.step.ends) for cost in costs]
    while any(queues):
        # The tied embedding's ends meet first, then all stages as often as they do.
        who = [stage for stage, queue in enumerate(queues) if queue and queue[0][2] == "ends"]
        who = who or list(range(len(times)))
        heads = {stage: queues[stage].pop(0) for stage in who}
        ready = {stage: times[stage] + head[0] for stage, head in heads.items()}
        start = max(ready.values())
        for stage, head in heads.items():
            waited[stage] += start - ready[stage]
            times[stage] = start + head[1]
    return max(times)
