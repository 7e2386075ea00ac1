"""The exact partition of the layers over given stages, by dynamic programming.

Its cost model is that of most planners (such as Alpa, Zheng et al. 2022, eq. 2, and AMP, Li et al.
2022): a step takes the sum of all stages' passes and messages, and for each further micro-batch the
slowest stage's passes again,

    sum_s (f_s + b_s) + 2 sum_s c_s + (m - 1) (max_s f_s + max_s b_s)    for GPipe, and
    sum_s (f_s + b_s) + 2 sum_s c_s + (m - 1) max_s (f_s + b_s)          for 1F1B.

For GPipe this is the simulated time exactly; for 1F1B with unlike stages it is not, so `best` also
simulates the partitions that the program finds, and those around the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from layout_estimator.cluster_planner.stages import Stages
from layout_estimator.cluster_planner.timing import step_seconds

Split = tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """A partition and its time.

    Attributes:
        layers: of every stage.
        modeled: seconds of the passes in the cost model.
        seconds: simulated seconds of the step.
    """

    layers: Split
    modeled: float
    seconds: float


def modeled_seconds(stages: Stages, layers: Split) -> float:
    """Return the time of a step's passes in the cost model above, in seconds."""
    rows = np.arange(len(layers))
    forward, backward = stages.forward[rows, layers], stages.backward[rows, layers]
    slowest = (forward.max() + backward.max() if stages.schedule == "gpipe"
               else (forward + backward).max())
    return float(forward.sum() + backward.sum() + 2 * stages.send.sum()
                 + (stages.micro_batches - 1) * slowest)


def exact(stages: Stages) -> list[tuple[float, Split]]:
    """Return partitions as (modeled seconds, layers), the optimum of the cost model first.

    The others are optimal for other limits on the slowest stage. The list is empty if no partition
    fits the memory.
    """
    found: dict[Split, float] = {}
    best = [np.inf]  # shared with the limits, which end where none can be better
    for allowed in _limits(stages, best):
        split = _shortest(stages, allowed)
        if split not in found:
            found[split] = modeled_seconds(stages, split)
            best[0] = min(best[0], found[split])
    return sorted((seconds, split) for split, seconds in found.items())


def lower_bound(stages: Stages) -> float:
    """Return a lower bound of the simulated time of a step, or infinity if no partition fits.

    Let t_s = f_s + b_s, and w the warm-up passes of stage s in 1F1B. Before its first forward and
    after its last backward pass, a micro-batch passes all stages before s. In between, stage s
    computes m t_s; and it computes at least (m - w) t_s beside two round trips to the last stage,
    of the first micro-batch and of the last. The mean of both is
    sum_j t_j + 2 sum_j c_j + (m - 1 - w/2) t_s. In GPipe, w is 0. The end of the step on stage 0
    follows the last pass.
    """
    if not _feasible(stages.fits):
        return np.inf
    both, count = stages.forward + stages.backward, len(stages.forward)
    values = np.unique(both[stages.fits])
    at = _least(values, lambda limit: stages.fits & (both <= limit))
    slowest, trip = float(values[at]), _least_sum(stages)
    waiting = 0 if stages.schedule == "gpipe" else (count - 1) / 2
    through = trip + 2 * float(stages.send.sum())
    passes = max(stages.micro_batches * slowest, through)
    if stages.micro_batches > count:
        passes = max(passes, through + (stages.micro_batches - 1 - waiting) * slowest)
    first = int(stages.fits[0].argmax())
    return passes + stages.ends + float(stages.sync[0, first])


def best(stages: Stages) -> Partition | None:
    """Return the partition with the least simulated time that the search finds, or None."""
    candidates = exact(stages)
    if not candidates:
        return None
    splits = [split for _, split in candidates]
    times = step_seconds(stages, splits)
    at = int(times.argmin())
    split, seconds = splits[at], float(times[at])
    while True:  # move one layer from one stage to another
        near = list(_neighbors(stages, split))
        if not near:
            break
        times = step_seconds(stages, near)
        at = int(times.argmin())
        if times[at] >= seconds * (1 - 1e-12):
            break
        split, seconds = near[at], float(times[at])
    return Partition(split, modeled_seconds(stages, split), seconds)


