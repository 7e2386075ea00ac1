"""Partitions of a model's layers: which stages may be empty, and the partition that FASOP finds."""

from __future__ import annotations

from collections.abc import Sequence


def fewest_layers(stages: int) -> list[int]:
    """Return the fewest layers of each stage: none on the outer ones, one on each between them.

    The first stage also has the embedding, and the last one the head, so they compute something
    even without a layer. The trainer refuses other empty stages, and so do the planners.
    """
    return [int(0 < stage < stages - 1) for stage in range(stages)]


def empty_stage(split: Sequence[int]) -> int | None:
    """Return the first stage that has fewer layers than it needs, or None."""
    needed = fewest_layers(len(split))
    return next((stage for stage, count in enumerate(split) if count < needed[stage]), None)


def fasop(times: Sequence[Sequence[float]]) -> list[int]:
    """Return the layers of each stage by FASOP's greedy search (Hwang et al. 2024).

    It begins with equal stages, of which the last one, and then the first ones, have the remaining
    layers, as in [7, 6, 6, 6, 6, 6, 6, 7] of the authors' FASOP/main_logs/gpt2_heterogeneous.csv.
    It moves a layer from the slowest stage to the fastest one, and stops before the slowest stage
    would get slower or a partition would repeat. Every stage keeps a layer. Memory is not
    considered: FASOP drops plans that do not fit later. This follows the authors' published program
    (github.com/AvatarHwang/FASOP), of which no line was copied.

    Args:
        times: seconds of stage s with n layers, in any unit, [p][l + 1].

    Raises:
        ValueError: there are more stages than layers.
    """
    stages, layers = len(times), len(times[0]) - 1
    if stages > layers:
        raise ValueError(f"{stages} stages: FASOP gives each a layer, and there are {layers}")
    split = [layers // stages] * stages
    for stage in range(layers % stages):
        split[stage - 1] += 1
    now, seen = [time[count] for time, count in zip(times, split, strict=True)], set()
    worst = max(now)
    while True:
        seen.add(tuple(split))
        slowest, fastest = now.index(worst), now.index(min(now))
        if split[slowest] == 1 or slowest == fastest:
            break
        for stage, change in ((slowest, -1), (fastest, 1)):
            split[stage] += change
            now[stage] = times[stage][split[stage]]
        if max(now) > worst or tuple(split) in seen:  # take the move back
            split[slowest] += 1
            split[fastest] -= 1
            break
        worst = max(now)
    return split
