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
# Values are real: CPU ranks compute them, driven by your executor from lab 10. (If you lack one of its files, the
# course's executor takes its place.) The memory of GPUs is **modeled** by virtual GPUs. Your answers are files in
# `mytrainer/`.

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
check.mask("cluster_planner", "lab.mytrainer", "lablib.async_pipeline", "layout_estimator", "minimegatron", *check.PIPELINE_LIBRARIES)

# %% tags=["explore"]
import virtualgpu
from labcore.colors import bad, good, result
from lablib import plots, versions
from pipeline_schedules import Durations, one_f_one_b, simulate, to_text
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
    check.that(abs(found - count) < 0.1, f"After {actions}, the stage holds {found:.1f} times its weights on the GPU, and it needs "
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

# %% [raw] mutant="weight-stash" hint="newer weights than the forward pass"
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
# How many versions does each stage hold now? And whose gradient does micro-batch 3 have?

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
# The gradient is now exact, but look at the versions. Micro-batch 3 saw the first stage after one update, the second
# after two, and the third after three. In a training without a pipeline, there is no such model: after one update, all
# layers have made one.
#
# The paper also describes **vertical sync**: every stage uses the version that was the newest on the *first* stage when
# the micro-batch entered the pipeline. PipeDream's authors leave it off by default. What does it cost? Guess how many
# versions the **last** of four stages holds with vertical sync. Set `guess_synced`:

# %% answer="guess-synced"
### BEGIN SOLUTION
guess_synced = 4
### END SOLUTION

# %% [markdown]
# **PipeDream-2BW** ("double-buffered weights"; [Narayanan et al., 2021](https://arxiv.org/abs/2006.09503)) lowers this
# price. It updates once per batch of $m \ge p$ micro-batches, and the whole batch uses one version on all stages. So
# the entire pipeline computes what one process would, with the gradient of the version before the newest:
#
# $$W^{(t+1)} = W^{(t)} - \nu\,\nabla f\big(W^{(t-1)}\big)$$
#
# The same paper calls 1F1B with a flush **PipeDream-Flush**. In the formula, its gradient is that of $W^{(t)}$.
#
# ### Exercise 2: vertical sync and 2BW
#
# Write `synced_stash.py`. All three methods follow from one rule. The stream is divided into batches of `interval`
# micro-batches, and version $v$ is what the weights are after $v$ updates. **All micro-batches of a batch use the same
# version on all stages, in both passes: the newest one that the first stage has when the first micro-batch of the batch
# enters the pipeline under 1F1B.** With an interval of 1, this is vertical sync.
#
# - In a long stream, batch $j$ uses version $j - d$, where the **delay** $d$ does not depend on $j$. Which pass of the
#   first stage comes right before the one in which a micro-batch enters? `delay` returns $d$ for a stream through any
#   number of stages, and any interval. The first batches, for which there is no such version, use version 0.
# - `SyncedStash` is a stage. It updates once per batch, after the batch's last backward pass, with the sum of its
#   gradients: the executor has weighted the losses. Backward passes run in the order of the micro-batches. The
#   module's own parameters have the newest values after every pass.
# - With a delay of 0, and a flush after every batch, `SyncedStash` is PipeDream-Flush.
# - Between two passes, a stage holds the versions that later passes need, the sum of the gradients within a batch, and
#   nothing else as large as the weights. After the update, no gradient is left.

# %% answer="synced-stash"
%%writefile mytrainer/synced_stash.py
"""A stage whose micro-batches use the same weight version as on all other stages."""

import torch
from torch.func import functional_call


def delay(stages, interval):
    """Return how many versions older than the number of its batch the weights of a micro-batch are.

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
               "none need?")


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
                    "delay": 1, "width": 2, "rate": 0.5, "seed": check.by_rank([1.0, 2.0]), "common": 3.0}],
            expected=[[[[], [0.8990741, 1.066164, 0.02485302, -0.8221806, 0.9906232, 1.24429]], [[0.136283, 0.1743378, 0.128483,
                      0.2123415], [1.212759, 0.2150248, -0.3706945, -0.9048355, 1.119537, 1.46352]]], [[[], [0.7117507, 1.275503,
                      -0.1387925, -0.5663234, 0.8714344, 1.32957]], [[0.136283, 0.1743378, 0.2130906, 0.2493043, 0.1869422, 0.2145938],
                      [1.131211, 0.1875049, -0.598983, -0.8605346, 1.18649, 1.44592]]]],
            hints={
                "Each stage uses the newest version that it has itself. What has the first stage, when the micro-batch enters?":
                    [[[[], [0.8961451, 1.111093, 0.03990344, -0.7750242, 0.9902713, 1.271792]], [[0.136283, 0.1490155, 0.1150633,
                     0.1554857], [1.188065, 0.237308, -0.4421666, -0.8709822, 1.163734, 1.461844]]], [[[], [0.7960356, 1.146263,
                     -0.04324108, -0.6890235, 0.9286236, 1.316445]], [[0.136283, 0.1743378, 0.1886357, 0.1565743, 0.1640335, 0.1617473],
                     [1.142953, 0.2448089, -0.5729818, -0.8537837, 1.189026, 1.466865]]]],
                "An update applies to the version that its batch has used, so the update in between is lost.":
                    [[[[], [0.7380279, 1.064719, -0.1045219, -0.8004031, 0.8848964, 1.347611]], [[0.136283, 0.1743378, 0.128483,
                     0.1550868], [1.095532, 0.2950872, -0.6085406, -0.8789557, 1.159361, 1.493696]]], [[[], [0.731536, 1.073325,
                     -0.1038453, -0.7735781, 0.8796776, 1.34407]], [[0.136283, 0.1743378, 0.2130906, 0.2493043, 0.1869422, 0.2145938],
                     [1.090761, 0.2964561, -0.6347161, -0.8523783, 1.172994, 1.474947]]]],
                "The updates are too small: the executor has divided the losses already.":
                    [[], [[[], [0.6480413, 1.146953, -0.1783407, -0.7336786, 0.8235904, 1.373327]], [[0.136283, 0.1743378, 0.2130906,
                     0.2493043, 0.2156665, 0.2432349], [1.051579, 0.2896479, -0.6967095, -0.8473382, 1.177076, 1.466609]]]],
                "An update contains the gradients of earlier batches, too.":
                    [[[[], [0.9593761, 1.873428, 0.0398701, -0.1568458, 1.034232, 1.18308]], [[0.136283, 0.1743378, 0.128483, 0.3650265],
                     [1.461379, -0.284845, 0.02210036, -1.139951, 1.100404, 1.419726]]], [[[], [0.661638, 1.83362, -0.2115549,
                     -0.05920376, 0.846369, 1.343879]], [[0.136283, 0.1743378, 0.2130906, 0.2493043, 0.1869422, 0.2145938], [1.24278,
                     -0.1174363, -0.4903357, -0.9833456, 1.214582, 1.432504]]]],
                "An update contains only the last gradient of its batch.":
                    [[], [[[], [0.6487874, 1.149764, -0.1793285, -0.7219795, 0.8244161, 1.36561]], [[0.136283, 0.1743378, 0.2130906,
                     0.2493043, 0.2106528, 0.237552], [1.052868, 0.2881531, -0.6991426, -0.8322798, 1.180405, 1.455402]]]]})
        ### BEGIN HIDDEN TESTS
        for ranks, interval, delay, count in ((3, 2, 1, 8), (4, 1, 3, 7)):
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
        ### BEGIN HIDDEN TESTS
        for case in check.draw(1, stages=range(3, 6), interval=range(4, 7), stage=range(3)):
            interval, line = case["interval"], stream_of(case["stages"], 5 * case["interval"])[case["stage"]]
            require_synced(interval, 1, line, f"B{3 * interval - 1}", 2)
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
# Now measure what each policy costs: the versions that four stages hold right after an update. With 2BW, a batch has
# four micro-batches.

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
# flight that would need them: it holds them for micro-batches that have not arrived yet. 2BW holds two everywhere,
# however many stages there are, and updates less often.
#
# Activations come on top. In all four, stage $s$ has at most $p - s$ micro-batches in flight.

# %% [markdown]
# ### Exercise 3: recompute with the right weights
#
# On large models, 2BW runs with activation recomputation, as its paper does: a stage keeps only the input of a micro-batch
# in flight, and repeats the forward pass right before the backward pass. The second forward pass has to give what the
# first one gave, although the weights have been updated in the meantime.
#
# Write `stash_recompute.py`, a `SyncedStash` with recomputation. Between two passes, a stage holds the same weight
# versions as before, and of each micro-batch in flight only the hidden states that it received and the micro-batch
# itself. The checks are those of Exercise 2, with a module whose activations are much larger than its input.

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
        check.ranks(recomputing_stream, ranks=3, rel=1e-4, cases=check.draw(
            1, schedule=[stream_of(3, 8)], interval=[2], delay=[1, 2], width=[3, 4], rate=check.between(0.1, 0.5),
            seed=check.for_each_rank(check.between(0, 100)), common=check.between(0, 100)), expected=synced_by_one_process)
        ### END HIDDEN TESTS
    with check.part(2, "keeps only inputs"):
        require_inputs_only(2, 1, "F0 F1 B0 F2 B1 F3", "F3", 2)
        ### BEGIN HIDDEN TESTS
        for case in check.draw(1, stages=range(3, 6), batch=range(2, 4)):
            stages = case["stages"]
            require_inputs_only(stages, 1, stream_of(stages, 5 * stages)[0], f"F{(case['batch'] + 1) * stages - 1}", 2)
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
# A checkpoint function that recomputes with `self.module` would have been the naive stage again, without any error: its
# forward pass runs before the updates, and its backward pass after them. (If a stage has dropout, the random numbers
# have to be those of the first forward pass, too.)

# %% [markdown]
# ## Does staleness hurt?
#
# All four policies compute exact gradients, but without a flush, they are gradients at old weights. With weight
# stashing, these are older on the first stage than on the last. Take the simplest function that there is, $f(w) =
# w^2/2$ with a single weight. SGD computes $w \leftarrow w - \nu w$, and converges for
# every learning rate $\nu$ below 2. Up to which rate does it converge with 2BW, whose gradient is one update old? Set
# `guess_rate`:

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
check.compare("largest learning rate with a delay of 1", guess_rate, rates[1])

# %% [markdown]
# Why? With a delay of $d$, SGD is $w_{t+1} = w_t - \nu\,w_{t-d}$. Try $w_t = z^t$: it solves this if
# $z^{d+1} - z^d + \nu = 0$. SGD converges while all solutions have $|z| < 1$, and at the limit, one of them is on the
# unit circle. Setting $z = e^{i\theta}$ gives
#
# $$\nu = 2 \sin \frac{\pi}{4d + 2}$$
#
# and for a large delay, almost $\pi / (2d + 1)$. For other functions, divide by the largest curvature. So a pipeline
# with twice as many stages and vertical sync has to halve its learning rate, roughly, while 2BW keeps the delay at 1. For plain
# weight stashing, $d$ differs between the stages. Momentum and Adam change these limits, but not the trend: staleness is
# harmless while a step changes the weights little, and dangerous once it changes them much.
#
# A limit on the rate is not the whole answer, because time counts, too. So train a small GPT, one layer on each of four
# ranks, with four micro-batches per batch, and stop all policies at the same simulated time. PipeDream-Flush spends a
# part of it on the bubble. The others do not, so they get more micro-batches done. Weight stashing and vertical sync
# also update after every micro-batch, and the other two once per batch. The optimizer is Adam.

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
        print(f"{policy:16} {len(losses):4} micro-batches, loss in the end {result(f'{curves[policy][1][-1]:.2f}')}")
    return curves

# %% [markdown]
# The tokens follow a rule that the model has to find: each depends on the two before it. At a learning rate of 0.003,
# which policy will have the lowest loss at the end of the time, and which the highest? And by how many percent is
# the final loss of 2BW above that of PipeDream-Flush (negative: below)? Set `guess_percent`:

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
# The next cell repeats it at a learning rate of 0.01. Before you run it, predict which curves will be lower than before,
# and which higher.

# %% tags=["explore"]
fast = compare_policies(0.01)
plots.curves(fast, "time, in forward passes (simulated)", "loss", "Small GPT at a learning rate of 0.01")

# %% [markdown]
# Is the bubble worth its price? Not at the lower rate: weight stashing is far ahead, above all because it makes seven
# times as many updates in this time. At the higher rate, PipeDream-Flush has become better, and all others
# worse. Weight stashing and vertical sync make the same number of updates with the same samples, and differ only in
# staleness: with vertical sync, the last stage, too, uses weights that are three updates old. 2BW and PipeDream-Flush
# both update once per batch. 2BW makes more updates, and each of them is one step late. Here this costs more than the
# bubble.
#
# Do not conclude too much from the beginning of the training of a tiny model, whose weights change a lot with every
# update. Narayanan et al. (2021) trained BERT and GPT models with 2BW, and report a similar final accuracy. More recent
# results fit what you see: [Zmushko et al., 2026](https://arxiv.org/abs/2606.30634) find that with a delay of one update,
# AdamW degrades severely and Muon hardly does, on models with up to 10 billion parameters, and [Jung et al.,
# 2026](https://arxiv.org/abs/2602.03515) look for the reason why Adam suffers more, the deeper the pipeline.
#
# So before you leave out the flush, count what it really costs. Today's schedules leave a much smaller bubble without
# changing a single gradient. They are the subject of the second sitting.

# %% [markdown]
# ## Zero bubble

# %% [markdown]
# ## Discuss
#
# 1. **Clipping.** Your trainer clips gradients by their norm over the whole model. How would you do that in a pipeline
#    without a flush?
# 2. **A checkpoint.** The job has to stop in the middle of a stream. What do you save on each stage to continue as if
#    nothing had happened, under weight stashing, and under 2BW?
# 3. **The price of a version.** A stage has 1 billion parameters in bf16, with fp32 gradients, master weights, and Adam's
#    moments. How much more memory does 2BW need, as a share, and is it as much as you thought?
# 4. **A batch of the right size.** 2BW needs at least as many micro-batches per batch as there are stages. What does a
#    pipeline with a flush cost at that batch size, and at four times that size?

# %% [markdown]
# ## Cleanup
#
# This lab's runs have ended with their cells, and your files in `mytrainer/` are small. There is nothing to delete:

# %% tags=["explore"]
!squeue
!ls -la mytrainer

# %% [markdown]
# ## Summary
#
# - A pipeline flush keeps the weights of a step the same on all stages, and costs the bubble. Without it, a backward pass
#   has to use the weights of its forward pass: otherwise, the gradient is one at no weights that the pipeline ever held.
# - PipeDream stashes $p - s$ versions on stage $s$. Vertical sync needs $p$ versions on every stage, 2BW needs two, and
#   PipeDream-Flush one.
# - 2BW computes $W^{(t+1)} = W^{(t)} - \nu \nabla f(W^{(t-1)})$, like a single process with a stale gradient.
# - Recomputation has to use the version of the first forward pass, too.
# - With a delay of $d$ updates, the largest stable learning rate of SGD falls from 2 to $2 \sin(\pi / (4d + 2))$, divided
#   by the curvature. Staleness hurts when updates are large.
#
# ## Read next
#
# - [Narayanan et al., 2019](https://doi.org/10.1145/3341301.3359646): PipeDream, with weight stashing and vertical sync.
# - [Narayanan et al., 2021](https://arxiv.org/abs/2006.09503): 2BW and PipeDream-Flush, and the memory of both.
# - [Kosson et al., 2020](https://arxiv.org/abs/2003.11666): pipelined backpropagation with a batch of one, and two cures
#   for stale gradients.
# - [Zmushko et al., 2026](https://arxiv.org/abs/2606.30634): which optimizers tolerate the delay of 2BW, and a correction.
# - [Jung et al., 2026](https://arxiv.org/abs/2602.03515): why staleness hurts Adam more in deeper pipelines.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>). All of your answers are in it.
