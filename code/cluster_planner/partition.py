"""The exact partition of the layers over given stages, in closed form for each limit.

Its cost model is that of most planners (such as Alpa, Zheng et al. 2022, eq. 2, and AMP, Li et al.
2022): a step takes the sum of all stages' passes and messages, and for each further micro-batch the
slowest stage's passes again,

    sum_s (f_s + b_s) + 2 sum_s c_s + (m - 1) (max_s f_s + max_s b_s)    for GPipe, and
    sum_s (f_s + b_s) + 2 sum_s c_s + (m - 1) max_s (f_s + b_s)          for 1F1B.

For GPipe this is the simulated time exactly; for 1F1B with unlike stages it is not, so `best` also
simulates the partitions that the program finds, and those around the best of them.

`even`, `fasop`, and `amp` split the layers as a trainer and published planners do. They run under
the same search, profiles, and memory limits as `best`, so a comparison shows what the partition and
the ranking are worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster_planner.stages import Stages
from cluster_planner.timing import step_seconds
from pipeline_schedules import fasop as greedy

Split = tuple[int, ...]
Partitioner = Callable[[Stages, float], "Partition | None"]
BATCH = 32  # partitions that are simulated at once


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
    forward = stages.forward[rows, layers]
    backward = stages.both[rows, layers] - forward
    slowest = (forward.max() + backward.max() if stages.schedule == "gpipe"
               else (forward + backward).max())
    return float(forward.sum() + backward.sum() + 2 * stages.send.sum()
                 + (stages.micro_batches - 1) * slowest)


def exact(stages: Stages) -> list[tuple[float, Split]]:
    """Return partitions as (modeled seconds, layers), the optimum of the cost model first.

    The others are optimal for other limits on the slowest stage. The list is empty if no partition
    fits the memory.
    """
    optima: dict[Split, float] = {}
    if not _feasible(stages.fits):
        return []
    further, sends = stages.micro_batches - 1, 2 * stages.send.sum()
    least = np.inf  # modeled seconds so far; limits that cannot improve on them are left out
    floor = 0.0  # with any limit on the forward passes, the rest of a step takes no less
    if stages.schedule == "gpipe":
        limits, _ = _optima(stages, stages.fits, stages.backward, np.inf)
        _, splits = _optima(stages, stages.fits, np.zeros_like(stages.backward), np.inf)
        floor = sends + float(_sums(stages, splits)[0]) + further * float(limits[0])
    for base, allowed, cost in _slowest(stages):
        if floor + further * base > least:
            break
        limits, splits = _optima(stages, allowed, cost, further)
        bounds = sends + _sums(stages, splits) + further * (base + limits)
        for split in np.unique(splits[bounds <= least], axis=0).tolist():
            seconds = modeled_seconds(stages, tuple(split))
            optima[tuple(split)] = seconds
            least = min(least, seconds)
    return sorted((seconds, split) for split, seconds in optima.items())


def lower_bounds(stages: Stages) -> Iterator[float]:
    """Yield lower bounds of the simulated time of a step; infinity if no partition fits.

    Let t_s = f_s + b_s, and w = p - 1 - s the warm-up passes of stage s in 1F1B. Before its first
    forward and after its last backward pass, a micro-batch passes all stages before s. In between,
    stage s computes m t_s; and with m > w + 1, it computes at least (m - w) t_s beside two round
    trips to the last stage, of the first micro-batch and of the last. The mean of both is
    sum_j t_j + 2 sum_j c_j + (m - 1 - w/2) t_s. For GPipe, the cost model is a bound. Each limit on
    the last term has a least sum of the others. The end of the step on stage 0 follows the last
    pass.
    """
    if not _feasible(stages.fits):
        yield np.inf
        return
    count, m = len(stages.forward), stages.micro_batches
    both = stages.both
    first = stages.fits.argmax(axis=1)
    end = (stages.ends + float(stages.sync[0, first[0]])
           + float(stages.update[range(count), first].max()))
    slowest, _ = _optima(stages, stages.fits, both, np.inf)
    yield m * float(slowest[0]) + end
    waiting = np.arange(count - 1, -1, -1)[:, None]
    waiting = waiting if stages.schedule == "1f1b" else np.zeros_like(waiting)
    weight = np.where(m > waiting + 1, m - 1 - waiting / 2, 0)
    limits, splits = _optima(stages, stages.fits, weight * both, 1)
    yield 2 * float(stages.send.sum()) + float((limits + _sums(stages, splits)).min()) + end


def best(stages: Stages, below: float = np.inf) -> Partition | None:
    """Return the partition with the least simulated time that the search finds, or None.

    Args:
        stages: costs of the stages.
        below: seconds; a partition that takes as long is of no use.
    """
    return _improved(stages, *_fastest(stages, [split for _, split in exact(stages)], below), below)


def improved(stages: Stages, split: Split, below: float = np.inf) -> Partition | None:
    """Return the best partition that moving single layers from one stage to another leads to.

    Args:
        stages: costs of the stages.
        split: the partition to begin with.
        below: as for best.
    """
    if not stages.fits[range(len(split)), split].all():
        return None
    return _improved(stages, split, float(step_seconds(stages, [split])[0]), below)


def _improved(stages: Stages, split: Split, seconds: float, below: float) -> Partition | None:
    """Return what improved() does; `seconds` is the simulated time of `split`, if there is one."""
    if not split:
        return None
    while True:  # move one layer from one stage to another
        near, time = _fastest(stages, _neighbors(stages, split), min(seconds, below))
        if time >= seconds * (1 - 1e-12):
            break
        split, seconds = near, time
    if seconds >= below:
        return None
    return Partition(split, modeled_seconds(stages, split), seconds)


def _fastest(stages: Stages, splits: Sequence[Split] | np.ndarray, below: float
             ) -> tuple[Split, float]:
    """Return the partition with the least simulated time, and that time.

    Args:
        stages: costs of the stages.
        splits: the partitions.
        below: seconds; partitions that a lower bound shows to take longer are not simulated. If
            all take longer, the time is infinite.
    """
    splits = np.array(splits, dtype=int).reshape(-1, len(stages.forward))
    bounds = _bounds(stages, splits)
    order = np.argsort(bounds, kind="stable")
    fastest: Split = ()
    seconds = np.inf
    for start in range(0, len(order), BATCH):
        chosen = [at for at in order[start:start + BATCH] if bounds[at] < min(below, seconds)]
        if not chosen:
            break
        times = step_seconds(stages, splits[chosen])
        if times.min() < seconds:
            fastest = tuple(splits[chosen[int(times.argmin())]].tolist())
            seconds = float(times.min())
    return fastest, seconds


def _bounds(stages: Stages, splits: np.ndarray) -> np.ndarray:
    """Return a lower bound of the simulated seconds of each partition, as lower_bounds does."""
    rows, m = np.arange(splits.shape[1]), stages.micro_batches
    both = stages.both[rows, splits]
    before = np.cumsum(both, axis=1) - both
    before[:, 1:] += 2 * np.cumsum(stages.send)
    waiting = rows[::-1] if stages.schedule == "1f1b" else 0 * rows
    through = both.sum(axis=1, keepdims=True) + 2 * stages.send.sum()
    passes = np.maximum(before + m * both,
                        through + np.where(m > waiting + 1, m - 1 - waiting / 2, 0) * both)
    if stages.schedule == "zb-h1":  # weight gradients wait until nothing else is to be done
        fill = np.cumsum(stages.forward[rows, splits], axis=1) - stages.forward[rows, splits]
        passes = fill + m * both
    return (passes.max(axis=1, initial=0) + stages.ends + stages.sync[0, splits[:, 0]]
            + stages.update[rows, splits].max(axis=1, initial=0)) * (1 - 1e-12)


def even(stages: Stages, below: float = np.inf) -> Partition | None:
    """Return the partition into equal parts, as far as the layers divide, or None if it is too big.

    This is what a trainer does without --balance.

    Args:
        stages: costs of the stages.
        below: as for best.
    """
    count, layers = stages.forward.shape[0], stages.forward.shape[1] - 1
    split = tuple(layers // count + (stage < layers % count) for stage in range(count))
    if not stages.fits[range(count), split].all():
        return None
    made = Partition(split, modeled_seconds(stages, split), float(step_seconds(stages, [split])[0]))
    return made if made.seconds < below else None


def simulated(stages: Stages, partition: Partition) -> Partition:
    """Return a partition with its simulated seconds, whatever it was ranked by."""
    return replace(partition, seconds=float(step_seconds(stages, [partition.layers])[0]))


def fasop(stages: Stages, below: float = np.inf) -> Partition | None:
    """Return FASOP's greedy partition (Hwang et al. 2024), simulated, or None if it does not fit.

    As its program does, it counts a message as part of the stage that receives it, except at the
    ends of the pipeline.

    Args:
        stages: costs of the stages.
        below: as for best.
    """
    times = stages.forward + stages.backward
    times[1:-1] += stages.send[:-1, None]
    if len(times) >= times.shape[1]:  # each stage gets a layer
        return None
    split = tuple(greedy(times.tolist()))
    if not stages.fits[range(len(split)), split].all():
        return None
    made = Partition(split, modeled_seconds(stages, split), float(step_seconds(stages, [split])[0]))
    return made if made.seconds < below else None


def amp(stages: Stages, below: float = np.inf) -> Partition | None:
    """Return AMP's partition with its modeled time as `seconds`, or None if it does not fit.

    AMP (Li et al. 2022) ranks plans by a formula, and leaves memory to a trial run. In its authors'
    program (src/pipe.py and src/cost_het_cluster.py of DachengLi1/AMP), a step takes the sum of all
    stages' passes and sends, m - 1 times the slowest stage's passes, and the slowest gradient
    synchronization. That is modeled_seconds plus a synchronization, with three differences: the
    program counts each send in one direction, averages the layer times of all kinds of GPUs, and
    splits evenly if m = 1. Here, sends count in both directions and a stage is as slow as its own
    GPUs; the end of the step also has the optimizer and the tied embedding.

    Args:
        stages: costs of the stages.
        below: as for best, of the modeled time.
    """
    counts = np.arange(stages.forward.shape[1])
    roomy = replace(stages, fits=np.broadcast_to(counts > 0, stages.forward.shape))
    for _, split in exact(roomy)[:1]:
        rows = range(len(split))
        if stages.fits[rows, split].all():
            modeled = modeled_seconds(stages, split)
            seconds = modeled + stages.ends + float(
                stages.sync[rows, split].max() + stages.update[rows, split].max())
            return Partition(split, modeled, seconds) if seconds < below else None
    return None


def _slowest(stages: Stages) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """Yield what bounds the slowest stage: seconds, in ascending order, the numbers of layers, and
    further seconds."""
    if stages.schedule != "gpipe":
        yield 0.0, stages.fits, stages.both
        return
    for limit in np.unique(stages.forward[stages.fits]):
        allowed = stages.fits & (stages.forward <= limit)
        if _feasible(allowed):
            yield float(limit), allowed, stages.backward


def _optima(stages: Stages, allowed: np.ndarray, cost: np.ndarray, weight: float
            ) -> tuple[np.ndarray, np.ndarray]:
    """Return each feasible limit on a stage's cost, and the best partition within it.

    All layers are alike, so a further layer of a stage never takes less time than the one before
    it (a stage as slow as its slowest GPU is convex in its layers). The least sum of all passes
    then has the layers that add the least time, each where the limit allows it.

    Args:
        stages: costs of the stages.
        allowed: the numbers of layers to choose from, [p, l + 1]; some partition has them.
        cost: what is limited; it grows with the layers, [p, l + 1].
        weight: seconds of the step per unit of the limit; a limit is left out if it costs more than
            the least one even with the least sum of passes.

    Returns:
        The limits [v], in ascending order, and for each the partition with the least sum of all
        passes of a micro-batch, [v, p] layers.
    """
    count, width = cost.shape
    least = allowed.argmax(axis=1)
    adds = np.maximum.accumulate(np.diff(stages.both, axis=1), axis=1)
    stage, layer = np.nonzero(allowed[:, 1:] & (np.arange(width - 1) >= least[:, None]))
    scale = adds.max(initial=0) * 1e-9 or 1.0  # equal GPUs differ by rounding alone
    order = np.lexsort((layer, stage, np.round(adds[stage, layer] / scale)))
    stage, layer = stage[order], layer[order]
    needs = width - 1 - int(least.sum())
    lowest = float(cost[range(count), least].max())
    reached = np.sort(np.maximum(cost[stage, layer + 1], lowest))
    # At least as many layers as are needed have to be within the limit.
    limits = np.unique(reached[needs - 1:]) if needs else np.array([lowest])
    times, reach = adds[stage, layer], cost[stage, layer + 1]
    gain = max(times[reach <= limits[0]][:needs].sum() - times[:needs].sum(), 0.0)
    limits = limits[weight * (limits - limits[0]) <= gain] if weight < np.inf else limits[:1]
    within = reach <= limits[:, None]
    taken = within & (np.cumsum(within, axis=1) <= needs)
    which, item = np.nonzero(taken)
    more = np.bincount(which * count + stage[item], minlength=len(limits) * count)
    return limits, least + more.reshape(len(limits), count)


def _sums(stages: Stages, splits: np.ndarray) -> np.ndarray:
    """Return the sum of all passes of a micro-batch for each partition, in seconds."""
    both = stages.both
    return both[np.arange(len(both)), splits].sum(axis=1)


def _feasible(allowed: np.ndarray) -> bool:
    """Return whether some partition has an allowed number of layers on every stage.

    More layers need more memory and time, so the allowed numbers of a stage are an interval.
    """
    counts = allowed.sum(axis=1)
    least = allowed.argmax(axis=1)
    return bool(counts.all()
                and least.sum() < allowed.shape[1] <= (least + counts).sum() - len(allowed) + 1)


def _neighbors(stages: Stages, split: Split) -> np.ndarray:
    """Return the partitions that fit and differ by one layer that moved, [c, p]."""
    rows, counts, most = np.arange(len(split)), np.array(split), stages.fits.shape[1] - 1
    gives = (counts > 0) & stages.fits[rows, np.maximum(counts - 1, 0)]
    takes = (counts < most) & stages.fits[rows, np.minimum(counts + 1, most)]
    source, target = np.nonzero(gives[:, None] & takes & (rows[:, None] != rows))
    moved = np.tile(counts, (len(source), 1))
    moved[np.arange(len(source)), source] -= 1
    moved[np.arange(len(source)), target] += 1
    return moved
