"""Train small and large models with a student's class of lab 08, which shards them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from lablib import replicas

Wrap = Callable[[nn.Module, Sequence[nn.Module]], nn.Module]  # takes a module and its blocks


def losses(wrap: Wrap, kind: str, seed: float, samples: int, steps: int, micro_batches: int,
           masters: bool = False, frees: bool = False, most: int | None = None) -> list[float]:
    """Train replicas.Small with AdamW; return this rank's loss after each step.

    The last element is the number of elements that this rank's optimizer updates.

    Args:
        wrap: the student's class.
        kind: the kind of replicas.Small, "plain" or "tied".
        seed: this rank's seed, for its parameters and its samples.
        samples: samples of this rank.
        steps: optimizer steps.
        micro_batches: equal parts of the samples.
        masters: True for a bf16 model with fp32 master weights.
        frees: True if no parameters may be in memory after finish(), only shards.
        most: how many blocks' parameters may be in memory while a block runs in the first step;
            None for any number.
    """
    small = replicas.Small(kind, seed)
    if masters:
        small.bfloat16()
    blocks = [small.middle] if kind == "tied" else [small.first, small.middle, small.last]
    at_most = AtMost(blocks, most)  # its hooks run before those of the student's class
    model = wrap(small, blocks)
    own = list(model.parameters())
    require_order(model, small, own)
    updated = [piece.detach().float() for piece in own] if masters else own
    optimizer = torch.optim.AdamW(updated, lr=0.02, weight_decay=0.1, eps=1e-3)
    x, y = replicas.batch(seed, samples)
    parts = list(zip(x.to(own[0].dtype).chunk(micro_batches), y.chunk(micro_batches), strict=True))
    found = []
    for _ in range(steps):
        require_storage(model)
        for piece in own:
            piece.grad = None
        for part in parts:
            loss = replicas.loss(model, *part) / micro_batches
            require_size(model)
            loss.backward()
            require_fp32(small)
        model.finish()
        at_most.remove()  # an evaluation may leave the last block in memory
        if frees:
            require_freed(model)
        for piece, master in zip(own, updated, strict=True):
            master.grad = piece.grad
        optimizer.step()
        for piece, master in zip(own, updated, strict=True):
            piece.data.copy_(master)
        with torch.no_grad():
            found.append(sum(replicas.loss(model, *part).item() for part in parts) / micro_batches)
    return [*found, sum(piece.numel() for piece in own)]


def require_order(model: nn.Module, module: nn.Module, own: Sequence[nn.Parameter]) -> None:
    """Raise ValueError unless parameters() yields one piece per parameter of the module, in its
    order."""
    pieces = {parameter: piece for unit in getattr(model, "units", ())
              for parameter, piece in zip(unit.parameters, unit.pieces, strict=True)}
    wanted = [pieces.get(parameter) for parameter in module.parameters()]
    if pieces and (len(own) != len(wanted) or any(
            one is not other for one, other in zip(own, wanted, strict=True))):
        raise ValueError("parameters() does not yield one piece for each parameter in the "
                         "module's order: empty pieces count, and the units' order differs from "
                         "the module's")


class AtMost:
    """Raise ValueError when the parameters of too many blocks are in memory.

    A block is judged when it has run forward, and when it has a gradient.
    """

    def __init__(self, blocks: Sequence[nn.Module], most: int | None) -> None:
        """Args:
            blocks: the blocks, before the student's class changes them.
            most: how many blocks may be in memory; None for any number.
        """
        self.parameters = [list(block.parameters()) for block in blocks]
        self.most = most
        self.hooks = []
        if most is not None:
            for block, parameters in zip(blocks, self.parameters, strict=True):
                self.hooks.append(block.register_forward_hook(lambda *_: self.judge("forward")))
                self.hooks += [one.register_post_accumulate_grad_hook(
                    lambda _: self.judge("backward")) for one in parameters]

    def judge(self, direction: str) -> None:
        present = sum(any(one.untyped_storage().size() for one in block)
                      for block in self.parameters)
        if present > self.most:
            raise ValueError(f"while a block runs in the {direction} pass, the parameters of "
                             f"{present} blocks are in memory: hold those of this block "
                             "and of the one that runs next, which in the backward pass is the "
                             "block before it")

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()


def require_freed(model: nn.Module) -> None:
    """Raise ValueError if a unit's parameters are in memory."""
    for number, unit in enumerate(model.units, start=1):
        if unit.buffer.untyped_storage().size():
            raise ValueError(f"after finish(), the parameters of unit {number} of "
                             f"{len(model.units)} are still in memory: free each unit when its "
                             "gradients are being reduced, and those outside the blocks, too")


