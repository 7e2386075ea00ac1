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
from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb

import numpy as np

from cluster_planner.stages import Stages
from cluster_planner.timing import step_times
from pipeline_schedules import fasop as greedy

Split = tuple[int, ...]
Partitioner = Callable[[Stages, float], "Partition | None"]
BATCH = 32  # partitions that are simulated at once
CHOICES = 150  # ways to choose the stages of layers that move at once
LESS = 1 - 1e-9  # of a time is shorter than by rounding


@dataclass(frozen=True)
class Partition:
    """A partition and its time.

    Attributes:
        layers: of every stage.
        time: simulated time of the step.
    """

    layers: Split
    time: float


def least_time(stages: Stages) -> float:
    """Return a time that no partition's step is below, modeled or simulated, whatever it needs.

    All passes of the slowest stage follow one another. Its passes grow with its layers, so all
    layers are within a limit only if as many entries of `both` are.
    """
    both = stages.both[:, 1:]
    layers = both.shape[1]
    slowest = np.partition(both, layers - 1, axis=None)[layers - 1]
    return float(stages.micro_batches * slowest) * LESS


def modeled_time(stages: Stages, layers: Split) -> float:
    """Return the time of a step's passes in the cost model above."""
    return float(_modeled_times(stages, np.array([layers]))[0])


def _modeled_times(stages: Stages, splits: np.ndarray) -> np.ndarray:
    """Return modeled_time of each partition, [c]."""
    rows = np.arange(splits.shape[1])
    both = slowest = stages.both[rows, splits]
    if stages.schedule == "gpipe":
        forward = stages.forward[rows, splits]
        slowest = forward.max(axis=1, keepdims=True) + (both - forward)
    return (both.sum(axis=1) + (stages.micro_batches - 1) * slowest.max(axis=1)
            + 2 * stages.send.sum())


def exact(stages: Stages) -> list[tuple[float, Split]]:
    """Return partitions as (modeled time, layers), the optimum of the cost model first.

    The others are optimal for other limits on the slowest stage. The list is empty if no partition
    fits the memory.
    """
    optima: dict[Split, float] = {}
    if not _feasible(stages.fits):
        return []
    further, sends = stages.micro_batches - 1, 2 * stages.send.sum()
    least = np.inf  # modeled time so far; limits that cannot improve on them are left out
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
        splits = splits[bounds <= least]
        times = _modeled_times(stages, splits)
        optima.update(zip(map(tuple, splits.tolist()), times.tolist(), strict=True))
        least = min(least, times.min(initial=np.inf))
    return sorted((time, split) for split, time in optima.items())


def balanced(stages: Stages) -> Split | None:
    """Return the partition whose slowest stage is fastest, or None if none fits the memory.

    Among several, it has the least time of all stages together.
    """
    if not _feasible(stages.fits):
        return None
    _, splits = _optima(stages, stages.fits, stages.both, np.inf)
    return tuple(splits[0].tolist())


