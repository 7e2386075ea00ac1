"""The executor of schedules: run one stage's program on this rank.

A program (pipeline_schedules/messages.py) is the list of the stage's actions and messages in the
order in which it runs them. Nothing here depends on the name of a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from minimegatron.context import Context, MicroBatch
from minimegatron.model.gpt import Stage
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.parallel.p2p import Peers, Transfer
from minimegatron.report.timers import Timers
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, Action, Handler, Message, Program
from pipeline_schedules.actions import StageAction
from pipeline_schedules.interpreter import Item, replay_stage

if TYPE_CHECKING:
    from minimegatron.parallel.ddp import DelayedWeightGrads


class Pipeline(Handler):
    """This rank's model chunks and its part of the program, which every step runs once."""

    def __init__(self, ctx: Context, chunks: Sequence[Stage], program: Program,
                 ddp: DistributedDataParallel, timers: Timers, peers: Peers | None = None) -> None:
        """Create the pipeline from this stage's chunks and the program of all stages.

        Every rank must call it: without `peers`, it creates process groups.
        """
        self.ctx, self.chunks, self.ddp, self.timers = ctx, chunks, ddp, timers
        self.stage, self.stages = ctx.grid.pp.index, ctx.grid.pp.size
        self.program = program[self.stage]
        self.weight_grads: DelayedWeightGrads | None = None
        if any(isinstance(item, Action) and item.kind == WEIGHT for item in self.program):
            from minimegatron.parallel.ddp import DelayedWeightGrads

            self.weight_grads = DelayedWeightGrads(ddp)
        if peers is None and ctx.config.scatter_gather_tensors_in_pipeline:
            from minimegatron.parallel.p2p import ScatterGatherPeers

            peers = ScatterGatherPeers(ctx, len(chunks))
        self.peers = peers or Peers(ctx, len(chunks))
        self.inbox: dict[StageAction, Transfer] = {}  # by the action that computed the tensor
        self.outbox: dict[Action, torch.Tensor] = {}
        # Inputs and outputs of the forwards in flight, by the backward that consumes them.
        self.saved: dict[Action, tuple[torch.Tensor | None, torch.Tensor]] = {}

    def train(self, batches: Sequence[MicroBatch], scale: torch.Tensor | None = None
              ) -> torch.Tensor:
        """Run forward and backward of every micro-batch, and accumulate the gradients in `ddp`.

        Each micro-batch's loss is divided by micro-batches x replicas, so that summing the
        gradients over micro-batches and replicas gives their mean. With fp16 it is multiplied by
        the loss scale, one element.

        Returns the mean loss of this rank's micro-batches (one element, detached), or zero if
        another stage computes the loss.
        """
        self.begin(len(batches), scale)
        self.run(self.program, batches)
        return self.finish() / len(batches)

    def begin(self, micro_batches: int, scale: torch.Tensor | None = None) -> None:
        """Begin a step; with fp16, its losses are multiplied by the loss scale (one element)."""
        self.loss_factor = (1 if scale is None else scale) / (micro_batches * self.ctx.grid.dp.size)
        self.total = torch.zeros((), device=self.ctx.device.torch_device)

    def run(self, items: Sequence[Item], batches: Sequence[MicroBatch]) -> None:
        """Run some of this stage's items, in order, within the step that `begin` began."""
        self.batches = batches
        replay_stage(items, self, self.stage, self.stages, len(self.chunks))
        self.batches = ()

    def finish(self) -> torch.Tensor:
        """Wait for the sends, and return the sum of the step's losses (one element, detached)."""
        self.peers.finish()
        return self.total

    def send(self, stage: int, message: Message) -> None:
        self.peers.send(message, self.outbox.pop(message.action))

    def receive(self, stage: int, message: Message) -> None:
        self.inbox[message.source, message.action] = self.peers.receive(message)

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        if action.kind == FORWARD:
            self._forward(action, source)
        elif action.kind == BACKWARD:
            self._backward(action, source)
        else:
            with self.timers("backward-compute", action):
                self.weight_grads.compute((action.micro_batch, action.chunk))

    def _received(self, source: StageAction | None, timer: str) -> torch.Tensor | None:
        """Wait for the other stage's tensor [s, b, h]; None at either end of the model."""
        if source is None:
            return None
        with self.timers(timer):
            return self.peers.wait(self.inbox.pop(source))

    def _forward(self, action: Action, source: StageAction | None) -> None:
        x = self._received(source, "forward-recv")
        trains = torch.is_grad_enabled()
        with self.timers("forward-compute", action):
            if x is not None and trains:
                x.requires_grad_()
            chunk = self.chunks[action.chunk]
            out = chunk(x, self.batches[action.micro_batch])
            if chunk.is_last:
                self.total += out.detach()
            else:
                self.outbox[action] = out.detach()
        if trains:
            self.saved[Action(BACKWARD, action.micro_batch, action.chunk)] = x, out

    def _backward(self, action: Action, source: StageAction | None) -> None:
        gradient = self._received(source, "backward-recv")
        with self.timers("backward-compute", action):
            x, out = self.saved.pop(action)
            if gradient is None:  # the last virtual stage starts from its loss
                out = out * self.loss_factor
            delay = (nullcontext() if self.weight_grads is None else
                     self.weight_grads.delay((action.micro_batch, action.chunk)))
            with delay:
                torch.autograd.backward(out, gradient)
        if x is not None:  # a delayed weight gradient may keep it alive, with its gradient
            self.outbox[action], x.grad = x.grad, None