def require_size(model: nn.Module) -> None:
    """Raise ValueError if the storage of a unit's buffer is neither empty nor as large as it."""
    for unit in getattr(model, "units", ()):
        size, needed = unit.buffer.untyped_storage().size(), unit.layout.size
        if size not in (0, needed * unit.buffer.itemsize):
            raise ValueError(f"the storage of a unit's buffer has {size} bytes for {needed} "
                             f"elements of {unit.buffer.dtype}: "
                             "how many bytes does an element have?")


def require_storage(model: nn.Module) -> None:
    """Raise ValueError if a unit's shard is in a storage that has been freed."""
    for unit in getattr(model, "units", ()):
        if unit.shard.numel() and unit.shard.untyped_storage().size() == 0:
            raise ValueError("a unit's shard is in the buffer that you have freed: give it a "
                             "storage of its own")


def require_fp32(module: nn.Module) -> None:
    """Raise ValueError unless the gradients that a module accumulates are in fp32."""
    for parameter in module.parameters():
        if parameter.grad is not None and parameter.grad.dtype != torch.float32:
            raise ValueError(f"a gradient accumulates in {parameter.grad.dtype}: "
                             "set grad_dtype of the module's parameters")


def recomputed_losses(wrap: Wrap, seed: float, samples: int, steps: int) -> list[float]:
    """Train replicas.Small in activation checkpoints; return this rank's loss after each step."""
    from torch.utils.checkpoint import checkpoint

    small = replicas.Small("plain", seed)

    class Recomputed(nn.Module):
        """The model, with its first two layers in activation checkpoints."""

        def __init__(self) -> None:
            super().__init__()
            self.small = small

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in (small.first, small.middle):
                run = nn.Sequential(layer, nn.Tanh())
                x = checkpoint(run, x, use_reentrant=True) if torch.is_grad_enabled() else run(x)
            return small.last(x)

    model = wrap(Recomputed(), [small.first, small.middle, small.last])
    optimizer = torch.optim.AdamW(list(model.parameters()), lr=0.02, weight_decay=0.1, eps=1e-3)
    x, y = replicas.batch(seed, samples)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        replicas.loss(model, x.requires_grad_(), y).backward()
        model.finish()
        optimizer.step()
        with torch.no_grad():
            found.append(replicas.loss(model, x, y).item())
    return found


def train(wrap: Wrap, width: int, layers: int, tokens: int, steps: int, micro_batches: int) -> None:
    """Train blocks of two linear layers on a GPU, in bf16 with fp32 master weights.

    Args:
        wrap: the student's class.
        width: the model's width; a block has 8 width^2 parameters.
        layers: the number of blocks.
        tokens: tokens of a micro-batch.
        steps: optimizer steps.
        micro_batches: micro-batches of each step.
    """
    with torch.device("cuda"):
        blocks = [nn.Sequential(nn.Linear(width, 4 * width, bias=False), nn.GELU(),
                                nn.Linear(4 * width, width, bias=False)).bfloat16()
                  for _ in range(layers)]
    model = wrap(nn.Sequential(*blocks), blocks)
    pieces = list(model.parameters())
    masters = [piece.detach().float() for piece in pieces]
    optimizer = torch.optim.AdamW(masters, lr=1e-3, fused=True)
    for _ in range(steps):
        for tensor in (*pieces, *masters):
            tensor.grad = None
        for _ in range(micro_batches):
            x = torch.zeros(tokens, width, device="cuda", dtype=torch.bfloat16)
            model(x).sum().backward()
        model.finish()
        for piece, master in zip(pieces, masters, strict=True):
            master.grad = piece.grad
        optimizer.step()
        for piece, master in zip(pieces, masters, strict=True):
            piece.data.copy_(master)
