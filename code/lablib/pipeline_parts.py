"""Small models in parts, micro-batches, and recorders for the pipelines of lab 10."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lablib.tensor import gradients, sines


@dataclass
class MicroBatch:
    """A micro-batch.

    Attributes:
        x: input of the first part [b, h].
        y: target of the last part's output [b, h].
    """

    x: torch.Tensor
    y: torch.Tensor


def micro_batches(sizes: Sequence[int], width: int) -> list[MicroBatch]:
    """Return micro-batches of different values.

    Args:
        sizes: the number of samples of each.
        width: h.
    """
    return [MicroBatch(sines((size, width), 3.0 + number), sines((size, width), 50.0 + number))
            for number, size in enumerate(sizes)]


class Part(nn.Module):
    """Some layers of a model, each a matrix and a tanh; the last part returns a mean loss.

    Attributes:
        weights: the matrices [h, h].
    """

    def __init__(self, number: int, parts: int, layers: int, width: int, seed: float) -> None:
        """Args:
            number: of this part, counted from 0.
            parts: of the whole model.
            layers: of this part.
            width: h.
            seed: of the matrices' values.
        """
        super().__init__()
        self.is_first, self.is_last = number == 0, number == parts - 1
        self.weights = nn.ParameterList(
            nn.Parameter(sines((width, width), seed + 10 * layer) * 2 / width**0.5)
            for layer in range(layers))

    def forward(self, x: torch.Tensor | None, data: MicroBatch | None) -> torch.Tensor:
        """Return hidden states [b, h], or on the last part the mean squared error."""
        if self.is_first:
            assert x is None, ("the first part of the model got hidden states: does each pass run "
                               "on its own chunk, and is x None on the first one?")
            x = data.x
        for weight in self.weights:
            x = F.linear(x, weight).tanh()
        return (x - data.y).square().mean() if self.is_last else x


def projected_gradients(part: Part) -> list[float]:
    """Return one number for the gradient of each matrix."""
    return gradients(list(part.weights))


def step(pipeline: Callable, links: object, programs: Sequence[Sequence[str]],
         sizes: Sequence[int], layers: Sequence[int], seed: float, width: int) -> list:
    """Run a step on the ranks of a pipeline; return the loss or None, and one number for the
    gradient of each matrix.

    Args:
        pipeline: the student's class.
        links: the student's.
        programs: of all ranks.
        sizes: samples of each micro-batch.
        layers: of each chunk on this rank.
        seed: of this rank's parameters; 100 more for each further chunk.
        width: of the hidden states.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [Part(chunk * ranks + rank, ranks * len(layers), count, width, seed + 100 * chunk)
             for chunk, count in enumerate(layers)]
    made = pipeline(parts, links, lambda one: torch.empty_like(one.x))
    loss = made.run(programs[rank], micro_batches(sizes, width),
                    [size / sum(sizes) for size in sizes])
    return [None if loss is None else float(loss),
            [one for part in parts for one in projected_gradients(part)]]


class Recorder:
    """Record what a pipeline asks of a stage.

    Attributes:
        stage: a student's Stage.
        log: the calls in their order, such as "F3", shared with other recorders.
        in_flight: micro-batches whose backward pass has not run.
    """

    def __init__(self, stage: object, log: list[str], chunk: int = 0) -> None:
        """Args:
            stage: a student's Stage.
            log: receives the calls.
            chunk: number of the stage's chunk.
        """
        self.stage, self.log, self.chunk = stage, log, f".{chunk}" if chunk else ""

    def forward(self, key: object, x: torch.Tensor | None, data: MicroBatch) -> torch.Tensor:
        """Run the stage's forward pass."""
        self.log.append(f"F{key}{self.chunk}")
        return self.stage.forward(key, x, data)

    def backward(self, key: object, grad: torch.Tensor) -> torch.Tensor | None:
        """Run the stage's backward pass."""
        self.log.append(f"B{key}{self.chunk}")
        return self.stage.backward(key, grad)

    def weight(self, key: object) -> None:
        """Record a separate pass for the gradients of the weights, which does nothing here."""
        self.log.append(f"W{key}{self.chunk}")


class LateReceives:
    """Links whose receives fill their tensor when they are waited for, and not before.

    Attributes:
        links: the student's, with blocking sends and receives.
        log: receives "recv" and "wait" with the peer and the kind.
    """

    def __init__(self, links: object, log: list[str]) -> None:
        self.links, self.log = links, log

    def send(self, tensor: torch.Tensor, stage: int, kind: str) -> None:
        """Send a tensor."""
        self.links.send(tensor, stage, kind)

    def receive(self, tensor: torch.Tensor, stage: int, kind: str) -> Late:
        """Return an object whose `wait()` receives."""
        self.log.append(f"recv {kind} from {stage}")
        with torch.no_grad():
            tensor.fill_(9.0)
        return Late(lambda: (self.log.append(f"wait {kind} from {stage}"),
                             self.links.receive(tensor, stage, kind)))

    def finish(self) -> None:
        """Record that the step is over."""
        self.log.append("finish")
        self.links.finish()


class Late:
    """A receive that happens in `wait()`."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def wait(self) -> None:
        """Receive."""
        self.function()
