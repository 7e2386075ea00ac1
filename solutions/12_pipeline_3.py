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
# - **First sitting, 90 minutes.** You leave out the pipeline flush. Stages never wait, but the price is several
#   versions of the weights, and stale gradients. You write three kinds of stages that keep the right versions, and
#   train a small GPT with them.
# - **Second sitting, 80 minutes.** You keep the flush, and fill the bubble with work that no other stage waits for: you
#   split the backward pass in two, and write zero-bubble schedules.
# - **Third sitting, 70 minutes.** You compete with the published schedules, and run your own on a thousand modeled GPUs,
#   where sequence parallelism gets in the way.
#
# All values are real: CPU ranks compute them with your executor from lab 10. (If one of its files is missing, the
# course's executor takes its place.) GPU memory is **modeled** by virtual GPUs. You write your answers to files in
# `mytrainer/`.

# %% tags=["setup"]
import os

import torch
import torch.distributed as dist

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace
for folder in ("mytrainer", "contest"):
    os.makedirs(folder, exist_ok=True)

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("accelerate", "cluster_planner", "lab.mytrainer", "layout_estimator", "minimegatron", "transformers",
           *check.PIPELINE_LIBRARIES)

# %% tags=["explore"]
import virtualgpu
from job_monitor import logs
from lab.mytrainer import pieces, worked
from labcore.colors import bad, good, result
from lablib import jobs, plots, versions, zero_bubble
from pipeline_schedules import (
    Durations,
    Timeline,
    load,
    one_f_one_b,
    parse,
    peak_live,
    simulate,
    to_text,
)
from pipeline_schedules.drawing import draw_beside
from warmranks import RankError, run_ranks

jobs.connect()

# %% [markdown]
# ## A small batch for a long pipeline
#
# Llama 3 405B was trained on 16,384 GPUs: TP 8, PP 16, and DP 128, with 2,048 sequences per step ([Llama Team,
# 2024](https://arxiv.org/abs/2407.21783), table 4). That leaves each pipeline of 16 stages only 16 sequences, so at
# most 16 micro-batches. What share of the time would its GPUs be idle under plain 1F1B, if a backward pass takes twice
# as long as a forward pass?

# %% tags=["explore"]
TIMES = Durations(forward=1, backward=1, weight=1)  # a backward pass that is not split takes backward + weight
one_step = simulate(one_f_one_b(16, 16), TIMES)
print(f"bubble fraction: {bad(f'{one_step.bubble_fraction:.1%}')} of the time (simulated)")

# %% [markdown]
# The GPUs would be idle almost half of the time. More micro-batches would help, but the batch size is fixed, and every
# additional data-parallel replica takes its share of the batch. Interleaving, which Llama 3 used, divides the idle time
# by the number of chunks per stage, but multiplies the communication.
#
# The bubble has one cause: the **pipeline flush**. At the end of each step, the pipeline drains, because no micro-batch
# of the next step may start before the weights have been updated. What if no stage waited?

# %% [markdown]
# ## Without a flush
#
# **PipeDream** ([Narayanan et al., 2019](https://doi.org/10.1145/3341301.3359646)) does not wait. Micro-batches arrive
# in an endless stream. Every stage runs its passes in the order of 1F1B, and updates its own weights after each
# backward pass. The bubble is gone, except at the very beginning.
#
# Your executor needs no change for this. A stream is one long schedule in which the micro-batch numbers keep
# increasing, and `Pipeline` takes the class of its stages as an argument, `make_stage`. So the simplest stage without a
# flush is your `Stage` with an update at the end of `backward`:

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
# earlier micro-batches, and each of them has changed the weights. Autograd saves a reference to the weights, not a
# copy. To catch such changes, it counts the in-place operations on every tensor, and compares the count in the backward
# pass with that in the forward pass.
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
# Now it runs, but the first stage computes the gradient of micro-batch 3 with the activations of one version of the
# weights and the values of another. Is the result at least the gradient at *some* weights that the pipeline has held?
# The next cell computes the true gradient of micro-batch 3 at **every** combination of versions that the three stages
# ever held, and picks the one nearest to the pipeline's result. The distance is relative: 0 means that the result is
# the gradient at these weights, and 1 that the error is as large as the gradient.

# %% tags=["explore"]
def nearest(ranks, number):
    """Return the distance to the nearest true gradient of a micro-batch, and the version of each stage."""
    flat = torch.cat([one.flatten() for _, gradients, _ in ranks for one in gradients[number].values()])
    histories = [history for _, _, history in ranks]
    return versions.nearest(flat, histories, versions.micro_batches(6, WIDTH, 0.0)[number])


distance, combination = nearest(naive, 3)
print(f"nearest at versions {combination}: distance {bad(f'{distance:.1e}')}")

# %% [markdown]
# The result is not the gradient at any weights that the pipeline ever held. The versions in the last line of the output
# are only those whose gradient comes closest, not those that the stages used. The distance is small because a few
# updates have barely changed the weights, and it grows with the learning rate. Training with such gradients often
# reduces the loss for a while, which makes the bug worse, because nothing fails.
#
# PipeDream's remedy is **weight stashing**. A stage keeps the weights that a forward pass used until the backward pass
# of the same micro-batch has used them, too. Each set of values that a stage's weights have had is a **weight
# version**, or version for short. An update always applies to the newest one.
#
# Each version takes as much memory as the stage's weights, so no stage can afford to keep a version that nothing needs
# anymore, or two copies of the same version. How many versions does the first of four stages hold under 1F1B, and how
# many does the last one hold? Set `guess_first` and `guess_last`:

# %% answer="guess-first"
### BEGIN SOLUTION
guess_first, guess_last = 4, 1
### END SOLUTION

# %% [markdown]
# ### Exercise 1: weight stashing
#
# Write `weight_stash.py`, a stage that updates its weights after every backward pass. It has the interface of your
# `Stage`, so your executor can run it.
#
# - `forward` uses the newest version. `backward` uses the version that the forward pass of the same micro-batch used,
#   and then updates the newest version with its gradient.
# - `update` is the optimizer: `update(name, value, grad)` returns the new value of a parameter, as a new tensor. Call
#   it once for each parameter and micro-batch. All parameters require gradients.
# - The module's own parameters have the newest values after every pass, so that a checkpoint contains them.
# - Between two passes, a stage holds the newest version, the older ones that micro-batches in flight still need, and
#   nothing else as large as the weights. Micro-batches that used the same version share it.
# - Your stage must work with any module. Some multiply matrices, others only scale their input, and autograd saves
#   different tensors for each of them.
#
# The check compares the losses and weights on several ranks with those of a single process, and measures on a virtual
# GPU how many versions you hold in memory.

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

    Return the loss of each micro-batch (on the last rank), and this rank's final weights.
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

    histories = []
    for seed in seeds:
        values = versions.sines((width + 1, width), seed).double()
        histories.append([{"weight": values[:-1], "scale": 1 + 0.5 * values[-1]}])
    data, losses = versions.micro_batches(sum(map(len, batches)), width, common), []
    for batch in batches:
        new = [dict(history[-1]) for history in histories]
        for k in batch:
            weights = [{name: one.clone().requires_grad_() for name, one in history[used(stage, k)].items()}
                       for stage, history in enumerate(histories)]
            y = data[k].x
            for one in weights:
                y = one["scale"] * (y @ one["weight"]).tanh()
            loss = ((y - data[k].y) ** 2).mean()
            loss.backward()
            losses.append(loss.item())
            for one, updated in zip(weights, new, strict=True):
                for name, parameter in one.items():
                    updated[name] = updated[name] - rate * parameter.grad / len(batch)
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


def work_of(actions, width, inner, tokens=1, **_):
    """Return lower bounds for what check.gpus records of these passes of a stage."""
    passes = actions.split()
    flops = 4 * tokens * width * inner
    return {"flops": sum(flops if one[0] == "F" else 2 * flops for one in passes), "live": 8 * width * inner}


def held(cost, width, inner, **_):
    """Return what a stage holds after some passes, in multiples of its weights."""
    plain = check.baseline(plain_pass, {"width": width, "inner": inner}, "h100:1")
    return 1 + (cost.ranks[0].live - plain.ranks[0].live) / (8 * width * inner)


LARGE = {"width": 1024, "inner": 8192}

# %% check="weight-stash" points=5
def require_versions(actions, count):
    case = {"actions": actions, **LARGE}
    found = held(check.gpus(stash_memory, case, "h100:1", present=[0], least=work_of(**case)), **case)
    check.that(found > count - 0.1, f"After {actions}, the stage holds only {found:.1f} times its weights on the GPU, and it needs "
               f"{count}. A version that is still needed has been overwritten.")
    check.that(found < count + 0.1, f"After {actions}, the stage holds {found:.1f} times its weights on the GPU, and it needs "
               f"{count}. Which versions, copies, and gradients does no later pass need?")


with check.parts():
    with check.part(3, "computes with the right versions"):
        check.ranks(
            stashed_stream, ranks=2, rel=1e-5,
            cases=[{"schedule": ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"], "width": 2, "rate": 0.5,
                    "seed": check.by_rank([1.0, 2.0]), "common": 3.0}],
            expected=[[[[], [0.8961451, 1.111093, 0.03990344, -0.7750242, 0.9902713, 1.271792]], [[0.136283, 0.1490155, 0.1150633,
                      0.1554857], [1.188065, 0.237308, -0.4421666, -0.8709822, 1.163734, 1.461844]]]],
            hints={
                "The backward pass of a micro-batch uses newer weights than the forward pass did. Do your saved weights change, too?":
                    [[[[], [0.9130388, 1.116958, 0.05585175, -0.7705403, 0.9909303, 1.270397]], [[0.136283, 0.1490155, 0.1150633,
                     0.1569726], [1.188446, 0.2377946, -0.4401553, -0.8701516, 1.163044, 1.461216]]]],
                "An update starts from the version of its micro-batch, so the updates in between are lost.":
                    [[[[], [0.7333109, 1.102602, -0.08592678, -0.7640017, 0.87787, 1.360293]], [[0.136283, 0.1490155, 0.1150633,
                     0.1099542], [1.162146, 0.2009848, -0.5511732, -0.8951013, 1.196639, 1.481303]]]],
                "The gradient of a micro-batch is contained in the gradient of a later one. Which micro-batches share a version?":
                    [[[[], [0.9374796, 1.216821, 0.08050544, -0.7367988, 1.008393, 1.205745]], [[0.136283, 0.1490155, 0.1150633,
                     0.2807988], [1.202566, 0.2549134, -0.3180451, -0.8132864, 1.111497, 1.413574]]]],
                "Losses are right, but the weights of the module have not changed.":
                    [[[[], [0.6442177, 0.9092974, -0.1577456, -0.993691, 0.8130615, 1.396834]], [[0.136283, 0.1490155, 0.1150633,
                     0.1554857], [0.9854497, 0.4273801, -0.7568025, -0.8322676, 1.155771, 1.499471]]]],
                "Every forward pass uses the first version.":
                    [[[[], [0.5743197, 1.669593, -0.2654552, -0.2793166, 0.779753, 1.396642]], [[0.136283, 0.1743378, 0.2130906,
                     0.2493043], [1.137469, 0.01348763, -0.6124221, -0.9632349, 1.197358, 1.457028]]]]})
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
        require_versions("F0 B0 F1 F2 F3 F4", 1)
        require_versions("F0 F1 B0 F2 B1 B2", 1)
        require_versions("F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7", 4)
        ### BEGIN HIDDEN TESTS
        for case in check.draw(1, stages=range(4, 7), count=range(12, 17)):
            actions = stream_of(case["stages"], case["count"])[0].split()
            actions = actions[:-case["stages"]]  # the next pass would be a backward pass
            require_versions(" ".join(actions), case["stages"])
        ### END HIDDEN TESTS

# %% [raw] mutant="weight-stash" hint="still needed has been overwritten"
# -        x, y, version = self.in_flight.pop(key)
# -        inputs = [*version.values()] if x is None else [*version.values(), x]
# -        grads = torch.autograd.grad(y, inputs, grad)
# -        self.newest = {}
# -        for (name, parameter), one in zip(self.module.named_parameters(), grads, strict=False):
# -            parameter.data = self.update(name, parameter.data, one)
# -            self.newest[name] = parameter.detach().requires_grad_()
# -        return None if x is None else grads[-1]
# +        x, y, version = self.in_flight.pop(key)
# +        inputs = [*version.values()] if x is None else [*version.values(), x]
# +        grads = torch.autograd.grad(y, inputs, grad)
# +        for (name, parameter), one in zip(self.module.named_parameters(), grads, strict=False):
# +            parameter.data.copy_(self.update(name, parameter.data, one))
# +        return None if x is None else grads[-1]
# -        self.newest = {name: one.detach().requires_grad_() for name, one in module.named_parameters()}
# +        self.newest = {name: one.data.requires_grad_() for name, one in module.named_parameters()}

# %% [raw] mutant="weight-stash" hint="newer weights than the forward pass"
# -        y = functional_call(self.module, self.newest, (x, data))
# -        self.in_flight[key] = x, y, self.newest
# +        y = self.module(x, data)
# +        self.in_flight[key] = x, y, None
# -        inputs = [*version.values()] if x is None else [*version.values(), x]
# -        grads = torch.autograd.grad(y, inputs, grad)
# -        self.newest = {}
# -        for (name, parameter), one in zip(self.module.named_parameters(), grads, strict=False):
# -            parameter.data = self.update(name, parameter.data, one)
# -            self.newest[name] = parameter.detach().requires_grad_()
# -        return None if x is None else grads[-1]
# +        y.backward(grad)
# +        for name, parameter in self.module.named_parameters():
# +            parameter.data = self.update(name, parameter.data, parameter.grad)
# +            parameter.grad = None
# +        return None if x is None else x.grad

# %% [raw] mutant="weight-stash" hint="modified by an inplace operation"
# -        y = functional_call(self.module, self.newest, (x, data))
# -        self.in_flight[key] = x, y, self.newest
# +        y = self.module(x, data)
# +        self.in_flight[key] = x, y, None
# -        inputs = [*version.values()] if x is None else [*version.values(), x]
# -        grads = torch.autograd.grad(y, inputs, grad)
# -        self.newest = {}
# -        for (name, parameter), one in zip(self.module.named_parameters(), grads, strict=False):
# -            parameter.data = self.update(name, parameter.data, one)
# -            self.newest[name] = parameter.detach().requires_grad_()
# -        return None if x is None else grads[-1]
# +        y.backward(grad)
# +        with torch.no_grad():
# +            for name, parameter in self.module.named_parameters():
# +                parameter.copy_(self.update(name, parameter.data, parameter.grad))
# +                parameter.grad = None
# +        return None if x is None else x.grad

# %% [raw] mutant="weight-stash" hint="starts from the version of its micro-batch"
# -            parameter.data = self.update(name, parameter.data, one)
# +            parameter.data = self.update(name, version[name].detach(), one)

# %% [raw] mutant="weight-stash" hint="in the gradient of a later one"
# -        grads = torch.autograd.grad(y, inputs, grad)
# +        y.backward(grad)
# +        grads = [one.grad for one in inputs]

# %% [raw] mutant="weight-stash" hint="the weights of the module have not changed"
# -            parameter.data = self.update(name, parameter.data, one)
# -            self.newest[name] = parameter.detach().requires_grad_()
# +            self.newest[name] = self.update(name, newest[name].detach(), one).requires_grad_()
# -        self.newest = {}
# +        newest, self.newest = self.newest, {}

# %% [raw] mutant="weight-stash" hint="Every forward pass uses the first version"
# -        self.newest = {}
# +        newest = {}
# -            self.newest[name] = parameter.detach().requires_grad_()
# +            newest[name] = parameter.detach().requires_grad_()

# %% [raw] mutant="weight-stash" hint="does no later pass need"
# -        self.newest = {}
# +        self.versions = [*getattr(self, "versions", []), self.newest]
# +        self.newest = {}

# %% [raw] mutant="weight-stash" hint="does no later pass need"
# -        y = functional_call(self.module, self.newest, (x, data))
# -        self.in_flight[key] = x, y, self.newest
# +        version = {name: one.detach().clone().requires_grad_() for name, one in self.newest.items()}
# +        y = functional_call(self.module, version, (x, data))
# +        self.in_flight[key] = x, y, version

# %% [raw] mutant="weight-stash" hint="does no later pass need"
# -            parameter.data = self.update(name, parameter.data, one)
# +            parameter.grad = one
# +            parameter.data = self.update(name, parameter.data, one)

# %% [markdown]
# How many versions does each stage hold now? And at which versions is the gradient of micro-batch 3 exact?

# %% tags=["explore"]
def until(actions, last):
    """Return the actions of a stage up to one of them, in a string."""
    words = actions.split()
    return " ".join(words[:words.index(last) + 1])


LINES = to_text(one_f_one_b(4, 24))


def pipedream_stage(module):
    from mytrainer.weight_stash import WeightStash

    return WeightStash(module, versions.sgd(0.1))


pipedream = [round(versions.held(pipedream_stage, until(line, "B15"))) for line in LINES]
print("weight versions on each of four stages:", *map(result, pipedream), "(modeled)")
check.compare("versions on the first stage", guess_first, pipedream[0])
check.compare("versions on the last stage", guess_last, pipedream[-1])

# %% tags=["explore"]
def stashed_gradients():
    """Train with your WeightStash; return what naive_stream returns, without the versions used."""
    from mytrainer.weight_stash import WeightStash

    rank = dist.get_rank()
    layer = versions.Layer(WIDTH, rank, rank == 0, rank == STAGES - 1)
    record = versions.Record(layer, versions.sgd(RATE))
    data = versions.micro_batches(6, WIDTH, 0.0)
    versions.stream(layer, lambda module: WeightStash(module, record), STREAM, data, 1.0, own_files=True)
    return None, record.gradients, record.history


