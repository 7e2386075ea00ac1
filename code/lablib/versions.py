"""Small models for lab 12, whose stages update their weights while micro-batches are in flight.

A stage here is anything with the methods of lab 10's Stage. `stream` runs stages in a student's
executor on ranks, and `passes` runs a single one. Nothing here knows which weights a pass should
use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import nn

from labcore.errors import LabError
from lablib.tensor import sines

MARKER = 2**35  # bytes
VOCABULARY, WIDTH, LENGTH, SAMPLES, HEADS = 32, 32, 16, 8, 4


@dataclass(frozen=True)
class MicroBatch:
    """Inputs and targets [samples, width], or tokens and labels [samples, length]."""

    x: torch.Tensor
    y: torch.Tensor


class Layer(nn.Module):
    """scale * tanh(x W), in fp64, so that differences are not rounding.

    The last layer returns its mean squared error.
    """

    def __init__(self, width: int, seed: float, is_first: bool, is_last: bool) -> None:
        """Args:
            width: features.
            seed: the seed of the parameters.
            is_first: whether the input is that of the micro-batch.
            is_last: whether to return the loss.
        """
        super().__init__()
        values = sines((width + 1, width), seed).double()
        self.weight = nn.Parameter(values[:-1].clone())
        self.scale = nn.Parameter(1 + 0.5 * values[-1])
        self.is_first, self.is_last = is_first, is_last

    def forward(self, x: torch.Tensor | None, data: MicroBatch) -> torch.Tensor:
        """Return y [samples, width], or the loss."""
        y = self.scale * torch.tanh((data.x if self.is_first else x) @ self.weight)
        return (y - data.y).square().mean() if self.is_last else y


def micro_batches(count: int, width: int, seed: float, samples: int = 3) -> list[MicroBatch]:
    """Return micro-batches for Layer.

    Args:
        count: how many.
        width: features.
        seed: the seed of their values.
        samples: the number of samples of each.
    """
    values = sines((count, 2, samples, width), seed).double()
    return [MicroBatch(*one) for one in values]


def sgd(rate: float) -> Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the update rule of plain SGD, for a stage."""
    return lambda name, weight, grad: weight - rate * grad


