"""A plan, and comparisons of plans by time and dollars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster_planner.partition import Partition
from cluster_planner.placement import Placement
from cluster_planner.stages import Stages, TrainingConfig


@dataclass(frozen=True)
class ClusterPlan:
    """A plan.

    Attributes:
        placement: its layout, on its nodes.
        config: its other choices.
        partition: its layers per stage.
        stages: what its stages cost.
        dollars_per_hour: of the GPUs that it uses; None if one has no price.
        shares: micro-batches of each replica, if they differ.
    """

    placement: Placement
    config: TrainingConfig
    partition: Partition
    stages: Stages = field(repr=False)
    dollars_per_hour: float | None = None
    shares: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        """Simulated seconds of a step."""
        return self.partition.time

    @property
    def dollars(self) -> float | None:
        """Dollars of a step."""
        if self.dollars_per_hour is None:
            return None
        return self.seconds * self.dollars_per_hour / 3600

    @property
    def gpus(self) -> int:
        """Number of GPUs that it uses."""
        return len(self.placement.nodes)


def least_seconds(plans: Sequence[ClusterPlan], rate: float) -> float:
    """Return the seconds below which none of these plans beats a plan at this rate."""
    return min((one.seconds * max(1.0, (one.dollars_per_hour or 0) / rate if rate else 1.0)
                for one in plans), default=float("inf"))


def beats(one: ClusterPlan, other: ClusterPlan) -> bool:
    """Return whether a plan is at least as fast and cheap as another."""
    return one.seconds <= other.seconds and (one.dollars or 0) <= (other.dollars or 0)


def added(plans: Sequence[ClusterPlan], plan: ClusterPlan) -> list[ClusterPlan]:
    """Return the plans with a further one, without those that it beats."""
    return [one for one in plans if not beats(plan, one)] + [plan]
