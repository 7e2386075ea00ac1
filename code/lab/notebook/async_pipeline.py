"""An asynchronous pipeline in one process, small enough to inspect: its stages are objects that
keep versions of their weight, and a schedule drives them.

PipeDream (Narayanan et al. 2019) updates after every micro-batch and stashes a version for each one
in flight; PipeDream-2BW (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training")
updates once a batch and keeps two; with a flush there is one. NAIVE keeps one as well, and does not
flush: its gradients are not those of any weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from labcore.errors import LabError
from pipeline_schedules import (
    FORWARD,
    Action,
    Handler,
    Schedule,
    Timeline,
    one_f_one_b,
    peak_live,
    replay,
    simulate,
)
from pipeline_schedules.actions import StageAction

NAIVE, PIPEDREAM, TWO_BUFFERS, FLUSH = "naive", "pipedream", "2bw", "flush"
POLICIES = (NAIVE, PIPEDREAM, TWO_BUFFERS, FLUSH)
WIDTH, SAMPLES, RATE = 4, 8, 0.5
Gradient = list[torch.Tensor]  # one per stage: [WIDTH, WIDTH]


class Stage:
    """One layer, y = tanh(x w), with every version of w that is still needed.

    The backward pass is written out, so that you can see which weight it uses.
    """

    def __init__(self, weight: torch.Tensor, policy: str, every: int) -> None:
        """Args:
            weight: the first version.
            policy: one of POLICIES.
            every: backward passes per update.
        """
        self.versions = {0: weight}
        self.history = [weight]  # all versions so far, to compare with afterwards
        self.policy, self.every = policy, every
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}  # in flight
        self.summed, self.count, self.most_versions = torch.zeros_like(weight), 0, 1

    @property
    def newest(self) -> int:
        return len(self.history) - 1

    def forward(self, micro_batch: int, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return y [SAMPLES, WIDTH], and the weight version that computed it.

        Args:
            micro_batch: its number.
            x: its input, [SAMPLES, WIDTH].
        """
        version = self.newest
        if self.policy == TWO_BUFFERS:
            # All stages use the same one: that before the newest that any of them may have.
            version = max(0, micro_batch // self.every - 1)
        y = torch.tanh(x @ self.versions[version])
        self.kept[micro_batch] = x, y, version
        return y, version

    def backward(self, micro_batch: int, gradient: torch.Tensor
                 ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return the gradients of x and of the weight, and the version that was used.

        Args:
            micro_batch: its number.
            gradient: of y, [SAMPLES, WIDTH].
        """
        x, y, version = self.kept.pop(micro_batch)
        if self.policy == NAIVE:
            version = self.newest
        inner = gradient * (1 - y * y)
        of_x, of_weight = inner @ self.versions[version].T, x.T @ inner
        self._learn(of_weight, micro_batch)
        return of_x, of_weight, version

    def _learn(self, gradient: torch.Tensor, micro_batch: int) -> None:
        self.summed, self.count = self.summed + gradient, self.count + 1
        if self.count % self.every == 0:
            self.history.append(self.history[-1] - RATE * self.summed / self.every)
            self.versions[self.newest] = self.history[-1]
            self.summed = torch.zeros_like(gradient)
        self._forget(micro_batch + 1)
        self.most_versions = max(self.most_versions, len(self.versions))

    def _forget(self, next_backward: int) -> None:
        """Drop the versions that no micro-batch needs, in flight or still to come."""
        needed = {self.newest}
        if self.policy != NAIVE:
            needed |= {version for _, _, version in self.kept.values()}
        if self.policy == TWO_BUFFERS:
            needed.add(max(0, next_backward // self.every - 1))
        self.versions = {number: self.versions[number] for number in sorted(needed)}


@dataclass(frozen=True)
class Run:
    """The results of a run.

    Attributes:
        policy: one of POLICIES.
        used: for each micro-batch and stage, the weight versions of the forward and backward pass.
        gradients: for each micro-batch and stage, the gradient of the stage's weight.
        losses: for each micro-batch.
        versions: for each stage, the largest number of versions that it kept at a time.
        history: for each stage, all versions of its weight.
        schedule: that drove the stages.
        timeline: of the schedule, with F, B, and W of one unit each.
    """

    policy: str
    used: list[list[tuple[int, int]]]
    gradients: list[Gradient]
    losses: list[float]
    versions: list[int]
    history: list[list[torch.Tensor]]
    schedule: Schedule
    timeline: Timeline

    @property
    def live(self) -> list[int]:
        """The largest number of micro-batches in flight on each stage."""
        return peak_live(self.schedule)

    @property
    def idle(self) -> float:
        """The bubble fraction."""
        return self.timeline.bubble_fraction


def schedule_of(policy: str, stages: int, micro_batches: int, batches: int) -> Schedule:
    """Return 1F1B across all batches; with FLUSH, the pipeline is flushed after each batch.

    Args:
        policy: one of POLICIES.
        stages: how many.
        micro_batches: per batch.
        batches: how many.
    """
    if policy != FLUSH:
        return one_f_one_b(stages, micro_batches * batches)
    once = one_f_one_b(stages, micro_batches)
    return [[Action(action.kind, batch * micro_batches + action.micro_batch)
             for batch in range(batches) for action in actions] for actions in once]


def run(policy: str, stages: int = 3, micro_batches: int = 4, batches: int = 3, seed: int = 0
        ) -> Run:
    """Train one layer per stage; the results are the same every time.

    The weights are updated after every micro-batch (NAIVE, PIPEDREAM), or after every batch.

    Args:
        policy: one of POLICIES.
        stages: how many.
        micro_batches: per batch.
        batches: how many.
        seed: of the weights and samples.

    Raises LabError for an unknown policy, and for 2BW with fewer micro-batches than stages, because
    two versions would not be enough.
    """
    _require(policy, stages, micro_batches, batches)
    weights, data = problem(stages, micro_batches * batches, seed)
    every = micro_batches if policy in (TWO_BUFFERS, FLUSH) else 1
    passes = Passes([Stage(weight, policy, every) for weight in weights], data)
    schedule = schedule_of(policy, stages, micro_batches, batches)
    replay(schedule, passes)
    numbers, forwards, backwards = range(len(data)), passes.forwards, passes.backwards
    return Run(
        policy,
        [[(forwards[s, k][1], backwards[s, k][2]) for s in range(stages)] for k in numbers],
        [[backwards[s, k][1] for s in range(stages)] for k in numbers],
        [loss(forwards[stages - 1, k][0], data[k][1]).item() for k in numbers],
        [stage.most_versions for stage in passes.stages],
        [stage.history for stage in passes.stages], schedule, simulate(schedule))


class Passes(Handler):
    """Runs the stages' passes.

    Attributes:
        forwards: {(stage, micro-batch): the result of Stage.forward}.
        backwards: {(stage, micro-batch): the result of Stage.backward}.
    """

    def __init__(self, stages: list[Stage], data: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Args:
            stages: of the pipeline, in order.
            data: the input and target of every micro-batch.
        """
        self.stages, self.data = stages, data
        self.forwards: dict[tuple[int, int], tuple[torch.Tensor, int]] = {}
        self.backwards: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, int]] = {}

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        k = action.micro_batch
        x, target = self.data[k]
        if action.kind == FORWARD:
            given = x if source is None else self.forwards[source[0], k][0]
            self.forwards[stage, k] = self.stages[stage].forward(k, given)
        else:
            given = (loss_gradient(self.forwards[stage, k][0], target) if source is None
                     else self.backwards[source[0], k][0])
            self.backwards[stage, k] = self.stages[stage].backward(k, given)


