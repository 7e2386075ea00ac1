"""Test the pieces of labs 10 to 12: two stages of a pipeline must match one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lab.mytrainer import pieces, tensor_check
from lab.mytrainer.single_process import RANKS, Wrong, short
from lab.mytrainer.tensor_check import SHAPE, compare
from labcore.errors import LabError
from pipeline_schedules import (
    Durations,
    ScheduleError,
    check,
    load,
    parse,
    peak_live,
    simulate,
    to_text,
)

SAMPLES = (3, 1, 2, 2)  # of each micro-batch
WEIGHTS = [count / sum(SAMPLES) for count in SAMPLES]
WIDTH = 4


class Part(nn.Module):
    """A linear layer and tanh: one part of a tiny model, which the executor can run."""

    def __init__(self, number: int, parts: int) -> None:
        """Args:
            number: of the part, from 0.
            parts: the number of parts.
        """
        super().__init__()
        self.is_last, self.linear = number == parts - 1, nn.Linear(WIDTH, WIDTH)
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0, 0.5, generator=generator)

    def forward(self, x: torch.Tensor | None, data: SimpleNamespace) -> torch.Tensor:
        """Return hidden states [n, WIDTH], or the mean loss of the micro-batch on the last part."""
        y = self.linear(data.x if x is None else x).tanh()
        return (y - data.y).square().mean() if self.is_last else y


def micro_batches() -> list[SimpleNamespace]:
    """Return micro-batches of different sizes."""
    generator = torch.Generator().manual_seed(0)
    return [SimpleNamespace(x=torch.randn(count, WIDTH, generator=generator),
                            y=torch.randn(count, WIDTH, generator=generator)) for count in SAMPLES]


def whole(parts: int) -> tuple[torch.Tensor, list[Part]]:
    """Return the loss of one process, and all parts with their gradients."""
    model, total = [Part(number, parts) for number in range(parts)], torch.zeros(())
    for weight, data in zip(WEIGHTS, micro_batches(), strict=True):
        x = None
        for part in model:
            x = part(x, data)
        total = total + weight * x
    total.backward()
    return total.detach(), model


def run(schedule: Sequence[Sequence[str]], links: Callable[[ModuleType], Any], chunks: int = 1,
        make_stage: Callable | None = None) -> None:
    """Run a step on two stages. Raises Wrong unless it computes what one process does.

    Args:
        schedule: the actions of each stage.
        links: returns the sends and receives, given the module of the executor.
        chunks: parts on each stage.
        make_stage: returns the stage of a part; None for that of stage.py.
    """
    executor, rank = pieces.load("pipeline"), dist.get_rank()
    mine = [Part(chunk * RANKS + rank, chunks * RANKS) for chunk in range(chunks)]
    more = {} if make_stage is None else {"make_stage": make_stage}
    pipeline = executor.Pipeline(mine, links(executor), lambda data: torch.empty_like(data.x),
                                 **more)
    program = pieces.load("program").add_communication([list(one) for one in schedule])[rank]
    loss = pipeline.run(program, micro_batches(), WEIGHTS)
    total, model = whole(chunks * RANKS)
    if rank == RANKS - 1:
        compare("the loss", loss, total)
    for chunk, part in enumerate(mine):
        right = model[chunk * RANKS + rank]
        for (name, found), exact in zip(part.named_parameters(), right.parameters(), strict=True):
            compare(f"the gradient of a stage's {name}", found.grad, exact.grad)


def blocking(executor: ModuleType) -> Any:
    return executor.BlockingLinks(dist.group.WORLD)


def directions() -> dict[str, dist.ProcessGroup]:
    return {kind: dist.new_group(list(range(RANKS))) for kind in "FB"}


def built_in(name: str, chunks: int = 1) -> list[list[str]]:
    """Return the actions of a published schedule on two stages."""
    return [one.split() for one in to_text(load(name, RANKS, len(SAMPLES), chunks))]


def require_like(made: Any, name: str, function: str, chunks: int = 1) -> None:
    """Raise Wrong unless a schedule is as good as a published one.

    Args:
        made: what the student's function returned for four micro-batches on two stages.
        name: of the published schedule.
        function: of the student.
        chunks: parts on each stage.
    """
    right = load(name, RANKS, len(SAMPLES), chunks)
    try:
        found = parse(made, function)
        check(found, stages=RANKS, micro_batches=len(SAMPLES), chunks=chunks, source=function)
    except ScheduleError as error:
        raise Wrong(str(error)) from None
    clock = Durations(1, 1, 1)
    if simulate(found, clock).total > simulate(right, clock).total:
        raise Wrong(f"{function}: with {len(SAMPLES)} micro-batches on {RANKS} stages, the bubble "
                    f"is {simulate(found, clock).bubble_fraction:.1%} of the time, and "
                    f"{simulate(right, clock).bubble_fraction:.1%} is possible")
    if any(mine > most for mine, most in zip(peak_live(found), peak_live(right), strict=True)):
        raise Wrong(f"{function}: the stages have {peak_live(found)} activations in flight, and "
                    f"{peak_live(right)} are enough")


def test_stage(module: ModuleType) -> None:
    """Run four micro-batches through two stages in this process, the second one first."""
    parts = [Part(number, 2) for number in range(2)]
    first, second = (module.Stage(part) for part in parts)
    data = micro_batches()
    for key in (1, 0, 2, 3):
        second.forward(key, first.forward(key, None, data[key]), data[key])
    for key in (0, 1, 3, 2):
        if first.backward(key, second.backward(key, torch.tensor(WEIGHTS[key]))) is not None:
            raise Wrong("backward of the first stage returns a gradient, and nothing came before")
    for part, right in zip(parts, whole(2)[1], strict=True):
        compare("the gradient of a stage's weight", part.linear.weight.grad,
                right.linear.weight.grad)
    if first.in_flight or second.in_flight:
        raise Wrong("after the backward passes, in_flight still has "
                    f"{len(first.in_flight) + len(second.in_flight)} micro-batches")


def test_micro_batches(module: ModuleType) -> None:
    found = list(module.loss_weights([1, 0, 3]))
    if found != [0.25, 0.0, 0.75]:
        raise Wrong(f"loss_weights([1, 0, 3]) is {found} instead of [0.25, 0.0, 0.75]")


def test_gpipe(module: ModuleType) -> None:
    """Compare GPipe with the course's, and require one micro-batch at a time of the other one."""
    require_like(module.gpipe(RANKS, len(SAMPLES)), "gpipe", "gpipe")
    made = module.one_by_one(RANKS, len(SAMPLES))
    try:
        check(parse(made, "one_by_one"), stages=RANKS, micro_batches=len(SAMPLES), max_live=1,
              source="one_by_one")
    except ScheduleError as error:
        raise Wrong(str(error)) from None


