"""Lower bounds of the time of a step, for all placements of a layout at once.

They are looser than partition.lower_bounds, but most placements need no other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layout_estimator.cluster_planner.placement import Placement
from layout_estimator.cluster_planner.profiles import Profiles
from layout_estimator.cluster_planner.stages import ModelSpec, TrainingConfig, ends_seconds, rows_of


class SeatTable:
    """The seats of several placements of one layout.

    Attributes:
        placements: the placements.
        seats: the distinct pairs of a seat and the stage's number.
        numbers: each stage's pair, [c, p].
    """

    def __init__(self, placements: Sequence[Placement]) -> None:
        self.placements, numbers = placements, {}
        self.numbers = np.array([[numbers.setdefault((seat, stage), len(numbers))
                                  for stage, seat in enumerate(placement.seats)]
                                 for placement in placements])
        self.seats = list(numbers)


def of_placements(model: ModelSpec, table: SeatTable, config: TrainingConfig, profiles: Profiles
                  ) -> np.ndarray:
    """Return a lower bound of the simulated seconds of a step for each placement, [c].

    It is infinite where no partition fits. As in partition.lower_bounds, the slowest stage computes
    m micro-batches, or m - 1 - w / 2 of them beside a round trip through all stages; here, the
    round trip takes the layers that add the least time, and w = p - 1.

    Args:
        model: the model and the batch.
        table: the seats of the placements.
        config: the choices besides them.
        profiles: costs of the model's parts.
    """
    first = table.placements[0]
    rows = rows_of(model, first.sizes, config, profiles, table.seats)
    if rows is None:
        return np.full(len(table.placements), np.inf)
    m = model.global_batch // (config.micro_batch * first.sizes.data)
    both, fits = rows["forward"] + rows["backward"] + rows["weight"], rows["fits"]
    every, least = np.arange(len(both)), fits.argmax(axis=1)
    most = np.where(fits.any(axis=1), least + fits.sum(axis=1) - 1, -model.layers - 1)
    inside = fits[:, 1:] & (np.arange(model.layers) >= least[:, None])
    reach = np.where(inside, both[:, 1:], np.inf)
    adds = np.where(inside, np.diff(both, axis=1), np.inf)
    at = table.numbers
    needs = model.layers - least[at].sum(axis=1)
    possible = (needs >= 0) & (most[at].sum(axis=1) >= model.layers)
    slowest = both[every, least][at].max(axis=1)
    through = both[every, least][at].sum(axis=1)
    for number in np.unique(needs[possible]).tolist():
        chosen = possible & (needs == number)
        if number:
            layers = np.partition(reach[at[chosen]].reshape(chosen.sum(), -1), number - 1, axis=1)
            slowest[chosen] = np.maximum(slowest[chosen], layers[:, number - 1])
            layers = np.partition(adds[at[chosen]].reshape(chosen.sum(), -1), number - 1, axis=1)
            through[chosen] += layers[:, :number].sum(axis=1)
    waiting = first.sizes.pipeline - 1 if config.schedule == "1f1b" else 0
    further = m - 1 - waiting / 2 if m > waiting + 1 else 0
    sends = np.array([2 * sum(placement.send_seconds(model.sent_bytes(config)))
                      for placement in table.placements])
    end = (np.array([ends_seconds(model, placement) for placement in table.placements])
           + rows["sync"][every, least][at[:, 0]] + rows["update"][every, least][at].max(axis=1))
    bounds = np.maximum(m * slowest, sends + through + further * slowest) + end
    return np.where(possible, bounds * (1 - 1e-12), np.inf)
