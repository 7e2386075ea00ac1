"""--split 969,30,1: the shares of documents for training, validation, and test."""

from __future__ import annotations

import math

from minimegatron.errors import UserError


def parse_split(split: str) -> list[float]:
    """Return three weights that sum to 1; missing ones are 0. Separators are "," and "/".

    Raises UserError unless there are one to three non-negative numbers.
    """
    try:
        weights = [float(part) for part in split.split("," if "," in split else "/")]
    except ValueError:
        weights = []
    is_valid = all(0 <= weight < math.inf for weight in weights) and any(weights)
    if not is_valid or len(weights) > 3:
        raise UserError(f"--split {split!r} is not one to three numbers (training, validation, "
                        'test), not all 0; the usual value is "969, 30, 1"')
    weights += [0.0] * (3 - len(weights))
    return [weight / sum(weights) for weight in weights]


def split_boundaries(split: str, documents: int) -> list[int]:
    """Return [0, a, b, documents]: training is [0, a), validation [a, b), and test [b, documents).

    As in Megatron-LM, each part is rounded, and then all boundaries shift by the error of the last
    one. A boundary that would become negative, which Megatron-LM does not expect, is 0.

    Args:
        split: --split.
        documents: number of documents.
    """
    bounds = [0]
    for weight in parse_split(split):
        bounds.append(bounds[-1] + round(weight * documents))
    excess = bounds[-1] - documents
    return [0] + [max(0, bound - excess) for bound in bounds[1:]]
