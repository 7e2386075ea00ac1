"""Published schedules with two chunks per stage, placed in a V: ZBV and DualPipeV.

Stage s holds parts s and 2 * stages - 1 - s of a model in 2 * stages parts. A micro-batch turns
around on the last stage and ends where it began, so gradients start on stage 0, and every stage
holds as many activations as the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from pipeline_schedules.actions import BACKWARD, WEIGHT, Action, VShaped
from pipeline_schedules.builtin import at_least_one


class _Stage:
    """The actions of one stage; micro-batches are numbered per kind and chunk as they come."""

    def __init__(self, micro_batches: int) -> None:
        self.micro_batches = micro_batches
        self.actions: list[Action] = []
        self.counts: Counter[tuple[str, int]] = Counter()
        self.waiting: list[Action] = []  # weight gradients that were put off
        self.whole: list[Action] = []  # backward passes that were not split

    def run(self, times: int, *passes: str) -> None:
        """Repeat passes such as "F0", chunk 0's forward, of the next micro-batch each time.

        "B0" computes the gradient of the inputs alone, "BW0" both at once, and "W" the weight
        gradient that has waited longest, "W0" that of chunk 0.
        """
        for _ in range(times):
            for name in passes:
                self._run_one(name)

    def _run_one(self, name: str) -> None:
        if name.startswith(WEIGHT):
            ready = [action for action in self.waiting if name in (WEIGHT, f"W{action.chunk}")]
            if ready:
                self.waiting.remove(ready[0])
                self.actions.append(ready[0])
            return
        kind, chunk = name[0], int(name[-1])
        number = self.counts[kind, chunk]
        self.counts[kind, chunk] += 1
        if number >= self.micro_batches:  # a longer pipeline than there are micro-batches for it
            return
        self.actions.append(Action(kind, number, chunk))
        if kind == BACKWARD:
            weight = Action(WEIGHT, number, chunk)
            if name.startswith("BW"):
                self.whole.append(self.actions[-1])
                self.actions.append(weight)
            else:
                self.waiting.append(weight)


def zbv(stages: int, micro_batches: int) -> VShaped:
    """Return ZBV (Qi et al. 2023, section 6, and Qi et al. 2024, "V-ZB"): no bubble, 1F1B's memory.

    If F, B, and W take the same time and micro_batches >= 2 stages - 1, no stage waits between its
    first and its last action. Every stage has at most 2 stages chunks in flight, as many as fit
    into the memory of the first stage of 1F1B.

    Args:
        stages: the number of pipeline stages.
        micro_batches: micro-batches per step.

    Raises:
        ScheduleError: a number is below 1.
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    numbered = max(micro_batches, 2 * stages - 1)
    schedule = VShaped()
    for s in range(stages):
        stage = _Stage(micro_batches)
        stage.run(2 * (stages - s) - 1, "F0")  # until the first micro-batch comes back
        stage.run(s, "F1", "F0")
        stage.run(stages - s, "F1", "BW1")  # until the first gradient comes back
        stage.run(numbered - (2 * stages - 1 - s), "F0", "BW0", "F1", "BW1")
        stage.run(stages - 1 - s, "BW0", "F1", "BW1")
        stage.run(s, "B0", "B1")
        stage.run(stages - s, "B0", "W0")
        stage.run(numbered, "W1")
        stage.run(numbered, "W0")
        schedule.append(stage.actions)
    return schedule


def dualpipev(stages: int, micro_batches: int) -> VShaped:
    """Return DualPipeV (Sea AI Lab's "cut in half" of the DualPipe in DeepSeek-V3's report, 2024).

    In the steady state, a forward of one chunk comes with a backward of the other, whose
    communication it hides. A simulation runs them one after the other, unless its durations have
    the time of a pair.

    Args:
        stages: the number of pipeline stages.
        micro_batches: micro-batches per step.

    Raises:
        ScheduleError: a number is below 1.
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    numbered = max(micro_batches, 2 * stages)
    made = [_Stage(micro_batches) for _ in range(stages)]
    for s, stage in enumerate(made):
        later = stages - 1 - s
        stage.run(2 * later, "F0")
        stage.run(s + 1, "F0", "F1")
        stage.run(later, "B1", "W", "F1")
        stage.run(numbered - stages - later, "F0", "BW1", "F1", "BW0")
        stage.run(later, "BW1", "F1", "BW0")
        half = (s + 1) // 2
        stage.run(half, "BW1", "BW0")
        if s % 2:
            stage.run(s + 1 - half, "B1", "B0")
        else:
            stage.run(1, "BW1", "B0")
            stage.run(s - half, "B1", "B0")
        stage.run(later, "W", "B0")
        stage.run(s + 1, "W")
    return VShaped([stage.actions for stage in made],
                   whole=[(s, action) for s, stage in enumerate(made) for action in stage.whole])


V_SHAPED: dict[str, Callable[[int, int], VShaped]] = {"zbv": zbv, "dualpipev": dualpipev}
