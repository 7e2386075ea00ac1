"""Build samples, targets, and the weights of a two-layer MLP for lab 02.

Weights and samples are values of sines, so they are the same on every rank and machine.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

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


def _sines(rows: int, columns: int, start: float) -> Tensor:
    return (1.3 * torch.arange(rows * columns) + 0.7 * start).sin().view(rows, columns)
