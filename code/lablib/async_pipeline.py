"""Run an asynchronous pipeline in one process, small enough to inspect.

Its stages are objects that keep versions of their weight, and a schedule drives them. PipeDream
(Narayanan et al. 2019) updates after every micro-batch and stashes a version for each one in
flight. PipeDream-2BW (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training")
updates once per batch and keeps two versions. With a flush, there is one version. NAIVE also keeps
one, but does not flush, so its gradients are not those of any weights.
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


class VersionedStage:
    """One layer, y = tanh(x w), with every version of w that is still needed.

    The backward pass is spelled out, so that you can see which weight it uses.
    """

    def __init__(self, weight: torch.Tensor, policy: str, update_interval: int) -> None:
        """Args:
            weight: the first version, [WIDTH, WIDTH].
            policy: one of POLICIES.
            update_interval: backward passes per update.
        """
        self.versions = {0: weight}
        self.history = [weight]  # all versions so far, for later comparisons
        self.policy, self.update_interval = policy, update_interval
        self.in_flight: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self.summed, self.count, self.max_versions = torch.zeros_like(weight), 0, 1

    @property
    def newest(self) -> int:
        return len(self.history) - 1

    def forward(self, micro_batch: int, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return y, [SAMPLES, WIDTH], and the weight version that computed it.

        Args:
            micro_batch: its number.
            x: its input, [SAMPLES, WIDTH].
        """
        version = self.newest
        if self.policy == TWO_BUFFERS:
            # All stages use the same version: the one before the newest that any of them may have.
            version = max(0, micro_batch // self.update_interval - 1)
        y = torch.tanh(x @ self.versions[version])
        self.in_flight[micro_batch] = x, y, version
        return y, version

    def backward(self, micro_batch: int, gradient: torch.Tensor
                 ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return the gradients of x and of the weight, and the version that was used.

        Args:
            micro_batch: its number.
            gradient: the gradient of y, [SAMPLES, WIDTH].
        """
        x, y, version = self.in_flight.pop(micro_batch)
        if self.policy == NAIVE:
            version = self.newest
        inner = gradient * (1 - y * y)
        x_gradient, weight_gradient = inner @ self.versions[version].T, x.T @ inner
        self._accumulate(weight_gradient, micro_batch)
        return x_gradient, weight_gradient, version

    def _accumulate(self, gradient: torch.Tensor, micro_batch: int) -> None:
        self.summed, self.count = self.summed + gradient, self.count + 1
        if self.count % self.update_interval == 0:
            self.history.append(self.history[-1] - RATE * self.summed / self.update_interval)
            self.versions[self.newest] = self.history[-1]
            self.summed = torch.zeros_like(gradient)
        self._drop_unused(micro_batch + 1)
        self.max_versions = max(self.max_versions, len(self.versions))

    def _drop_unused(self, next_backward: int) -> None:
        """Drop the versions that no micro-batch needs, neither in flight nor in the future."""
        needed = {self.newest}
        if self.policy != NAIVE:
            needed |= {version for _, _, version in self.in_flight.values()}
        if self.policy == TWO_BUFFERS:
            needed.add(max(0, next_backward // self.update_interval - 1))
        self.versions = {number: self.versions[number] for number in sorted(needed)}


@dataclass(frozen=True)
class PipelineRun:
    """The results of a run.

    Attributes:
        policy: one of POLICIES.
        used: for each micro-batch and stage, the weight versions of the forward and backward pass.
        gradients: for each micro-batch and stage, the gradient of the stage's weight.
        losses: the loss of each micro-batch.
        versions: for each stage, the largest number of versions that it kept at a time.
        history: for each stage, all versions of its weight.
        schedule: the schedule that drove the stages.
        timeline: the schedule's timeline, with F, B, and W of one unit each.
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

    The arguments are those of `run`.
    """
    if policy != FLUSH:
        return one_f_one_b(stages, micro_batches * batches)
    one_batch = one_f_one_b(stages, micro_batches)
    return [[Action(action.kind, batch * micro_batches + action.micro_batch)
             for batch in range(batches) for action in actions] for actions in one_batch]


def run(policy: str, stages: int = 3, micro_batches: int = 4, batches: int = 3, seed: int = 0
        ) -> PipelineRun:
    """Train one layer per stage; the results are the same every time.

    The weights are updated after every micro-batch (NAIVE, PIPEDREAM), or after every batch.

    Args:
        policy: one of POLICIES.
        stages: the number of stages.
        micro_batches: the number of micro-batches per batch.
        batches: the number of batches.
        seed: the seed of the weights and samples.

    Raises:
        LabError: the policy is unknown, or 2BW has fewer micro-batches than stages, so that two
            versions would not be enough.
    """
    _require(policy, stages, micro_batches, batches)
    weights, data = problem(stages, micro_batches * batches, seed)
    update_interval = micro_batches if policy in (TWO_BUFFERS, FLUSH) else 1
    passes = StagePasses([VersionedStage(weight, policy, update_interval) for weight in weights],
                         data)
    schedule = schedule_of(policy, stages, micro_batches, batches)
    replay(schedule, passes)
    numbers, forwards, backwards = range(len(data)), passes.forwards, passes.backwards
    return PipelineRun(
        policy,
        [[(forwards[s, k][1], backwards[s, k][2]) for s in range(stages)] for k in numbers],
        [[backwards[s, k][1] for s in range(stages)] for k in numbers],
        [loss(forwards[stages - 1, k][0], data[k][1]).item() for k in numbers],
        [stage.max_versions for stage in passes.stages],
        [stage.history for stage in passes.stages], schedule, simulate(schedule))


class StagePasses(Handler):
    """Runs the stages' passes.

    Attributes:
        forwards: the results of VersionedStage.forward, by (stage, micro-batch).
        backwards: the results of VersionedStage.backward, by (stage, micro-batch).
    """

    def __init__(self, stages: list[VersionedStage], data: list[tuple[torch.Tensor, torch.Tensor]]
                 ) -> None:
        """Args:
            stages: the pipeline's stages, in order.
            data: the input and target of every micro-batch.
        """
        self.stages, self.data = stages, data
        self.forwards: dict[tuple[int, int], tuple[torch.Tensor, int]] = {}
        self.backwards: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, int]] = {}

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        k = action.micro_batch
        x, target = self.data[k]
        if action.kind == FORWARD:
            received = x if source is None else self.forwards[source[0], k][0]
            self.forwards[stage, k] = self.stages[stage].forward(k, received)
        else:
            received = (loss_gradient(self.forwards[stage, k][0], target) if source is None
                        else self.backwards[source[0], k][0])
            self.backwards[stage, k] = self.stages[stage].backward(k, received)


def _require(policy: str, stages: int, micro_batches: int, batches: int) -> None:
    if policy not in POLICIES:
        raise LabError(f"policy {policy!r}: not one of {', '.join(POLICIES)}")
    if min(stages, micro_batches, batches) < 1:
        raise LabError(f"{stages} stages, {micro_batches} micro-batches, {batches} batches: each "
                       "must be at least 1")
    if policy == TWO_BUFFERS and micro_batches < stages:
        raise LabError(f"2bw with {micro_batches} micro-batches per batch and {stages} stages: "
                       f"a micro-batch would outlive two updates; use at least {stages}")


def problem(stages: int, micro_batches: int, seed: int = 0
            ) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return the initial weights and the data, in float64 so that differences are not rounding.

    The weight of every stage is [WIDTH, WIDTH]. The input and the target of every micro-batch are
    [SAMPLES, WIDTH] each.

    Args:
        stages: the number of stages.
        micro_batches: the number of micro-batches in all.
        seed: the seed of all values.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> torch.Tensor:
        return torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)

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
        weights: the weights of the stages.
        x: the input of the first stage.
        target: the target for the output of the last stage.
    """
    leaves = [weight.clone().requires_grad_() for weight in weights]
    y = x
    for weight in leaves:
        y = torch.tanh(y @ weight)
    return list(torch.autograd.grad(loss(y, target), leaves))


def nearest(run: PipelineRun, micro_batch: int, seed: int = 0) -> tuple[float, tuple[int, ...]]:
    """Find the combination of weight versions whose gradient is nearest to that of a micro-batch.

    Args:
        run: the run.
        micro_batch: its number.
        seed: the seed of the run.

    Returns:
        (distance divided by the norm of the gradient, version of every stage). If the distance is
        0, the gradient is that of these weights; otherwise, it is not the gradient of any weights.
    """
    stages = len(run.history)
    _, data = problem(stages, len(run.gradients), seed)
    actual = torch.cat([part.flatten() for part in run.gradients[micro_batch]])
    best: tuple[float, tuple[int, ...]] = (float("inf"), ())
    for versions in product(*(range(len(history)) for history in run.history)):
        weights = [run.history[stage][version] for stage, version in enumerate(versions)]
        true = torch.cat([part.flatten() for part in gradient_at(weights, *data[micro_batch])])
        best = min(best, ((true - actual).norm().item() / actual.norm().item(), versions))
    return best
