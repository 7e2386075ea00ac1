"""A minimum of a function of a few numbers, without derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def search(error: Callable[[np.ndarray], float], start: np.ndarray, low: np.ndarray,
           high: np.ndarray, evaluations: int) -> np.ndarray:
    """CMA-ES (Hansen 2016, "The CMA Evolution Strategy: A Tutorial"), seeded."""
    draw, n = np.random.default_rng(0), len(start)
    size = 8 + int(3 * math.log(n))
    weights = np.log(size // 2 + 0.5) - np.log(np.arange(1, size // 2 + 1))
    weights /= weights.sum()
    mass = 1 / (weights**2).sum()
    path_c, path_s = (4 + mass / n) / (n + 4 + 2 * mass / n), (mass + 2) / (n + mass + 5)
    one = 2 / ((n + 1.3) ** 2 + mass)
    rank = min(1 - one, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
    usual = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
    mean, sigma, spread = start.copy(), 0.4, np.eye(n)
    along, step = np.zeros(n), np.zeros(n)
    best = (math.inf, start)
    for _ in range(0, evaluations, size):
        lengths, axes = np.linalg.eigh(spread)
        lengths = np.sqrt(np.maximum(lengths, 1e-12))
        points = np.clip(mean + sigma * (draw.standard_normal((size, n)) * lengths) @ axes.T,
                         low, high)
        errors = np.array([error(point) for point in points])
        order = np.argsort(errors)
        if errors[order[0]] < best[0]:
            best = errors[order[0]], points[order[0]]
        moves = (points[order[:size // 2]] - mean) / sigma
        move = weights @ moves
        mean = mean + sigma * move
        step = (1 - path_s) * step + math.sqrt(path_s * (2 - path_s) * mass) * (
            axes @ ((axes.T @ move) / lengths))
        along = (1 - path_c) * along + math.sqrt(path_c * (2 - path_c) * mass) * move
        spread = ((1 - one - rank) * spread + one * np.outer(along, along)
                  + rank * (moves.T * weights) @ moves)
        sigma *= math.exp(min(1, path_s * (np.linalg.norm(step) / usual - 1)))
    return best[1]
