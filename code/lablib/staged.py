"""Small and large models in stages, for the schedules and process groups of lab 11.

It has no schedule of its own: a list of actions for each stage is always an argument.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labcore import workspace
from lablib import executor, tensor

WIDTH = 4  # features of the small model
GROUPS = ("tensor", "data", "model", "ends")
Schedule = Sequence[Sequence[str]]


@dataclass(frozen=True)
class MicroBatch:
    """Inputs and targets of the small model, [size, WIDTH] each."""

    x: torch.Tensor
    y: torch.Tensor


def micro_batch(number: int, size: int, shared: float) -> MicroBatch:
    """Return a micro-batch.

    Args:
        number: its number in the batch.
        size: its samples.
        shared: seed of the batch, which all ranks know.
    """
    return MicroBatch(tensor.sines((size, WIDTH), shared + 3 * number),
                      tensor.sines((size, WIDTH), shared + 3 * number + 1))


class Part(nn.Module):
    """A part of the small model, a matrix and tanh. The last one returns the mean squared error."""

    def __init__(self, seed: float, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensor.sines((WIDTH, WIDTH), seed))
        self.is_first, self.is_last = is_first, is_last

    def forward(self, x: torch.Tensor | None, data: MicroBatch) -> torch.Tensor:
        y = ((data.x if self.is_first else x) @ self.weight.T).tanh()
        return (y - data.y).square().mean() if self.is_last else y


def use_own_executor() -> None:
    """Use the student's executor of lab 10, or the course's if one of its files is missing."""
    folder = workspace.home() / "mytrainer"
    if not all((folder / f"{name}.py").exists() for name in executor.FILES):
        executor.install()


def pipeline_of(modules: Sequence[nn.Module], buffer: Any) -> Any:
    """Return this rank's Pipeline, over asynchronous sends and receives between all ranks."""
    from mytrainer.p2p import Links
    from mytrainer.pipeline import Pipeline

    return Pipeline(modules, Links(executor.directions()), buffer)


def small_step(schedule: Schedule, sizes: Sequence[int], seed: float, shared: float,
               chunks: int = 1) -> list[Any]:
    """Run a step of the small model on the ranks of the default group.

    Args:
        schedule: the actions of each stage.
        sizes: the samples of each micro-batch.
        seed: of this rank's weights.
        shared: seed of the batch.
        chunks: the chunks of a stage.

    Return the loss, which is None except on the last stage, and one number for the gradient of each
    chunk.
    """
    from mytrainer.program import add_communication

    rank, parts = dist.get_rank(), dist.get_world_size() * chunks
    numbers = [chunk * dist.get_world_size() + rank for chunk in range(chunks)]
    modules = [Part(seed + 10 * chunk, number == 0, number == parts - 1)
               for chunk, number in enumerate(numbers)]
    pipeline = pipeline_of(modules, lambda data: torch.empty_like(data.x))
    loss = pipeline.run(add_communication(schedule)[rank],
                        [micro_batch(number, size, shared) for number, size in enumerate(sizes)],
                        [size / sum(sizes) for size in sizes])
    return [None if loss is None else loss.item(),
            tensor.gradients([module.weight for module in modules])]


class Layers(nn.Module):
    """Transformer layers of a stage on a GPU, in bf16: pre-norm, attention, and an MLP with GELU.

    The first part makes its own input, and the last one returns the mean of its output, so the
    ends of the model cost nothing.
    """

    def __init__(self, layers: int, hidden: int, is_first: bool, is_last: bool,
                 recompute: bool) -> None:
        super().__init__()
        shapes = [(3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden),
                  (hidden, 4 * hidden)]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.zeros(shape, device="cuda", dtype=torch.bfloat16))
            for _ in range(layers) for shape in shapes)
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight)
        self.hidden, self.recompute = hidden, recompute
        self.is_first, self.is_last = is_first, is_last

    def forward(self, x: torch.Tensor | None, length: int) -> torch.Tensor:
        if self.is_first:
            x = hidden_states(length, self.hidden)
        heads = self.hidden // 128
        for first in range(0, len(self.weights), 4):
            layer = partial(tensor.layer_output, weights=list(self.weights[first:first + 4]),
                            heads=heads, kv_heads=heads)
            if self.recompute:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return x.mean(dtype=torch.float32) if self.is_last else x


def hidden_states(length: int, hidden: int) -> torch.Tensor:
    """Return uninitialized hidden states [length, hidden] in bf16 on this rank's GPU."""
    return torch.empty(length, hidden, device="cuda", dtype=torch.bfloat16)


