"""Train a student's Llama of lab 09 on ranks that share it, and run its layers on virtual GPUs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from labcore.errors import LabError

if TYPE_CHECKING:
    from virtualgpu.replay import Priced

RATE = 0.5  # learning rate of SGD


@dataclass(frozen=True)
class Shape:
    """What Llama and Layer read of a model's shape; small by default."""

    vocab_size: int = 21
    hidden_size: int = 12
    layers: int = 1
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 4
    inner_size: int = 18
    rotary_base: float = 100.0
    epsilon: float = 1e-2
    flash: bool = False
    dropout: float = 0.0


# One layer of Llama 3 8B (Llama Team, 2024, table 3).
LLAMA_8B = {"hidden_size": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "inner_size": 14336,
            "rotary_base": 5e5, "epsilon": 1e-5, "flash": True}


def values(shape: Sequence[int], seed: float, name: str) -> torch.Tensor:
    """Return a parameter's values, which depend on nothing but the arguments.

    Args:
        shape: the shape of the tensor.
        seed: any number.
        name: the parameter's name in the model.
    """
    count = torch.Size(shape).numel()
    angles = 1.3 * torch.arange(count) + 0.7 * seed + zlib.crc32(name.encode()) % 97
    return (angles.sin() * (0.5 if len(shape) > 1 else 0.3) + (len(shape) == 1)).view(*shape)


@torch.no_grad()
def fill(model: nn.Module, common: float, own: float | None = None) -> None:
    """Set a model's parameters.

    Args:
        model: the student's; each parameter has a `full_shape`, a `part`, and `copies`.
        common: the seed of parameters that several ranks have.
        own: the seed of the parts that only this rank has; None: they are parts of one tensor with
            the common seed.
    """
    for name, one in model.named_parameters():
        if one.copies > 1 or own is None:
            one.copy_(values(one.full_shape, common, name)[one.part])
        else:
            one.copy_(values(one.shape, own, name))


def batch(vocab_size: int, s: int, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and labels, both int64 [s, b].

    Args:
        vocab_size: the number of different tokens.
        s: the sequence length.
        b: the number of samples.
    """
    numbers = torch.arange(s * b).view(s, b)
    return (numbers * numbers + 5 * numbers) % vocab_size, (3 * numbers * numbers + 7) % vocab_size


def train(model: nn.Module, finish: Callable[[], None], s: int, b: int, steps: int
          ) -> list[float]:
    """Train a model with SGD. Return the loss of each step, and two norms of the first gradient.

    The norms are those of the vectors and of this rank's parts of the matrices.

    Args:
        model: the student's Llama.
        finish: completes the gradients after a step's backward pass.
        s: the sequence length.
        b: the number of samples.
    """
    tokens, labels = batch(model.embedding.weight.full_shape[0], s, b)
    losses: list[float] = []
    norms: list[float] = []
    for _ in range(steps):
        model.zero_grad()
        loss = model(tokens, labels).mean()
        loss.backward()
        for one in model.parameters():
            if one.grad is None:  # no forward pass uses it
                one.grad = torch.zeros_like(one)
        finish()
        losses.append(loss.item())
        norms = norms or [norm_of(model, 1), norm_of(model, 2)]
        with torch.no_grad():
            for one in model.parameters():
                one -= RATE * one.grad
    return [*losses, *norms]


def norm_of(model: nn.Module, dimensions: int) -> float:
    """Return the norm of the gradients of all parameters with this number of dimensions."""
    grads = [one.grad.flatten() for one in model.parameters() if one.dim() == dimensions]
    return torch.cat(grads).norm().item()


def region(group: object) -> object:
    """Return the student's Region of exercise 1, for a process group."""
    from mytrainer.tensor_parallel import Region

    return Region(group)


def sequence_region(group: object) -> object:
    """Return the student's SequenceRegion of exercise 6, for a process group."""
    from mytrainer.sequence_parallel import SequenceRegion

    return SequenceRegion(group)


def overlap_region(group: object) -> object:
    """Return the student's OverlapRegion of exercise 7, for a process group."""
    from mytrainer.tp_overlap import OverlapRegion

    return OverlapRegion(group)


def losses(llama: Callable, make_region: Callable, shape: dict, common: float, own: float, s: int,
           b: int, steps: int) -> list[float]:
    """Train the student's Llama; return what `train` returns.

    Args:
        llama: the student's class.
        make_region: returns a region, given its process group.
        shape: fields of Shape that differ from its defaults.
        common: the seed of parameters that several ranks have.
        own: the seed of the parts that only this rank has.
        s: the sequence length.
        b: the number of samples.
    """
    import torch.distributed as dist
    from mytrainer.heads import finish_gradients

    shared = make_region(dist.group.WORLD)
    model = llama(Shape(**shape), shared)
    fill(model, common, own)
    return train(model, lambda: finish_gradients(model.parameters(), shared), s, b, steps)


def dropped_losses(llama: Callable, begin_micro_batch: Callable, make_region: Callable, shape: dict,
                   common: float, s: int, b: int) -> list[float]:
    """Return the losses of three micro-batches of the student's Llama, in which dropout is active.

    Args:
        llama: the student's class.
        begin_micro_batch: the student's function of exercise 4.
        make_region: returns a region, given its process group.
        shape: fields of Shape that differ from its defaults.
        common: the seed of the parameters, which are the same for any number of ranks.
        s: the sequence length.
        b: the number of samples.
    """
    import torch.distributed as dist

    model = llama(Shape(**shape), make_region(dist.group.WORLD))
    fill(model, common)
    tokens, labels = batch(model.embedding.weight.full_shape[0], s, b)
    found = []
    for iteration in range(3):
        begin_micro_batch(model, 1, iteration, range(iteration * b, (iteration + 1) * b))
        found.append(model(tokens, labels).mean().item())
    return found


def column_gradients(make_region: Callable, outputs: Sequence[int], common: float, own: float,
                     s: int, b: int, h: int) -> list:
    """Run column-parallel layers; return their input's gradient, and the weight gradients' norms.

    Args:
        make_region: returns a region, given its process group.
        outputs: the output features of each layer on each rank.
        common: the seed of the input.
        own: this rank's seed of its weights, and of the gradients of its outputs.
        s: the sequence length.
        b: the number of samples.
        h: the input features.
    """
    import torch.distributed as dist
    from mytrainer.tensor_parallel import ColumnParallelLinear

    shared, layers = make_region(dist.group.WORLD), []
    for number, features in enumerate(outputs):
        layers.append(ColumnParallelLinear(h, shared.size * features, shared))
        with torch.no_grad():
            layers[-1].weight.copy_(values([features, h], own, f"weight{number}"))
    x = values([s * b, h], common, "x").view(s, b, h).requires_grad_()
    grads = [values([s * b, features], own, f"grad{number}").view(s, b, features)
             for number, features in enumerate(outputs)]
    torch.autograd.backward(list(shared.columns(x, *layers)), grads)
    return [x.grad.flatten().tolist(), [layer.weight.grad.norm().item() for layer in layers]]


def run_columns(make_region: Callable, width: int, features: int, tokens: int, times: int) -> None:
    """Run pairs of column-parallel layers on a GPU in bf16, each pair with an input of its own.

    Args:
        make_region: returns a region, given its process group.
        width: the input features.
        features: the output features of a layer, on all ranks together.
        times: the number of calls of `columns`.
    """
    import torch.distributed as dist
    from mytrainer.tensor_parallel import ColumnParallelLinear

    shared = make_region(dist.group.WORLD)
    with torch.device("cuda"):
        layers = [ColumnParallelLinear(width, features, shared).bfloat16() for _ in range(2)]
    outputs = []
    for _ in range(times):
        x = torch.zeros(tokens, 1, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        outputs += shared.columns(x, *layers)
    torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])