def test_llama_stage(module: ModuleType) -> None:
    """Compare two stages with the whole Llama."""
    region = pieces.load("tensor_parallel").Region(
        dist.new_group([dist.get_rank()], use_local_synchronization=True))
    model = pieces.load("llama").Llama(SHAPE, region)
    stages = [module.LlamaStage(SHAPE, region, numbers, not at, bool(at))
              for at, numbers in enumerate((range(0, 1), range(1, 2)))]
    full, found = dict(model.named_parameters()), {}
    for stage in stages:
        found |= dict(stage.named_parameters())
    if set(found) != set(full):
        odd = sorted(set(found) ^ set(full))[0]
        raise Wrong(f"the parameters of two stages are not those of the Llama; one has {odd}")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in full.items():
            parameter.normal_(generator=generator)
            found[name].copy_(parameter)
    tokens = torch.randint(9, (2, 4, 3), generator=generator)
    data = SimpleNamespace(tokens=tokens[0], labels=tokens[1], loss_mask=torch.ones(4, 3))
    data.loss_mask[0, 1] = 0
    loss = stages[1](stages[0](None, data), data)
    losses = model(tokens[0], tokens[1])
    compare("the loss", loss, (losses * data.loss_mask).sum() / data.loss_mask.sum())


def test_program(module: ModuleType) -> None:
    """Run 1F1B with sends that block, and refuse an order that cannot run."""
    run(built_in("1f1b"), blocking)
    with contextlib.suppress(ValueError):
        module.add_communication([["B0", "F0"], ["F0", "B0"]])
        raise Wrong("add_communication accepts a stage that runs B0 before F0")


def test_pipeline(module: ModuleType) -> None:
    run(built_in("gpipe"), blocking)


def test_p2p(module: ModuleType) -> None:
    groups = directions()
    run(built_in("1f1b"), lambda _: module.Links(groups))
    run(built_in("interleaved", 2), lambda _: module.Links(groups), 2)


