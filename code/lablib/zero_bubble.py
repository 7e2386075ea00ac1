"""Small pipelines for the zero-bubble exercises of lab 12, on CPU ranks and on GPUs.

Everything takes the class of a stage as an argument, and runs on the executor of lab 10.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from lablib.tensor import neighbors, projected, sines

VOCABULARY, HIDDEN, INNER = 7, 4, 6
NAMES = ("table", "scale", "inner", "bias", "square", "outer")  # parameters of a Part, in order
LINEAR = ("inner", "bias", "square", "outer")  # those of F.linear


class Part(torch.nn.Module):
    """A stage of a tiny model, with what makes splitting a backward pass interesting.

    Attributes:
        table: an embedding [VOCABULARY, HIDDEN], on the first stage only.
        scale: the scale of an RMSNorm.
        inner, bias: a linear layer with a bias.
        square: a matrix that two linear layers share.
        outer: a linear layer without a bias.
    """

    def __init__(self, seed: float, is_first: bool, is_last: bool, recompute: bool = False
                 ) -> None:
        """Args:
            seed: the seed of the parameters.
            is_first: whether the stage begins with the embedding.
            is_last: whether the stage ends with the loss.
            recompute: whether to compute the activations again in the backward pass.
        """
        super().__init__()
        shapes = [(VOCABULARY, HIDDEN), (HIDDEN,), (INNER, HIDDEN), (INNER,), (INNER, INNER),
                  (HIDDEN, INNER)]
        for number, (name, shape) in enumerate(zip(NAMES, shapes, strict=True)):
            if name != "table" or is_first:
                value = 0.5 * sines(shape, seed + number) + (name == "scale")
                setattr(self, name, torch.nn.Parameter(value))
        self.is_last, self.recompute = is_last, recompute

    def body(self, x: torch.Tensor) -> torch.Tensor:
        y = F.rms_norm(x, x.shape[-1:], self.scale)
        y = F.linear(y, self.inner, self.bias).tanh()
        y = F.linear(F.linear(y, self.square).tanh(), weight=self.square)
        return x + F.linear(y.tanh(), self.outer)

    def forward(self, x: torch.Tensor | None, data: dict[str, torch.Tensor]) -> torch.Tensor:
        if x is None:
            x = F.embedding(data["tokens"], self.table)
        x = recomputed(self.body, x) if self.recompute else self.body(x)
        return (x * data["weights"]).sum() if self.is_last else x


def recomputed(body: Callable, *arguments: Any) -> torch.Tensor:
    """Return body(*arguments) under activation checkpointing."""
    from torch.utils.checkpoint import checkpoint

    return checkpoint(body, *arguments, use_reentrant=True, preserve_rng_state=False)


def batch(seed: float, number: int) -> dict[str, torch.Tensor]:
    """Return a micro-batch: tokens [3, 2], and the weights [3, 2, HIDDEN] of the loss."""
    tokens = (100 * sines((3, 2), seed + number)).long() % VOCABULARY
    return {"tokens": tokens, "weights": sines((3, 2, HIDDEN), seed - number)}


def step(make_stage: Callable, schedule: Sequence[str], common: float, seed: float,
         recompute: bool = False, frozen: Sequence[str] = ()) -> list[float | None]:
    """Run a schedule on the ranks; return the loss, and the projected gradient of each parameter.

    Args:
        make_stage: returns the stage of a module.
        schedule: the actions of each stage, as strings such as "F0 B0 W0".
        common: the seed of the micro-batches.
        seed: the seed of this rank's parameters.
        recompute: as for Part.
        frozen: names of parameters that do not require a gradient.
    """
    from lablib import executor

    rank, stages = dist.get_rank(), dist.get_world_size()
    programs = executor.add_communication([actions.split() for actions in schedule])
    count = 1 + max(executor.parse(action)[1] for action in schedule[rank].split())
    part = Part(seed, rank == 0, rank == stages - 1, recompute)
    for name in frozen:
        getattr(part, name).requires_grad_(False)
    links = executor.Links(executor.directions())
    pipeline = executor.Pipeline([part], links, lambda data: torch.empty(3, 2, HIDDEN), make_stage)
    loss = pipeline.run(programs[rank], [batch(common, k) for k in range(count)], [1.0] * count)
    grads = [parameter.grad for parameter in part.parameters()]
    return [None if loss is None else loss.item(),
            *[None if grad is None else projected(grad) for grad in grads]]


class Blocks(torch.nn.Module):
    """MLPs with residual connections, in bf16 with fp32 gradients, on a GPU.

    Attributes:
        ups, downs: the matrices of the MLPs.
    """

    def __init__(self, count: int, hidden: int) -> None:
        super().__init__()

        def matrices(*shape: int) -> torch.nn.ParameterList:
            made = [torch.nn.Parameter(torch.empty(shape, device="cuda", dtype=torch.bfloat16))
                    for _ in range(count)]
            for parameter in made:
                parameter.grad_dtype = torch.float32
            return torch.nn.ParameterList(made)

        self.ups, self.downs = matrices(4 * hidden, hidden), matrices(hidden, 4 * hidden)

    def forward(self, x: torch.Tensor, data: Any) -> torch.Tensor:
        for up, down in zip(self.ups, self.downs, strict=True):
            y = F.rms_norm(x, x.shape[-1:])
            x = x + F.linear(F.gelu(F.linear(y, up)), down)
        return x


def passes_on_gpu(make_stage: Callable, actions: str, count: int, hidden: int, tokens: int) -> None:
    """Run the actions of one stage on a GPU, such as "F0 B0 F1 B1 W0 W1"."""
    stage = make_stage(Blocks(count, hidden))

    def tensor() -> torch.Tensor:
        return torch.zeros(tokens, 1, hidden, device="cuda", dtype=torch.bfloat16)

    for action in actions.split():
        kind, number = action[0], int(action[1:])
        if kind == "F":
            stage.forward(number, tensor(), None)
        elif kind == "B":
            stage.backward(number, tensor())
        else:
            stage.weight(number)


@dataclass(frozen=True)
class Shards:
    """Ranks that share layers and divide the positions, with the attributes of a SequenceRegion.

    Attributes:
        group: their process group.
    """

    group: dist.ProcessGroup
    splits_sequence = True

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)


class Matrix(torch.nn.Module):
    """A column-parallel layer without a bias: `weight` [out/t, in]."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(outputs, inputs))