def run_layer(make_region: Callable, shape: dict, s: int, b: int, times: int, *,
              backward: bool = True, recompute_core: bool = False, count: int = 1,
              dtype: torch.dtype = torch.bfloat16) -> None:
    """Run the student's Layer on a GPU.

    Args:
        make_region: returns a region, given its process group.
        shape: fields of Shape that differ from its defaults.
        s: the sequence length.
        b: the number of samples.
        times: how many times the layers run, one after another, with the same parameters.
        backward: whether a backward pass follows.
        recompute_core: whether the core of attention runs in an activation checkpoint.
        count: the number of layers.
        dtype: that of the parameters and the activations.
    """
    import torch.distributed as dist
    from mytrainer.llama import Layer

    shared = make_region(dist.group.WORLD)
    with torch.device("cuda"):
        layers = [Layer(Shape(**shape), shared).to(dtype) for _ in range(count)]
    own = s // shared.size if shared.splits_sequence else s
    x = torch.zeros(own, b, Shape(**shape).hidden_size, dtype=dtype, device="cuda",
                    requires_grad=True)
    if recompute_core:
        from torch.utils.checkpoint import checkpoint  # saves what that of lab 06 saves

        for layer in layers:
            layer.attention.core = partial(checkpoint, layer.attention.core, use_reentrant=True,
                                           preserve_rng_state=False)
    y = x
    for _ in range(times):
        for layer in layers:
            y = layer(y)
    if backward:
        y.sum().backward()


def priced(function: Callable[[], object], gpus: str, nodes: int = 1) -> Priced:
    """Run a function on virtual GPUs that all do the same; return the modeled figures of rank 0.

    Args:
        function: called when the default process group exists.
        gpus: the GPU model and the number per node.

    Raises LabError if the function fails.
    """
    import torch.distributed as dist

    import virtualgpu
    from virtualgpu import replay
    from virtualgpu.launch.cluster import parse

    def program() -> None:
        dist.init_process_group("nccl")
        function()

    (rank,) = virtualgpu.run(program, gpus, nodes, present=[0], record=True)
    if rank.error:
        raise LabError(rank.error)
    topology = parse(gpus, nodes, None).topology()
    return replay.price([replay.read_record(rank.record)], topology)[0]
