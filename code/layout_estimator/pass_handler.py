"""Base class of the handlers that add up the costs of a program's passes."""

from __future__ import annotations

from collections.abc import Sequence

from layout_estimator.stage_cost import PassCost, StageCost
from pipeline_schedules import Action, Handler


class CostHandler(Handler):
    """Looks up the measured cost of each action of a program."""

    def __init__(self, costs: Sequence[StageCost]) -> None:
        self.costs = costs
        self._begun: set[tuple[int, str, int]] = set()

    def pass_cost(self, stage: int, action: Action) -> PassCost:
        """Return the cost of the stage's next action; the first of its kind costs differently.

        Args:
            stage: the stage that runs it.
            action: the action.
        """
        key = stage, action.kind, action.chunk
        is_first = key not in self._begun
        self._begun.add(key)
        return self.costs[stage].pass_cost(action, is_first)
