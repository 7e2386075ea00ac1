"""Schedules as data: for every pipeline stage, the ordered list of what it computes.

A schedule holds compute actions only; what is sent and received follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

FORWARD, BACKWARD = "F", "B"


@dataclass(frozen=True)
class Action:
    """Run `kind` for one micro-batch on one chunk of this stage's layers."""

    kind: str
    micro_batch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}"


def one_f_one_b(stages: int, micro_batches: int) -> list[list[Action]]:
    """1F1B (Narayanan et al. 2019, PipeDream-Flush): [stages] lists of actions.

    A stage warms up with as many forwards as there are stages behind it, then alternates, then
    drains. With one stage this is plain gradient accumulation: F0 B0 F1 B1 ...
    """
    schedule = []
    for stage in range(stages):
        warm_up = min(stages - stage - 1, micro_batches)
        actions = [Action(FORWARD, k) for k in range(warm_up)]
        for k in range(micro_batches - warm_up):
            actions += [Action(FORWARD, warm_up + k), Action(BACKWARD, k)]
        actions += [Action(BACKWARD, k) for k in range(micro_batches - warm_up, micro_batches)]
        schedule.append(actions)
    return schedule
