"""The executor: runs one stage's list of actions on that stage's model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minimegatron.model import MicroBatch, Stage
from minimegatron.schedules import FORWARD, Action
from minimegatron.timers import Timers


def run_schedule(actions: Sequence[Action], stage: Stage, batches: Sequence[MicroBatch],
                 replicas: int, timers: Timers) -> torch.Tensor:
    """Forward and backward of every micro-batch; the gradients land in the parameters' sink.

    replicas: data-parallel size. Each micro-batch's loss counts 1 / (micro-batches x replicas),
    so that summing the gradients over micro-batches and replicas gives the mean over them.
    Returns the mean loss of this rank's micro-batches (one element, detached).
    """
    share = 1 / (len(batches) * replicas)
    alive: dict[int, torch.Tensor] = {}
    total = None
    for action in actions:
        if action.kind == FORWARD:
            with timers("forward-compute"):
                loss = stage(None, batches[action.micro_batch])
            alive[action.micro_batch] = loss
            total = loss.detach() if total is None else total + loss.detach()
        else:
            with timers("backward-compute"):
                loss = alive.pop(action.micro_batch)
                # A gradient handed to backward would import the compiler's symbolic shapes.
                (loss * share).backward()
    return total / len(batches)