class SharedMLP(torch.nn.Module):
    """An MLP whose inner features are sharded over ranks, and whose input and output by position.

    Its layers enter the region twice: gate and up together, and `extra` with another input. Where a
    real MLP sums the ranks' terms of each position, this one sums its own term over the ranks'
    shares of the positions. So only `columns` communicates, and gradients depend on all positions.
    """

    def __init__(self, columns: Callable, region: Shards, hidden: int, inner: int) -> None:
        """Args:
            columns: the student's function, called with the region, x, and layers.
            region: the ranks.
            hidden: the features of x [s/t, b, h].
            inner: the inner features of this rank.
        """
        super().__init__()
        self.columns, self.region = columns, region
        self.scale = torch.nn.Parameter(torch.empty(hidden))
        self.gate, self.up, self.extra = (Matrix(inner, hidden) for _ in range(3))
        self.down = torch.nn.Parameter(torch.empty(hidden, inner))

    def forward(self, x: torch.Tensor, data: Any) -> torch.Tensor:
        y = F.rms_norm(x, x.shape[-1:], self.scale)
        gate, up = self.columns(self.region, y, self.gate, self.up)
        (extra,) = self.columns(self.region, y.tanh(), self.extra)
        term = F.linear(F.silu(gate) * up + extra, self.down)
        return x + term.unflatten(0, (self.region.size, -1)).sum(0)


def shared_values(part: SharedMLP, own: float) -> None:
    """Set the parameters of this rank's part, given its seed."""
    with torch.no_grad():
        for number, one in enumerate(part.parameters()):
            one.copy_(0.5 * sines(one.shape, own + number) + (one.dim() == 1))


def positions(length: int, samples: int, seed: float) -> torch.Tensor:
    """Return hidden states [length, samples, HIDDEN] of all ranks, or their gradient."""
    return sines((length, samples, HIDDEN), seed)