distance, combination = nearest(run_ranks(stashed_gradients, STAGES), 3)
print(f"nearest at versions {combination}: distance {good(f'{distance:.1e}')}")

# %% [markdown]
# ## One version for all stages
#
# ![A timeline of three stages under PipeDream. Every box is a forward or backward pass of a micro-batch, labeled with
# the weight version that it uses. On stage 0, micro-batch 3 runs forward with version 1 and backward with version 1,
# although the newest is version 3 by then. On stage 2, every micro-batch runs backward right after its forward pass, so
# the newest version is the only one.](../images/weight_versions.svg)
#
# The gradient is now exact, but look at the versions. Micro-batch 3 saw the first stage after one update, the second
# after two, and the third after three. Training without a pipeline never has such a model: each update changes all
# layers at once.
#
# The paper also describes **vertical sync**: every stage uses the version that was newest on the *first* stage when the
# micro-batch entered the pipeline. PipeDream's authors leave it off by default. What does it cost? Guess how many
# versions the **last** of four stages holds with vertical sync. Set `guess_synced`:

# %% answer="guess-synced"
### BEGIN SOLUTION
guess_synced = 4
### END SOLUTION

# %% [markdown]
# **PipeDream-2BW** ("double-buffered weights"; [Narayanan et al., 2021](https://arxiv.org/abs/2006.09503)) lowers this
# price. It updates once per batch of $m \ge p$ micro-batches, and the whole batch uses one version on all stages. So
# the pipeline behaves like a single process whose gradients are always one version old. With the learning rate $\nu$
# and the loss $f$ of a batch, this is:
#
# $$W^{(t+1)} = W^{(t)} - \nu\,\nabla f\big(W^{(t-1)}\big)$$
#
# The same paper calls 1F1B with a flush **PipeDream-Flush**. In its formula, the gradient is taken at $W^{(t)}$, as in
# ordinary training.
#
# ### Exercise 2: vertical sync and 2BW
#
# Write `synced_stash.py`. Vertical sync, 2BW, and PipeDream-Flush all follow from one rule. The stream is divided into
# batches of `interval` micro-batches, and version $v$ is the weights after $v$ updates. **All micro-batches of a batch
# use the same version on all stages, in both passes: the newest one that the first stage has when the first micro-batch
# of the batch enters the pipeline under 1F1B.** With an interval of 1, this is vertical sync.
#
# - In a long stream, batch $j$ uses version $j - d$, where the **delay** $d$ does not depend on $j$. Which pass of the
#   first stage comes right before the one in which a micro-batch enters? `delay` returns $d$ for a stream through any
#   number of stages, with any interval. The first batches, for which there is no such version, use version 0.
# - `SyncedStash` is a stage. It updates once per batch, after the batch's last backward pass, with the sum of the
#   batch's gradients. No averaging is needed, because the executor has already weighted the losses. Forward and
#   backward passes each run in the order of the micro-batches. The module's own parameters have the newest values after
#   every pass.
# - With a delay of 0, and a flush after every batch, `SyncedStash` is PipeDream-Flush.
# - Between two passes, a stage holds the versions that later passes need, the sum of the gradients within a batch, and
#   nothing else as large as the weights. After an update, no gradient stays in memory.

# %% answer="synced-stash"
%%writefile mytrainer/synced_stash.py
"""A stage whose micro-batches use the same weight version as on all other stages."""

import torch
from torch.func import functional_call


