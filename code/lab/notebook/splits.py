"""Build a two-layer MLP for lab 02, and compute its gradients in one process for comparison.

Weights and samples are values of sines, so they are the same on every rank and machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

WIDTH = 6  # features of a sample


class Problem(NamedTuple):
    """Samples, targets, and weights.

    Attributes:
        x: the samples, [b, 6].
        y: the targets, [b, 6].
        first: the weight of the first layer, [6, h].
        second: the weight of the second layer, [h, 6].
    """

    x: Tensor
    y: Tensor
    first: Tensor
    second: Tensor


def problem(seed: float, samples: int, hidden: int = 8) -> Problem:
    """Return the samples, targets, and weights for a seed.

    Args:
        seed: the seed of all values.
        samples: the batch size b.
        hidden: the hidden size h.
    """
    shapes = ((samples, WIDTH), (samples, WIDTH), (WIDTH, hidden), (hidden, WIDTH))
    return Problem(*(_sines(rows, columns, seed + 0.3 * number)
                     for number, (rows, columns) in enumerate(shapes)))


def joined(seed: float, samples: int, seeds: Sequence[float], columns: int) -> Problem:
    """Return the problem of which each rank has a shard of the weights.

    Args:
        seed: the seed of the samples and targets.
        samples: the batch size.
        seeds: for each rank, the seed of a problem whose weights are the rank's shard.
        columns: the hidden size of each rank's shard.
    """
    shards = [problem(one, samples, columns) for one in seeds]
    x, y, *_ = problem(seed, samples)
    return Problem(x, y, torch.cat([one.first for one in shards], dim=1),
                   torch.cat([one.second for one in shards]))


def _sines(rows: int, columns: int, start: float) -> Tensor:
    return (1.3 * torch.arange(rows * columns) + 0.7 * start).sin().view(rows, columns)


def one_process(problem: Problem) -> list[Any]:
    """Return the loss of the whole batch, and its gradients with respect to x, first, and second."""
    x, y, first, second = problem
    inputs = [tensor.requires_grad_() for tensor in (x, first, second)]
    loss = (functional.gelu(x @ first) @ second - y).square().mean()
    return [loss.item(), *(one.numpy() for one in torch.autograd.grad(loss, inputs))]