def shared_passes(make_stage: Callable, columns: Callable, actions: str, common: float, own: float,
                  length: int, samples: int, size: int, recompute: bool = False) -> list:
    """Run passes of a stage that `size` neighboring ranks share, with a barrier after each.

    Return projections of the gradient of each micro-batch's x, and of each parameter's gradient.

    Args:
        make_stage: returns the stage of a module.
        columns: as for SharedMLP.
        actions: such as "F0 B0 W0".
        common: the seed of the micro-batches.
        own: the seed of this rank's parameters.
        length: positions of all ranks together.
        samples: the samples of a micro-batch.
        size: ranks that share the stage.
        recompute: whether to compute the activations again in the backward pass.
    """
    region, found = Shards(neighbors(size)), {}
    part = SharedMLP(columns, region, HIDDEN, INNER)
    shared_values(part, own)
    stage = make_stage(partial(recomputed, part) if recompute else part)
    for action in actions.split():
        kind, number = action[0], int(action[1:])
        seed = common + number if kind == "F" else common - number - 1
        mine = positions(length, samples, seed).chunk(size)[region.rank]
        if kind == "F":
            stage.forward(number, mine, None)
        elif kind == "B":
            found[number] = projected(stage.backward(number, mine))
        else:
            stage.weight(number)
        dist.barrier()
    grads = [None if one.grad is None else projected(one.grad) for one in part.parameters()]
    return [[found[number] for number in sorted(found)], grads]


def shared_pipeline(make_stage: Callable, columns: Callable, schedule: Sequence[str], count: int,
                    hidden: int, inner: int, tokens: int) -> None:
    """Run a step of two stages on GPUs. Half of the ranks share each.

    Args:
        make_stage: returns the stage of a module.
        columns: as for SharedMLP.
        schedule: the actions of each stage, as strings such as "F0 B0 W0".
        count: MLPs of a stage.
        hidden: the hidden size.
        inner: inner features of all ranks together.
        tokens: positions of a micro-batch, of all ranks together.
    """
    from lablib import executor

    size, rank = dist.get_world_size() // 2, dist.get_rank()
    shares = [dist.new_group(list(range(first, first + size))) for first in (0, size)]
    links = {kind: [dist.new_group([one, one + size]) for one in range(size)] for kind in "FB"}
    region, stage = Shards(shares[rank // size]), rank // size
    with torch.device("cuda"):
        mlps = torch.nn.ModuleList(SharedMLP(columns, region, hidden, inner // size)
                                   for _ in range(count)).bfloat16()
    for parameter in mlps.parameters():
        parameter.grad_dtype = torch.float32

    def run(x: torch.Tensor | None, data: torch.Tensor) -> torch.Tensor:
        x = data if x is None else x
        for mlp in mlps:
            x = mlp(x, data)
        return x if stage == 0 else x.float().sum()

    def hidden_states() -> torch.Tensor:
        return torch.zeros(tokens // size, 1, hidden, device="cuda", dtype=torch.bfloat16)

    pipeline = executor.Pipeline(
        [run], executor.Links({kind: groups[rank % size] for kind, groups in links.items()}),
        lambda data: hidden_states(), make_stage)
    program = executor.add_communication([actions.split() for actions in schedule])[stage]
    numbers = 1 + max(executor.parse(action)[1] for action in schedule[stage].split())
    data = [hidden_states().requires_grad_() for _ in range(numbers)]
    pipeline.run(program, data, [1.0] * numbers)


class Sleeper:
    """A stage whose passes only take time. F, B, and W take `seconds` each.

    Attributes:
        log: (action, start, end) of every pass, in seconds.
    """

    def __init__(self, seconds: float, is_last: bool) -> None:
        self.seconds, self.is_last, self.log = seconds, is_last, []

    def _sleep(self, kind: str, number: int) -> None:
        start = time.monotonic()
        time.sleep(self.seconds)
        self.log.append((kind, number, 0, start, time.monotonic()))

    def forward(self, key: int, x: Any, data: Any) -> torch.Tensor:
        self._sleep("F", key)
        return torch.zeros(()) if self.is_last else torch.zeros(1)

    def backward(self, key: int, grad: Any) -> torch.Tensor:
        self._sleep("B", key)
        return torch.zeros(1)

    def weight(self, key: int) -> None:
        self._sleep("W", key)


def sleep_on_ranks(schedule: Sequence[Sequence[str]], seconds: float) -> list[tuple]:
    """Execute a schedule with passes that only take time; return this rank's (kind, micro-batch,
    chunk, start, end)."""
    from lablib import executor

    rank, stages = dist.get_rank(), dist.get_world_size()
    program = executor.add_communication(schedule)[rank]
    links = executor.Links(executor.directions())
    sleeper = Sleeper(seconds, rank == stages - 1)
    count = 1 + max(executor.parse(action)[1] for action in schedule[rank])
    pipeline = executor.Pipeline([None], links, lambda data: torch.empty(1), lambda _: sleeper)
    dist.barrier()
    pipeline.run(program, [None] * count, [1.0] * count)
    return sleeper.log