def delay(stages, interval):
    """Return d: in a long stream, the micro-batches of batch j use version j - d.

    Args:
        stages: p.
        interval: micro-batches per update.
    """
    ### BEGIN SOLUTION
    return -(-(stages - 1) // interval)
    ### END SOLUTION


class SyncedStash:
    """Vertical sync (Narayanan et al., 2019), 2BW, and PipeDream-Flush (Narayanan et al., 2021).

    Attributes:
        module: as in Stage. Its parameters always have the newest values.
        update: returns the new value of a parameter, given its name in the module, its value, and its gradient.
        interval: micro-batches per update.
        delay: batch j uses version j - delay, or version 0.
    """

    def __init__(self, module, update, interval, delay):
        self.module, self.update, self.interval, self.delay = module, update, interval, delay
        ### BEGIN SOLUTION
        self.in_flight, self.done, self.sums = {}, 0, None
        self.versions = {0: {name: one.detach().requires_grad_() for name, one in module.named_parameters()}}
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
        y = functional_call(self.module, self.version(key), (x, data))
        self.in_flight[key] = x, y
        return y.detach()

    def version(self, key):
        """Return the weights that a micro-batch uses."""
        return self.versions[max(0, key // self.interval - self.delay)]
        ### END SOLUTION

    def backward(self, key, grad):
        """Run the backward pass, and return the gradient of x (None on the first stage).

        Args:
            key: the number of the micro-batch.
            grad: the gradient of the output; on the last stage, the weight of the loss.
        """
        ### BEGIN SOLUTION
        x, y = self.in_flight.pop(key)
        weights = [*self.version(key).values()]
        grads = torch.autograd.grad(y, weights if x is None else [*weights, x], grad)
        own = grads[:len(weights)]
        self.sums = own if self.sums is None else [a + b for a, b in zip(self.sums, own, strict=True)]
        self.done += 1
        if self.done % self.interval == 0:
            self.finish_batch(self.done // self.interval)
        return None if x is None else grads[-1]

    def finish_batch(self, new):
        """Make a new version, and drop the one that only the last batch needed."""
        if new > self.delay:
            del self.versions[new - 1 - self.delay]
        made = {}
        for (name, parameter), grad in zip(self.module.named_parameters(), self.sums, strict=True):
            parameter.data = self.update(name, parameter.data, grad)
            made[name] = parameter.detach().requires_grad_()
        self.versions[new], self.sums = made, None
        ### END SOLUTION

# %% tags=["driver"]
def delays(cases):
    """Return the delay for each number of stages and interval."""
    from mytrainer.synced_stash import delay

    return [delay(stages, interval) for stages, interval in cases]


def synced_stream(schedule, interval, delay, width, rate, seed, common):
    """Train one layer per rank with a SyncedStash on each; return what stashed_stream returns.

    Args:
        schedule: the actions of each stage, in a string.
        interval: micro-batches per update.
        delay: of the weights.
        width: features of a layer.
        rate: learning rate of SGD.
        seed: of this rank's weights.
        common: the seed of the data.
    """
    from mytrainer.synced_stash import SyncedStash

    from lablib import versions

    rank = dist.get_rank()
    layer = versions.Layer(width, seed, rank == 0, rank == len(schedule) - 1)
    schedule = [line.split() for line in schedule]
    data = versions.micro_batches(len(schedule[0]) // 2, width, common)
    losses = versions.stream(layer, lambda module: SyncedStash(module, versions.sgd(rate), interval, delay), schedule, data,
                             1 / interval)
    return [losses, [value for one in layer.parameters() for value in one.flatten().tolist()]]


def synced_memory(actions, width, inner, interval, delay):
    """Run passes of a stage on a GPU, and leave what it holds between two passes in memory."""
    from mytrainer.synced_stash import SyncedStash

    from lablib import versions

    with torch.device("cuda"):
        stage = SyncedStash(versions.Wide(width, inner), versions.sgd(0.1), interval, delay)
    versions.passes(stage, actions, 1, width)

# %% tags=["check-setup"]
def synced_by_one_process(ranks, schedule, interval, delay, width, rate, seed, common):
    """Return what synced_stream returns on each rank."""
    batches = len(schedule[0].split()) // 2 // interval
    return trained_by_one_process(
        seed, common, width, rate, [range(j * interval, (j + 1) * interval) for j in range(batches)],
        lambda stage, k: max(0, k // interval - delay))


def lag(stages, interval):
    """Return the delay that the first stage's actions lead to."""
    actions = stream_of(stages, 4 * stages * interval)[0].split()
    batch = 3 * stages
    before = actions[:actions.index(f"F{batch * interval}")]
    return batch - sum(one[0] == "B" for one in before) // interval


def flushed(stages, interval, batches):
    """Return 1F1B with a flush after every batch: the actions of each stage, in a string."""
    return [" ".join(f"{one[0]}{int(one[1:]) + j * interval}" for j in range(batches) for one in line.split())
            for line in stream_of(stages, interval)]


def until_pass(line, last):
    """Return the actions up to one of them, in a string."""
    words = line.split()
    return " ".join(words[:words.index(last) + 1])

# %% check="synced-stash" points=6
def require_synced(interval, delay, line, last, count):
    actions = until_pass(line, last)
    case = {"actions": actions, **LARGE, "interval": interval, "delay": delay}
    found = held(check.gpus(synced_memory, case, "h100:1", present=[0], least=work_of(**case)), **case)
    check.that(abs(found - count) < 0.1, f"Interval {interval}, delay {delay}, after {actions}: the stage holds {found:.1f} times its "
               f"weights, and later passes need {count}. Which versions does a batch need that has not entered yet, and which does "
               "none need? Or is a gradient left?")


with check.parts():
    with check.part(1, "delays"):
        check.ranks(
            delays, ranks=1, cases=[{"cases": [[4, 1], [4, 2], [4, 4], [4, 3], [1, 1], [6, 3]]}], expected=[[[3, 2, 1, 1, 0, 2]]],
            hints={"An update happens only once per interval: how many updates have not happened yet?": [[[3, 3, 3, 3, 0, 5]]],
                   "A batch uses a version that is complete on the first stage, not one that is almost complete.":
                       [[[3, 1, 0, 1, 0, 1]]],
                   "How many backward passes are missing when a micro-batch enters: as many as there are stages?":
                       [[[4, 2, 1, 2, 1, 2]]]})
        ### BEGIN HIDDEN TESTS
        cases = [[case["stages"], case["interval"]] for case in check.draw(12, stages=range(1, 17), interval=range(1, 33))]
        check.ranks(delays, ranks=1, cases=[{"cases": cases}], expected=lambda ranks, cases: [[lag(*one) for one in cases]])
        ### END HIDDEN TESTS
    with check.part(3, "computes with the same version on all stages"):
        check.ranks(
            synced_stream, ranks=2, rel=1e-5,
            cases=[{"schedule": ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"], "interval": 1, "delay": 1,
                    "width": 2, "rate": 0.5, "seed": check.by_rank([1.0, 2.0]), "common": 3.0},
                   {"schedule": ["F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"], "interval": 2,
                    "delay": 1, "width": 2, "rate": 0.5, "seed": check.by_rank([1.0, 2.0]), "common": 3.0},
                   {"schedule": ["F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"],
                    "interval": 2, "delay": 2, "width": 2, "rate": 0.5, "seed": check.by_rank([1.0, 2.0]), "common": 3.0}],
            expected=[[[[], [0.8990741, 1.066164, 0.02485302, -0.8221806, 0.9906232, 1.24429]], [[0.136283, 0.1743378, 0.128483,
                      0.2123415], [1.212759, 0.2150248, -0.3706945, -0.9048355, 1.119537, 1.46352]]], [[[], [0.7117507, 1.275503,
                      -0.1387925, -0.5663234, 0.8714344, 1.32957]], [[0.136283, 0.1743378, 0.2130906, 0.2493043, 0.1869422, 0.2145938],
                      [1.131211, 0.1875049, -0.598983, -0.8605346, 1.18649, 1.44592]]], [[[], [0.6813334, 1.500168, -0.1740672,
                      -0.3082525, 0.8526436, 1.288108]], [[0.136283, 0.1743378, 0.2130906, 0.2493043, 0.2818104, 0.3104484, 0.2379426,
                      0.2574749], [1.162876, 0.08021448, -0.6164165, -0.7791689, 1.231244, 1.343711]]]],
            hints={
                "The weights are one update old, and this stage's `delay` is 2.":
                    [[], [], [[[], [0.9169694, 1.094666, 0.1061143, -0.7426028, 0.9744103, 1.205314]], [[0.136283, 0.1743378, 0.2130906,
                     0.2493043, 0.1869422, 0.2145938, 0.3040113, 0.3242601], [1.205274, 0.202911, -0.4334329, -0.7934616, 1.155025,
                     1.397885]]]],
                "Each stage uses the newest version that it has itself. What has the first stage, when the micro-batch enters?":
                    [[[[], [0.8961451, 1.111093, 0.03990344, -0.7750242, 0.9902713, 1.271792]], [[0.136283, 0.1490155, 0.1150633,
                     0.1554857], [1.188065, 0.237308, -0.4421666, -0.8709822, 1.163734, 1.461844]]], [[[], [0.7960356, 1.146263,
                     -0.04324108, -0.6890235, 0.9286236, 1.316445]], [[0.136283, 0.1743378, 0.1886357, 0.1565743, 0.1640335, 0.1617473],
                     [1.142953, 0.2448089, -0.5729818, -0.8537837, 1.189026, 1.466865]]], []],
                "An update applies to the version that its batch has used, so the update in between is lost.":
                    [[[[], [0.7380279, 1.064719, -0.1045219, -0.8004031, 0.8848964, 1.347611]], [[0.136283, 0.1743378, 0.128483,
                     0.1550868], [1.095532, 0.2950872, -0.6085406, -0.8789557, 1.159361, 1.493696]]], [[[], [0.731536, 1.073325,
                     -0.1038453, -0.7735781, 0.8796776, 1.34407]], [[0.136283, 0.1743378, 0.2130906, 0.2493043, 0.1869422, 0.2145938],
                     [1.090761, 0.2964561, -0.6347161, -0.8523783, 1.172994, 1.474947]]], []],
                "The updates are too small: the executor has divided the losses already.":
                    [[], [[[], [0.6480413, 1.146953, -0.1783407, -0.7336786, 0.8235904, 1.373327]], [[0.136283, 0.1743378, 0.2130906,
                     0.2493043, 0.2156665, 0.2432349], [1.051579, 0.2896479, -0.6967095, -0.8473382, 1.177076, 1.466609]]], []],
                "An update contains the gradients of earlier batches, too.":
                    [[[[], [0.9593761, 1.873428, 0.0398701, -0.1568458, 1.034232, 1.18308]], [[0.136283, 0.1743378, 0.128483, 0.3650265],
                     [1.461379, -0.284845, 0.02210036, -1.139951, 1.100404, 1.419726]]], [[[], [0.661638, 1.83362, -0.2115549,
                     -0.05920376, 0.846369, 1.343879]], [[0.136283, 0.1743378, 0.2130906, 0.2493043, 0.1869422, 0.2145938], [1.24278,
                     -0.1174363, -0.4903357, -0.9833456, 1.214582, 1.432504]]], []],
                "An update contains only the last gradient of its batch.":
                    [[], [[[], [0.6487874, 1.149764, -0.1793285, -0.7219795, 0.8244161, 1.36561]], [[0.136283, 0.1743378, 0.2130906,
                     0.2493043, 0.2106528, 0.237552], [1.052868, 0.2881531, -0.6991426, -0.8322798, 1.180405, 1.455402]]], []]})
        ### BEGIN HIDDEN TESTS
        for ranks, interval, delay, count in ((3, 2, 1, 8), (4, 1, 3, 7), (4, 2, 2, 8)):
            check.ranks(synced_stream, ranks=ranks, rel=1e-4, cases=check.draw(
                1, schedule=[stream_of(ranks, count)], interval=[interval], delay=[delay], width=[3, 4],
                rate=check.between(0.1, 0.5), seed=check.for_each_rank(check.between(0, 100)), common=check.between(0, 100)),
                expected=synced_by_one_process)
        check.ranks(synced_stream, ranks=2, rel=1e-4, cases=check.draw(
            1, schedule=[flushed(2, 3, 2)], interval=[3], delay=[0], width=[3, 4], rate=check.between(0.1, 0.5),
            seed=check.for_each_rank(check.between(0, 100)), common=check.between(0, 100)), expected=synced_by_one_process)
        ### END HIDDEN TESTS
    with check.part(2, "holds the versions that later passes need, and no more"):
        LAST = " ".join(f"F{k} B{k}" for k in range(9))
        require_synced(1, 3, LAST, "B5", 4)
        require_synced(3, 1, LAST, "B8", 2)
        require_synced(2, 2, LAST, "B5", 3)
        ### BEGIN HIDDEN TESTS
        for case in check.draw(1, stages=range(3, 6), interval=range(4, 7), stage=range(3)):
            interval, line = case["interval"], stream_of(case["stages"], 5 * case["interval"])[case["stage"]]
            require_synced(interval, 1, line, f"B{3 * interval - 1}", 2)
            require_synced(interval, 2, line, f"B{4 * interval - 1}", 3)
            require_synced(1, case["stages"] - 1, line, f"B{3 * interval - 1}", case["stages"])
        ### END HIDDEN TESTS

# %% [raw] mutant="synced-stash" hint="how many updates have not happened yet"
# -    return -(-(stages - 1) // interval)
# +    return stages - 1

# %% [raw] mutant="synced-stash" hint="not one that is almost complete"
# -    return -(-(stages - 1) // interval)
# +    return (stages - 1) // interval

# %% [raw] mutant="synced-stash" hint="as many as there are stages"
# -    return -(-(stages - 1) // interval)
# +    return -(-stages // interval)

# %% [raw] mutant="synced-stash" hint="the newest version that it has itself"
# -        y = functional_call(self.module, self.version(key), (x, data))
# -        self.in_flight[key] = x, y
# +        newest = self.versions[max(self.versions)]
# +        y = functional_call(self.module, newest, (x, data))
# +        self.in_flight[key] = x, y, newest
# -        x, y = self.in_flight.pop(key)
# -        weights = [*self.version(key).values()]
# +        x, y, version = self.in_flight.pop(key)
# +        weights = [*version.values()]

# %% [raw] mutant="synced-stash" hint="The weights are one update old"
# -        self.module, self.update, self.interval, self.delay = module, update, interval, delay
# +        self.module, self.update, self.interval, self.delay = module, update, interval, min(delay, 1) if interval > 1 else delay

# %% [raw] mutant="synced-stash" hint="to the version that its batch has used"
# -        if new > self.delay:
# -            del self.versions[new - 1 - self.delay]
# -        made = {}
# +        used, made = self.versions[max(0, new - 1 - self.delay)], {}
# +        if new > self.delay:
# +            del self.versions[new - 1 - self.delay]
# -            parameter.data = self.update(name, parameter.data, grad)
# +            parameter.data = self.update(name, used[name].detach(), grad)

# %% [raw] mutant="synced-stash" hint="has divided the losses already"
# -            parameter.data = self.update(name, parameter.data, grad)
# +            parameter.data = self.update(name, parameter.data, grad / self.interval)

# %% [raw] mutant="synced-stash" hint="of earlier batches, too"
# -        self.versions[new], self.sums = made, None
# +        self.versions[new] = made

# %% [raw] mutant="synced-stash" hint="only the last gradient of its batch"
# -        self.sums = own if self.sums is None else [a + b for a, b in zip(self.sums, own, strict=True)]
# +        self.sums = own

# %% [raw] mutant="synced-stash" hint="which does none need"
# -        if new > self.delay:
# -            del self.versions[new - 1 - self.delay]
# -        made = {}
# +        made = {}

# %% [raw] mutant="synced-stash" hint="which does none need"
# -        self.versions[new], self.sums = made, None
# +        self.versions[new] = made
# +        self.zeros = self.sums = [0 * one for one in self.sums]

# %% [markdown]
# Now measure the cost of each of these policies, as the number of versions that each of four stages holds right after
# an update. With 2BW, a batch has four micro-batches.

# %% tags=["explore"]
def synced_stage(interval, flush=False):
    """Return a function that makes your SyncedStash for one of four stages."""
    def make(module):
        from mytrainer.synced_stash import SyncedStash, delay

        return SyncedStash(module, versions.sgd(0.1), interval, 0 if flush else delay(4, interval))

    return make


FLUSHED = [" ".join(f"{one[0]}{int(one[1:]) + 4 * step}" for step in range(4) for one in line.split())
           for line in to_text(one_f_one_b(4, 4))]
costs = {"PipeDream": pipedream}
for name, make, lines in (("vertical sync", synced_stage(1), LINES), ("2BW", synced_stage(4), LINES),
                          ("PipeDream-Flush", synced_stage(4, flush=True), FLUSHED)):
    costs[name] = [round(versions.held(make, until(line, "B15"))) for line in lines]
for name, counts in costs.items():
    print(f"{name:16} weight versions by stage: {result(' '.join(map(str, counts)))}, "
          f"together {sum(counts)} (modeled)")
check.compare("versions on the last stage, with vertical sync", guess_synced, costs["vertical sync"][-1])

# %% [markdown]
# Vertical sync needs as many versions on every stage as PipeDream does on the first one. The last stage has nothing in
# flight that would need them: it holds them for micro-batches that have not arrived yet. 2BW holds two on every stage,
# however long the pipeline is, but it updates less often.
#
# Activations take memory in addition to the weights. With all four policies, stage $s$ has at most $p - s$
# micro-batches in flight.

# %% [markdown]
# ### Exercise 3: recompute with the right weights
#
# For large models, 2BW is combined with activation recomputation, as in its paper: a stage keeps only the input of a
# micro-batch in flight, and repeats the forward pass right before the backward pass. The second forward pass has to
# reproduce the result of the first, although the weights have been updated in the meantime.
#
# Write `stash_recompute.py`, a `SyncedStash` with recomputation. Between two passes, a stage holds the same weight
# versions as before, and for each micro-batch in flight only the hidden states that it received and the micro-batch
# itself. The checks are those of exercise 2, except for those of `delay`, and they use a module whose activations are
# much larger than its input.

# %% answer="stash-recompute"
%%writefile mytrainer/stash_recompute.py
"""Weight versions with activation recomputation."""

import torch
from mytrainer.synced_stash import SyncedStash
from torch.func import functional_call


class RecomputingStash(SyncedStash):
    """A SyncedStash that keeps only the input of a micro-batch in flight."""

    ### BEGIN SOLUTION
    def forward(self, key, x, data):
        with torch.no_grad():
            y = functional_call(self.module, self.version(key), (x, data))
        self.in_flight[key] = x, data
        return y

    def backward(self, key, grad):
        super().forward(key, *self.in_flight[key])
        return super().backward(key, grad)
    ### END SOLUTION

# %% tags=["driver"]
def recomputing_stream(schedule, interval, delay, width, rate, seed, common):
    """Train one layer per rank with a RecomputingStash on each; return what stashed_stream returns.

    Args:
        schedule: the actions of each stage, in a string.
        interval: micro-batches per update.
        delay: of the weights.
        width: features of a layer.
        rate: learning rate of SGD.
        seed: of this rank's weights.
        common: the seed of the data.
    """
    from mytrainer.stash_recompute import RecomputingStash

    from lablib import versions

    rank = dist.get_rank()
    layer = versions.Layer(width, seed, rank == 0, rank == len(schedule) - 1)
    schedule = [line.split() for line in schedule]
    data = versions.micro_batches(len(schedule[0]) // 2, width, common)
    losses = versions.stream(layer, lambda module: RecomputingStash(module, versions.sgd(rate), interval, delay), schedule, data,
                             1 / interval)
    return [losses, [value for one in layer.parameters() for value in one.flatten().tolist()]]


def recomputing_memory(actions, tokens, width, inner, interval, delay):
    """Run passes of a stage on a GPU, and leave what it holds between two passes in memory."""
    from mytrainer.stash_recompute import RecomputingStash

    from lablib import versions

    with torch.device("cuda"):
        stage = RecomputingStash(versions.Wide(width, inner), versions.sgd(0.1), interval, delay)
    versions.passes(stage, actions, tokens, width)

# %% check="stash-recompute" points=4
def require_inputs_only(interval, delay, line, last, count):
    actions = until_pass(line, last)
    case = {"actions": actions, "tokens": 2048, "width": 512, "inner": 8192, "interval": interval, "delay": delay}
    found = held(check.gpus(recomputing_memory, case, "h100:1", present=[0], least=work_of(**case)), **case)
    in_flight = actions.count("F") - actions.count("B")
    needed = count + in_flight * 2048 / (2 * 8192)  # an input has 2048 x 512 elements, and the weights have 2 x 512 x 8192
    check.that(found < needed + 0.05, f"Interval {interval}, delay {delay}, after {actions}: the stage holds {found:.2f} times its "
               f"weights, and the versions and the inputs of {in_flight} micro-batches are only {needed:.2f}. What else stays in memory "
               "between the passes?")


with check.parts():
    with check.part(2, "recomputes with the version of the first forward pass"):
        check.ranks(
            recomputing_stream, ranks=2, rel=1e-5,
            cases=[{"schedule": ["F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"], "interval": 2,
                    "delay": 1, "width": 2, "rate": 0.5, "seed": check.by_rank([3.0, 4.0]), "common": 5.0}],
            expected=[[[[], [0.8280132, 0.1050317, -0.7076399, -1.430788, 1.020241, 1.482142]], [[0.6886962, 0.713626, 0.7284797,
                      0.7330273, 0.1248056, 0.126379], [-1.283173, -0.8535932, -0.9999655, 0.3690087, 1.122003, 1.065267]]]],
            hints={
                "The second forward pass uses newer weights than the first one. What has happened in between?":
                    [[[[], [0.884234, -0.2238112, -0.8295795, -0.8605351, 1.246195, 1.4288]], [[0.6886962, 0.713626, 0.7284797,
                     0.7330273, 0.1248056, 0.126379], [-0.4234097, -0.8878663, -0.8996695, 0.3573622, 1.283482, 1.092889]]]]})
        ### BEGIN HIDDEN TESTS
        for delay in (1, 2):
            check.ranks(recomputing_stream, ranks=3, rel=1e-4, cases=check.draw(
                1, schedule=[stream_of(3, 8)], interval=[2], delay=[delay], width=[3, 4], rate=check.between(0.1, 0.5),
                seed=check.for_each_rank(check.between(0, 100)), common=check.between(0, 100)), expected=synced_by_one_process)
        ### END HIDDEN TESTS
    with check.part(2, "keeps only inputs"):
        require_inputs_only(2, 1, "F0 F1 B0 F2 B1 F3", "F3", 2)
        ### BEGIN HIDDEN TESTS
        for case in check.draw(1, stages=range(3, 6), batch=range(2, 4)):
            stages = case["stages"]
            require_inputs_only(stages, 1, stream_of(stages, 5 * stages)[0], f"F{(case['batch'] + 1) * stages - 1}", 2)
            require_inputs_only(stages, 2, stream_of(stages, 5 * stages)[0], f"F{(case['batch'] + 2) * stages - 1}", 3)
        ### END HIDDEN TESTS

# %% [raw] mutant="stash-recompute" hint="uses newer weights than the first one"
# -        super().forward(key, *self.in_flight[key])
# -        return super().backward(key, grad)
# +        saved = dict(self.versions)
# +        for number in saved:
# +            self.versions[number] = saved[max(saved)]
# +        super().forward(key, *self.in_flight[key])
# +        gradient = super().backward(key, grad)
# +        for number in self.versions:
# +            self.versions[number] = saved.get(number, self.versions[number])
# +        return gradient

# %% [raw] mutant="stash-recompute" hint="uses newer weights than the first one"
# -        super().forward(key, *self.in_flight[key])
# -        return super().backward(key, grad)
# +        x, data = self.in_flight.pop(key)
# +        newest = max(self.versions)
# +        if x is not None:
# +            x = x.detach().requires_grad_()
# +        y = functional_call(self.module, self.versions[newest], (x, data))
# +        weights = [*self.versions[newest].values()]
# +        grads = torch.autograd.grad(y, weights if x is None else [*weights, x], grad)
# +        own = grads[:len(weights)]
# +        self.sums = own if self.sums is None else [a + b for a, b in zip(self.sums, own, strict=True)]
# +        self.done += 1
# +        if self.done % self.interval == 0:
# +            self.finish_batch(self.done // self.interval)
# +        return None if x is None else grads[-1]

# %% [raw] mutant="stash-recompute" hint="What else stays in memory"
# -        with torch.no_grad():
# -            y = functional_call(self.module, self.version(key), (x, data))
# -        self.in_flight[key] = x, data
# -        return y
# +        y = super().forward(key, x, data)
# +        self.kept = {**getattr(self, "kept", {}), key: self.in_flight[key]}
# +        self.in_flight[key] = x, data
# +        return y
# -        super().forward(key, *self.in_flight[key])
# -        return super().backward(key, grad)
# +        super().forward(key, *self.in_flight[key])
# +        del self.kept[key]
# +        return super().backward(key, grad)

# %% [raw] mutant="stash-recompute" hint="What else stays in memory"
# -        self.in_flight[key] = x, data
# -        return y
# +        self.in_flight[key] = x, data
# +        self.outputs = [*getattr(self, "outputs", []), y]
# +        return y

# %% [markdown]
# A checkpoint function that recomputes with `self.module` would have brought back the bug of the naive stage, without
# any error message: its first forward pass runs before the updates, and the recomputed one after them. (If a stage has
# dropout, the random numbers have to be those of the first forward pass, too.)

# %% [markdown]
# ## Does staleness hurt?
#
# All four policies compute exact gradients, but without a flush, these are gradients at old weights. With weight
# stashing, the weights are older on the first stage than on the last. Take a very simple loss, $f(w) = w^2/2$ with a
# single weight $w$. SGD computes $w \leftarrow w - \nu w$, and converges for every learning rate $\nu$ below 2. Up to
# which learning rate does it converge with 2BW, whose gradient is one update old? Set `guess_rate`:

# %% answer="guess-rate"
### BEGIN SOLUTION
guess_rate = 1.0
### END SOLUTION

# %% tags=["explore"] short={"range(12)": "range(6)", "range(400)": "range(100)"}
class Parabola(torch.nn.Module):
    """A stage that is a whole model with the loss w^2/2."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x, data):
        return self.w**2 / 2


def largest_rate(delay):
    """Return the largest learning rate at which SGD with stale gradients converges, by bisection."""
    from mytrainer.synced_stash import SyncedStash

    low, high = 0.0, 4.0
    for _ in range(12):
        rate = (low + high) / 2
        model = Parabola()
        stage = SyncedStash(model, versions.sgd(rate), 1, delay)
        for key in range(400):
            stage.backward(key, torch.ones_like(stage.forward(key, None, None)))
        low, high = (rate, high) if abs(model.w.item()) < 1 else (low, rate)
    return low


DELAYS = (0, 1, 3, 7)
rates = dict(zip(DELAYS, run_ranks(lambda: [largest_rate(delay) for delay in DELAYS], 1)[0], strict=True))
for number, rate in rates.items():
    print(f"delay {number}: SGD converges up to a learning rate of {result(f'{rate:.2f}')}")
check.compare("largest learning rate with a delay of 1", guess_rate, round(rates[1], 2))

# %% [markdown]
# Why? With a delay of $d$, SGD is $w_{t+1} = w_t - \nu\,w_{t-d}$. Try $w_t = z^t$: it solves this if
# $z^{d+1} - z^d + \nu = 0$. SGD converges while all solutions have $|z| < 1$, and at the limit, one of them is on the
# unit circle. Setting $z = e^{i\theta}$ gives
#
# $$\nu = 2 \sin \frac{\pi}{4d + 2}$$
#
# which is close to $\pi / (2d + 1)$ if the delay is large. For other functions, divide by the largest curvature. So if
# you double the number of stages, vertical sync has to halve its learning rate, roughly, while the delay of 2BW stays
# at one update. For plain weight stashing, $d$ differs between the stages. Momentum and Adam change these limits, but
# not the trend: staleness is harmless as long as each update changes the weights only a little, and dangerous once
# updates are large.
#
# A limit on the learning rate is not the whole answer, because time counts, too. So train a small GPT, one layer on
# each of four ranks, with four micro-batches per batch, and stop all policies at the same simulated time.
# PipeDream-Flush spends part of this time on the bubble. The others do not, so they process more micro-batches. Weight
# stashing and vertical sync also update after every micro-batch, while the other two update once per batch. The
# optimizer is Adam.

# %% tags=["explore"] short={"HORIZON = 1260": "HORIZON = 84"}
HORIZON = 1260  # in forward passes of a micro-batch on one stage: 60 steps with a flush
STEP = simulate(one_f_one_b(4, 4), TIMES).total


def times_of_losses(schedule):
    """Return when the last stage ends its forward passes, in the order of the micro-batches."""
    return [span.end for span in simulate(schedule, TIMES).spans[3] if span.kind == "F"]


def plan(policy):
    """Return the schedule of a policy, as text, and the times of its losses."""
    if policy == "PipeDream-Flush":
        steps = int(HORIZON / STEP)
        lines = [[f"{one[0]}{int(one[1:]) + 4 * step}" for step in range(steps) for one in line.split()]
                 for line in to_text(one_f_one_b(4, 4))]
        return lines, [STEP * step + end for step in range(steps) for end in times_of_losses(one_f_one_b(4, 4))]
    count = int(HORIZON / 3) // 4 * 4
    schedule = one_f_one_b(4, count)
    return [line.split() for line in to_text(schedule)], times_of_losses(schedule)


def gpt_losses(policy, lines, rate):
    """Train the small GPT on four ranks; return the losses on the last one."""
    from mytrainer.synced_stash import SyncedStash, delay
    from mytrainer.weight_stash import WeightStash

    count, update = len(lines[0]) // 2, versions.Adam(rate)
    make, weight = {
        "PipeDream-Flush": (lambda module: SyncedStash(module, update, 4, 0), 1 / 4),
        "weight stashing": (lambda module: WeightStash(module, update), 1.0),
        "vertical sync": (lambda module: SyncedStash(module, update, 1, delay(4, 1)), 1.0),
        "2BW": (lambda module: SyncedStash(module, update, 4, delay(4, 4)), 1 / 4)}[policy]
    model = versions.GPTStage(dist.get_rank(), 4)
    return versions.stream(model, make, lines, versions.token_batches(count), weight, own_files=True)


def compare_policies(rate):
    """Train with all policies at a learning rate; return the times and the smoothed losses of each."""
    curves = {}
    for policy in ("PipeDream-Flush", "weight stashing", "vertical sync", "2BW"):
        lines, ends = plan(policy)
        losses = torch.tensor(run_ranks(gpt_losses, 4, policy, lines, rate)[-1])
        window = max(1, len(losses) // 10)
        curves[policy] = ends[window - 1:], losses.unfold(0, window, 1).mean(-1).tolist()
        print(f"{policy:16} {len(losses):4} micro-batches, final loss {result(f'{curves[policy][1][-1]:.2f}')}")
    return curves

# %% [markdown]
# The tokens follow a rule that the model has to find: each depends on the two before it. At a learning rate of 0.003,
# by what percentage will the final loss of 2BW be above that of PipeDream-Flush? Set `guess_percent`; a negative number
# means below. The run takes about a minute.

# %% answer="guess-percent"
### BEGIN SOLUTION
guess_percent = 25
### END SOLUTION

# %% tags=["explore"]
slow = compare_policies(0.003)
ratio = slow["2BW"][1][-1] / slow["PipeDream-Flush"][1][-1]
check.compare("percent by which the loss of 2BW is above that of PipeDream-Flush", guess_percent, 100 * (ratio - 1))
plots.curves(slow, "time, in forward passes (simulated)", "loss", "Small GPT at a learning rate of 0.003")

# %% [markdown]
# The next cell repeats the run at a learning rate of 0.01, and takes another minute. Before you run it, predict which
# curves will end lower than before, and which will end higher.

# %% tags=["explore"]
fast = compare_policies(0.01)
for policy in slow:
    print(f"{policy:16} loss at the better of the two rates {result(f'{min(slow[policy][1][-1], fast[policy][1][-1]):.2f}')}")
plots.curves(fast, "time, in forward passes (simulated)", "loss", "Small GPT at a learning rate of 0.01")

# %% [markdown]
# Is the flush worth its bubble? Not at the lower rate: weight stashing is far ahead. At the higher rate,
# PipeDream-Flush does better than before, and all others do worse. With each policy at the better of the two rates,
# weight stashing still ends below PipeDream-Flush. But these two differ in more than staleness: weight stashing updates
# after every micro-batch, so its batches are a quarter as large, and it makes seven times as many updates in the same
# time.
#
# Two pairs of policies differ mainly in staleness. Weight stashing and vertical sync make the same number of updates
# with the same samples, but with vertical sync, even the last stage uses weights that are three updates old. 2BW and
# PipeDream-Flush both update once per batch. 2BW makes more updates, but each of them uses a gradient that is one
# update old. Here, this staleness costs more than the bubble.
#
# Do not read too much into one seed and the beginning of a training run of a tiny model, whose weights change a lot
# with every update. [Narayanan et al., 2021](https://arxiv.org/abs/2006.09503) trained BERT and GPT models with 2BW,
# and report a final accuracy similar to that of training without stale gradients. Newer work finds that much depends on
# the optimizer. [Zmushko et al., 2026](https://arxiv.org/abs/2606.30634) put their result in the title: *One-Step
# Gradient Delay is Not a Barrier for Large-Scale Asynchronous Pipeline Parallel LLM Pretraining*. With the delay of
# 2BW, AdamW degrades severely, but Muon is robust, and a correction by error feedback helps any optimizer. With these
# remedies, the gap to training with a flush closes, on models with up to 10 billion parameters. [Jung et al.,
# 2026](https://arxiv.org/abs/2602.03515) investigate why Adam suffers more from staleness as pipelines get deeper.
#
# So before you leave out the flush, work out what it really costs. Today's schedules leave a much smaller bubble
# without changing a single gradient. They are the subject of the second sitting.

# %% [markdown]
# ## Zero bubble
#
# 1F1B bounds the memory of a pipeline, but its bubble is as long as GPipe's: $p-1$ forward and $p-1$ backward passes.
# The batch at the beginning of this lab left each pipeline 16 micro-batches. The next cell shows the idle time with
# four times as many:

# %% tags=["explore"]
wide = simulate(load("1f1b", 16, 64))
print(f"16 stages, 64 micro-batches, 1F1B: the GPUs are idle for {result(f'{wide.bubble_fraction:.0%}')} of the time (simulated)")
plots.pipeline(load("1f1b", 4, 8), "1F1B", live=False)

# %% [markdown]
# In the figure, a third of the idle time comes after a stage's last pass, and another third between its first forward
# passes and its first backward pass. The rest comes before the first pass, and between the last backward passes. Most
# of the idle time has one cause: gradients pass through one stage after the other, and each stage takes twice as long
# for a backward pass as for a forward pass. What exactly does the previous stage wait for?
#
# A linear layer $Y = XW^\top$ receives the gradient $G$ of its output, and computes two things with it:
#
# $$\frac{\partial L}{\partial X} = G\,W, \qquad \frac{\partial L}{\partial W} = G^\top X$$
#
# The first is what the layer before needs, and so on, down to the previous stage. Nothing needs the second until the
# optimizer step. Yet autograd computes both before it moves on to the next layer. [Qi et al.,
# 2023](https://arxiv.org/abs/2401.10241) split the pass: **B** computes the gradient of the input and sends it, and
# **W** computes the gradients of the weights at any time between B and the optimizer step. (The published formulas, and
# ours, use $F$, $B$, and $W$ for the times of these passes, too.)
#
# How long do they take? An MLP consists of nothing but linear layers and element-wise functions. Guess the times of B
# and W on an H100, each divided by the time of the forward pass. Set `guess_times` to a pair, such as `[2, 2]`:

# %% answer="guess-times"
### BEGIN SOLUTION
guess_times = [1.1, 1.0]
### END SOLUTION

# %% tags=["explore"]
def passes(needs_input, needs_weights):
    """Return the modeled times of a forward and a backward pass of four MLPs."""
    blocks = zero_bubble.Blocks(4, 4096).requires_grad_(needs_weights)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    for _ in range(2):  # the first one warms up
        x = torch.zeros(4096, 1, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=needs_input)
        torch.cuda.synchronize()
        marks[0].record()
        y = blocks(x, None)
        marks[1].record()
        y.backward(torch.zeros_like(y))
        marks[2].record()
        torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])


forward, inputs = virtualgpu.run(lambda: passes(True, False), "h100:1")[0].value
_, both = virtualgpu.run(lambda: passes(True, True), "h100:1")[0].value
print(f"F {forward:.1f} ms, B {inputs:.1f} ms, B and W {both:.1f} ms, so W takes {both - inputs:.1f} ms (modeled)")
check.compare("B relative to F (modeled)", guess_times[0], inputs / forward)
check.compare("W relative to F (modeled)", guess_times[1], (both - inputs) / forward)

# %% [markdown]
# The GEMMs of all three passes have the same FLOPs. On this modeled H100, W takes longer than F and B because eager
# PyTorch also casts each gradient to fp32 and adds it to the accumulated one, in separate kernels. Megatron-LM fuses
# both into the GEMM (**gradient accumulation fusion**). With attention, W may become the shortest: the core of
# attention has no weights, so it makes F and B longer, and adds nothing to W. In any case, W is the only pass that can
# wait.
#
# Production code has this split, too. With `delay_wgrad_compute`, a module of [Transformer
# Engine](https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/pytorch.html) queues the GEMM of W in
# its backward pass, and `backward_dw()` runs it later. Megatron-LM uses this to hide the all-to-all of
# mixture-of-experts layers.
#
# ### Exercise 4: split the backward pass
#
# Write `split_backward.py`. `SplitStage` takes the place of your `Stage` of lab 10: `Pipeline(modules, links, buffer,
# make_stage=SplitStage)` executes schedules with W. Modules stay as they are. They call `torch.nn.functional.linear`,
# as your layers of lab 09 do in a plain `Region`, and the given `linear_replaced` replaces this function within a
# `with` block. A region with a backward pass of its own, such as your `SequenceRegion` or `OverlapRegion`, computes the
# weight gradients of its column-parallel layers there, so they stay in B. Exercise 8 changes that for the
# `SequenceRegion`.
#
# - `forward` and `backward` do what those of `Stage` do, except that `backward` computes no gradient of a matrix or
#   bias that a linear layer uses. Instead, it queues what W will need. All other parameters, such as embeddings and the
#   scales of norms, get their gradients in B.
# - `weight(key)` computes the gradients that `backward` has queued for one micro-batch, and adds them to the
#   parameters' `.grad`. After that, nothing of the micro-batch stays in memory. Different micro-batches may be in
#   flight at once.
# - After all three passes, every gradient equals the one that a single process computes. This includes a matrix that
#   two layers share, a matrix that does not require a gradient (and gets none), and bf16 parameters whose `grad_dtype`
#   is `torch.float32`, which accumulate in fp32, as in lab 05.
# - Between B and W, a stage keeps the input of each linear layer and the gradient of its output, and nothing else.
# - With activation checkpointing, the module's forward pass runs again, in the middle of B. Even then, B must not
#   compute the weight gradients.
#
# Inputs may have any number of dimensions before the features. The last stage returns a loss, as in lab 10.

# %% answer="split-backward"
%%writefile mytrainer/split_backward.py
"""Split a backward pass in two: B computes the gradient of the input, and W those of the weights."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F

plain_linear = F.linear


@contextmanager
def linear_replaced(function):
    """Let torch.nn.functional.linear be a function of x, weight, and bias=None within a `with` block."""
    original = F.linear
    F.linear = function
    try:
        yield
    finally:
        F.linear = original


class SplitLinear(torch.autograd.Function):
    """x W^T + b, whose backward pass computes the gradient of x only, and queues those of W and b."""

    @staticmethod
    def forward(ctx, x, weight, bias, queue):
        """Args:
            x: [..., in].
            weight: [out, in].
            bias: [out], or None.
            queue: the list to which the backward pass appends what W needs.
        """
        ### BEGIN SOLUTION
        ctx.save_for_backward(x)
        # An attribute: saved tensors of a recomputed pass are copies, and a gradient belongs to the parameter itself.
        ctx.weight, ctx.bias, ctx.queue = weight, bias, queue
        return plain_linear(x, weight, bias)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        ### BEGIN SOLUTION
        (x,) = ctx.saved_tensors
        ctx.queue.append((ctx.weight, ctx.bias, x.detach(), grad))  # without the history that led to x
        return grad @ ctx.weight, None, None, None
        ### END SOLUTION


class SplitStage:
    """A part of a model, as Stage of lab 10, with its backward pass in two parts.

    Attributes:
        module: called with hidden states and a micro-batch.
        in_flight: {key of a micro-batch: what its B needs}.
        queues: {key of a micro-batch: what its W needs}.
    """

    def __init__(self, module):
        self.module, self.in_flight, self.queues = module, {}, {}

    def forward(self, key, x, data):
        """Run the forward pass of a micro-batch, and return its output, which has no history.

        Args:
            key: identifies the micro-batch.
            x: received hidden states, or None on the first stage.
            data: the micro-batch.
        """
        ### BEGIN SOLUTION
        if x is not None:
            x = x.detach().requires_grad_()
        with self.split(key):
            y = self.module(x, data)
        self.in_flight[key] = x, y
        return y.detach()
        ### END SOLUTION

    def backward(self, key, grad):
        """Run B of a micro-batch, and return the gradient of its x (None on the first stage).

        Args:
            key: identifies the micro-batch.
            grad: the gradient of the output; on the last stage, the weight of the loss.
        """
        ### BEGIN SOLUTION
        x, y = self.in_flight.pop(key)
        with self.split(key):  # recomputation calls the module again
            y.backward(grad)
        return None if x is None else x.grad
        ### END SOLUTION

    def weight(self, key):
        """Run W of a micro-batch: add to the gradients of the matrices and biases of its linear layers."""
        ### BEGIN SOLUTION
        with torch.no_grad():
            for weight, bias, x, grad in self.queues.pop(key):
                x, grad = x.flatten(0, -2), grad.flatten(0, -2)
                if weight.requires_grad:
                    weight.backward(grad.t() @ x)  # accumulates as autograd does, in the parameter's grad_dtype
                if bias is not None and bias.requires_grad:
                    bias.backward(grad.sum(0))

    def split(self, key):
        queue = self.queues.setdefault(key, [])
        return linear_replaced(lambda input, weight, bias=None: SplitLinear.apply(input, weight, bias, queue))
        ### END SOLUTION

# %% tags=["driver"]
def split_step(schedule, common, seed, recompute=False, frozen=()):
    """Train a tiny model for a step; return the loss, and a projection of each gradient."""
    from lablib import executor, zero_bubble

    executor.install()
    from mytrainer.split_backward import SplitStage

    return zero_bubble.step(SplitStage, schedule, common, seed, recompute, frozen)


def summed_gradients(values):
    """Return the gradient of one weight in bf16 after a micro-batch with each of these output gradients, and its dtype."""
    from mytrainer.split_backward import SplitStage

    weight = torch.nn.Parameter(torch.ones(1, 1, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    stage = SplitStage(lambda x, data: torch.nn.functional.linear(x, weight))
    for number, value in enumerate(values):
        stage.forward(number, torch.ones(1, 1, 1, dtype=torch.bfloat16), None)
        stage.backward(number, torch.full((1, 1, 1), value, dtype=torch.bfloat16))
        stage.weight(number)
    return [weight.grad.item(), str(weight.grad.dtype)]


def split_passes(actions):
    """Run passes of one stage on a GPU."""
    from mytrainer.split_backward import SplitStage

    from lablib import zero_bubble

    zero_bubble.passes_on_gpu(SplitStage, actions, 4, 1024, 4096)

# %% tags=["check-setup"]
import torch

from lablib import zero_bubble


def in_one_number(grad):
    """Return the scalar product of a gradient with sines."""
    from lablib import tensor

    return float((grad.contiguous() * tensor.sines(grad.shape, 2.0)).sum())


def step_of_one_process(schedule, common, seed, frozen=()):
    """Return what split_step returns on each rank, by plain autograd; `seed` has one number per rank."""
    parts = [zero_bubble.Part(one, number == 0, number == len(seed) - 1) for number, one in enumerate(seed)]
    for part in parts:
        for name in frozen:
            dict(part.named_parameters())[name].requires_grad_(False)
    total = 0.0
    for k in range(1 + max(int(action[1:]) for action in schedule[0].split())):
        data, y = zero_bubble.batch(common, k), None
        for part in parts:
            y = part(y, data)
        wanted = [(actions.split(), name, one) for part, actions in zip(parts, schedule, strict=True)
                  for name, one in part.named_parameters() if one.requires_grad]
        found = torch.autograd.grad(y, [one for _, _, one in wanted])
        for (actions, name, one), grad in zip(wanted, found, strict=True):
            if name not in zero_bubble.LINEAR or f"W{k}" in actions:
                one.grad = grad if one.grad is None else one.grad + grad
        total += y.item()
    return [[total if part.is_last else None, *[None if one.grad is None else in_one_number(one.grad) for one in part.parameters()]]
            for part in parts]


def require_late_weights(run, share):
    """Require that the last stage's gradients are sent before it computes weight gradients.

    Args:
        run: of a schedule whose last stage runs all W at the end.
        share: of its FLOPs, those of F and B.
    """
    flops, last = run.records[1].flops, max(call.started for call in run.calls(1, "send"))
    check.that(last <= 1.01 * share * flops, f"Stage 1 has done {last / flops:.0%} of its FLOPs when it sends its last gradient, and "
               f"F and B are {share:.0%} of them. Which GEMMs could come later?")
    check.that(last >= 0.99 * share * flops, f"Stage 1 has done only {last / flops:.0%} of its FLOPs when it sends its last gradient, "
               f"and F and B are {share:.0%} of them. Where are the others?")

# %% check="split-backward" points=8
with check.parts():
    with check.part(2, "computes the gradients of one process"):
        check.ranks(
            split_step, ranks=2, rel=1e-4,
            cases=[{"schedule": ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"], "common": 1.0, "seed": check.by_rank([2.0, 3.0])},
                   {"schedule": ["F0 F1 B0 B1 W1", "F0 F1 B0 B1 W0"], "common": 4.0, "seed": check.by_rank([5.0, 6.0])},
                   {"schedule": ["F0 B0 W0", "F0 B0 W0"], "common": 1.0, "seed": check.by_rank([2.0, 3.0]), "frozen": ["square", "bias"]}],
            expected=[[[None, -5.374372, 0.3600067, 22.06479, -0.7109855, 11.69262, 5.643245], [-14.74552, 0.1522838, 0.3256332, 0.07119176, 7.803298, 8.645391]],
                 [[None, -3.197466, 0.01854032, -3.388385, -1.292909, 0.3691759, -9.555789], [-1.390077, -0.2566257, -0.6552588, -0.682184, 10.27071, 13.61407]],
                 [[None, -4.775599, -0.2126648, 13.67263, None, None, 4.553366], [-8.688489, 0.3632877, -6.136342, None, None, 9.496413]]],
            hints={
                "The matrix that two layers use has the gradient of one of them. What happens to a second one?":
                    [[[None, -5.374372, 0.3600067, 22.06479, -0.7109855, 0.4547369, 5.643245], [-14.74552, 0.1522838, 0.3256332, 0.07119176, 6.558666, 8.645391]],
                 [[None, -3.197466, 0.01854032, -3.388385, -1.292909, 13.7606, -9.555789], [-1.390077, -0.2566257, -0.6552588, -0.682184, 6.470391, 13.61407]], []],
                "The parameters have the gradients of the last W only.":
                    [[[None, -5.374372, 0.3600067, 8.392163, 5.546532, -0.8224566, 1.08988], [-14.74552, 0.1522838, 6.461975, -0.03512966, 6.138102, -0.8510227]], [], []],
                "A weight has a gradient of a micro-batch whose W has not run. Has B computed it, or W of another one?":
                    [[],
                 [[None, -3.197466, 0.01854032, 3.343215, 0.5166876, -4.819696, -9.845092], [-1.390077, -0.2566257, -2.04841, -0.2995743, 4.931402, 5.940176]], []],
                "The bias has the gradient of a micro-batch whose W has not run. What does B return for the bias?":
                    [[],
                 [[None, -3.197466, 0.01854032, -3.388385, 0.5166876, 0.3691759, -9.555789], [-1.390077, -0.2566257, -0.6552588, -0.2995743, 10.27071, 13.61407]], []],
                "The bias has no gradient, or a wrong one.":
                    [[[None, -5.374372, 0.3600067, 22.06479, None, 11.69262, 5.643245], [-14.74552, 0.1522838, 0.3256332, None, 7.803298, 8.645391]],
                 [[None, -3.197466, 0.01854032, -3.388385, None, 0.3691759, -9.555789], [-1.390077, -0.2566257, -0.6552588, None, 10.27071, 13.61407]], []]})
        ### BEGIN HIDDEN TESTS
        (drawn,) = check.draw(1, common=check.between(0, 100), seed=check.for_each_rank(check.between(0, 100)))
        check.ranks(split_step, ranks=2, rel=1e-3, cases=[{"schedule": ["F0 F1 F2 B0 B1 W0 B2 W2 W1", "F0 B0 F1 B1 W0 F2 B2 W1 W2"], **drawn}],
                    expected=lambda ranks, **case: step_of_one_process(**case))
        ### END HIDDEN TESTS
    with check.part(2, "sends gradients before it computes those of weights"):
        CASE = {"schedule": ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"], "common": 1.0, "seed": check.by_rank([2.0, 3.0])}
        (run,) = check.ranks(split_step, ranks=2, cases=[CASE], expected=None)
        require_late_weights(run, 2 / 3)
    with check.part(1, "also if activations are recomputed"):
        CASE = {"schedule": ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"], "common": 1.0, "seed": check.by_rank([2.0, 3.0]),
                "recompute": True}
        (run,) = check.ranks(split_step, ranks=2, rel=1e-4, cases=[CASE], expected=[[[None, -5.374372, 0.3600067, 22.06479, -0.7109855, 11.69262, 5.643245], [-14.74552, 0.1522838, 0.3256332, 0.07119176, 7.803298, 8.645391]]])
        require_late_weights(run, 3 / 4)
        ### BEGIN HIDDEN TESTS
        (drawn,) = check.draw(1, common=check.between(0, 100), seed=check.for_each_rank(check.between(0, 100)))
        (run,) = check.ranks(split_step, ranks=2, rel=1e-3,
                             cases=[{"schedule": ["F0 F1 B0 W0 B1 W1", "F0 F1 B0 B1 W1 W0"], "recompute": True, **drawn}],
                             expected=lambda ranks, recompute, **case: step_of_one_process(**case))
        require_late_weights(run, 3 / 4)
        ### END HIDDEN TESTS
    with check.part(1, "accumulates in fp32"):
        check.ranks(summed_gradients, ranks=1, cases=[{"values": [256.0, 1.0, 1.0, 1.0]}], expected=[[[259.0, "torch.float32"]]],
                    hints={"In bf16, 256 + 1 is 256. Which dtype does the parameter ask for?": [[[256.0, "torch.float32"]]]})
        ### BEGIN HIDDEN TESTS
        check.ranks(summed_gradients, ranks=1, cases=check.draw(1, values=lambda dice: [512.0, *[float(dice.randint(1, 3)) for _ in range(6)]]),
                    expected=lambda ranks, values: [[sum(values), "torch.float32"]])
        ### END HIDDEN TESTS
    with check.part(2, "keeps what W needs until W, on a virtual H100"):
        FLOPS = {"flops": 8 * 6 * 4 * 4096 * 8 * 1024**2, "dtype": "bf16"}
        late = check.gpus(split_passes, {"actions": " ".join([f"F{k} B{k}" for k in range(8)] + [f"W{k}" for k in range(8)])}, "h100:1",
                          least=FLOPS)
        check.pass_mark(late.peak_memory, error=late.memory_error, above=2, hint=(
            f"Only {late.peak_memory:.2f} GiB with eight micro-batches between B and W. Has B left anything for W to do?"))
        check.pass_mark(late.peak_memory, error=late.memory_error, below=3.3, hint=(
            f"{late.peak_memory:.2f} GiB with eight micro-batches between B and W. Which of the tensors in memory does W not read?"))
        soon = check.gpus(split_passes, {"actions": " ".join(f"F{k} B{k} W{k}" for k in range(8))}, "h100:1", least=FLOPS)
        check.pass_mark(soon.peak_memory, error=soon.memory_error, below=1.2, hint=(
            f"{soon.peak_memory:.2f} GiB, although each W runs right after its B. What still refers to a micro-batch after W? Has "
            "what you queue a history?"))

# %% [raw] mutant="split-backward" hint="Which GEMMs could come later"
# -        ctx.queue.append((ctx.weight, ctx.bias, x.detach(), grad))  # without the history that led to x
# -        return grad @ ctx.weight, None, None, None
# +        flat = grad.flatten(0, -2)
# +        bias = None if ctx.bias is None else flat.sum(0)
# +        return grad @ ctx.weight, flat.t() @ x.flatten(0, -2) if ctx.weight.requires_grad else None, bias, None

# %% [raw] mutant="split-backward" hint="Which GEMMs could come later"
# -        with self.split(key):  # recomputation calls the module again
# -            y.backward(grad)
# +        y.backward(grad)

# %% [raw] mutant="split-backward" hint="What happens to a second one"
# -                if weight.requires_grad:
# -                    weight.backward(grad.t() @ x)  # accumulates as autograd does, in the parameter's grad_dtype
# +                if weight.requires_grad and id(weight) not in seen:
# +                    weight.backward(grad.t() @ x)
# +                    seen.add(id(weight))
# -        with torch.no_grad():
# +        seen = set()
# +        with torch.no_grad():

# %% [raw] mutant="split-backward" hint="the gradients of the last W only"
# -        with torch.no_grad():
# +        with torch.no_grad():
# +            for weight, bias, _, _ in self.queues[key]:
# +                weight.grad = None
# +                if bias is not None:
# +                    bias.grad = None

# %% [raw] mutant="split-backward" hint="of a micro-batch whose W has not run"
# -            for weight, bias, x, grad in self.queues.pop(key):
# +            for weight, bias, x, grad in [one for other in list(self.queues) for one in self.queues[other]]:
# -                    bias.backward(grad.sum(0))
# +                    bias.backward(grad.sum(0))
# +            for queue in self.queues.values():
# +                queue.clear()

# %% [raw] mutant="split-backward" hint="The bias has no gradient"
# -                if bias is not None and bias.requires_grad:
# -                    bias.backward(grad.sum(0))

# %% [raw] mutant="split-backward" hint="What does B return for the bias"
# -        return grad @ ctx.weight, None, None, None
# +        needed = ctx.bias is not None and ctx.bias.requires_grad
# +        return grad @ ctx.weight, None, grad.flatten(0, -2).sum(0) if needed else None, None
# -                if bias is not None and bias.requires_grad:
# -                    bias.backward(grad.sum(0))

# %% [raw] mutant="split-backward" hint="In bf16, 256 + 1 is 256"
# -                    weight.backward(grad.t() @ x)  # accumulates as autograd does, in the parameter's grad_dtype
# +                    new = grad.t() @ x
# +                    old = new.new_zeros(()) if weight.grad is None else weight.grad
# +                    weight.grad = (old.to(new.dtype) + new).to(weight.grad_dtype)

# %% [raw] mutant="split-backward" hint="Has B left anything for W to do"
# -        with self.split(key):
# -            y = self.module(x, data)
# +        y = self.module(x, data)
# -        with self.split(key):  # recomputation calls the module again
# -            y.backward(grad)
# +        y.backward(grad)
# -            for weight, bias, x, grad in self.queues.pop(key):
# +            for weight, bias, x, grad in ():

# %% [raw] mutant="split-backward" hint="Which of the tensors in memory does W not read"
# -        x, y = self.in_flight.pop(key)
# +        x, y = self.in_flight[key]
# -            y.backward(grad)
# +            y.backward(grad, retain_graph=True)
# -        with torch.no_grad():
# +        self.in_flight.pop(key)
# +        with torch.no_grad():

# %% [raw] mutant="split-backward" hint="What still refers to a micro-batch after W"
# -            for weight, bias, x, grad in self.queues.pop(key):
# +            for weight, bias, x, grad in self.queues[key]:

# %% [raw] mutant="split-backward" hint="What still refers to a micro-batch after W"
# -        ctx.queue.append((ctx.weight, ctx.bias, x.detach(), grad))  # without the history that led to x
# +        ctx.queue.append((ctx.weight, ctx.bias, x, grad))

# %% [raw] mutant="split-backward" hint="does not require grad"
# -                if weight.requires_grad:
# -                    weight.backward(grad.t() @ x)  # accumulates as autograd does, in the parameter's grad_dtype
# -                if bias is not None and bias.requires_grad:
# -                    bias.backward(grad.sum(0))
# +                weight.backward(grad.t() @ x)
# +                if bias is not None:
# +                    bias.backward(grad.sum(0))

# %% [markdown]
# What does it cost to postpone W? Let a stage run eight micro-batches in three orders:

# %% tags=["explore"]
def peak(actions):
    """Return the modeled peak memory of these passes of four MLPs, in GiB."""
    return virtualgpu.run(lambda: split_passes(actions), "h100:1")[0].peak / 2**30


SOON = " ".join(f"F{k} B{k} W{k}" for k in range(8))
LATE = " ".join([f"F{k} B{k}" for k in range(8)] + [f"W{k}" for k in range(8)])
FORWARDS = " ".join([f"F{k}" for k in range(8)] + [f"B{k} W{k}" for k in range(8)])
for name, actions in {"W right after B": SOON, "all W at the end": LATE, "all F first": FORWARDS}.items():
    print(f"{name:16} {result(f'{peak(actions):.2f} GiB')} at the peak (modeled)")

# %% [markdown]
# Between B and W, a micro-batch keeps the inputs of the linear layers and the gradients of their outputs, which is less
# than the activations that it keeps between F and B, but not much less. So from now on, a micro-batch is **in flight**
# from F to W, and the largest number of micro-batches in flight on a stage is our (slightly pessimistic) measure of its
# memory.
#
# ### Exercise 5: ZB-H1
#
# What share of 1F1B's idle time is left if W may run at any time, but no stage may have more micro-batches in flight
# than the first stage of 1F1B? Assume that F, B, and W take the same time. (An ordinary backward pass is B and W in
# one.) Set `guess_left` to a number between 0 and 1:

# %% answer="guess-left"
### BEGIN SOLUTION
guess_left = 0.33
### END SOLUTION

# %% [markdown]
# Now write `zb_h1`. It returns the actions of each stage, in the format of lab 10, with `W3` for W of micro-batch 3.
# With $p$ stages and $m$ micro-batches:
#
# - At most $p$ micro-batches are in flight on any stage, as on the first stage of 1F1B.
# - If F, B, and W take one unit of time each, the whole schedule takes $3m + p - 1$ from the first start to the last
#   end if $m \ge p$. With $m < p$, there are not enough W to fill the gaps, and it takes $2m + 2p - 1$.
#
# Draw three stages with four micro-batches on paper first. (Two stages are too easy: almost any rule works there.)
# Which passes can a stage run while it waits for its first gradient, and which may it run only later than you would
# like?

# %% answer="zb-h1"
%%writefile mytrainer/zero_bubble.py
"""ZB-H1 (Qi et al., 2023): weight gradients fill idle time, and each stage takes the memory of 1F1B's first one."""


def zb_h1(stages, micro_batches):
    """Return the actions of each stage: F, B, and W of every micro-batch, as in [["F0", "B0", "W0"]]."""
    ### BEGIN SOLUTION
    schedule = []
    for stage in range(stages):
        warm_up = min(stages - stage - 1, micro_batches)
        actions = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                actions.append(f"F{warm_up + k}")
            actions.append(f"B{k}")
            if k >= stage:
                actions.append(f"W{k - stage}")
        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
        schedule.append(actions)
    return schedule
    ### END SOLUTION

# %% tags=["driver"]
def zb_h1_schedule(stages, micro_batches):
    """Return the student's schedule."""
    from mytrainer.zero_bubble import zb_h1

    return zb_h1(stages, micro_batches)

# %% check="zb-h1" points=4
check.schedule(
    zb_h1_schedule, on_rank=True,
    cases=[{"stages": p, "micro_batches": m} for p, m in ((4, 8), (2, 3), (3, 5), (1, 2), (4, 2))], ends=[27, 10, 17, 6, 11], live=[4, 2, 3, 1, 2],
    hints={"No W runs before the last B, so all micro-batches are in flight at once.":
               [["F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7 W0 W1 W2 W3 W4 W5 W6 W7",
                 "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7 W0 W1 W2 W3 W4 W5 W6 W7",
                 "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7 W0 W1 W2 W3 W4 W5 W6 W7",
                 "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 W0 W1 W2 W3 W4 W5 W6 W7"],
                ["F0 F1 B0 F2 B1 B2 W0 W1 W2",
                 "F0 B0 F1 B1 F2 B2 W0 W1 W2"],
                ["F0 F1 F2 B0 F3 B1 F4 B2 B3 B4 W0 W1 W2 W3 W4",
                 "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4 W0 W1 W2 W3 W4",
                 "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 W1 W2 W3 W4"],
                ["F0 B0 F1 B1 W0 W1"],
                ["F0 F1 B0 B1 W0 W1",
                 "F0 F1 B0 B1 W0 W1",
                 "F0 F1 B0 B1 W0 W1",
                 "F0 B0 F1 B1 W0 W1"]],
           "A micro-batch is in flight until its W. Which W is due before the next F?": "memory",
           "This is right for some pipelines. What changes with the stage, and what with the number of micro-batches?": "some sizes",
           "The backward pass is not split: B alone computes both gradients here.": "1f1b",
           "Every micro-batch needs F, B, and W, also the last ones.": "incomplete",
           "Draw who waits for whom: do neighbors agree on the order of micro-batches?": "deadlock",
           "B of the previous stage waits for yours. Does a W come before it that nobody waits for?": "bubble"})
### BEGIN HIDDEN TESTS
check.schedule(zb_h1_schedule, on_rank=True, cases=check.draw(8, stages=range(1, 8), micro_batches=range(1, 15)),
               ends=lambda stages, micro_batches: (3 * micro_batches + stages - 1 if micro_batches >= stages
                                                   else 2 * micro_batches + 2 * stages - 1),
               live=lambda stages, micro_batches: min(stages, micro_batches))
### END HIDDEN TESTS

# %% [raw] mutant="zb-h1" hint="Does a W come before it that nobody waits for"
# -            if k >= stage:
# -                actions.append(f"W{k - stage}")
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
# +            actions.append(f"W{k}")

# %% [raw] mutant="zb-h1" hint="Which W is due before the next F"
# -            if k >= stage:
# -                actions.append(f"W{k - stage}")
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
# +            if k > stage:
# +                actions.append(f"W{k - stage - 1}")
# +        actions += [f"W{k}" for k in range(max(0, micro_batches - stage - 1), micro_batches)]

# %% [raw] mutant="zb-h1" hint="No W runs before the last B"
# -            if k >= stage:
# -                actions.append(f"W{k - stage}")
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
# +        actions += [f"W{k}" for k in range(micro_batches)]

# %% [raw] mutant="zb-h1" hint="B alone computes both gradients"
# -            if k >= stage:
# -                actions.append(f"W{k - stage}")
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]

# %% [raw] mutant="zb-h1" hint="also the last ones"
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]

# %% [raw] mutant="zb-h1" hint="What changes with the stage"
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
# +        actions += [f"W{k}" for k in range(micro_batches - stage, micro_batches)]

# %% [raw] mutant="zb-h1" hint="do neighbors agree on the order"
# -            actions.append(f"B{k}")
# -            if k >= stage:
# -                actions.append(f"W{k - stage}")
# -        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
# +            k = k if stage < stages - 1 or k + 1 + k % 2 > micro_batches else k
# +            actions.append(f"B{k}")
# +        if stage == stages - 1:
# +            actions = [f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))]
# +        actions += [f"W{k}" for k in range(micro_batches)]

# %% [markdown]
# The executor of lab 10, here the course's copy of it, runs your schedule on four ranks. Every pass sleeps for 20 ms,
# so that you can compare the timeline with a simulated one:

# %% tags=["explore"]
def on_ranks(schedule):
    """Return the timeline of a schedule that four ranks executed, in units of one pass."""
    logs = run_ranks(zero_bubble.sleep_on_ranks, 4, schedule, 0.02)
    start = min(span[3] for log in logs for span in log)
    return Timeline.of({stage: [(*span[:3], (span[3] - start) / 0.02, (span[4] - start) / 0.02) for span in log]
                        for stage, log in enumerate(logs)})


h1 = zb_h1_schedule(4, 8)
baseline = simulate(load("1f1b", 4, 8))
ran, simulated = on_ranks(h1), simulate(parse(h1))
idle = [made.total - 24 for made in (simulated, baseline)]
check.compare("share of 1F1B's idle time", guess_left, idle[0] / idle[1])
print(f"bubble {result(f'{ran.bubble_fraction:.1%}')} on four ranks, {simulated.bubble_fraction:.1%} simulated, and "
      f"{baseline.bubble_fraction:.1%} with 1F1B; in flight {ran.peak_live}")
draw_beside({"ZB-H1 on four ranks": ran, "ZB-H1, simulated": simulated}, "", True)

# %% [markdown]
# The idle time at the end is gone: W fills it. In general, if W is the shortest of the three and $m \ge p$, ZB-H1 idles
# for $(p-1)(F+B-W)$, and 1F1B for $(p-1)(F+B+W)$. The rest is at the beginning: before a stage's first action, and
# between its first F and its first B. No W can fill these gaps, because none is ready yet. What else could a stage run
# there?
#
# ### Exercise 6: ZB-H2
#
# Allow more memory, and the second gap closes as well. Write `zb_h2` for at least $2p-1$ micro-batches:
#
# - If F, B, and W take the same time, **no stage ever waits** between its first and its last action. So each stage
#   spends $m(F+B+W)$ on a step.
# - At most $2p-1$ micro-batches are in flight on any stage.
#
# Stages still start one after the other. When does each of them receive its first gradient, and what does it do until
# then?

# %% answer="zb-h2"
%%writefile mytrainer/zero_bubble_2.py
"""ZB-H2 (Qi et al., 2023): no idle time between a stage's first and last action, in twice the memory of 1F1B."""


def zb_h2(stages, micro_batches):
    """Return the actions of each stage, for at least 2 stages - 1 micro-batches."""
    ### BEGIN SOLUTION
    schedule = []
    for stage in range(stages):
        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
        actions = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            actions.append(f"B{k}")
            if k >= late:
                actions.append(f"W{k - late}")
            if warm_up + k < micro_batches:
                actions.append(f"F{warm_up + k}")
        schedule.append(actions + [f"W{k}" for k in range(micro_batches - late, micro_batches)])
    return schedule
    ### END SOLUTION

# %% tags=["driver"]
def zb_h2_schedule(stages, micro_batches):
    """Return the student's schedule."""
    from mytrainer.zero_bubble_2 import zb_h2

    return zb_h2(stages, micro_batches)

# %% check="zb-h2" points=4
check.schedule(
    zb_h2_schedule, on_rank=True,
    cases=[{"stages": p, "micro_batches": m} for p, m in ((4, 8), (2, 5), (3, 7), (1, 2))], stage_time=[24, 15, 21, 6], live=[7, 3, 5, 1],
    hints={"That is ZB-H1, whose stages wait for their first gradient.": "zb-h1",
           "This is right for some pipelines. What changes with the stage?": "some sizes",
           "Every micro-batch needs F, B, and W, also the last ones.": "incomplete",
           "A micro-batch is in flight until its W. How many F may come before the first W?": "memory",
           "Look at the longest wait. Before a stage's first B, what could it run? Later, which B is late, and which W or F of the "
           "next stage makes it late?": "bubble"})
### BEGIN HIDDEN TESTS
check.schedule(zb_h2_schedule, on_rank=True,
               cases=[{"stages": one["stages"], "micro_batches": 2 * one["stages"] - 1 + one["more"]}
                      for one in check.draw(8, stages=range(1, 8), more=range(8))],
               stage_time=lambda stages, micro_batches: 3 * micro_batches, live=lambda stages, micro_batches: 2 * stages - 1)
### END HIDDEN TESTS

# %% [raw] mutant="zb-h2" hint="whose stages wait for their first gradient"
# -        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
# +        warm_up, late = stages - stage, stage

# %% [raw] mutant="zb-h2" hint="which B is late"
# -        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
# +        warm_up, late = 2 * (stages - stage) - 1, 0

# %% [raw] mutant="zb-h2" hint="which B is late"
# -        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
# +        warm_up, late = 2 * (stages - stage) - 1, stage

# %% [raw] mutant="zb-h2" hint="what could it run"
# -        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
# +        warm_up, late = 2 * (stages - stage) - 1 - (stage < stages - 1), 2 * stage

# %% [raw] mutant="zb-h2" hint="How many F may come before the first W"
# -            if k >= late:
# -                actions.append(f"W{k - late}")
# -            if warm_up + k < micro_batches:
# -                actions.append(f"F{warm_up + k}")
# +            if warm_up + k < micro_batches:
# +                actions.append(f"F{warm_up + k}")
# +            if k >= late:
# +                actions.append(f"W{k - late}")

# %% [raw] mutant="zb-h2" hint="What changes with the stage"
# -        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
# +        warm_up, late = max(1, 7 - 2 * stage), 2 * stage

# %% [raw] mutant="zb-h2" hint="also the last ones"
# -        schedule.append(actions + [f"W{k}" for k in range(micro_batches - late, micro_batches)])
# +        schedule.append(actions)

# %% tags=["explore"]
h2 = zb_h2_schedule(4, 12)
draw_beside({"ZB-H1": simulate(parse(zb_h1_schedule(4, 8))), "ZB-H2": simulate(parse(zb_h2_schedule(4, 8)))}, "", True)

# %% [markdown]
# In a timeline, ZB-H2 is a parallelogram: no stage waits, but each starts one F after the previous stage, and ends that
# much later. This is idle time, too, unless stage 0 starts its next step at once. It may do so only when its own
# optimizer step is done, and two things in an optimizer step make it wait for all other stages: the global gradient
# norm, and the check for NaN and infinity.
#
# Qi et al. therefore step first and validate later (**post-validation**). Each stage uses the part of the norm that it
# knows so far, passes it on along with the pipeline's own sends, and rolls back its step in the rare case in which the
# gradients had to be clipped or contained a NaN. The rollback must be exact, so the optimizer must be invertible, as
# Adam is if you keep the gradients. Our trainer does not do that, so its ZB-H2 has as much idle time as ZB-H1, and
# needs more memory. How much more? The next cell shows the peak of the stage that needs the most memory with your
# `SplitStage`:

# %% tags=["explore"]
for name, schedule in {"ZB-H1": zb_h1_schedule(4, 12), "ZB-H2": h2}.items():
    peaks = [peak(" ".join(actions)) for actions in schedule]
    made = simulate(parse(schedule))
    print(f"{name}: {result(f'{max(peaks):.2f} GiB')} on the most loaded stage (modeled); a step takes {made.total} passes from the "
          f"first to the last, and at most {made.longest} on any one stage")

# %% [markdown]
# ## Back and forth: V-shaped schedules
#
# ZB-H2 spends memory to fill a wait: the first micro-batch has to travel to the last stage, and its gradient all the
# way back, before stage 0 can run its first B. Instead, you can shorten the wait. Divide the model into $2p$ parts,
# give every stage two of them as its chunks, and place them in a **V**: stage $s$ has parts $s$ and $2p-1-s$. A
# micro-batch turns around on the last stage without a transfer, and its loss is computed on stage 0. The backward pass
# starts there, too, so stage 0 does not wait for other stages to send the first gradient.
#
# **ZBV** (Qi et al., 2023, section 6, and [2024](https://arxiv.org/abs/2405.15362)) is free of bubbles in the same
# sense as ZB-H2 if F, B, and W take the same time, and each stage needs only as much memory as the first stage of 1F1B.
# **DualPipe**, the schedule of DeepSeek-V3 ([DeepSeek-AI, 2024](https://arxiv.org/abs/2412.19437)), feeds in
# micro-batches from both ends of the pipeline, so every parameter is held twice. **DualPipeV** is DualPipe cut in half
# ([Qi et al., 2025](https://hackmd.io/@ufotalent/r1lVXsa9Jg)), which needs only one copy. Its steady state pairs the
# forward pass of one chunk with the backward pass of the other, so that the computation of one hides the all-to-all of
# the other. Here are ZBV and DualPipeV with three stages and six micro-batches:

# %% tags=["explore"]
draw_beside({name: simulate(load(name, 3, 6)) for name in ("zbv", "dualpipev")}, "")

# %% tags=["explore"]
for name in ("1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipev"):
    chunks = 1 if name in ("1f1b", "zb-h1", "zb-h2") else 2
    made = load(name, 4, 8, chunks)
    quick, slow = simulate(made), simulate(made, Durations(link=0.5))
    print(f"{name:12} idle {result(f'{quick.bubble_fraction:5.1%}')} of the time, a step takes {quick.longest / 24 - 1:5.1%} longer than "
          f"one stage's work, {max(peak_live(made)) / chunks:4.1f} micro-batches in flight; with slow links idle {slow.bubble_fraction:5.1%}")
unlike = [simulate(load(name, 4, 8, chunks), Durations(forward=1.1, backward=1.2, weight=0.7)).longest / 24 - 1
          for name, chunks in (("zb-h2", 1), ("zbv", 2))]
print(f"F 1.1, B 1.2, W 0.7: a step takes {unlike[0]:.1%} longer than one stage's work with ZB-H2, {unlike[1]:.1%} with ZBV (simulated)")
for pair in (3, 2.4):
    overlapped = simulate(load("dualpipev", 4, 8), Durations(pair=pair))
    print(f"DualPipeV with pairs of {pair} forward passes: the last stage idles for {overlapped.total - overlapped.busy[-1]:.1f}, "
          f"a step takes {overlapped.total:.1f} (simulated)")

# %% [markdown]
# So ZB-H2 and ZBV are sure to be free of bubbles only if the three passes take the same time. If W is the shortest, a
# stage of ZB-H2 idles for $(p-1)(F+B-2W)$ between its first and its last action.
#
# DeepSeek's [repository](https://github.com/deepseek-ai/DualPipe) counts $PP+1$ activations, where $PP = 2p$ is the
# number of parts of the model. With $p = 4$, these are the activations of 9 half-stages, or 4.5 micro-batches in
# flight, as for DualPipeV above. Its formula for the bubble is $(p-1)(F_{\&}B+B'-3W)$ for passes of half a stage, where
# $B'$ is a backward pass with W, and $F_{\&}B$ is the time of a forward and a backward pass that overlap. The last two
# lines agree with it: if the overlap saves nothing, the bubble is $\frac{3}{2}(3+2-3) = 3$ forward passes of a whole
# stage, and if it saves a fifth of each pair, 2.1. The last number of each of the first six lines shows a disadvantage:
# a link that takes half as long as a forward pass costs a V-shaped schedule more than ZB-H2, whose long warm-up hides
# it.
#
# ## The contest
#
# Real stages differ in speed, their memory is limited, and their links are slow. `lab contest pipelines` poses such
# cases. Its **ghosts** are the published schedules, and `serial`, which runs one micro-batch at a time. Where a case
# allows only one chunk, interleaved, ZBV, and DualPipeV fall back to 1F1B:

# %% tags=["explore"] short={"!lab contest pipelines": "!true"}
!lab contest pipelines

# %% [markdown]
# ### Exercise 7: beat the ghosts
#
# Write `schedule(case)` in `contest/pipelines.py`. The output above contains the rules. No ghost looks at the case's
# times or memory, and a ghost that exceeds a memory cap is disqualified in that case. Your function can look at both:
# instead of writing down an order, let a small simulation find one. At each point in time, which stages could start an
# action, which action is the most urgent, and which ones still fit in memory?
#
# The check passes if your schedules are valid in every case, and their total score, as `lab contest` computes it, is
# higher than what you would get by choosing the best ghost for each case. Only the total counts: in a single case, a
# ghost may stay ahead of you. The contest runs the file alone, and so does the check: it cannot import `mytrainer`, and
# has 5 s for each case. After this exercise, keep improving it as long as you like: your course ranks its students by
# their scores on secret cases.

# %% answer="contest"
%%writefile contest/pipelines.py
"""A schedule for the contest, made by a simulation."""


def schedule(case):
    """Return a list with a string of actions for each stage, such as "F0 F1 B0 B1"."""
    ### BEGIN SOLUTION
    made = [simulated(case, slope, patience) for slope in (1, 2, case["micro_batches"]) for patience in (0, 1)]
    return min(made, key=lambda one: one[0])[1]


def simulated(case, slope, patience):
    """Start whatever can start first; return the end, and the actions.

    Args:
        slope: how many more micro-batches each stage may have between F and B than the next stage.
        patience: how long W leaves a stage to passes that could start soon, as a share of the time that W takes.
    """
    stages, count = case["stages"], case["micro_batches"]
    room = [int(cap / size + 1e-6) for cap, size in zip(case["memory"], case["activation"], strict=True)]
    times = {"F": case["forward"], "B": case["backward"], "W": case["weight"]}
    ends = {}  # (kind, stage, micro-batch): when it ends
    done = {kind: [0] * stages for kind in times}
    free, actions = [0.0] * stages, [[] for _ in range(stages)]

    def start(kind, stage):
        """Return when the next action of this kind could start, or None if that is not known yet."""
        number = done[kind][stage]
        if number == count or (kind == "F" and number - done["W"][stage] >= room[stage]):
            return None
        if kind == "F" and number - done["B"][stage] > slope * (stages - 1 - stage):
            return None
        if kind == "W":
            needed, delay = ("B", stage, number), 0
        elif kind == "F":
            needed, delay = ("F", stage - 1, number), case["link"]
            if stage == 0:
                return free[0]
        elif stage == stages - 1:
            needed, delay = ("F", stage, number), 0
        else:
            needed, delay = ("B", stage + 1, number), case["link"]
        return max(free[stage], ends[needed] + delay) if needed in ends else None

    for _ in range(3 * count * stages):
        starts = [(when + (patience * times["W"][stage] if kind == "W" else 0), order, stage, kind, when) for stage in range(stages)
                  for order, kind in enumerate("BFW") for when in [start(kind, stage)] if when is not None]
        _, _, stage, kind, when = min(starts)
        number = done[kind][stage]
        done[kind][stage] += 1
        free[stage] = ends[kind, stage, number] = when + times[kind][stage]
        actions[stage].append(f"{kind}{number}")
    return max(free), [" ".join(one) for one in actions]
    ### END SOLUTION

# %% tags=["driver"]
def contest_schedule(case, seconds):
    """Return the student's schedule for a case, as the contest calls it, or "too slow"."""
    from lablib import alone

    with alone.without("mytrainer"):
        from contest.pipelines import schedule

        return alone.within(seconds, schedule, case)

# %% tags=["check-setup"]
from math import prod
from random import Random

from labkit.contest.contests.pipelines import CONTEST
from labkit.contest.declaration import Disqualified

def score_or_none(case, answer):
    """Return an answer's score, and why it is disqualified."""
    try:
        return CONTEST.score(case, answer).score, ""
    except Disqualified as error:
        return 0.01, str(error) if str(error).startswith(error.kind) else f"{error.kind}: {error}"


def total(scores):
    """Return the points of these scores: 100 times their geometric mean."""
    return 100 * prod(scores) ** (1 / len(scores))

# %% check="contest" points=4
ANSWERS = {}


def schedules_of(cases):
    """Return the student's schedule for each case; every case runs once."""
    for case in cases:
        if str(case) not in ANSWERS:
            (run,) = check.ranks(contest_schedule, ranks=1, cases=[{"case": case, "seconds": CONTEST.seconds}], expected=None)
            ANSWERS[str(case)] = run.values[0]
        check.that(ANSWERS[str(case)] != "too slow", f"A case with {case['stages']} stages and {case['micro_batches']} micro-batches takes "
                   f"more than {CONTEST.seconds} s, and the contest stops your function after {CONTEST.seconds} s.")
    return [ANSWERS[str(case)] for case in cases]


def require_valid(cases):
    for case, answer in zip(cases, schedules_of(cases), strict=True):
        _, reason = score_or_none(case, answer)
        where = f"{case['stages']} stages, {case['micro_batches']} micro-batches: {reason}."
        check.that("over the memory cap" not in reason, f"{where} A micro-batch needs memory until its B, or until its W if you split the "
                   "backward pass. Compare with the cap.")
        check.that("incomplete" not in reason, f"{where} Run F and B (and W if you split the backward pass) of every micro-batch "
                   "exactly once.")
        check.that(not reason, f"{where} The order in a stage's list is not one in which it and its neighbors can run.")


def require_ahead(cases, best):
    points = total([score_or_none(case, answer)[0] for case, answer in zip(cases, schedules_of(cases), strict=True)])
    check.that(points > best, f"{points:.2f} points, and the best ghosts of each case have {best:.2f}. In which group do you lose most? Compare what limits "
               "you there: the memory, the slowest stage, or the links.")


OPEN = [case for group in CONTEST.groups for case in group.open]
with check.parts():
    with check.part(2, "is valid in every case"):
        require_valid(OPEN)
        ### BEGIN HIDDEN TESTS
        for one in check.draw(2, seed=range(10**6)):
            require_valid([group.draw(Random(f"{one['seed']} {group.name}")) for group in CONTEST.groups])
        ### END HIDDEN TESTS
    with check.part(2, "is ahead of the best ghost of each case"):
        require_ahead(OPEN, 93.95)
        ### BEGIN HIDDEN TESTS
        (one,) = check.draw(1, seed=range(10**6))
        drawn = [group.draw(Random(f"{one['seed']} {number} {group.name}")) for group in CONTEST.groups for number in range(2)]
        best = total([max(score_or_none(case, ghost.answer(case))[0] for ghost in CONTEST.ghosts) for case in drawn])
        require_ahead(drawn, best - 1)  # these cases may be harder than the open ones
        ### END HIDDEN TESTS

# %% [raw] mutant="contest" hint="In which group do you lose most"
# %%writefile contest/pipelines.py
# def schedule(case):
#     schedule = []
#     for stage in range(case["stages"]):
#         warm_up = min(case["stages"] - stage - 1, case["micro_batches"])
#         actions = [f"F{k}" for k in range(warm_up)]
#         for k in range(case["micro_batches"]):
#             if warm_up + k < case["micro_batches"]:
#                 actions.append(f"F{warm_up + k}")
#             actions.append(f"B{k}")
#         schedule.append(" ".join(actions))
#     return schedule

# %% [raw] mutant="contest" hint="In which group do you lose most"
# %%writefile contest/pipelines.py
# def schedule(case):
#     p, m = case["stages"], case["micro_batches"]
#     split = all(cap >= p * size for cap, size in zip(case["memory"], case["activation"]))
#     schedule = []
#     for stage in range(p):
#         warm_up = min(p - stage - 1, m)
#         actions = [f"F{k}" for k in range(warm_up)]
#         for k in range(m):
#             if warm_up + k < m:
#                 actions.append(f"F{warm_up + k}")
#             actions.append(f"B{k}")
#             if split and k >= stage:
#                 actions.append(f"W{k - stage}")
#         if split:
#             actions += [f"W{k}" for k in range(max(0, m - stage), m)]
#         schedule.append(" ".join(actions))
#     return schedule

# %% [raw] mutant="contest" hint="The contest runs this file alone"
# %%writefile contest/pipelines.py
# from mytrainer.zero_bubble import zb_h1
#
#
# def schedule(case):
#     return zb_h1(case["stages"], case["micro_batches"])

# %% [raw] mutant="contest" hint="the contest stops your function"
# -    made = [simulated(case, slope, patience) for slope in (1, 2, case["micro_batches"]) for patience in (0, 1)]
# +    import time
# +    while time.process_time() < 60:
# +        pass
# +    made = [simulated(case, slope, patience) for slope in (1, 2, case["micro_batches"]) for patience in (0, 1)]

# %% [raw] mutant="contest" hint="until its W if you split the backward pass"
# -        if number == count or (kind == "F" and number - done["W"][stage] >= room[stage]):
# +        if number == count or (kind == "F" and number - done["B"][stage] >= room[stage]):

# %% [raw] mutant="contest" hint="until its W if you split the backward pass"
# -        if number == count or (kind == "F" and number - done["W"][stage] >= room[stage]):
# +        if number == count:

# %% [raw] mutant="contest" hint="in which it and its neighbors can run"
# -    return max(free), [" ".join(one) for one in actions]
# +    return max(free), [" ".join(sorted(one, key=lambda action: (int(action[1:]), action[0] == "F"))) for one in actions]

# %% [raw] mutant="contest" hint="exactly once"
# -    for _ in range(3 * count * stages):
# +    for _ in range(3 * count * stages - stages):

# %% tags=["explore"] short={"!lab contest pipelines contest/pipelines.py": "!true"}
!lab contest pipelines contest/pipelines.py

# %% [markdown]
# Where are the missing points? The score compares your schedule with a bound that no schedule can beat, and memory may
# put the bound out of reach. Look at one case at a time: draw your schedule with `plots.pipeline`, find the longest
# wait, and ask which action could have filled it, and why that action was not ready. Chunks and V-shaped answers are
# allowed where `case["chunks"]` says so.

# %% [markdown]
# ## Your trainer on a thousand GPUs
#
# `--schedule zb-h1` makes your trainer use what you wrote for zero bubble, with your executor of lab 10, the process
# groups of lab 11, and the layers of lab 09. (If you skipped a lab, the cell below your guess installs the course's
# files.) It will run on 1,024 virtual H100s: 32 replicas of a Llama of 16 layers, with the shape of Llama 3 8B, in four
# stages of eight GPUs. One rank of each stage stands for the others. For what share of the step will a GPU be idle? You
# know the bubble of ZB-H1 for 4 stages and 8 micro-batches. Set `guess_thousand`, from 0 to 1:

# %% answer="guess-thousand"
### BEGIN SOLUTION
guess_thousand = 0.11
### END SOLUTION

# %% tags=["explore"]
for name in ("collectives", "ddp", "launch", "train", "precision", "checkpointing", "states", "saved", "tensor_parallel",
             "heads", "vocabulary", "randomness", "llama", "grad_norm", "sequence_parallel", "stage", "llama_stage",
             "micro_batches", "pipeline", "program", "p2p", "tied", "grid"):
    if not pieces.find(name).path.exists():
        print("\n".join(worked.install_or_explain(pieces.find(name))))
if "clip=" not in pieces.find("train").path.read_text():
    print("\n".join(worked.install(pieces.find("new/train"), force=True)))

# %% tags=["explore"] short={"--gpus h100:8 --nodes 128 --present auto": "--gpus h100:2", "--preset llama3-8b --num-layers 16": "\" + TINY + \"", "--tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 4": "--pipeline-model-parallel-size 2", "--global-batch-size 256": "--global-batch-size 4"}
TINY = ("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --swiglu "
        "--normalization RMSNorm --position-embedding-type rope --group-query-attention --num-query-groups 2 "
        "--untie-embeddings-and-output-weights --disable-bias-linear ")
RUN = ("--gpus h100:8 --nodes 128 --present auto code/my_trainer.py --device cuda --preset llama3-8b --num-layers 16 --bf16 "
         "--use-flash-attn --attention-dropout 0 --hidden-dropout 0 --schedule zb-h1 "
         "--tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 4 --micro-batch-size 1 "
         "--global-batch-size 256 --train-iters 2 --lr 1e-4 --log-interval 1 --eval-iters 0 --timeline-iteration 2 "
         "--data-path data/bpe-4096/text_document --vocab-file data/bpe-4096/vocab.json --merge-file data/bpe-4096/merges.txt")
!virtualrun {RUN} --timeline megatron/timeline/thousand 2>&1 | grep -E "virtual(run)?:|timeline of|error"

# %% tags=["explore"]
thousand = plots.timeline("megatron/timeline/thousand")
check.compare("share of the step in which a GPU is idle (modeled)", guess_thousand, thousand.bubble_fraction)
plots.pipeline("megatron/timeline/thousand", "Your Llama on 1,024 modeled H100s: one pipeline")

# %% [markdown]
# The figure shows what the formula leaves out. F and B contain collectives. The last stage also computes the logits and
# the loss. Each send between stages crosses nodes. And W is short, because it contains only the row-parallel layers'
# weight gradients. Those of the column-parallel layers, about two thirds, are computed in the backward pass of
# `SequenceRegion`, that is, in B. ZB-H1's bubble is $(p-1)(F+B-W)$, so the bubble grows twice: with the longer B and
# with the shorter W. Find the longest gray box, and explain it.
#
# You can change the last of these causes.
#
# ### Exercise 8: W with sequence parallelism
#
# Write `deferred_wgrad.py`. (A weight gradient is often called **wgrad**.) `deferred_columns(region, x, *layers)` does
# what `columns` of your `SequenceRegion` does, except that B computes only the gradient of x. `DeferringStage` is a
# `SplitStage` whose W also computes the weight gradients of these layers. Your trainer uses both if you add
# `--delay-wgrad-compute`.
#
# - After W, all gradients are those of one process. Several micro-batches may be between B and W at once, and W runs in
#   any order.
# - Communication does not grow. For each call of `deferred_columns`, however many layers it gets, F, B, and W together
#   need two all-gathers and a reduce-scatter, as before. Which of the three passes needs the second all-gather?
# - From F to W, a stage keeps only this rank's positions of x. B leaves the gradients of the layers' outputs for W.
# - With activation checkpointing, the forward pass runs again, in the middle of B.
# - The check calls `deferred_columns` with a region of its own, which has a `group`, a `rank`, and a `size`, and with
#   layers that have a `weight` and no bias. All weights require gradients.
#
# Values are checked on four CPU ranks. Each pair of neighbors shares a stage. The check also runs a step of two stages
# on 16 virtual H100s, where it allows 150 ms and 2.9 GiB.

# %% answer="deferred-wgrad"
%%writefile mytrainer/deferred_wgrad.py
"""Leave the weight gradients of column-parallel layers to W, with sequence parallelism."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mytrainer.split_backward import SplitStage


class DeferringStage(SplitStage):
    """A SplitStage whose W also computes the weight gradients of deferred_columns."""

    ### BEGIN SOLUTION
    running = None  # the queue of the micro-batch whose B is running

    ### END SOLUTION
    def __init__(self, module):
        super().__init__(module)
        ### BEGIN SOLUTION
        self.deferred = {}
        ### END SOLUTION

    def backward(self, key, grad):
        """Run B of a micro-batch, as SplitStage does."""
        ### BEGIN SOLUTION
        DeferringStage.running = self.deferred[key] = []
        return super().backward(key, grad)
        ### END SOLUTION

    def weight(self, key):
        """Run W of a micro-batch, with the weight gradients that deferred_columns has left to it."""
        ### BEGIN SOLUTION
        super().weight(key)
        with torch.no_grad():
            for region, x, layers, grads in self.deferred.pop(key):
                whole = gather(x, region).flatten(0, -2)
                for layer, grad in zip(layers, grads, strict=True):
                    layer.weight.backward(grad.flatten(0, -2).t() @ whole)
        ### END SOLUTION


def deferred_columns(region, x, *layers):
    """Enter the region with x [s/t, b, in], and return the output [s, b, out/t] of each layer, in a list or tuple.

    Args:
        region: the t ranks that share the layers: `group`, `rank`, and `size`.
        x: this rank's positions.
        *layers: column-parallel layers without a bias.
    """
    ### BEGIN SOLUTION
    return DeferredColumns.apply(x, region, layers)


def gather(x, region):
    whole = x.new_empty(region.size * x.shape[0], *x.shape[1:])
    dist.all_gather_single(whole, x.contiguous(), group=region.group)
    return whole


class DeferredColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, region, layers):
        ctx.region, ctx.layers = region, layers
        ctx.save_for_backward(x)
        whole = gather(x, region)
        return tuple(F.linear(whole, layer.weight) for layer in layers)

    @staticmethod
    def backward(ctx, *grads):
        (x,), region = ctx.saved_tensors, ctx.region
        DeferringStage.running.append((region, x.detach(), ctx.layers, grads))
        whole = sum(grad @ layer.weight for grad, layer in zip(grads, ctx.layers, strict=True))
        part = torch.empty_like(x)
        dist.reduce_scatter_single(part, whole, group=region.group)
        return part, None, None
    ### END SOLUTION

# %% tags=["driver"]
def deferred_passes(actions, common, own, length, samples, size, recompute=False):
    """Run passes of a stage that `size` neighboring ranks share, with a barrier after each.

    Return a projection of the gradient of each micro-batch's x, and of each parameter's: those of the scale, down,
    gate, up, and extra.
    """
    from mytrainer.deferred_wgrad import DeferringStage, deferred_columns

    from lablib import zero_bubble

    return zero_bubble.shared_passes(DeferringStage, deferred_columns, actions, common, own, length, samples, size, recompute)


def deferred_pipeline(schedule):
    """Run a step of two stages on GPUs, with four MLPs of Llama 3 8B's shape on each."""
    from mytrainer.deferred_wgrad import DeferringStage, deferred_columns

    from lablib import zero_bubble

    zero_bubble.shared_pipeline(DeferringStage, deferred_columns, schedule, 4, 4096, 14336, 8192)

# %% tags=["check-setup"]
def deferred_by_one_process(ranks, actions, common, own, length, samples, size, recompute):
    """Return what deferred_passes returns on each rank, by plain autograd."""
    import torch.nn.functional as F

    actions, rows = actions.split(), []
    for first in range(0, ranks, size):
        parts = [zero_bubble.SharedMLP(None, None, zero_bubble.HIDDEN, zero_bubble.INNER) for _ in range(size)]
        for part, seed in zip(parts, own[first:first + size], strict=True):
            zero_bubble.shared_values(part, seed)
        inputs = [[] for _ in parts]
        for k in range(sum(action[0] == "F" for action in actions)):
            shares = [one.requires_grad_() for one in zero_bubble.positions(length, samples, common + k).chunk(size)]
            grads = zero_bubble.positions(length, samples, common - k - 1).chunk(size)
            whole = torch.cat([F.rms_norm(x, x.shape[-1:], part.scale) for x, part in zip(shares, parts, strict=True)])
            total = 0.0
            for x, grad, part in zip(shares, grads, parts, strict=True):
                inner = F.silu(F.linear(whole, part.gate.weight)) * F.linear(whole, part.up.weight)
                term = F.linear(inner + F.linear(whole.tanh(), part.extra.weight), part.down)
                total = total + ((x + term.unflatten(0, (size, -1)).sum(0)) * grad).sum()
            wanted = [one for part in parts for one in part.parameters() if one.dim() == 1 or f"W{k}" in actions]
            found = torch.autograd.grad(total, [*shares, *wanted])
            for rank in range(size):
                inputs[rank].append(in_one_number(found[rank]))
            for one, grad in zip(wanted, found[size:], strict=True):
                one.grad = grad if one.grad is None else one.grad + grad
        rows += [[mine, [None if one.grad is None else in_one_number(one.grad) for one in part.parameters()]]
                 for mine, part in zip(inputs, parts, strict=True)]
    return rows


def require_work_in_w(run, actions, length, samples, size, recompute, **seeds):
    """Require of each pass what it gathers, and how many FLOPs it takes."""
    share = 4 * zero_bubble.HIDDEN * length * samples // size  # bytes of this rank's positions
    for rank in range(len(run.values)):
        gathered, reduced, done, passes = 0, 0, 0.0, iter(actions.split())
        for call in run.calls(rank):
            gathered += call.bytes * (call.op == "all_gather")
            reduced += call.bytes * {"reduce_scatter": 1, "all_reduce": 2}.get(call.op, 0)
            if call.op != "barrier":
                continue
            action, flops = next(passes), call.started - done
            if action[0] == "F":
                forward = flops
            again = recompute and action[0] == "B"  # then, B contains a forward pass
            most = 2 * share * (action[0] != "B" or again)
            check.that(gathered <= most or most, f"{action} all-gathers {gathered:,} bytes on rank {rank}. Which of the two gradients "
                       "needs the other ranks' positions?")
            check.that(gathered <= most, f"{action} all-gathers {gathered:,} bytes on rank {rank}, and {most:,} are enough for two calls "
                       "of deferred_columns, however many layers they have.")
            check.that(gathered or action[0] != "W", f"{action} gathers nothing, but needs all positions of x. So they have been in "
                       "memory since an earlier pass.")
            check.that(action[0] != "B" or flops <= 1.01 * forward * (1 + again), f"{action} does {flops / forward:.0%} of the FLOPs of a "
                       f"forward pass{', which it repeats' * again}. Which GEMMs could come later?")
            check.that(reduced <= 2 * size * share * (action[0] == "B"), f"{action} sends more than one reduce-scatter per call of "
                       f"deferred_columns on rank {rank}. What can be added before it is sent?")
            gathered, reduced, done = 0, 0, call.started

# %% check="deferred-wgrad" points=5
with check.parts():
    with check.part(3, "computes the weight gradients in W"):
        CASES = [{"actions": "F0 F1 B0 B1 W1 W0", "common": 1.0, "own": check.by_rank([2.0, 3.0, 4.0, 5.0]), "length": 4, "samples": 3,
                  "size": 2, "recompute": False},
                 {"actions": "F0 F1 B0 B1 W1", "common": 6.0, "own": check.by_rank([7.0, 8.0, 9.0, 10.0]), "length": 2, "samples": 1,
                  "size": 2, "recompute": True}]
        runs = check.ranks(deferred_passes, ranks=4, rel=1e-4, cases=CASES, expected=
                           [[[[2.033394, -5.981973], [-2.713462, -2.628376, -10.13165, -6.916253, -18.66018]],
                             [[1.352903, -9.858149], [-2.579825, 12.45863, -24.60917, -12.07428, -19.06689]],
                             [[4.805947, -5.981977], [0.1405914, 12.68433, -14.2553, -13.42126, -23.12768]],
                             [[2.683116, -7.894913], [-1.233279, 4.164995, 12.48764, 8.881879, 3.039234]]],
                            [[[-1.546, 0.8199669], [0.2432976, -8.048716, 3.412491, 1.939925, 7.717867]],
                             [[-0.0366023, 1.664249], [0.06173268, -3.326492, -7.142281, -3.401043, -9.786121]],
                             [[-1.247198, -0.6157725], [-0.2271559, -7.029897, -5.266196, -3.159858, -3.395372]],
                             [[2.322818, 2.830178], [-0.5464692, 16.08687, 0.7784944, 0.5866764, -9.135004]]]],
                           hints={
                               "The weights of column-parallel layers have a gradient of a micro-batch whose W has not run. Has its B computed it, or filled "
                               "the queue of another one?":
                                   [[],
                                    [[[-1.546, 0.8199669], [0.2432976, -8.048716, 8.049459, 4.66356, 15.74325]],
                                     [[-0.0366023, 1.664249], [0.06173268, -3.326492, -12.42751, -6.73701, -15.22718]],
                                     [[-1.247198, -0.6157725], [-0.2271559, -7.029897, -10.37301, -6.460917, -4.11721]],
                                     [[2.322818, 2.830178], [-0.5464692, 16.08687, 1.221719, 0.9126955, -15.21249]]]],
                               "The gradients of column-parallel weights are those of the last W only.":
                                   [[[[2.033394, -5.981973], [-2.713462, -2.628376, -3.913431, -5.088819, -9.914988]],
                                     [[1.352903, -9.858149], [-2.579825, 12.45863, -19.31393, -9.878139, -22.63632]],
                                     [[4.805947, -5.981977], [0.1405914, 12.68433, -21.36199, -17.12465, -28.22989]],
                                     [[2.683116, -7.894913], [-1.233279, 4.164995, 5.934753, -0.03277349, -14.3024]]],
                                    []],
                               "The gradient of x lacks the terms of the other ranks.":
                                   [[[[3.38397, -5.981973], [-1.75223, -2.628376, -10.13165, -6.916253, -18.66018]],
                                     [[-1.130182, -10.04918], [-3.010959, 12.45863, -24.60917, -12.07428, -19.06689]],
                                     [[1.451457, -5.981975], [-2.00724, 12.68433, -14.2553, -13.42126, -23.12768]],
                                     [[3.031321, -6.865706], [-0.1250319, 4.164995, 12.48764, 8.881879, 3.039234]]],
                                    [[[-1.043945, -0.1345694], [1.566411, -8.048716, 3.412491, 1.939925, 7.717867]],
                                     [[2.517715, 3.528761], [0.3999724, -3.326492, -7.142281, -3.401043, -9.786121]],
                                     [[-1.870343, 0.9040092], [0.5622708, -7.029897, -5.266196, -3.159858, -3.395372]],
                                     [[-0.2211233, 1.596099], [-2.124271, 16.08687, 0.7784944, 0.5866764, -9.135004]]]],
                               "B has computed the gradient of the row-parallel layer as well. What does SplitStage do around its backward pass?":
                                   [[],
                                    [[[-1.546, 0.8199669], [0.2432976, -14.87792, 3.412491, 1.939925, 7.717867]],
                                     [[-0.0366023, 1.664249], [0.06173268, -6.207785, -7.142281, -3.401043, -9.786121]],
                                     [[-1.247198, -0.6157725], [-0.2271559, -17.17913, -5.266196, -3.159858, -3.395372]],
                                     [[2.322818, 2.830178], [-0.5464692, 27.48271, 0.7784944, 0.5866764, -9.135004]]]],
                               "A layer has no gradient: in a single B, several calls of deferred_columns leave something for W.":
                                   [[[[2.033394, -5.981973], [-2.713462, -2.628376, -10.13165, -6.916253, None]],
                                     [[1.352903, -9.858149], [-2.579825, 12.45863, -24.60917, -12.07428, None]],
                                     [[4.805947, -5.981977], [0.1405914, 12.68433, -14.2553, -13.42126, None]],
                                     [[2.683116, -7.894913], [-1.233279, 4.164995, 12.48764, 8.881879, None]]],
                                    [[[-1.546, 0.8199669], [0.2432976, -8.048716, 3.412491, 1.939925, None]],
                                     [[-0.0366023, 1.664249], [0.06173268, -3.326492, -7.142281, -3.401043, None]],
                                     [[-1.247198, -0.6157725], [-0.2271559, -7.029897, -5.266196, -3.159858, None]],
                                     [[2.322818, 2.830178], [-0.5464692, 16.08687, 0.7784944, 0.5866764, None]]]],
                               "The row-parallel layer has no gradient. Who runs the W of SplitStage?":
                                   [[[[2.033394, -5.981973], [-2.713462, None, -10.13165, -6.916253, -18.66018]],
                                     [[1.352903, -9.858149], [-2.579825, None, -24.60917, -12.07428, -19.06689]],
                                     [[4.805947, -5.981977], [0.1405914, None, -14.2553, -13.42126, -23.12768]],
                                     [[2.683116, -7.894913], [-1.233279, None, 12.48764, 8.881879, 3.039234]]],
                                    [[[-1.546, 0.8199669], [0.2432976, None, 3.412491, 1.939925, 7.717867]],
                                     [[-0.0366023, 1.664249], [0.06173268, None, -7.142281, -3.401043, -9.786121]],
                                     [[-1.247198, -0.6157725], [-0.2271559, None, -5.266196, -3.159858, -3.395372]],
                                     [[2.322818, 2.830178], [-0.5464692, None, 0.7784944, 0.5866764, -9.135004]]]]})
        for case, run in zip(CASES, runs, strict=True):
            require_work_in_w(run, **case)
        ### BEGIN HIDDEN TESTS
        (case,) = check.draw(1, actions=["F0 F1 F2 B0 B1 W0 B2 W2 W1", "F0 B0 F1 B1 W1 F2 B2 W2 W0"], common=check.between(0, 100),
                             own=check.for_each_rank(check.between(0, 100)), length=[3, 6], samples=[1, 2], size=[3], recompute=[False, True])
        (run,) = check.ranks(deferred_passes, ranks=3, rel=1e-3, cases=[case], expected=deferred_by_one_process)
        require_work_in_w(run, **case)
        ### END HIDDEN TESTS
    with check.part(2, "shortens a step on 16 virtual H100s, and keeps no more than it has to"):
        ZB_H1 = ["F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 F4 B3 W3 F5 B4 W4 B5 W5", "F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 F4 B4 W3 F5 B5 W4 W5"]
        cost = check.gpus(deferred_pipeline, {"schedule": ZB_H1}, "h100:8", nodes=2, present=[0, 8],
                          least={"flops": 6 * 6 * 4 * 4 * 8192 * 4096 * 14336 // 8, "dtype": "bf16", "among": 8,
                                 "communicated": 6 * 4 * 2 * 3 * 2 * 8192 * 4096})
        check.pass_mark(cost.milliseconds, error=cost.error, below=150, hint=(
            f"{cost.milliseconds:.0f} ms. In which dtype does W multiply, and what else does it do?"))
        check.pass_mark(cost.peak_memory, error=cost.memory_error, below=2.9, hint=(
            f"{cost.peak_memory:.2f} GiB. All positions of x take 64 MiB in bf16. Which tensors of this size stay in memory, and what "
            "refers to a micro-batch after W?"))

# %% [raw] mutant="deferred-wgrad" hint="Which of the two gradients "
# -        DeferringStage.running.append((region, x.detach(), ctx.layers, grads))
# +        DeferringStage.running.append((gather(x, region), ctx.layers, grads))
# -            for region, x, layers, grads in self.deferred.pop(key):
# -                whole = gather(x, region).flatten(0, -2)
# +            for whole, layers, grads in self.deferred.pop(key):
# +                whole = whole.flatten(0, -2)

# %% [raw] mutant="deferred-wgrad" hint="What can be added before"
# -        whole = sum(grad @ layer.weight for grad, layer in zip(grads, ctx.layers, strict=True))
# -        part = torch.empty_like(x)
# -        dist.reduce_scatter_single(part, whole, group=region.group)
# -        return part, None, None
# +        total = torch.zeros_like(x)
# +        for grad, layer in zip(grads, ctx.layers, strict=True):
# +            part = torch.empty_like(x)
# +            dist.reduce_scatter_single(part, grad @ layer.weight, group=region.group)
# +            total += part
# +        return total, None, None

# %% [raw] mutant="deferred-wgrad" hint="whose W has not run"
# -        DeferringStage.running.append((region, x.detach(), ctx.layers, grads))
# +        inputs = gather(x, region).flatten(0, -2)
# +        for layer, grad in zip(ctx.layers, grads, strict=True):
# +            layer.weight.backward(grad.flatten(0, -2).t() @ inputs)

# %% [raw] mutant="deferred-wgrad" hint="needs all positions of x"
# -        ctx.save_for_backward(x)
# -        whole = gather(x, region)
# +        whole = gather(x, region)
# +        ctx.save_for_backward(x, whole)
# -        (x,), region = ctx.saved_tensors, ctx.region
# -        DeferringStage.running.append((region, x.detach(), ctx.layers, grads))
# +        (x, whole), region = ctx.saved_tensors, ctx.region
# +        DeferringStage.running.append((whole.detach(), ctx.layers, grads))
# -            for region, x, layers, grads in self.deferred.pop(key):
# -                whole = gather(x, region).flatten(0, -2)
# +            for whole, layers, grads in self.deferred.pop(key):
# +                whole = whole.flatten(0, -2)

# %% [raw] mutant="deferred-wgrad" hint="Which GEMMs could come later"
# -        ctx.save_for_backward(x)
# -        whole = gather(x, region)
# +        whole = gather(x, region)
# +        ctx.save_for_backward(x, whole)
# -        (x,), region = ctx.saved_tensors, ctx.region
# -        DeferringStage.running.append((region, x.detach(), ctx.layers, grads))
# +        (x, whole), region = ctx.saved_tensors, ctx.region
# +        for layer, grad in zip(ctx.layers, grads, strict=True):
# +            DeferringStage.running.append((layer, grad.flatten(0, -2).t() @ whole.flatten(0, -2)))
# -            for region, x, layers, grads in self.deferred.pop(key):
# -                whole = gather(x, region).flatten(0, -2)
# -                for layer, grad in zip(layers, grads, strict=True):
# -                    layer.weight.backward(grad.flatten(0, -2).t() @ whole)
# +            for layer, product in self.deferred.pop(key):
# +                layer.weight.backward(product)

# %% [raw] mutant="deferred-wgrad" hint="however many layers they have"
# -                whole = gather(x, region).flatten(0, -2)
# -                for layer, grad in zip(layers, grads, strict=True):
# +                for layer, grad in zip(layers, grads, strict=True):
# +                    whole = gather(x, region).flatten(0, -2)

# %% [raw] mutant="deferred-wgrad" hint="the queue of another one"
# -        DeferringStage.running = self.deferred[key] = []
# -        return super().backward(key, grad)
# +        return super().backward(key, grad)
# +
# +    def forward(self, key, x, data):
# +        DeferringStage.running = self.deferred[key] = []
# +        return super().forward(key, x, data)

# %% [raw] mutant="deferred-wgrad" hint="the queue of another one"
# -        DeferringStage.running = self.deferred[key] = []
# -        return super().backward(key, grad)
# +        return super().backward(key, grad)
# +
# +    def forward(self, key, x, data):
# +        DeferringStage.running = self.deferred[key] = []
# +        return super().forward(key, x, data)
# -        ctx.region, ctx.layers = region, layers
# +        ctx.region, ctx.layers, ctx.queue = region, layers, DeferringStage.running
# -        DeferringStage.running.append((region, x.detach(), ctx.layers, grads))
# +        ctx.queue.append((region, x.detach(), ctx.layers, grads))

# %% [raw] mutant="deferred-wgrad" hint="those of the last W only"
# -                    layer.weight.backward(grad.flatten(0, -2).t() @ whole)
# +                    layer.weight.grad = grad.flatten(0, -2).t() @ whole

# %% [raw] mutant="deferred-wgrad" hint="lacks the terms of the other ranks"
# -        part = torch.empty_like(x)
# -        dist.reduce_scatter_single(part, whole, group=region.group)
# -        return part, None, None
# +        return whole.chunk(region.size)[region.rank], None, None

# %% [raw] mutant="deferred-wgrad" hint="The row-parallel layer has no gradient"
# -        super().weight(key)
# -        with torch.no_grad():
# +        with torch.no_grad():

# %% [raw] mutant="deferred-wgrad" hint="What does SplitStage do around"
# -        return super().backward(key, grad)
# +        x, y = self.in_flight.pop(key)
# +        y.backward(grad)
# +        return None if x is None else x.grad

# %% [raw] mutant="deferred-wgrad" hint="several calls of deferred_columns leave something"
# -        DeferringStage.running.append((region, x.detach(), ctx.layers, grads))
# +        DeferringStage.running[:] = [(region, x.detach(), ctx.layers, grads)]

# %% [raw] mutant="deferred-wgrad" hint="what refers to a micro-batch after W"
# -            for region, x, layers, grads in self.deferred.pop(key):
# +            for region, x, layers, grads in self.deferred[key]:

# %% [raw] mutant="deferred-wgrad" hint="In which dtype does W multiply"
# -                    layer.weight.backward(grad.flatten(0, -2).t() @ whole)
# +                    layer.weight.backward((grad.flatten(0, -2).t().float() @ whole.float()).to(whole.dtype))

# %% [markdown]
# Before you compare times, compare losses. The program trains on two real nodes with two ranks each, and both its
# losses and its gradient norms must match those of one process:

# %% tags=["explore"] short={"--train-iters 10": "--train-iters 2"}
FLAGS = (TINY + "--device cpu --attention-dropout 0 --hidden-dropout 0 --micro-batch-size 1 --global-batch-size 8 "
         "--train-iters 10 --lr 1e-3 --min-lr 1e-5 --lr-warmup-fraction 0.2 --lr-decay-style cosine --clip-grad 1.0 "
         "--log-interval 1 --eval-iters 0 --split 949,50,1 --data-path data/bpe-4096/text_document "
         "--vocab-file data/bpe-4096/vocab.json --merge-file data/bpe-4096/merges.txt ")
!sbatch --output=megatron/logs/zero_bubble.txt code/my_trainer.sh {FLAGS} --schedule zb-h1 \
    --pipeline-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel --delay-wgrad-compute
!OMP_NUM_THREADS=1 python megatron/Megatron-LM/pretrain_gpt.py {FLAGS} > megatron/logs/reference_zero_bubble.txt

# %% tags=["explore"]
jobs.wait()
reference, mine = (logs.read(f"megatron/logs/{name}.txt") for name in ("reference_zero_bubble", "zero_bubble"))
assert mine.iterations, "Your job has failed. megatron/logs/zero_bubble.txt says why."
norms = max(abs(yours.grad_norm / theirs.grad_norm - 1) for theirs, yours in zip(reference.iterations, mine.iterations, strict=True))
losses = logs.loss_difference(reference, mine)
print(f"the losses differ by at most {result(f'{losses:.1e}')}, gradient norms by {result(f'{norms:.1e}')}, relatively")
assert losses < 1e-4, "One of your files trains differently from the reference. `lab mytrainer` tests each of them."
assert norms < 1e-2, "The losses agree, and the gradient norms do not. Which gradients does your queue still hold?"

# %% [markdown]
# By how many percent does this shorten the step on the 1,024 GPUs? Set `guess_deferred`:

# %% answer="guess-deferred"
### BEGIN SOLUTION
guess_deferred = 10
### END SOLUTION

# %% tags=["explore"] short={"--delay-wgrad-compute": "--global-batch-size 6"}
FOLDER = "megatron/timeline/deferred"
!virtualrun {RUN} --delay-wgrad-compute --timeline {FOLDER} 2>&1 | grep -E "virtual(run)?:|timeline of|error"
deferred = plots.timeline(FOLDER)
check.compare("percent of the step's time that is saved with all weight gradients in W (modeled)", guess_deferred,
              100 * (1 - deferred.total / thousand.total))
plots.pipeline(FOLDER, "All weight gradients in W")

# %% [markdown]
# From its first pass to its last, a step takes 9.5% less time. Including the gradient all-reduce and the optimizer, it
# takes 9% less (both modeled). Yet the GPUs do the same work and send the same bytes. B has lost GEMMs and an
# all-gather that no other stage waits for, and the longer W fills more of the bubble. Nothing overlaps the all-gather
# in W yet. The [implementation of the paper's
# authors](https://github.com/sail-sg/zero-bubble-pipeline-parallelism/blob/main/megatron/core/tensor_parallel/layers.py)
# gathers in W, too.
#
# You pay with memory. From B to W, a stage also keeps the gradients of its column-parallel layers' outputs. On the last
# stage, the gradient of the logits is one of them, so now that stage has the highest peak: 6.1 GiB instead of the 5.4
# GiB that the first stage needed before (both modeled).

# %% [markdown]
# ## Discuss
#
# 1. **Clipping.** Your trainer clips gradients by their norm over the whole model. How would you do that in a pipeline
#    without a flush?
# 2. **A checkpoint.** The job has to stop in the middle of a stream. What do you save on each stage to continue as if
#    nothing had happened, under weight stashing, and under 2BW?
# 3. **The price of a version.** A stage has 1 billion parameters in bf16, with fp32 gradients, master weights, and
#    Adam's moments. By what percentage does 2BW increase this memory, and is that as much as you thought?
# 4. **A batch of the right size.** 2BW needs at least as many micro-batches per batch as there are stages. What does a
#    pipeline with a flush cost at that batch size, and at four times that size?
# 5. **W with tensor parallelism.** In an `OverlapRegion`, column-parallel layers all-reduce the gradient of their input,
#    and hide that behind the weight gradient (lab 09). What would happen to that overlap if you postponed these weight
#    gradients, too, and what could hide the all-reduce instead?
# 6. **W with data parallelism.** DDP sends a gradient when it is complete. How do ZB-H1 and ZB-H2 change the time
#    during which these sends can overlap with computation?
# 7. **Recompute or split?** Activation checkpointing makes B longer by a forward pass. What does that do to the bubble
#    of ZB-H1, and to the memory between B and W?
# 8. **Whose zero?** A paper reports a bubble of zero, and a colleague measures 10% idle time with the same schedule.
#    Name three reasons why both can be right.

# %% [markdown]
# ## Cleanup
#
# Cancel this lab's jobs if any are still running. Keep `mytrainer/` and `contest/pipelines.py`, which you can submit to
# the contest.

# %% tags=["explore"]
!rm -rf megatron/timeline/thousand megatron/timeline/deferred megatron/logs/zero_bubble.txt megatron/logs/reference_zero_bubble.txt
!squeue
!ls mytrainer contest/pipelines.py

# %% [markdown]
# ## Summary
#
# - With a pipeline flush, all stages use the same weights during a step, at the price of the bubble. Without it, a
#   backward pass has to use the weights of its forward pass. Otherwise, the result is not the gradient at any weights
#   that the pipeline ever held.
# - PipeDream stashes $p - s$ versions on stage $s$. Vertical sync needs $p$ versions on every stage, 2BW needs two, and
#   PipeDream-Flush needs one.
# - 2BW computes $W^{(t+1)} = W^{(t)} - \nu \nabla f(W^{(t-1)})$, like a single process with a stale gradient.
# - Recomputation has to use the version of the first forward pass, too.
# - With a delay of $d$ updates, the largest stable learning rate of SGD falls from 2 to $2 \sin(\pi / (4d + 2))$, both
#   divided by the largest curvature. Staleness hurts when updates are large.
# - The previous stage waits only for the gradient of the input. W can wait, and fills the bubble at the end.
# - Between B and W, a linear layer keeps its input and the gradient of its output, so moving W costs memory.
# - With sequence parallelism, the second all-gather of a column-parallel layer's input belongs to its weight gradient, so
#   it moves to W as well.
# - If F, B, and W take the same time, ZB-H1 has a third of 1F1B's idle time, and each stage needs as much memory as the
#   first stage of 1F1B. ZB-H2 removes the wait for the first gradient, but needs about twice the memory. ZBV also
#   removes it, with a V-shaped placement and no more memory than ZB-H1, but with more transfers. If W is the shortest,
#   a bubble is left: $(p-1)(F+B-2W)$ with ZB-H2.
# - "Zero bubble" counts only the time between each stage's first and last action. The idle time before and after costs
#   nothing only if the optimizer step does not wait for other stages.
# - With uneven stages, memory caps, and slow links, a simulation finds better orders than any formula.
#
# ## Read next
#
# - [Narayanan et al., 2019](https://doi.org/10.1145/3341301.3359646): PipeDream, with weight stashing and vertical
#   sync.
# - [Narayanan et al., 2021](https://arxiv.org/abs/2006.09503): 2BW and PipeDream-Flush, and the memory of both.
# - [Kosson et al., 2020](https://arxiv.org/abs/2003.11666): pipelined backpropagation with a batch of one, and two
#   remedies for stale gradients.
# - [Zmushko et al., 2026](https://arxiv.org/abs/2606.30634), *One-Step Gradient Delay is Not a Barrier for Large-Scale
#   Asynchronous Pipeline Parallel LLM Pretraining*: which optimizers tolerate the delay of 2BW, and a correction.
# - [Jung et al., 2026](https://arxiv.org/abs/2602.03515): why staleness hurts Adam more in deeper pipelines.
# - [Qi et al., 2023](https://arxiv.org/abs/2401.10241), *Zero bubble pipeline parallelism*: the split, ZB-H1 and ZB-H2,
#   post-validation, and a scheduler that searches.
# - [Qi et al., 2024](https://arxiv.org/abs/2405.15362), *Pipeline parallelism with controllable memory*: schedules
#   built by repeating a block, among them the V-shaped ones.
# - [DeepSeek-AI, 2024](https://arxiv.org/abs/2412.19437), *DeepSeek-V3 technical report*: section 3.2 describes
#   DualPipe.
# - [`dualpipev.py`](https://github.com/deepseek-ai/DualPipe/blob/main/dualpipe/dualpipev.py): the whole schedule, in
#   eight short loops.
# - [`torch.distributed.pipelining`](https://docs.pytorch.org/docs/stable/distributed.pipelining.html):
#   `ScheduleZBVZeroBubble` and `ScheduleDualPipeV`, with a general way to split a backward pass.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>). All of your answers are in it.