def gpu_step(schedule: Schedule, layers: int, hidden: int = 4096, length: int = 4096,
             recompute: bool = False) -> dict[str, Any]:
    """Run a step of transformer layers on the GPUs of the default group.

    Args:
        schedule: the actions of each stage.
        layers: of the whole model.
        hidden: the hidden size.
        length: tokens of a micro-batch, which is one sequence.
        recompute: whether each layer is checkpointed.

    Return the step's seconds, the bytes of parameters and gradients as "state", and those of the
    passes at their peak, on top of them, as "passes".
    """
    from mytrainer.program import add_communication, parse

    if not dist.is_initialized():
        dist.init_process_group("nccl")
    rank, stages = dist.get_rank(), len(schedule)
    passes = [parse(action) for actions in schedule for action in actions]
    micro_batches, chunks = (1 + max(one[place] for one in passes) for place in (1, 2))
    parts = stages * chunks
    modules = [Layers(layers // parts, hidden, number == 0, number == parts - 1, recompute)
               for number in range(rank, parts, stages)]
    pipeline = pipeline_of(modules, lambda length: hidden_states(length, hidden))
    program = add_communication(schedule)[rank]
    state = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    marks[0].record()
    pipeline.run(program, [length] * micro_batches, [1 / micro_batches] * micro_batches)
    marks[1].record()
    torch.cuda.synchronize()
    return {"seconds": marks[0].elapsed_time(marks[1]) / 1000, "state": state,
            "passes": torch.cuda.max_memory_allocated() - state}


def gpu_passes(layers: int, hidden: int = 4096, length: int = 4096, recompute: bool = False
               ) -> dict[str, float]:
    """Measure both passes of some layers on one GPU.

    Return their seconds as "forward" and "backward", and in bytes what the forward pass saves
    besides its input and output as "saved", hidden states as "boundary", and what each pass needs
    besides as "forward_extra" and "backward_extra".
    """
    module = Layers(layers, hidden, False, False, recompute)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    for _ in range(2):  # the first run allocates what libraries keep
        x = hidden_states(length, hidden).requires_grad_()
        boundary, before = x.numel() * x.element_size(), torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        marks[0].record()
        y = module(x, length)
        marks[1].record()
        after, highest = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        grad = torch.empty_like(y)
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        marks[1].record()
        y.backward(grad)
        marks[2].record()
        torch.cuda.synchronize()
        extra = torch.cuda.max_memory_allocated() - start - boundary
        del x, y, grad
    forward, backward = (a.elapsed_time(b) / 1000 for a, b in pairwise(marks))
    return {"forward": forward, "backward": backward, "boundary": boundary,
            "saved": after - before - boundary, "forward_extra": highest - after,
            "backward_extra": extra}


def sums_in_groups(grid: Any, own: float) -> list[Any]:
    """All-reduce a number of each rank in each group of a grid; return the sums, None for no group.

    Args:
        grid: the student's Grid.
        own: this rank's number.
    """
    sums: list[Any] = []
    for name in GROUPS:
        group = getattr(grid, name)
        total = torch.tensor([own], dtype=torch.float64)
        if group is not None:
            dist.all_reduce(total, group=group)
        sums.append(None if group is None else total.item())
    return sums


def crossing(grid: Any, own: float) -> list[float]:
    """Send two numbers to the next stage, around the end, in either direction's group.

    The receiver takes them in the opposite order. Return what arrived: the number of "F", and that
    of "B".
    """
    sent = {"F": torch.tensor([own]), "B": torch.tensor([-own])}
    found = {kind: torch.zeros(1) for kind in "FB"}
    after, before = (grid.stage + 1) % grid.stages, (grid.stage - 1) % grid.stages
    works = [dist.isend(sent[kind], group_dst=after, group=grid.links[kind]) for kind in "FB"]
    works += [dist.irecv(found[kind], group_src=before, group=grid.links[kind]) for kind in "BF"]
    for work in works:
        work.wait()
    return [found[kind].item() for kind in "FB"]


def parts_of(flags: str) -> list[dict[str, float]]:
    """Return the modeled cost of the embedding, of each layer, and of the head with the loss.

    Args:
        flags: flags of `pretrain_gpt.py --estimate`, without a layout and a global batch size.

    Each part has "ms", the time of both passes of a micro-batch, and the GiB of its parameters,
    gradients, and optimizer "state" and of the "activations" of a micro-batch.
    """
    from layout_estimator.requests import estimate, read_flags

    config = read_flags(flags.split())

    def plan_of(count: int) -> Any:
        return estimate([*flags.split(), "--num-layers", str(count), "--world-size", "3",
                         "--pipeline-model-parallel-size", "3", "--balance", f"0-{count}-0",
                         "--global-batch-size", str(config.micro_batch_size)])

    plan, more = plan_of(1), plan_of(2)
    first, layer, last = (
        {"ms": 1000 * (forward + backward),
         "state": (memory.weights + memory.gradients + memory.optimizer) / 2**30,
         "activations": memory.activations / 2**30}
        for forward, backward, memory in zip(plan.estimate.forward, plan.estimate.backward,
                                             plan.plan.memory, strict=True))
    # The difference of two layer counts leaves out what a stage needs only once, while a pass runs.
    layer["activations"] = more.plan.memory[1].activations / 2**30 - layer["activations"]
    return [first, *[layer] * config.num_layers, last]


def watch_groups() -> list[list[int]]:
    """Return a list that receives the ranks of each process group that this rank creates with all
    other ranks. Groups that only their own ranks create (use_local_synchronization) are left out.
    """
    from torch.distributed import distributed_c10d

    made: list[list[int]] = []
    new_group = dist.new_group

    def watched(ranks: Sequence[int] | None = None, *rest: Any, **options: Any) -> Any:
        if not options.get("use_local_synchronization"):
            made.append(list(range(dist.get_world_size()) if ranks is None else ranks))
        return new_group(ranks, *rest, **options)

    dist.new_group = distributed_c10d.new_group = watched
    return made


def forget(name: str) -> None:
    """Let the next import of a file of mytrainer/ read it anew; a kernel keeps the first one."""
    sys.modules.pop(f"mytrainer.{name}", None)
    importlib.invalidate_caches()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard what this process, and those that it starts, print to stderr."""
    saved = os.dup(2)
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