def lean_splits(stages: Stages) -> np.ndarray:
    """Return the partition with the least sum of passes for each limit on a stage, [v, p]."""
    if not _feasible(stages.fits):
        return np.empty((0, len(stages.fits)), dtype=int)
    return _optima(stages, stages.fits, stages.both, 0)[1]


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
        below: a time; a partition that takes as long is of no use.
    """
    return _improved(stages, *_fastest(stages, [split for _, split in exact(stages)], below), below)


def improved(stages: Stages, split: Split, below: float = np.inf, most: int = 1
             ) -> Partition | None:
    """Return the best partition that moving layers from one stage to another leads to, or None.

    The partition whose slowest stage is fastest is not always the one with the shortest step: with
    few micro-batches, filling and draining the pipeline counts, too.

    Args:
        stages: costs of the stages.
        split: the partition to begin with.
        below: as for best.
        most: layers that may move at once, where moving single ones does not help.
    """
    if not stages.fits[range(len(split)), split].all():
        return None
    return _improved(stages, split, float(step_times(stages, [split])[0]), below, most)


def _improved(stages: Stages, split: Split, time: float, below: float, most: int = 1
              ) -> Partition | None:
    """Return what improved() does; `time` is the simulated time of `split`, if there is one."""
    if not split:
        return None
    while True:
        least = time * LESS
        for moving in dict.fromkeys((1, most)):
            near, found = _fastest(stages, _neighbors(stages, split, moving), min(least, below))
            if found < least:
                split, time = near, found
                break
        if time >= least:
            break
    return Partition(split, time) if time < below else None


def _fastest(stages: Stages, splits: Sequence[Split] | np.ndarray, below: float
             ) -> tuple[Split, float]:
    """Return the partition with the least simulated time, and that time.

    Args:
        stages: costs of the stages.
        splits: the partitions.
        below: a time; partitions that a lower bound shows to take longer are not simulated. If all
            take longer, the time is infinite.
    """
    splits = np.array(splits, dtype=int).reshape(-1, len(stages.forward))
    least = bounds(stages, splits, loose=True)  # such a partition may still be improved
    order = np.argsort(least, kind="stable")
    fastest: Split = ()
    time = np.inf
    for start in range(0, len(order), BATCH):
        chosen = order[start:start + BATCH]
        chosen = chosen[least[chosen] < min(below, time)]
        if not len(chosen):
            break
        times = step_times(stages, splits[chosen])
        if times.min() < time:
            fastest = tuple(splits[chosen[int(times.argmin())]].tolist())
            time = float(times.min())
    return fastest, time


def bounds(stages: Stages, splits: np.ndarray, *, loose: bool = False) -> np.ndarray:
    """Return a lower bound of the simulated time of each partition, [c].

    Before a stage starts, the first micro-batch passes through the stages before it; after it ends,
    the last gradient passes back through them. In between, the stage runs all its passes, and 1F1B
    makes it wait for a trip to the last stage and back twice: its first backward pass follows w + 1
    forward passes, and its last forward pass comes before w + 1 backward passes, where w is the
    number of stages behind it. The other passes do not overlap with the trip. Under GPipe, a stage
    waits for one such trip. In ZB-H1, weight gradients wait until nothing else is to be done.

    Args:
        stages: costs of the stages, with one chunk each.
        splits: the partitions, [c, p] layers.
        loose: count one trip in place of two under 1F1B, as lower_bounds does.
    """
    rows, m = np.arange(splits.shape[1]), stages.micro_batches
    forward, backward = stages.forward[rows, splits], stages.backward[rows, splits]
    both = stages.both[rows, splits]
    sync, sent = stages.sync[rows, splits], np.concatenate([[0.0], np.cumsum(stages.send)])
    filled = np.cumsum(forward, axis=1) - forward + sent + sync
    work = m * both
    if stages.schedule == "zb-h1":
        ends = work + filled + np.where((rows == 0) | (rows == rows[-1]), stages.ends, 0.0)
    else:
        before = np.cumsum(both, axis=1) - both
        after = both.sum(axis=1, keepdims=True) - before - both + 2 * (sent[-1] - sent)
        back = before + 2 * sent + stages.ends + sync[:, :1]
        if stages.schedule == "1f1b":
            after = np.maximum(_waits(after, forward, backward, m, loose), 0)
        ends = work + after + (back if loose else np.maximum(filled, back))
    return (ends.max(axis=1) + stages.update[rows, splits].max(axis=1)) * (1 - 1e-12)


def _waits(trip: np.ndarray, forward: np.ndarray, backward: np.ndarray, m: int, loose: bool
           ) -> np.ndarray:
    """Return how long each stage waits under 1F1B, as bounds counts it, [c, p].

    Args:
        trip: the time of a trip from the stage to the last one and back, without its own passes.
        forward: the time of a forward pass.
        backward: the time of a backward pass.
        m: micro-batches of a step.
        loose: as for bounds.
    """
    both, behind = forward + backward, np.arange(trip.shape[1])[::-1]
    twice = 2 * trip - behind * both
    if loose:
        return np.where(m > behind + 1, twice / 2, trip - (m - 1) * both)
    once = np.where(m > behind, trip - behind * np.minimum(forward, backward), 0)
    return np.maximum(once, np.where(m > behind + 1, twice, 0))


def even_split(layers: int, stages: int, *, spread: bool = False) -> Split:
    """Return equal parts, as far as the layers divide, as a trainer has them without --balance.

    Args:
        layers: of the model.
        stages: the number of stages.
        spread: whether the stages with a further layer are spread over the pipeline; otherwise,
            they are the first ones.
    """
    if spread:
        return tuple(layers * (stage + 1) // stages - layers * stage // stages
                     for stage in range(stages))
    return tuple(layers // stages + (stage < layers % stages) for stage in range(stages))


def even(stages: Stages, below: float = np.inf) -> Partition | None:
    """Return the partition of even_split, or None if it does not fit.

    Args:
        stages: costs of the stages.
        below: as for best.
    """
    count, width = stages.forward.shape
    return _timed(stages, even_split(width - 1, count), below)


def simulated(stages: Stages, partition: Partition) -> Partition:
    """Return a partition with its simulated time, whatever it was ranked by."""
    return replace(partition, time=float(step_times(stages, [partition.layers])[0]))


def _timed(stages: Stages, split: Split, below: float) -> Partition | None:
    """Return a partition with its simulated time, or None if it does not fit or is too slow."""
    if not stages.fits[range(len(split)), split].all() or (
            stages.chunks == 1 and bounds(stages, np.array([split]))[0] >= below):
        return None
    time = float(step_times(stages, [split])[0])
    return Partition(split, time) if time < below else None


def fasop(stages: Stages, below: float = np.inf, *, sends: bool = True) -> Partition | None:
    """Return FASOP's greedy partition (Hwang et al. 2024), simulated, or None if it does not fit.

    Args:
        stages: costs of the stages.
        below: as for best.
        sends: whether to count a message as part of the stage that receives it, except at the ends
            of the pipeline, as the authors' program does.
    """
    times = stages.forward + stages.backward
    if sends:
        times[1:-1] += stages.send[:-1, None]
    if len(times) >= times.shape[1]:  # each stage gets a layer
        return None
    return _timed(stages, tuple(greedy(times.tolist())), below)


def amp(stages: Stages, below: float = np.inf) -> Partition | None:
    """Return AMP's partition with its modeled time as `time`, or None if it does not fit.

    AMP (Li et al. 2022) ranks plans by a formula, and leaves memory to a trial run. In its authors'
    program (src/pipe.py and src/cost_het_cluster.py of DachengLi1/AMP), a step takes the sum of all
    stages' passes and sends, m - 1 times the slowest stage's passes, and the slowest gradient
    synchronization. That is modeled_time plus a synchronization, with three differences: the
    program counts each send in one direction, averages the layer times of all kinds of GPUs, and
    splits evenly if m = 1. Here, sends count in both directions and a stage is as slow as its own
    GPUs; the end of the step also has the optimizer and the tied embedding.

    Args:
        stages: costs of the stages.
        below: as for best, of the modeled time.
    """
    counts = np.arange(stages.forward.shape[1])
    roomy = replace(stages, fits=np.broadcast_to(counts > 0, stages.forward.shape))
    for modeled, split in exact(roomy)[:1]:
        rows = range(len(split))
        if stages.fits[rows, split].all():
            time = modeled + stages.ends + float(
                stages.sync[rows, split].max() + stages.update[rows, split].max())
            return Partition(split, time) if time < below else None
    return None


def _slowest(stages: Stages) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """Yield what bounds the slowest stage: times, in ascending order, the numbers of layers, and
    further times."""
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
        weight: time of the step per unit of the limit; a limit is left out if it costs more than
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
    """Return the sum of all passes of a micro-batch for each partition, [c]."""
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


def _neighbors(stages: Stages, split: Split, most: int) -> np.ndarray:
    """Return the partitions that fit and differ by up to `most` layers that moved, [c, p]."""
    splits = np.array(split) + moves(len(split), most)
    inside = ((splits >= 0) & (splits < stages.fits.shape[1])).all(axis=1)
    splits = splits[inside]
    return splits[stages.fits[np.arange(len(split)), splits].all(axis=1)]


@lru_cache(maxsize=64)
def moves(stages: int, most: int) -> np.ndarray:
    """Return how layers can move between stages, as the change of each stage, [c, p].

    Args:
        stages: the number of stages of the pipeline.
        most: the maximum number of layers that move; fewer, down to one, for many stages.
    """
    changes = []
    for count in range(1, most + 1):
        if count > 1 and comb(stages + count - 1, count) > CHOICES:
            break
        chosen = np.array(list(combinations_with_replacement(range(stages), count)))
        units = np.eye(stages, dtype=int)[chosen].sum(axis=1)  # how many of them each stage has
        taken, given = np.nonzero(units @ units.T == 0)  # no stage gives layers and gets some
        changes.append(units[given] - units[taken])
    return np.concatenate(changes)
