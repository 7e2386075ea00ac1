"""What a grid's ranks hold, from what one rank of each stage was measured to hold."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from layout_estimator.solo import solo_context
from minimegatron.arguments import Config
from minimegatron.device.virtual import VirtualDevice
from pipeline_schedules import BACKWARD, FORWARD, Message
from pipeline_schedules.actions import Action, needs

if TYPE_CHECKING:
    from layout_estimator.estimate import Costs


def message_bytes(config: Config) -> int:
    """Of what one rank sends to the next stage."""
    parts = config.tensor_model_parallel_size if config.sequence_parallel else 1
    count = config.seq_length * config.micro_batch_size * config.hidden_size // parts
    return count * (4 if config.precision == "fp32" else 2)


def communicator_bytes(config: Config, device: VirtualDevice, stage: int) -> int:
    """Memory of the communicators on a rank of the stage."""
    grid = solo_context(config, device, stage).grid
    groups = {group.ranks for group in (grid.dp, grid.tp, grid.model)}
    size = sum(map(device.buffer_bytes, groups))
    if grid.pp.size > 1:  # one for each direction and chunk, and one for the tied embedding
        size += 2 * config.chunks * device.buffer_bytes(grid.pp.ranks)
        if grid.pp.index in (0, grid.pp.size - 1):
            size += device.buffer_bytes((grid.pp.ranks[0], grid.pp.ranks[-1]))
    return size


def receiver(stage: int, action: Action, stages: int, chunks: int) -> int | None:
    """Who needs what this action makes; None: nobody, or the stage itself."""
    if action.kind not in (FORWARD, BACKWARD):
        return None
    virtual = action.chunk * stages + stage + (1 if action.kind == FORWARD else -1)
    if not 0 <= virtual < stages * chunks or virtual % stages == stage:
        return None
    return virtual % stages


def peak(config: Config, program: Sequence[Action | Message], cost: Costs, stage: int) -> int:
    """Bytes allocated on a rank of the stage at its peak."""
    step, stages, size = cost.step, config.pipeline_model_parallel_size, message_bytes(config)
    live = step.states + config.num_micro_batches * step.batch
    most, seen = live + step.most, set()
    # What was sent stays until as many more have followed as there are stages (p2p.Peers.send).
    sent: dict[tuple[str, int], deque[Action]] = defaultdict(lambda: deque(maxlen=stages))
    dead: set[Action] = set()  # outputs that only the queue still holds
    coming = 0  # messages that have room already, before the action that uses them
    for action in program:
        if isinstance(action, Message):
            coming += action.end != "send"
            continue
        coming -= sum(place[0] != stage for place in needs(stage, action, stages, config.chunks))
        first = (action.kind, action.chunk) not in seen
        seen.add((action.kind, action.chunk))
        one = cost.of(action, first)
        most = max(most, live + one.most + size * (len(dead) + coming))
        live += one.kept
        if action.kind == BACKWARD:
            dead.add(action)
            dead.add(replace(action, kind=FORWARD))
        if receiver(stage, action, stages, config.chunks) is not None:
            sent[action.kind, action.chunk].append(action)
        dead &= set().union(*sent.values())
    return int(most)