def even(stages: Stages) -> Partition | None:
    """Return the partition into equal parts, as far as the layers divide, or None if it is too big.

    This is what a trainer does without --balance.
    """
    count, layers = stages.forward.shape[0], stages.forward.shape[1] - 1
    split = tuple(layers // count + (stage < layers % count) for stage in range(count))
    if not stages.fits[range(count), split].all():
        return None
    return Partition(split, modeled_seconds(stages, split), float(step_seconds(stages, [split])[0]))


def _limits(stages: Stages, best: list[float]) -> Iterator[np.ndarray]:
    """Yield which numbers of layers stay within each feasible limit on the slowest stage.

    Args:
        stages: costs of the stages.
        best: the least modeled seconds so far; limits that cannot improve on them are left out.
    """
    both, further = stages.forward + stages.backward, stages.micro_batches - 1
    if not _feasible(stages.fits):
        return
    base = 2 * stages.send.sum() + _least_sum(stages)
    if stages.schedule != "gpipe":
        values = np.unique(both[stages.fits])
        for limit in values[_least(values, lambda limit: stages.fits & (both <= limit)):]:
            if base + further * limit >= best[0]:
                return
            yield stages.fits & (both <= limit)
        return
    forwards = np.unique(stages.forward[stages.fits])
    backwards = np.unique(stages.backward[stages.fits])
    for one in forwards[_least(forwards, lambda limit: stages.fits & (stages.forward <= limit)):]:
        within = stages.fits & (stages.forward <= one)
        for other in backwards[_least(backwards,
                                      lambda limit, rows=within: rows & (stages.backward <= limit)
                                      ):]:
            if base + further * (one + other) >= best[0]:
                break
            yield within & (stages.backward <= other)


def _least(values: np.ndarray, allowed: Callable[[float], np.ndarray]) -> int:
    """Return the index of the least limit under which a partition is possible, or their number."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if _feasible(allowed(values[middle])):
            high = middle
        else:
            low = middle + 1
    return low


def _feasible(allowed: np.ndarray) -> bool:
    """Return whether some partition has an allowed number of layers on every stage.

    More layers need more memory and time, so the allowed numbers of a stage are an interval.
    """
    counts = allowed.sum(axis=1)
    least = allowed.argmax(axis=1)
    return bool(counts.all()
                and least.sum() < allowed.shape[1] <= (least + counts).sum() - len(allowed) + 1)


def _least_sum(stages: Stages) -> float:
    """Return the least sum of all passes of a micro-batch, in seconds; some partition fits."""
    split = _shortest(stages, stages.fits)
    rows = np.arange(len(split))
    return float((stages.forward + stages.backward)[rows, split].sum())


def _shortest(stages: Stages, allowed: np.ndarray) -> Split:
    """Return the allowed partition with the least sum of all passes; there is one."""
    cost = np.where(allowed, stages.forward + stages.backward, np.inf)
    width = cost.shape[1]
    ways = np.subtract.outer(np.arange(width), np.arange(width))  # layers before, by [so far, here]
    sums = np.full(width, np.inf)
    sums[0], taken = 0.0, []
    for row in cost:
        totals = np.where(ways >= 0, sums[np.maximum(ways, 0)], np.inf) + row
        here = totals.argmin(axis=1)
        taken.append(here)
        sums = totals[np.arange(width), here]
    left, split = width - 1, []
    for here in reversed(taken):
        split.append(int(here[left]))
        left -= split[-1]
    return tuple(reversed(split))


def _neighbors(stages: Stages, split: Split) -> Iterator[Split]:
    for source, count in enumerate(split):
        if not count or not stages.fits[source, count - 1]:
            continue
        for target in range(len(split)):
            if target != source and stages.fits[target, split[target] + 1]:
                moved = list(split)
                moved[source] -= 1
                moved[target] += 1
                yield tuple(moved)
