"""Peak memory of every stage, from the measured memory of its passes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from layout_estimator.representative import RepresentativeContext
from layout_estimator.stage_cost import CostHandler, StageCost
from minimegatron.arguments import Config
from minimegatron.formulas import state_bytes
from minimegatron.parallel.sharding import split_replicas
from pipeline_schedules import BACKWARD, FORWARD, Action, Message
from pipeline_schedules.actions import StageAction


def activation_bytes(config: Config) -> int:
    """Return the size, in bytes, of a stage's output on one rank."""
    parts = config.tensor_model_parallel_size if config.sequence_parallel else 1
    count = config.seq_length * config.micro_batch_size * config.hidden_size // parts
    return count * state_bytes(config.precision).weights


def message_bytes(config: Config) -> int:
    """Return the size, in bytes, of a message from one rank to the next stage."""
    scatters = config.scatter_gather_tensors_in_pipeline
    return activation_bytes(config) // (config.tensor_model_parallel_size if scatters else 1)


def communicator_bytes(ctx: RepresentativeContext) -> int:
    """Return the memory, in bytes, of the communicators on the context's rank."""
    config, cluster, grid = ctx.config, ctx.cluster, ctx.grid
    instances = config.num_distributed_optimizer_instances
    groups = {group.ranks for group in (grid.replicas, grid.tp, grid.model,
                                        *split_replicas(grid, instances))}
    size = sum(map(cluster.buffer_bytes, groups))
    if grid.pp.size > 1:  # one for each direction and chunk, and one for the tied embedding
        size += 2 * config.chunks * cluster.buffer_bytes(grid.pp.ranks)
        if grid.pp.index in (0, grid.pp.size - 1):
            size += cluster.buffer_bytes((grid.pp.ranks[0], grid.pp.ranks[-1]))
    return size


@dataclass
class StageAllocations:
    """Memory of one rank of a stage during a step.

    Attributes:
        allocated: bytes allocated now, without messages in transit.
        peak: bytes allocated at the peak of the passes so far.
        end_peak: bytes allocated at the peak of the optimizer step.
        sent: the last sends of each queue, whose tensors the sender still holds.
        only_sent: sends whose tensors nothing but the queue holds.
        posted: number of posted receives whose tensors no action has consumed yet.
        gathered: bytes of sharded parameters that are complete now, by chunk.
    """

    allocated: float
    peak: float
    end_peak: float
    sent: dict[tuple[str, int], deque[Action]]
    only_sent: set[Action] = field(default_factory=set)
    posted: int = 0
    gathered: dict[int, float] = field(default_factory=dict)

    def held(self) -> set[Action]:
        """Return the actions whose results the channels still hold."""
        return set().union(*self.sent.values())


class PeakMemory(CostHandler):
    """Tracks the memory of every stage through a step, and its peak."""

    def __init__(self, costs: Sequence[StageCost], config: Config, workspaces: Sequence[int]
                 ) -> None:
        """Start with what a rank holds before its first pass.

        Args:
            config: the run's flags.
            workspaces: bytes of cuBLAS's workspaces, per stage.
        """
        super().__init__(costs)
        # A scattered send is a view, so the sender holds the full tensor; a receive is only a part.
        self.sent_bytes, self.posted_bytes = activation_bytes(config), message_bytes(config)
        self.reshards = config.reshard_after_forward  # else a pass frees its own chunk's
        self.stages = []
        for cost, reserved in zip(costs, workspaces, strict=True):
            allocated = (cost.step.state_bytes + reserved
                         + config.num_micro_batches * cost.step.batch_bytes)
            # A sender holds as many tensors per queue as there are stages (p2p.Peers.send).
            sent: dict = defaultdict(lambda: deque(maxlen=len(costs)))
            self.stages.append(StageAllocations(allocated, allocated, allocated + cost.step.peak,
                                                sent))

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        memory, cost = self.stages[stage], self.pass_cost(stage, action)
        memory.posted -= source is not None  # its tensor now counts as memory of the pass
        messages = self.sent_bytes * len(memory.only_sent) + self.posted_bytes * memory.posted
        extra = self._gather(memory, action, cost.gathered)
        memory.peak = max(memory.peak, memory.allocated + cost.peak + extra + messages)
        memory.allocated += cost.retained + extra
        if self.reshards and action.kind != FORWARD:
            memory.allocated -= sum(memory.gathered.values())
            memory.gathered.clear()
        if action.kind == BACKWARD:  # the forward's output is no longer needed here
            memory.only_sent.add(replace(action, kind=FORWARD))
            memory.only_sent &= memory.held()

    @staticmethod
    def _gather(memory: StageAllocations, action: Action, size: float) -> float:
        """Return how many bytes a pass gathers beyond what was measured.

        A forward pass was measured without its parameters, and a backward pass with them.
        """
        if action.kind == FORWARD:
            if action.chunk in memory.gathered:
                return -size
            if size:
                memory.gathered[action.chunk] = size
            return 0.0
        return 0.0 if memory.gathered.pop(action.chunk, None) is not None else -size

    def send(self, stage: int, message: Message) -> None:
        memory, action = self.stages[stage], message.action
        memory.sent[action.kind, action.chunk].append(action)
        if action.kind == BACKWARD:  # nothing but the transfer needs the input's gradient
            memory.only_sent.add(action)
        memory.only_sent &= memory.held()

    def receive(self, stage: int, message: Message) -> None:
        self.stages[stage].posted += 1

    def peaks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return each stage's peak memory in the passes, and in the end of the step, in bytes."""
        return (tuple(int(memory.peak) for memory in self.stages),
                tuple(int(memory.end_peak) for memory in self.stages))