def test_tied(module: ModuleType) -> None:
    """Tie two different matrices, and sum their gradients."""
    rank = dist.get_rank()
    weight = nn.Parameter(torch.full((2, 2), 1.0 + rank))
    tied = module.TiedEnds(weight, dist.group.WORLD)
    weight.grad = torch.full((2, 2), 3.0 + rank)
    tied.finish()
    for text, found, right in (("the matrix", weight.detach(), 1.0), ("its gradient", weight.grad,
                                                                     7.0)):
        if not torch.equal(found, torch.full((2, 2), right)):
            raise Wrong(f"with 1 and 2 as the values of a matrix on two ranks, and gradients of 3 "
                        f"and 4, {text} is {short(found)} on rank {rank} instead of {right:g}")
    if getattr(weight, "copies", 1) != RANKS:
        raise Wrong(f"the matrix has copies = {getattr(weight, 'copies', 1)} instead of {RANKS}")


def test_one_f_one_b(module: ModuleType) -> None:
    require_like(module.one_f_one_b(RANKS, len(SAMPLES)), "1f1b", "one_f_one_b")


def test_split(module: ModuleType) -> None:
    """Split a small model with and without a memory limit that matters, and one that nothing fits.
    """
    times, ones = [1.0, 1.0, 1.0, 1.0, 4.0], [1.0] * 5
    for capacity, right in (([99.0, 99.0], [4, 1]), ([9.0, 9.0], [3, 2])):
        found = list(module.best_split(times, ones, ones, capacity, 4))
        if found != right:
            raise Wrong(f"best_split({times}, ..) gives two stages with {capacity[0]:g} bytes the "
                        f"parts {found} instead of {right}")
    with contextlib.suppress(ValueError):
        found = module.best_split(times, ones, ones, [2.0, 2.0], 4)
        raise Wrong(f"best_split returns {found} for a model that fits on no two stages")


def test_pipeline_memory(module: ModuleType) -> None:
    """Predict the memory of a stage in the middle, with two micro-batches in flight."""
    program = ["recv F0 from 0", "F0", "send F0 to 2", "recv F1 from 0", "F1", "send F1 to 2",
               "recv B0 from 2", "B0", "send B0 to 0", "recv B1 from 2", "B1", "send B1 to 0"]
    found = module.peak_bytes(program, [10], 3, [1], [5])
    if found != 43:
        raise Wrong("a stage that saves 10 bytes, has hidden states of 3 bytes, needs 5 more for a "
                    "backward pass, and has two micro-batches in flight, needs "
                    f"{found} bytes by peak_bytes instead of 43")


def test_break_even(module: ModuleType) -> None:
    """Compare step times with the course's simulation, and find a break-even point."""
    plain, chunked = built_in("1f1b"), built_in("interleaved", 2)
    for schedule in (plain, chunked):
        right = simulate(parse(schedule), Durations(4, 4, 4, 0.5)).total
        found = module.step_time(schedule, 4.0, 8.0, 0.5)
        if abs(found - right) > 1e-6:
            raise Wrong(f"step_time is {found:g} instead of {float(right):g} for a schedule of two "
                        "stages whose passes take 4 and 8, and whose links take 0.5")
    link = module.break_even(plain, chunked, 4.0, 8.0)
    times = [module.step_time(schedule, 4.0, 8.0, link) for schedule in (plain, chunked)]
    if abs(times[0] - times[1]) > 0.01:
        raise Wrong(f"with links of {link:g}, which break_even returns, the schedules take "
                    f"{times[0]:g} and {times[1]:g}")


def test_interleaved(module: ModuleType) -> None:
    require_like(module.interleaved(RANKS, len(SAMPLES), 2), "interleaved", "interleaved", 2)


def test_zero_bubble(module: ModuleType) -> None:
    require_like(module.zb_h1(RANKS, len(SAMPLES)), "zb-h1", "zb_h1")


def test_zero_bubble_2(module: ModuleType) -> None:
    require_like(module.zb_h2(RANKS, len(SAMPLES)), "zb-h2", "zb_h2")


def test_split_backward(module: ModuleType) -> None:
    """Run a schedule with weight gradients of their own on two stages."""
    run(built_in("zb-h1"), blocking, make_stage=module.SplitStage)