class Adam:
    """The update rule of Adam, for a stage; one object for each stage."""

    def __init__(self, rate: float) -> None:
        self.rate, self.state = rate, {}

    def __call__(self, name: str, weight: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        step, mean, square = self.state.get(name, (0, 0.0, 0.0))
        step, mean, square = step + 1, 0.9 * mean + 0.1 * grad, 0.99 * square + 0.01 * grad**2
        self.state[name] = step, mean, square
        return weight - self.rate * (mean / (1 - 0.9**step)) / (
            (square / (1 - 0.99**step)).sqrt() + 1e-8)


class GPTStage(nn.Module):
    """A transformer layer, after the embedding on the first stage, and before the loss on the last.

    Every stage has LENGTH positions and WIDTH channels; batches are those of `token_batches`.
    """

    def __init__(self, number: int, stages: int) -> None:
        super().__init__()
        self.is_first, self.is_last = number == 0, number == stages - 1
        if self.is_first:
            self.words = nn.Parameter(torch.empty(VOCABULARY, WIDTH))
        self.joint = nn.Parameter(torch.empty(3 * WIDTH, WIDTH))
        self.out = nn.Parameter(torch.empty(WIDTH, WIDTH))
        self.up = nn.Parameter(torch.empty(4 * WIDTH, WIDTH))
        self.down = nn.Parameter(torch.empty(WIDTH, 4 * WIDTH))
        if self.is_last:
            self.head = nn.Parameter(torch.empty(VOCABULARY, WIDTH))
        dice = torch.Generator().manual_seed(number)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0, 0.15, generator=dice)
        positions = torch.arange(LENGTH)[:, None] / 10 ** torch.linspace(0, 2, WIDTH // 2)
        self.positions = 0.5 * torch.cat([positions.sin(), positions.cos()], -1)

    def forward(self, x: torch.Tensor | None, data: MicroBatch) -> torch.Tensor:
        """Return hidden states [b, s, h], or the mean loss."""
        if self.is_first:
            x = F.embedding(data.x, self.words) + self.positions
        query, key, value = F.linear(F.rms_norm(x, (WIDTH,)), self.joint).unflatten(
            -1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        core = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + F.linear(core.transpose(1, 2).flatten(2), self.out)
        x = x + F.linear(F.gelu(F.linear(F.rms_norm(x, (WIDTH,)), self.up)), self.down)
        if not self.is_last:
            return x
        logits = F.linear(F.rms_norm(x, (WIDTH,)), self.head)
        return F.cross_entropy(logits.flatten(0, 1), data.y.flatten())


def token_batches(count: int, seed: int = 0) -> list[MicroBatch]:
    """Return micro-batches of tokens [b, s], each of which depends on the two tokens before it.

    Args:
        count: how many.
        seed: the seed of the first tokens of all samples.
    """
    table = torch.randint(VOCABULARY, (VOCABULARY, VOCABULARY),
                          generator=torch.Generator().manual_seed(0))
    rows = list(torch.randint(8, (2, count, SAMPLES),
                              generator=torch.Generator().manual_seed(seed + 1)))
    for _ in range(LENGTH - 1):
        rows.append(table[rows[-2], rows[-1]])
    tokens = torch.stack(rows, -1)
    return [MicroBatch(one[:, :-1], one[:, 1:]) for one in tokens]


class Record:
    """An update rule that also records all gradients and weight versions of a stage.

    Attributes:
        gradients: of each update, by name.
        history: the weight versions, by name; the first one is that of the module.
    """

    def __init__(self, module: nn.Module, update: Callable) -> None:
        self.update = update
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.history = [{name: one.detach().clone() for name, one in module.named_parameters()}]
        self._new: dict[str, torch.Tensor] = {}
        self._grads: dict[str, torch.Tensor] = {}

    def __call__(self, name: str, weight: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        new = self.update(name, weight, grad)
        self._new[name], self._grads[name] = new.detach().clone(), grad.detach().clone()
        if len(self._new) == len(self.history[0]):
            self.history.append(self._new)
            self.gradients.append(self._grads)
            self._new, self._grads = {}, {}
        return new


class LossLog:
    """A stage that records the losses of another one."""

    def __init__(self, stage: object) -> None:
        self.stage, self.losses = stage, []

    def forward(self, key: int, x: torch.Tensor | None, data: MicroBatch) -> torch.Tensor:
        y = self.stage.forward(key, x, data)
        if y.dim() == 0:
            self.losses.append(y.item())
        return y

    def backward(self, key: int, grad: torch.Tensor) -> torch.Tensor | None:
        return self.stage.backward(key, grad)


def stream(module: nn.Module, make_stage: Callable, schedule: Sequence[Sequence[str]],
           data: Sequence[MicroBatch], weight: float, own_files: bool = False) -> list[float]:
    """Run this rank's part of a schedule; return the losses of all micro-batches on the last rank.

    Args:
        module: this rank's part of the model.
        make_stage: returns a stage, given the module.
        schedule: the actions of every stage.
        data: the micro-batches.
        weight: the weight of each micro-batch's loss.
        own_files: whether to use the student's executor, if there is one, and not the course's.
    """
    import torch.distributed as dist

    from lablib import executor, staged

    (staged.use_own_executor if own_files else executor.install)()
    from mytrainer.p2p import Links
    from mytrainer.pipeline import Pipeline
    from mytrainer.program import add_communication

    links = Links(executor.directions())
    like, shape = next(module.parameters()), data[0].x.shape
    shape = shape if data[0].x.is_floating_point() else (*shape, WIDTH)
    pipeline = Pipeline([module], links, lambda one: torch.empty(shape, dtype=like.dtype),
                        lambda one: LossLog(make_stage(one)))
    pipeline.run(add_communication(schedule)[dist.get_rank()], data, [weight] * len(data))
    return pipeline.stages[0].losses


class Wide(nn.Module):
    """A residual MLP whose matrices are much larger than its input, for virtual GPUs."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(inner, width))
        self.down = nn.Parameter(torch.zeros(width, inner))

    def forward(self, x: torch.Tensor, data: MicroBatch | None) -> torch.Tensor:
        return x + F.linear(F.gelu(F.linear(x, self.up)), self.down)


def passes(stage: object, actions: str, tokens: int, width: int) -> None:
    """Run passes of a stage in the middle of a pipeline, on a GPU.

    At the end, a tensor of MARKER bytes makes sure that this is the peak.

    Args:
        stage: a stage.
        actions: such as "F0 F1 B0".
        tokens: the number of tokens of a micro-batch.
        width: hidden size.
    """
    for action in actions.split():
        key = int(action[1:])
        if action[0] == "F":
            stage.forward(key, torch.zeros(tokens, width, device="cuda"), None)
        else:
            stage.backward(key, torch.zeros(tokens, width, device="cuda"))
    torch.empty(MARKER, dtype=torch.uint8, device="cuda")


def held(make_stage: Callable, actions: str, width: int = 1024, inner: int = 8192) -> float:
    """Return what a stage holds on a GPU after some passes, in multiples of its weights (modeled).

    Args:
        make_stage: returns a stage, given its module.
        actions: the passes, in a string.
        width: hidden size.
        inner: inner size of the MLP that is the module.

    Raises LabError if the stage fails.
    """
    import virtualgpu

    def plain() -> None:
        with torch.device("cuda"):
            module, x = Wide(width, inner), torch.zeros(1, width, requires_grad=True)
        module(x, None).backward(torch.zeros(1, width, device="cuda"))
        module.zero_grad()
        del x
        torch.empty(MARKER, dtype=torch.uint8, device="cuda")

    def stage() -> None:
        with torch.device("cuda"):
            module = Wide(width, inner)
        passes(make_stage(module), actions, 1, width)

    peaks = []
    for function in (plain, stage):
        (rank,) = virtualgpu.run(function, "h100:1")
        if rank.error:
            raise LabError(rank.error)
        peaks.append(rank.peak)
    return 1 + (peaks[1] - peaks[0]) / (2 * width * inner * 4)


def loss_and_gradients(weights: Sequence[dict[str, torch.Tensor]], data: MicroBatch
                       ) -> tuple[float, list[dict[str, torch.Tensor]]]:
    """Return a micro-batch's loss, and its gradients at the parameters of a pipeline of Layers.

    Args:
        weights: the parameters of each Layer, by name.
    """
    leaves = [{name: value.detach().clone().requires_grad_() for name, value in one.items()}
              for one in weights]
    x = None
    for number, one in enumerate(leaves):
        layer = Layer(data.x.shape[-1], 0.0, number == 0, number == len(leaves) - 1)
        x = torch.func.functional_call(layer, one, (x, data))
    x.backward()
    return x.item(), [{name: value.grad for name, value in one.items()} for one in leaves]


def nearest(gradient: torch.Tensor, histories: Sequence[Sequence[dict[str, torch.Tensor]]],
            data: MicroBatch) -> tuple[float, tuple[int, ...]]:
    """Find the versions of all stages whose gradient is nearest to a given one.

    Args:
        gradient: of all parameters, [n].
        histories: for each stage, its weight versions.

    Return the distance divided by the gradient's norm, and the version of every stage.
    """
    best: tuple[float, tuple[int, ...]] = (float("inf"), ())
    for numbers in product(*(range(len(history)) for history in histories)):
        weights = [history[number] for history, number in zip(histories, numbers, strict=True)]
        _, grads = loss_and_gradients(weights, data)
        true = torch.cat([value.flatten() for one in grads for value in one.values()])
        best = min(best, (((true - gradient).norm() / gradient.norm()).item(), numbers))
    return best
