"""Test the pieces of lab 08: two ranks with shards must match a single process."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from lab.mytrainer.single_process import RANKS, Wrong, short


class TinyStack(nn.Module):
    """Tied embeddings of 9 tokens, a width of 4, three blocks, a layer norm, and a loss.

    Attributes:
        present: for each block that has run, which blocks' parameters were in memory.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.norm, self.present = nn.Embedding(9, 4), nn.LayerNorm(4), []
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 4)) for _ in range(3))
        for block in self.blocks:
            block[1].register_forward_hook(lambda *_: self.present.append(self.in_memory()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = x + block(x)
        logits = self.norm(x) @ self.words.weight.t()
        return nn.functional.cross_entropy(logits, tokens.roll(1))

    def in_memory(self) -> list[bool]:
        """Return for each block whether it has parameters whose storage is not freed."""
        return [any(one.untyped_storage().size() for one in block.parameters())
                for block in self.blocks]


def test_steps(make: Callable[[nn.Module, list[nn.Module]], nn.Module],
               after_backward: Callable[[TinyStack], None] = lambda model: None) -> TinyStack:
    """Compare two steps of two micro-batches with a single process, and return this rank's model.

    Args:
        make: your class.
        after_backward: called with the model after each backward pass.
    """
    rank, model, single = dist.get_rank(), TinyStack(seed=dist.get_rank()), TinyStack(seed=0)
    data = torch.randint(9, (2, 2, RANKS, 12), generator=torch.Generator().manual_seed(1))
    parallel = make(model, list(model.blocks))
    compare("after the constructor, parameter {} differs from rank 0's", parallel, single)
    optimizers = [torch.optim.SGD(list(one.parameters()), lr=0.5) for one in (parallel, single)]
    for number, micro_batches in enumerate(data, start=1):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = torch.zeros(2)  # of all ranks, and of the single process
        for at, batch in enumerate(micro_batches):
            with nullcontext() if at else parallel.no_sync():
                loss = parallel(batch[rank]) / (2 * RANKS)
                (loss * RANKS).backward()
            after_backward(model)
            losses[0] += loss.detach()
            for one in batch:
                loss = single(one) / (2 * RANKS)
                loss.backward()
                losses[1] += loss.detach() / RANKS
        parallel.finish()
        dist.all_reduce(losses)
        if not torch.allclose(*losses, rtol=1e-4):
            raise Wrong(f"the loss of step {number} is {losses[0].item():.6g} instead of "
                        f"{losses[1].item():.6g}")
        compare(f"after finish() of step {number}, the gradient of {{}} is not the mean over the "
                "ranks", parallel, single, of_gradients=True)
        for optimizer in optimizers:
            optimizer.step()
    compare("after two steps, parameter {} differs", parallel, single)
    return model


def compare(text: str, parallel: nn.Module, single: nn.Module, of_gradients: bool = False) -> None:
    """Raise Wrong unless the pieces of all ranks together match a single process's parameters.

    Args:
        text: the error message, with {} in place of the parameter's name.
        parallel: the sharded model on this rank.
        single: the model of the single process.
        of_gradients: whether to compare gradients.
    """
    right = dict(single.named_parameters())
    pieces = [piece.grad if of_gradients else piece.detach() for piece in parallel.parameters()]
    if len(pieces) != len(right):
        raise Wrong(f"parameters() yields {len(pieces)} pieces for {len(right)} parameters")
    if missing := [name for name, one in zip(right, pieces, strict=True) if one is None]:
        raise Wrong(f"{text.format(missing[0])}: on rank {dist.get_rank()}, its piece has none")
    ranks: list = [None] * RANKS
    dist.all_gather_object(ranks, pieces)
    for name, *parts in zip(right, *ranks, strict=True):
        whole = torch.cat([part.flatten() for part in parts])
        expected = (right[name].grad if of_gradients else right[name].detach()).flatten()
        if whole.shape != expected.shape:
            raise Wrong(f"the pieces of {name} have {' and '.join(str(len(one)) for one in parts)} "
                        f"elements on the ranks, and the parameter has {len(expected)}")
        if not torch.allclose(whole, expected, rtol=1e-4, atol=1e-6):
            raise Wrong(f"{text.format(name)}: the ranks together have {short(whole)} instead of "
                        f"{short(expected)}")


def test_shards(module) -> None:
    """Divide a vector of three and a matrix of four elements among two ranks."""
    layout, buffer = module.ShardLayout([(3,), (2, 2)], 2), torch.arange(8.0)
    parts = [[torch.arange(4)[part].tolist() for part in layout.parts(rank)] for rank in (0, 1)]
    views = [view.tolist() for view in layout.views(buffer)]
    for text, found, right in (
            ("size and shard_size", (layout.size, layout.shard_size), (8, 4)),
            ("starts", list(layout.starts), [0, 3]),
            ("owned(1)", buffer[layout.owned(1)].tolist(), [4.0, 5.0, 6.0, 7.0]),
            ("views of 0 to 7", views, [[0.0, 1.0, 2.0], [[3.0, 4.0], [5.0, 6.0]]]),
            ("parts of shards 0 to 3", parts, [[[0, 1, 2], [3]], [[], [0, 1, 2]]])):
        if found != right:
            raise Wrong(f"for shapes (3,) and (2, 2) on two ranks, ShardLayout has {text} of "
                        f"{found} instead of {right}")


def test_zero(module) -> None:
    test_steps(module.Zero1)


def test_zero2(module) -> None:
    test_steps(module.Zero2, require_no_gradients)


def require_no_gradients(model: nn.Module) -> None:
    """Raise Wrong if a parameter has a gradient."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            raise Wrong(f"after a backward pass, rank {dist.get_rank()} still has the gradient of "
                        f"all of {name}")


def test_zero3(module) -> None:
    test_parameters(module.Zero3)


def test_prefetch(module) -> None:
    model = test_parameters(module.Prefetching)
    if not model.present[0][1]:
        raise Wrong("while block 0 of three runs, the parameters of block 1 are not being gathered")


def test_parameters(make: Callable[[nn.Module, list[nn.Module]], nn.Module]) -> TinyStack:
    """Test a class that frees parameters, and return this rank's model."""
    model = test_steps(make, require_no_gradients)
    for block, present in enumerate(model.present[:3]):  # of the first forward pass
        if all(present):
            raise Wrong(f"while block {block} of three runs, the parameters of all blocks are in "
                        "memory")
    if any(left := model.in_memory()):
        raise Wrong(f"after finish(), the parameters of block {left.index(True)} are in memory")
    return model


def test_clipping(module) -> None:
    """Clip gradients whose norm is 5 on rank 0, 12 on rank 1, and 13 on both."""
    own = ([3.0, 4.0], [0.0, 12.0])[dist.get_rank()]
    for largest, factor in ((6.5, 0.5), (math.inf, 1.0), (20.0, 1.0)):
        shards = [nn.Parameter(torch.zeros(size)) for size in (2, 0, 1)]
        shards[0].grad, shards[1].grad = torch.tensor(own), torch.zeros(0)  # the last has none
        norm = float(module.clip_grad_norm(iter(shards), largest))
        if not math.isclose(norm, 13.0, rel_tol=1e-5):
            raise Wrong("for gradients with a norm of 5 on rank 0 and of 12 on rank 1, "
                        f"clip_grad_norm returns {norm:g} on rank {dist.get_rank()} instead of 13")
        if not torch.allclose(shards[0].grad, factor * torch.tensor(own), rtol=1e-5):
            raise Wrong(f"with a norm of 13 and a max_norm of {largest:g}, gradients become "
                        f"{short(shards[0].grad)} instead of {short(factor * torch.tensor(own))}")


def layout(shapes: list[tuple[int, ...]], starts: list[int], shard_size: int,
           parts: list[list[slice]]) -> SimpleNamespace:
    """Return a layout with a ShardLayout's interface, but for views."""
    return SimpleNamespace(
        shapes=shapes, starts=starts, shard_size=shard_size, size=shard_size * len(parts),
        owned=lambda rank: slice(rank * shard_size, (rank + 1) * shard_size),
        parts=lambda rank: parts[rank])


def test_reshard(module) -> None:
    """Go from three ranks and one unit to two ranks and two units."""
    none = slice(0, 0)
    old = [(["a", "b"], layout([(1,), (2, 3)], [0, 1], 3, [
        [slice(0, 1), slice(1, 3)], [none, slice(0, 3)], [none, slice(0, 1)]]))]
    new = [(["b"], layout([(2, 3)], [0], 3, [[slice(0, 3)], [slice(0, 3)]])),
           (["a"], layout([(1,)], [0], 1, [[slice(0, 1)], [none]]))]
    files = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, math.nan, math.nan]])
    right = ([[2.0, 3, 4], [1.0]], [[5.0, 6, 7], [0.0]])

    def read(rank: int, unit: int, start: int, stop: int) -> torch.Tensor:
        if not (0 <= rank < 3 and unit == 0 and 0 <= start <= stop <= 3):
            raise Wrong(f"reshard calls read({rank}, {unit}, {start}, {stop}), but there are ranks "
                        "0 to 2, unit 0, and elements 0 to 3")
        return files[rank][start:stop].clone()

    for rank in range(2):
        shards = [shard.tolist() for shard in module.reshard(read, old, new, rank)]
        if shards != right[rank]:
            raise Wrong(f"for rank {rank}, reshard returns {shards} instead of {right[rank]}")