def test_deferred_wgrad(module: ModuleType) -> None:
    """Run two micro-batches through a layer that the ranks share, each with half of the positions.
    """
    region, rank = tensor_check.shared(pieces.load("tensor_parallel").Region)[0], dist.get_rank()
    layer = pieces.load("tensor_parallel").ColumnParallelLinear(WIDTH, 2 * RANKS, region)
    generator = torch.Generator().manual_seed(1)
    full = torch.randn(2 * RANKS, WIDTH, generator=generator).requires_grad_()
    inputs = [torch.randn(2 * RANKS, 3, WIDTH, generator=generator) for _ in range(2)]
    with torch.no_grad():
        layer.weight.copy_(full[layer.weight.part])
    stage = module.DeferringStage(lambda x, data: module.deferred_columns(region, x, layer)[0])
    for key, whole in enumerate(inputs):
        y = stage.forward(key, whole.chunk(RANKS)[rank], None)
        right = F.linear(whole.requires_grad_(), full)
        compare("an output of deferred_columns", y, right[..., layer.weight.part[0]].detach())
        grad = torch.randn(right.shape, generator=generator)
        right.backward(grad)
        back = stage.backward(key, grad[..., layer.weight.part[0]])
        compare("the gradient of an input", back, whole.grad.chunk(RANKS)[rank])
    for key in (1, 0):
        stage.weight(key)
    compare("the gradient of a weight after W", layer.weight.grad, full.grad[layer.weight.part])


def rate(name: str, value: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Return a parameter after a step of SGD."""
    return value - 0.5 * grad


def test_versions(stage: Any, part: Part, versions: Sequence[int]) -> None:
    """Run three micro-batches of a stream on a stage, two of which are in flight at a time.

    Args:
        stage: of the part, which it updates after each backward pass.
        part: the last part of a model.
        versions: the number of updates before the weights that each micro-batch uses.
    """
    data, right, weights = micro_batches(), Part(1, 2), [None]
    weights[0] = [one.detach().clone() for one in right.parameters()]
    inputs = [one.x.tanh() for one in data]
    for action in ("F0", "F1", "B0", "F2", "B1", "B2"):
        key = int(action[1:])
        if action[0] == "F":
            stage.forward(key, inputs[key], data[key])
            continue
        grad = stage.backward(key, torch.tensor(1.0))
        with torch.no_grad():
            for one, value in zip(right.parameters(), weights[versions[key]], strict=True):
                one.copy_(value)
        x = inputs[key].clone().requires_grad_()
        grads = torch.autograd.grad(right(x, data[key]), [x, *right.parameters()])
        compare(f"the gradient of micro-batch {key}'s x", grad, grads[0])
        weights.append([rate("", value, one) for value, one in zip(weights[-1], grads[1:],
                                                                   strict=True)])
    for (name, found), value in zip(part.named_parameters(), weights[-1], strict=True):
        compare(f"{name} after three updates", found.detach(), value)


def test_weight_stash(module: ModuleType) -> None:
    part = Part(1, 2)
    test_versions(module.WeightStash(part, rate), part, (0, 0, 1))


def test_synced_stash(module: ModuleType) -> None:
    """Use the weights of one update before, on a pipeline of two stages."""
    found = [module.delay(*sizes) for sizes in ((2, 1), (4, 4), (1, 4), (5, 2))]
    if found != [1, 1, 0, 2]:
        raise Wrong("delay(2, 1), delay(4, 4), delay(1, 4), and delay(5, 2) are "
                    f"{', '.join(map(str, found))} instead of 1, 1, 0, and 2")
    part = Part(1, 2)
    test_versions(module.SyncedStash(part, rate, 1, 1), part, (0, 0, 1))


def test_stash_recompute(module: ModuleType) -> None:
    part = Part(1, 2)
    test_versions(module.RecomputingStash(part, rate, 1, 1), part, (0, 0, 1))


def test_grid(module: ModuleType) -> None:
    """Divide two ranks into two stages, and into two parts of the same layers."""
    rank = dist.get_rank()
    for tensor, pipeline, right in ((1, 2, ([rank], [rank], [0, 1], [0, 1])),
                                    (2, 1, ([0, 1], [rank], [0, 1], [rank])),
                                    (1, 1, ([rank], [0, 1], [rank], [rank]))):
        made = module.Grid(tensor, pipeline)
        names = ("tensor", "data", "model", 'links["F"]')
        groups = (made.tensor, made.data, made.model, made.links["F"])
        for name, group, ranks in zip(names, groups, right, strict=True):
            found = dist.get_process_group_ranks(group)
            if found != ranks:
                raise Wrong(f"on rank {rank} of two, {name} of Grid({tensor}, {pipeline}) has the "
                            f"ranks {found} instead of {ranks}")
        if pipeline > 1 and made.links["F"] is made.links["B"]:
            raise LabError('links["F"] and links["B"] are one communicator, and NCCL keeps the '
                           "order of its transfers")
