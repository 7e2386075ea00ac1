# ---
# jupyter:
#   jupytext:
#     comment_magics: false
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Pipeline III: weight versions and zero bubble
#
# 1F1B holds few activations, but it has GPipe's bubble. In this lab, you attack the bubble from two sides:
#
# - **First sitting, 75 minutes.** You leave out the pipeline flush. Stages never wait, and pay with weight versions and
#   stale gradients. You write three stages that keep the right versions, and train a small GPT with them.
# - **Second sitting, 60 minutes.** You keep the flush, and fill the bubble with work that nobody waits for.
#
# Values are real: CPU ranks compute them, driven by your executor from lab 10. The memory of GPUs is **modeled** by
# virtual GPUs. Your answers are files in `mytrainer/`.

# %% tags=["setup"]
import os

import torch
import torch.distributed as dist

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace
os.makedirs("mytrainer", exist_ok=True)

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("cluster_planner", "lab.mytrainer", "layout_estimator", "minimegatron", *check.PIPELINE_LIBRARIES)

# %% tags=["explore"]
import virtualgpu
from labcore.colors import bad, good, result
from lablib import plots, versions
from pipeline_schedules import Durations, load, one_f_one_b, simulate, to_text
from warmranks import RankError, run_ranks

# %% [markdown]
# ## A small batch for a long pipeline
#
# Llama 3 405B was trained on 16,384 GPUs: TP 8, PP 16, and DP 128, with 2,048 sequences per step ([Llama Team,
# 2024](https://arxiv.org/abs/2407.21783), table 4). This leaves 16 sequences for each pipeline of 16 stages. How long
# would its GPUs wait under plain 1F1B, if a backward pass takes twice as long as a forward pass?

# %% tags=["explore"]
TIMES = Durations(forward=1, backward=1, weight=1)  # a backward pass that is not split takes backward + weight
one_step = simulate(one_f_one_b(16, 16), TIMES)
print(f"bubble fraction: {bad(f'{one_step.bubble_fraction:.1%}')} of the time (simulated)")

# %% [markdown]
# The GPUs would be idle for almost half of the time. (This **bubble fraction** is idle time divided by all time. What
# [Narayanan et al., 2021](https://arxiv.org/abs/2104.04473) call the bubble time fraction, $(p-1)/m$, is idle time
# divided by the rest of the time.) More micro-batches would help, but the batch is given, and every additional replica
# takes its share of it. Interleaving, which Llama 3 used, divides the bubble by the number of chunks, and multiplies
# the communication.
#
# The bubble has one cause: the **pipeline flush**. At the end of each step, the pipeline drains, because no micro-batch
# of the next step may start before the weights have been updated. What if no stage waited?

# %% [markdown]
# ## Without a flush
#
# **PipeDream** ([Narayanan et al., 2019](https://doi.org/10.1145/3341301.3359646)) does not wait. Micro-batches arrive
# in an endless stream, in the order of 1F1B, and every stage updates its own weights after each of its backward passes.
# The bubble is gone, except at the very beginning.
#
# Your executor needs no change for this. A stream is one long program whose micro-batches go on counting, and `Pipeline`
# takes a class for its stages, `make_stage`. So the simplest stage without a flush is your `Stage` with an update at the
# end of `backward`:

# %% tags=["explore"]
class NaiveStage:
    """Lab 10's Stage, which updates its weights after every backward pass."""

    def __init__(self, module, assign, record):
        self.module, self.assign, self.record, self.in_flight = module, assign, record, {}

    def forward(self, key, x, data):
        if x is not None:
            x = x.detach().requires_grad_()
        y = self.module(x, data)
        self.in_flight[key] = x, y, len(self.record.gradients)  # the number of updates so far
        return y.detach()

    def backward(self, key, grad):
        x, y, made = self.in_flight.pop(key)
        used.append((made, len(self.record.gradients)))
        y.backward(grad)
        for name, parameter in self.module.named_parameters():
            self.assign(parameter, self.record(name, parameter.data, parameter.grad))
            parameter.grad = None
        return None if x is None else x.grad


RATE, WIDTH, STAGES = 0.3, 4, 3
STREAM = [line.split() for line in to_text(one_f_one_b(STAGES, 6))]
used = []  # the versions of the forward and the backward pass of each micro-batch, on this rank


