"""The executor: works through one stage's program, whatever schedule it comes from.

A program (schedules/communication.py) is a list of actions and messages in the order in which this
stage does them. Nothing here knows the name of a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from minimegatron.context import Context
from minimegatron.logging.timers import Timers
from minimegatron.model.gpt import MicroBatch, Stage
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.parallel.p2p import Peers, Transfer
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, Action, Message, Program
from pipeline_schedules.actions import Place, needs


class Pipeline:
    """This rank's chunks of the model, and the list of what to do with them in a step."""

    def __init__(self, ctx: Context, chunks: Sequence[Stage], program: Program,
                 ddp: DistributedDataParallel, timers: Timers) -> None:
        """program: of all stages. Every rank must call it: it makes process groups."""
        self.ctx, self.chunks, self.ddp, self.timers = ctx, chunks, ddp, timers
        self.stage, self.stages = ctx.grid.pp.index, ctx.grid.pp.size
        self.program = program[self.stage]
        self.splits_backward = any(item.kind == WEIGHT for item in self.program
                                   if isinstance(item, Action))
        self.peers = Peers(ctx, len(chunks))
        self.inbox: dict[Place, Transfer] = {}  # by whose result it is
        self.outbox: dict[Action, torch.Tensor] = {}
        # Input and output of the forwards whose backward is still to come, by B.
        self.kept: dict[Action, tuple[torch.Tensor | None, torch.Tensor]] = {}

    def train(self, batches: Sequence[MicroBatch], scale: torch.Tensor | None = None
              ) -> torch.Tensor:
        """Forward and backward of every micro-batch; the gradients accumulate in `ddp`.

        Each micro-batch's loss counts 1 / (micro-batches x replicas), so that summing the
        gradients over micro-batches and replicas gives the mean over them.
        scale: a further factor on the loss (fp16), one element.
        Returns the mean loss of this rank's micro-batches (one element, detached); zero where the
        last stage is elsewhere.
        """
        self.share = (1 if scale is None else scale) / (len(batches) * self.ctx.grid.dp.size)
        return self._run(self.program, batches) / len(batches)

    @torch.no_grad()
    def evaluate(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """The sum of the micro-batches' losses, forward only; zero as in `train`."""
        forwards = [item for item in self.program if kind_of(item) == FORWARD]
        for chunk in self.chunks:
            chunk.eval()
        total = self._run(forwards, batches)
        for chunk in self.chunks:
            chunk.train()
        return total

    def _run(self, program: Sequence[Action | Message], batches: Sequence[MicroBatch]
             ) -> torch.Tensor:
        self.total = torch.zeros((), device=self.ctx.device.torch_device)
        for item in program:
            if isinstance(item, Message):
                self._communicate(item)
            elif item.kind == FORWARD:
                self._forward(item, batches[item.micro_batch])
            elif item.kind == BACKWARD:
                self._backward(item)
            else:
                with self.timers("backward-compute", item):
                    self.ddp.compute_weight_grads((item.micro_batch, item.chunk))
        self.peers.finish()
        return self.total

    def _communicate(self, message: Message) -> None:
        if message.end == "send":
            self.peers.send(message, self.outbox.pop(message.action))
        else:
            self.inbox[message.source, message.action] = self.peers.receive(message)

    def _arrived(self, action: Action, timer: str) -> torch.Tensor | None:
        """What another stage made for this action; None where it needs nothing from others."""
        for place in needs(self.stage, action, self.stages, len(self.chunks)):
            if place in self.inbox:
                with self.timers(timer):
                    return self.peers.wait(self.inbox.pop(place))
        return None

    def _forward(self, action: Action, batch: MicroBatch) -> None:
        x = self._arrived(action, "forward-recv")
        learns = torch.is_grad_enabled()
        with self.timers("forward-compute", action):
            if x is not None and learns:
                x.requires_grad_()
            chunk = self.chunks[action.chunk]
            out = chunk(x, batch)
            if chunk.is_last:
                self.total += out.detach()
            else:
                self.outbox[action] = out.detach()
        if learns:
            self.kept[Action(BACKWARD, action.micro_batch, action.chunk)] = x, out

    def _backward(self, action: Action) -> None:
        gradient = self._arrived(action, "backward-recv")
        with self.timers("backward-compute", action):
            x, out = self.kept.pop(action)
            if gradient is None:  # the last stage starts from its loss
                out = out * self.share
            defer = (self.ddp.delay_weight_grads((action.micro_batch, action.chunk))
                     if self.splits_backward else nullcontext())
            with defer:
                torch.autograd.backward(out, gradient)
        if x is not None:
            self.outbox[action] = x.grad


def kind_of(item: Action | Message) -> str:
    return item.action.kind if isinstance(item, Message) else item.kind
