"""The executor of lab 10 in one module, for checks of labs 11 and 12, whose drivers need one.

`install` makes it available under the names of the student's files. Lab 10 masks this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

FILES = {"stage": ("Stage",), "program": ("parse", "spell", "consumer", "add_communication"),
         "pipeline": ("BlockingLinks", "Pipeline"), "p2p": ("Links",)}


def install() -> None:
    """Import `mytrainer.stage`, `program`, `pipeline`, and `p2p` from this module, from now on."""
    package = sys.modules.setdefault("mytrainer", ModuleType("mytrainer"))
    if not hasattr(package, "__path__"):
        package.__path__ = ["mytrainer"]
    for name, defined in FILES.items():
        module = ModuleType(f"mytrainer.{name}")
        for one in defined:
            setattr(module, one, globals()[one])
        sys.modules[module.__name__] = module


def directions() -> dict[str, dist.ProcessGroup]:
    """Return a process group of all ranks for hidden states, "F", and one for gradients, "B"."""
    return {kind: dist.new_group(list(range(dist.get_world_size()))) for kind in "FB"}


class Stage:
    """A chunk of the model: its passes, and what is in flight between them."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.in_flight = module, {}

    def forward(self, key: int, x: torch.Tensor | None, data: Any) -> torch.Tensor:
        """Return the output for the hidden states x of a micro-batch, without a history."""
        if x is not None:
            x = x.detach().requires_grad_()
        y = self.module(x, data)
        self.in_flight[key] = x, y
        return y.detach()

    def backward(self, key: int, grad: torch.Tensor) -> torch.Tensor | None:
        """Return the gradient of x, given that of the output."""
        x, y = self.in_flight.pop(key)
        y.backward(grad)
        return None if x is None else x.grad


def parse(action: str) -> tuple[str, int, int]:
    """Return the kind, micro-batch, and chunk of an action such as F3 or B3.1."""
    number, _, chunk = action[1:].partition(".")
    return action[0], int(number), int(chunk or 0)


def spell(kind: str, number: int, chunk: int) -> str:
    """Return an action, given what `parse` returns."""
    return f"{kind}{number}.{chunk}" if chunk else f"{kind}{number}"


def consumer(stage: int, action: str, stages: int, chunks: int = 1) -> tuple[int, str] | None:
    """Return the stage and the action that take the result of an action, or None."""
    kind, number, chunk = parse(action)
    part = chunk * stages + stage + {"F": 1, "B": -1}.get(kind, stages * chunks)
    if not 0 <= part < stages * chunks:
        return None
    return part % stages, spell(kind, number, part // stages)


def add_communication(schedule: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the program of each stage. Raises ValueError if the schedule cannot run."""
    stages, programs, positions = len(schedule), [[] for _ in schedule], [0] * len(schedule)
    chunks = 1 + max((parse(action)[2] for actions in schedule for action in actions), default=0)
    ready = {(stage, action) for stage, actions in enumerate(schedule) for action in actions
             if action[0] == "W" or (stage, action[0], parse(action)[2]) in (
                 (0, "F", 0), (stages - 1, "B", chunks - 1))}
    left = sum(map(len, schedule))
    while left:
        runnable = [stage for stage, position in enumerate(positions)
                    if (stage, *schedule[stage][position:position + 1]) in ready]
        if not runnable:
            raise ValueError("this schedule deadlocks")
        for stage in runnable:
            action = schedule[stage][positions[stage]]
            positions[stage], left = positions[stage] + 1, left - 1
            programs[stage].append(action)
            if (target := consumer(stage, action, stages, chunks)) is not None:
                programs[stage].append(f"send {action} to {target[0]}")
                programs[target[0]].append(f"recv {target[1]} from {stage}")
                ready.add(target)
    return programs


class BlockingLinks:
    """Sends and receives that return when the tensor has been sent or received."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def send(self, tensor: torch.Tensor, stage: int, kind: str) -> None:
        dist.send(tensor, group_dst=stage, group=self.group)

    def receive(self, tensor: torch.Tensor, stage: int, kind: str) -> None:
        dist.recv(tensor, group_src=stage, group=self.group)

    def finish(self) -> None:
        pass


class Links:
    """Sends and receives that start at once, with a process group for each direction."""

    def __init__(self, groups: dict[str, dist.ProcessGroup]) -> None:
        """Args:
            groups: "F" for hidden states, and "B" for their gradients.
        """
        self.groups, self.sent = groups, []

    def send(self, tensor: torch.Tensor, stage: int, kind: str) -> None:
        self.sent = [one for one in self.sent if not one[0].is_completed()]
        self.sent.append((dist.isend(tensor, group_dst=stage, group=self.groups[kind]), tensor))

    def receive(self, tensor: torch.Tensor, stage: int, kind: str) -> dist.Work:
        return dist.irecv(tensor, group_src=stage, group=self.groups[kind])

    def finish(self) -> None:
        for work, _ in self.sent:
            work.wait()
        self.sent = []


class Pipeline:
    """One rank of a pipeline.

    Attributes:
        stages: a Stage for each chunk of the model on this rank.
    """

    def __init__(self, modules: Sequence[nn.Module], links: Links | BlockingLinks,
                 buffer: Callable[[Any], torch.Tensor], make_stage: Callable = Stage) -> None:
        """Args:
            modules: one for each chunk.
            links: the sends and receives.
            buffer: returns an empty tensor for the hidden states of a micro-batch.
            make_stage: returns the stage of a module.
        """
        self.stages, self.links, self.buffer = list(map(make_stage, modules)), links, buffer

    def run(self, program: Sequence[str], data: Sequence[Any], weights: Sequence[float]
            ) -> torch.Tensor | None:
        """Run a program; return the weighted loss on the last stage, and None on the others."""
        arrived, results, total = {}, {}, None
        for item in program:
            verb, *rest = item.split()
            if not rest:
                loss = self._act(verb, arrived, results, data, weights)
                total = loss if total is None else total if loss is None else total + loss
                continue
            action, peer = rest[0], int(rest[2])
            if verb == "send":
                self.links.send(results.pop(action), peer, action[0])
            else:
                tensor = self.buffer(data[parse(action)[1]])
                arrived[action] = tensor, self.links.receive(tensor, peer, action[0])
        self.links.finish()
        return total

    def _act(self, action: str, arrived: dict, results: dict, data: Sequence[Any],
             weights: Sequence[float]) -> torch.Tensor | None:
        kind, number, chunk = parse(action)
        stage = self.stages[chunk]
        tensor, work = arrived.pop(action, (None, None))
        if work is not None:
            work.wait()
        if kind == "W":
            stage.weight(number)
        elif kind == "B":
            results[action] = stage.backward(number, tensor)
        else:
            y = stage.forward(number, tensor, data[number])
            if y.dim() == 0:
                arrived[f"B{action[1:]}"] = torch.full_like(y, weights[number]), None
                return weights[number] * y
            results[action] = y
        return None