def naive_stream(assign):
    """Train one layer per rank without a flush; return the versions used, all gradients, and all weight versions."""
    rank = dist.get_rank()
    layer = versions.Layer(WIDTH, rank, rank == 0, rank == STAGES - 1)
    record = versions.Record(layer, versions.sgd(RATE))
    data = versions.micro_batches(6, WIDTH, 0.0)
    versions.stream(layer, lambda module: NaiveStage(module, assign, record), STREAM, data, 1.0, own_files=True)
    return used, record.gradients, record.history


def in_place(parameter, value):
    with torch.no_grad():
        parameter.copy_(value)


try:
    run_ranks(naive_stream, STAGES, in_place)
except RankError as error:
    print(bad("A rank failed:"), str(error).partition(";")[0])

# %% [markdown]
# PyTorch refuses. Between the forward and the backward pass of a micro-batch, the stage has run the backward passes of
# earlier micro-batches, and each of them has changed the weights. Autograd saved a reference to the weights, not a
# copy, so it counts the changes of every tensor, and compares the counts.
#
# The counter does not see changes through `.data`. Many people have silenced this error that way:

# %% tags=["explore"]
def behind_the_back(parameter, value):
    parameter.data.copy_(value)


naive = run_ranks(naive_stream, STAGES, behind_the_back)
print("versions of the (forward, backward) pass, by stage")
for number in range(6):
    print(f"micro-batch {number}:", *(rank[0][number] for rank in naive))

# %% [markdown]
# Now it runs, and the first stage computes the gradient of micro-batch 3 with activations that belong to one version of
# the weights, and with the weights of another one. Is the result at least the gradient at *some* weights of this
# training? The next cell computes the true gradient of micro-batch 3 at **every** combination of versions that the
# three stages ever held, and takes the nearest. The distance is relative: at 0, it would be the gradient at these
# weights, and at 1, the error is as large as the gradient.

# %% tags=["explore"]
def nearest(ranks, number):
    """Return the distance to the nearest true gradient of a micro-batch, and the version of each stage."""
    flat = torch.cat([one.flatten() for _, gradients, _ in ranks for one in gradients[number].values()])
    histories = [history for _, _, history in ranks]
    return versions.nearest(flat, histories, versions.micro_batches(6, WIDTH, 0.0)[number])


distance, combination = nearest(naive, 3)
print(f"nearest at versions {combination}: distance {bad(f'{distance:.1e}')}")

# %% [markdown]
# It is the gradient at no weights that the pipeline ever held. Such steps often reduce the loss for a while, which makes
# the bug worse, because nothing fails.
#
# PipeDream's remedy is **weight stashing**. A stage keeps the weights of a forward pass until the backward pass of the
# same micro-batch needs them. Each set of values that the weights of a stage have had is a **weight version**. The
# update always applies to the newest one.
#
# ![A timeline of three stages under PipeDream. Every box is a forward or backward pass of a micro-batch and names the
# version of the weight that it uses. On stage 0, micro-batch 3 runs forward with version 1 and backward with version 1,
# although the newest is version 3 by then. On stage 2, every micro-batch runs backward right after its forward pass, so
# the newest version is the only one.](../images/weight_versions.svg)
#
# A version costs as much memory as the stage's weights, so no stage can afford one that nothing needs anymore, nor two
# copies of the same one. How many versions does the first of four stages hold under 1F1B, and how many does the last
# one hold? Set `guess_first` and `guess_last`:

# %% answer="guess-first"
### BEGIN SOLUTION
guess_first, guess_last = 4, 1
### END SOLUTION

# %% [markdown]
# ### Exercise 1: weight stashing
#
# Write `weight_stash.py`: a stage that updates its weights after every backward pass. It has the interface of your
# `Stage`, so your executor can run it.
#
# - `forward` uses the newest version. `backward` uses the version that the forward pass of the same micro-batch used,
#   and then updates the newest version with its gradient.
# - `update` is the optimizer: `update(name, value, grad)` returns the new value of a parameter, as a new tensor. Call
#   it once for each parameter and micro-batch.
# - The module's own parameters have the newest values after every pass, so that a checkpoint saves these.
# - Between two passes, a stage holds the newest version, the older ones that a micro-batch in flight needs, and nothing
#   else as large as the weights. Micro-batches that used the same version share it.
# - Modules are arbitrary. Some multiply matrices, others only scale their input, and autograd saves different tensors
#   for them.
#
# The check compares losses and weights on ranks with those of one process, and counts your versions in the memory of a
# virtual GPU.