def _require(policy: str, stages: int, micro_batches: int, batches: int) -> None:
    if policy not in POLICIES:
        raise LabError(f"policy {policy!r}: there are {', '.join(POLICIES)}")
    if min(stages, micro_batches, batches) < 1:
        raise LabError(f"{stages} stages, {micro_batches} micro-batches, {batches} batches: each "
                       "is at least 1")
    if policy == TWO_BUFFERS and micro_batches < stages:
        raise LabError(f"2bw with {micro_batches} micro-batches in a batch and {stages} stages: "
                       f"a micro-batch would outlive two updates; take at least {stages}")


def problem(stages: int, micro_batches: int, seed: int = 0
            ) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return the initial weight [WIDTH, WIDTH] of every stage, and the input and target [SAMPLES,
    WIDTH] of every micro-batch, in float64, so that visible differences are not rounding errors.

    Args:
        stages: how many.
        micro_batches: how many in all.
        seed: of all values.
    """
    dice = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> torch.Tensor:
        return torch.randn(rows, WIDTH, generator=dice, dtype=torch.float64)

    weights = [draw(WIDTH) / WIDTH**0.5 for _ in range(stages)]
    teacher = draw(WIDTH) / WIDTH**0.5
    inputs = [draw(SAMPLES) for _ in range(micro_batches)]
    return weights, [(x, torch.tanh(x @ teacher)) for x in inputs]


def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((y - target) ** 2).sum() / len(y)


def loss_gradient(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 2 * (y - target) / len(y)


def gradient_at(weights: Sequence[torch.Tensor], x: torch.Tensor, target: torch.Tensor) -> Gradient:
    """Compute the gradients of the loss with autograd, one per stage.

    Args:
        weights: of the stages.
        x: the input of the first stage.
        target: for the output of the last stage.
    """
    leaves = [weight.clone().requires_grad_() for weight in weights]
    y = x
    for weight in leaves:
        y = torch.tanh(y @ weight)
    return list(torch.autograd.grad(loss(y, target), leaves))


def nearest(found: Run, micro_batch: int, seed: int = 0) -> tuple[float, tuple[int, ...]]:
    """Find the combination of weight versions whose gradient is nearest to that of a micro-batch.

    Args:
        found: the run.
        micro_batch: its number.
        seed: of the run.

    Returns (distance divided by the norm of the gradient, version of every stage). If the distance
    is 0, the gradient is that of these weights; otherwise, it is not the gradient of any weights.
    """
    stages = len(found.history)
    _, data = problem(stages, len(found.gradients), seed)
    mine = torch.cat([part.flatten() for part in found.gradients[micro_batch]])
    best: tuple[float, tuple[int, ...]] = (float("inf"), ())
    for versions in product(*(range(len(history)) for history in found.history)):
        weights = [found.history[stage][version] for stage, version in enumerate(versions)]
        true = torch.cat([part.flatten() for part in gradient_at(weights, *data[micro_batch])])
        best = min(best, ((true - mine).norm().item() / mine.norm().item(), versions))
    return best
