"""The executor of schedules: run one stage's program on this rank.

A program (pipeline_schedules/messages.py) is the list of the stage's actions and messages in the
order in which it runs them. Nothing here depends on the name of a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch

from minimegatron.context import Context, MicroBatch
from minimegatron.model.gpt import Stage
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.parallel.p2p import Peers, Transfer
from minimegatron.timers import Timers
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, Action, Handler, Message, Program
from pipeline_schedules.actions import StageAction
from pipeline_schedules.interpreter import Item, replay_stage


class LossSum(NamedTuple):
    """The losses of some micro-batches of this rank; zero if another stage computes them.

    Attributes:
        total: the sum of the losses of the tokens that count (one element, detached).
        counted: the number of these tokens (one element).
        tokens: the number of all tokens.
    """

    total: torch.Tensor
    counted: torch.Tensor
    tokens: int


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
        splits_backward = any(isinstance(item, Action) and item.kind == WEIGHT
                              for item in self.program)
        self.weight_grads = ddp.delayed if splits_backward else None
        if peers is None and ctx.config.scatter_gather_tensors_in_pipeline:
            from minimegatron.parallel.p2p import ScatterGatherPeers

            peers = ScatterGatherPeers(ctx, len(chunks))
        self.peers = peers or Peers(ctx, len(chunks))
        self.inbox: dict[StageAction, Transfer] = {}  # by the action that computed the tensor
        self.outbox: dict[Action, torch.Tensor] = {}
        # Inputs and outputs of the forwards in flight, by the backward that consumes them.
        self.saved: dict[Action, tuple[torch.Tensor | None, torch.Tensor]] = {}

    def forward_backward(self, batches: Sequence[MicroBatch], scale: torch.Tensor | None = None
                         ) -> LossSum:
        """Run forward and backward of every micro-batch, and accumulate the gradients in `ddp`.

        The sum of a micro-batch's losses is divided by the tokens of all micro-batches and
        replicas, so that summing the gradients over these gives that of the mean loss if all
        tokens count. With fp16 it is multiplied by the loss scale, one element.
        """
        has_loss = self.chunks[-1].is_last
        self.begin(sum(batch.loss_mask.numel() for batch in batches) if has_loss else 0, scale)
        self.run(self.program, batches)
        return self.finish()

    def begin(self, tokens: int, scale: torch.Tensor | None = None) -> None:
        """Begin a step whose micro-batches have this many tokens, if this stage has the loss.

        With fp16, its losses are multiplied by the loss scale (one element).
        """
        self.tokens = tokens
        self.loss_factor = (1 if scale is None else scale) / (
            max(tokens, 1) * self.ctx.grid.replicas.size)
        self.total = torch.zeros((), device=self.ctx.device.torch_device)
        self.counted = torch.zeros_like(self.total)

    def run(self, items: Sequence[Item], batches: Sequence[MicroBatch]) -> None:
        """Run some of this stage's items, in order, within the step that `begin` began."""
        self.batches = batches
        replay_stage(items, self, self.stage, self.stages, len(self.chunks))
        self.batches = ()

    def finish(self) -> LossSum:
        """Wait for the sends, and return the step's losses."""
        self.peers.finish()
        return LossSum(self.total, self.counted, self.tokens)

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
                self.ddp.end_backward()

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
            batch = self.batches[action.micro_batch]
            out = chunk(x, batch)
            if chunk.is_last:
                self.total += out.detach()
                self.counted += batch.loss_mask.sum()
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
                if out.requires_grad:  # else all before it is frozen
                    torch.autograd.backward(out, gradient)
            self.ddp.end_backward()
        if x is not None:  # a delayed weight gradient may keep it alive, with its gradient
            self.outbox[action], x.grad = x.grad, None