# %% answer="weight-stash"
%%writefile mytrainer/weight_stash.py
"""A stage of a pipeline without a flush, which updates its weights while micro-batches are in flight."""

import torch
from torch.func import functional_call


class WeightStash:
    """Weight stashing (PipeDream; Narayanan et al., 2019).

    Attributes:
        module: as in Stage. Its parameters always have the newest values.
        update: returns the new value of a parameter, given its name in the module, its value, and its gradient.
    """

    def __init__(self, module, update):
        self.module, self.update = module, update
        ### BEGIN SOLUTION
        self.in_flight = {}
        self.newest = {name: one.detach().requires_grad_() for name, one in module.named_parameters()}
        ### END SOLUTION

    def forward(self, key, x, data):
        """Run the forward pass of a micro-batch, and return its output, which has no history.

        Args:
            key: the number of the micro-batch.
            x: received hidden states, or None on the first stage.
            data: the micro-batch.
        """
        ### BEGIN SOLUTION
        if x is not None:
            x = x.detach().requires_grad_()
        y = functional_call(self.module, self.newest, (x, data))
        self.in_flight[key] = x, y, self.newest
        return y.detach()
        ### END SOLUTION

    def backward(self, key, grad):
        """Run the backward pass, update the weights, and return the gradient of x (None on the first stage).

        Args:
            key: the number of the micro-batch.
            grad: the gradient of the output; on the last stage, the weight of the loss.
        """
        ### BEGIN SOLUTION
        x, y, version = self.in_flight.pop(key)
        inputs = [*version.values()] if x is None else [*version.values(), x]
        grads = torch.autograd.grad(y, inputs, grad)
        self.newest = {}
        for (name, parameter), one in zip(self.module.named_parameters(), grads, strict=False):
            parameter.data = self.update(name, parameter.data, one)
            self.newest[name] = parameter.detach().requires_grad_()
        return None if x is None else grads[-1]
        ### END SOLUTION

# %% tags=["driver"]
def stashed_stream(schedule, width, rate, seed, common):
    """Train one layer per rank without a flush, with a WeightStash on each.

    Args:
        schedule: the actions of each stage, in a string.
        width: features of a layer.
        rate: learning rate of SGD.
        seed: of this rank's weights.
        common: the seed of the data.

    Return the loss of each micro-batch (on the last rank), and this rank's weights in the end.
    """
    from mytrainer.weight_stash import WeightStash

    from lablib import versions

    rank = dist.get_rank()
    layer = versions.Layer(width, seed, rank == 0, rank == len(schedule) - 1)
    schedule = [line.split() for line in schedule]
    data = versions.micro_batches(len(schedule[0]) // 2, width, common)
    losses = versions.stream(layer, lambda module: WeightStash(module, versions.sgd(rate)), schedule, data, 1.0)
    return [losses, [value for one in layer.parameters() for value in one.flatten().tolist()]]


def stash_memory(actions, width, inner):
    """Run passes of a stage on a GPU, and leave what it holds between two passes in memory."""
    from mytrainer.weight_stash import WeightStash

    from lablib import versions

    with torch.device("cuda"):
        stage = WeightStash(versions.Wide(width, inner), versions.sgd(0.1))
    versions.passes(stage, actions, 1, width)

# %% tags=["check-setup"]
def stream_of(stages, count):
    """Return 1F1B for a stream of micro-batches: the actions of each stage, in a string."""
    lines = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, count)
        actions = [f"F{k}" for k in range(ahead)]
        for k in range(count):
            actions += [f"F{ahead + k}"] * (ahead + k < count) + [f"B{k}"]
        lines.append(" ".join(actions))
    return lines


def trained_by_one_process(seeds, common, width, rate, batches, used):
    """Train all layers in one process; return what the drivers return on each rank.

    Args:
        seeds: of each stage's weights.
        common: the seed of the data.
        width: features of a layer.
        rate: learning rate of SGD.
        batches: the numbers of the micro-batches of each update.
        used: returns the version that a micro-batch uses on a stage, given both numbers.
    """
    from lablib import versions

    layers = [versions.Layer(width, seed, number == 0, number == len(seeds) - 1) for number, seed in enumerate(seeds)]
    histories = [[{name: one.detach() for name, one in layer.named_parameters()}] for layer in layers]
    data, losses = versions.micro_batches(sum(map(len, batches)), width, common), []
    for batch in batches:
        new = [dict(history[-1]) for history in histories]
        for k in batch:
            weights = [history[used(stage, k)] for stage, history in enumerate(histories)]
            loss, grads = versions.loss_and_gradients(weights, data[k])
            losses.append(loss)
            for stage, named in enumerate(grads):
                for name, grad in named.items():
                    new[stage][name] = new[stage][name] - rate * grad / len(batch)
        for history, one in zip(histories, new, strict=True):
            history.append(one)
    ends = [[value for one in history[-1].values() for value in one.flatten().tolist()] for history in histories]
    return [[losses if stage == len(seeds) - 1 else [], end] for stage, end in enumerate(ends)]


def stashing(schedule):
    """Return the version that weight stashing uses, as `used`: the number of updates before the forward pass."""
    def updates(stage, k):
        actions = schedule[stage].split()
        return sum(one[0] == "B" for one in actions[:actions.index(f"F{k}")])

    return updates


def plain_pass(width, inner):
    """Run both passes of a plain module on a GPU, and keep nothing but its weights."""
    import torch

    from lablib import versions

    with torch.device("cuda"):
        module = versions.Wide(width, inner)
        x = torch.zeros(1, width, requires_grad=True)
    module(x, None).backward(torch.zeros(1, width, device="cuda"))
    module.zero_grad()
    del x
    torch.empty(versions.MARKER, dtype=torch.uint8, device="cuda")


def held(driver, case, actions):
    """Return what a stage holds after some passes, in multiples of its weights.

    Args:
        driver: of a stage on a virtual GPU.
        case: its other arguments, with width and inner.
        actions: the passes, in a string.
    """
    width, inner = case["width"], case["inner"]
    size = 2 * width * inner * 4
    forwards = actions.count("F")
    cost = check.gpus(driver, {"actions": actions, **case}, "h100:1", present=[0], least={
        "flops": 4 * case.get("tokens", 1) * width * inner * (forwards + 2 * actions.count("B")), "live": size})
    plain = check.baseline(plain_pass, {"width": width, "inner": inner}, "h100:1")
    return 1 + (cost.ranks[0].live - plain.ranks[0].live) / size


LARGE = {"width": 1024, "inner": 8192}

# %% check="weight-stash" points=5
def require_versions(actions, count):
    found = held(stash_memory, LARGE, actions)
    check.that(abs(found - count) < 0.1, f"After {actions}, the stage holds {found:.1f} times its weights on the GPU, and it needs "
               f"{count}. Which versions, copies, and gradients does no later pass need?")


with check.parts():
    with check.part(3, "computes with the right versions"):
        check.ranks(
            stashed_stream, ranks=2, rel=1e-5,
            cases=[{"schedule": ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"], "width": 2, "rate": 0.5,
                    "seed": check.by_rank([1.0, 2.0]), "common": 3.0}],
            expected=VISIBLE_1,
            hints={HINTS_1})
        ### BEGIN HIDDEN TESTS
        for ranks, count in ((3, 7), (4, 9)):
            lines = stream_of(ranks, count)
            check.ranks(stashed_stream, ranks=ranks, rel=1e-4, cases=check.draw(
                1, schedule=[lines], width=[3, 4], rate=check.between(0.1, 0.5), seed=check.for_each_rank(check.between(0, 100)),
                common=check.between(0, 100)),
                expected=lambda ranks, schedule, width, rate, seed, common: trained_by_one_process(
                    seed, common, width, rate, [[k] for k in range(len(schedule[0].split()) // 2)], stashing(schedule)))
        ### END HIDDEN TESTS
    with check.part(2, "holds no version twice, and none that nothing needs"):
        require_versions("F0 F1 F2 F3", 1)
        require_versions("F0 F1 B0 F2 B1 B2", 1)
        require_versions("F0 F1 F2 B0 F3 B1 F4 B2 F5", 4)
        ### BEGIN HIDDEN TESTS
        for case in check.draw(1, stages=range(4, 7), count=range(9, 14)):
            actions = stream_of(case["stages"], case["count"])[0].split()
            actions = actions[:-case["stages"]]  # the next pass would be a backward pass
            require_versions(" ".join(actions), case["stages"])
        ### END HIDDEN TESTS
