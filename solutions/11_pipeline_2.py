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
# # Pipeline II: less memory, less waiting
#
# You know GPipe, micro-batches, and the bubble from [Pipeline I](10_pipeline_1.ipynb). GPipe holds the
# activations of *all* micro-batches until the last forward pass is done, so it runs out of memory just when more
# micro-batches would shrink the bubble. In this lab you write **1F1B**, which holds far fewer, and train with it.
# Then you explore what else you can buy, and at what price: updates without waiting, stages of equal time, and
# several small chunks per stage.
#
# **You will be able to**
#
# - say what autograd saves for the backward pass, and write a function that saves less;
# - write 1F1B and interleaved 1F1B as schedules, and predict their bubble, memory, and communication;
# - explain why a pipeline without a flush needs weight versions, and count them;
# - find the best split of a model into stages, exactly;
# - read DeepSpeed's schedule and its configuration, and start it on a cluster.
#
# **How it works.** Run the cells with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Where a cell says
# *Your turn*, replace that line with your answer; the cell below it checks it at once. Where you are asked to guess,
# guess *before* you run. Guesses are not graded.
#
# **Real and virtual.** The small GPTs train for real, on CPUs. Time and memory of GPUs are **virtual**: modeled, and
# the same on every machine.

# %% tags=["setup"]
import os

import torch

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab begin at the workspace

# %% tags=["check-setup"]
from labkit import check
from minimegatron import formulas

# Answers cannot import these, because they contain the solutions.
check.mask("cluster_planner", "lablib.async_pipeline", "lablib.plots.bubbles", "lablib.saved",
           "layout_estimator", "minimegatron", *check.PIPELINE_LIBRARIES)

# %% tags=["explore"]
from job_monitor import logs
from labcore.colors import bad, good, result
from lablib import async_pipeline, jobs, plots, saved
from layout_estimator import costs, layers
from pipeline_schedules import load, parse, peak_live, simulate, timeline_of, to_text

jobs.connect()

# %% [markdown]
# ## What a stage saves for backward
#
# The backward pass of an operation needs something from its forward pass. A linear layer, for example, needs its
# input to compute the gradient of its weight. Autograd saves it from the forward to the backward pass, and that
# is all that **activation memory** is. You can watch it, because PyTorch reports every saved tensor to a hook.
# Start with the MLP of a transformer, with two different functions in the middle. (The weights are left out,
# because they are in memory anyway.)

# %% tags=["explore"]
expand, shrink = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
weights = [*expand.parameters(), *shrink.parameters()]
x = torch.randn(8, 64, requires_grad=True)

print("Linear, ReLU, Linear")
saved.show(lambda x: shrink(torch.relu(expand(x))), x, weights=weights)
print("Linear, GELU, Linear")
saved.show(lambda x: shrink(torch.nn.functional.gelu(expand(x))), x, weights=weights);

# %% [markdown]
# Why does GELU take more? For its gradient, ReLU only needs to know where its *output* is above 0. Its output is the
# next layer's input, which is saved anyway, so one tensor serves both. GELU needs its *input*. (In [lab
# 06](06_memory.ipynb), you count the bytes of a whole layer.)

# %% [markdown]
# ### Exercise 1: a function that saves little
#
# **Max-pooling** takes the maximum of every `size` neighbors. Its backward pass only needs to know which of them was
# the maximum: that one gets the gradient, and the others get 0. `MaxPool` below is a **custom autograd function**:
# `forward` computes the result and chooses what to save, and `backward` turns the gradient of the result into
# the gradient of the input. Write `backward`.
#
# For example, with `size` 3, the result for `[1, 5, 2, 7, 3, 0]` is `[5, 7]`. When its gradient is `[10, 20]`, the
# gradient of the input is `[0, 10, 0, 20, 0, 0]`.

# %% nbgrader={"grade": false, "grade_id": "max-pool", "locked": false, "schema_version": 3, "solution": true, "task": false}
class MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, size):
        largest, place = x.view(-1, size).max(dim=1)  # place: 0 to size - 1, in each group
        ctx.save_for_backward(place)
        ctx.size = size
        return largest

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x, as long as x, and None for size. gradient: of the result."""
        (place,) = ctx.saved_tensors
        ### BEGIN SOLUTION
        groups = torch.zeros(len(place), ctx.size, dtype=gradient.dtype)
        groups[torch.arange(len(place)), place] = gradient
        return groups.view(-1), None
        ### END SOLUTION

# %% tags=["driver"]
def pooled_gradient(x, gradient, size):
    given = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    MaxPool.apply(given, size).backward(torch.tensor(gradient, dtype=torch.float64))
    return given.grad.tolist()

# %% nbgrader={"grade": true, "grade_id": "max-pool-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    pooled_gradient,
    cases=[([1.0, 5.0, 2.0, 7.0, 3.0, 0.0], [10.0, 20.0], 3),
           ([-4.0, -2.0, -1.0, -3.0], [1.0, -1.0], 2)],
    expected=[[0.0, 10.0, 0.0, 20.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0]],
    hints={
        "Only the maximum contributed to the result: the others get 0.":
            [[10.0, 10.0, 10.0, 20.0, 20.0, 20.0], [1.0, 1.0, -1.0, -1.0]],
        "place counts within each group. Where does the group begin?":
            [[20.0, 10.0, 0.0, 0.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0]],
        "Pass on the incoming gradient, not just its position.":
            [[0.0, 1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]],
    })
### BEGIN HIDDEN TESTS
def drawn_case(dice):
    size, groups = dice.randint(2, 6), dice.randint(1, 8)
    x = dice.sample(range(-100, 100), size * groups)
    return [float(one) for one in x], [float(dice.randint(1, 99)) for _ in range(groups)], size


def right_gradient(x, gradient, size):
    found = [0.0] * len(x)
    for group, one in enumerate(gradient):
        part = x[group * size:(group + 1) * size]
        found[group * size + part.index(max(part))] = one
    return found


drawn = [case["pool"] for case in check.draw(16, pool=drawn_case)]
check.function(pooled_gradient, cases=drawn, expected=right_gradient)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="max-pool" hint="the others get 0"
# -        groups = torch.zeros(len(place), ctx.size, dtype=gradient.dtype)
# -        groups[torch.arange(len(place)), place] = gradient
# -        return groups.view(-1), None
# +        return gradient.repeat_interleave(ctx.size), None

# %% [raw] tags=["mutant"] answer="max-pool" hint="place counts within each"
# -        groups = torch.zeros(len(place), ctx.size, dtype=gradient.dtype)
# -        groups[torch.arange(len(place)), place] = gradient
# -        return groups.view(-1), None
# +        of_x = torch.zeros(len(place) * ctx.size, dtype=gradient.dtype)
# +        of_x[place] = gradient
# +        return of_x, None

# %% [raw] tags=["mutant"] answer="max-pool" hint="Pass on the incoming"
# -        groups[torch.arange(len(place)), place] = gradient
# +        groups[torch.arange(len(place)), place] = 1.0

# %% [markdown]
# PyTorch's own pooling also saves its whole input. Compare:

# %% tags=["explore"]
x = torch.randn(1, 4096, requires_grad=True)
print("PyTorch's max_pool1d")
theirs = saved.show(lambda x: torch.nn.functional.max_pool1d(x, 4), x)
print("yours")
yours = saved.show(lambda x: MaxPool.apply(x.view(-1), 4), x)
print(f"yours keeps {result(f'{yours / theirs:.0%}')} of it")

# %% [markdown]
# An index between 0 and 3 would fit into one byte, and yet it takes eight. Fused kernels save memory in exactly this
# way. But there is a bigger lever: *how long* tensors are held. The schedule decides that.

# %% [markdown]
# ## 1F1B: one forward, one backward
#
# A stage holds the activations of a micro-batch from its forward to its backward pass. In between, the micro-batch is
# **in flight**. GPipe runs all forward passes first. Here it is with 4 stages and 8 micro-batches; a backward pass
# takes twice as long as a forward pass. The curve below a stage is the number of in-flight micro-batches.

# %% tags=["explore"]
plots.pipeline(load("gpipe", 4, 8), "GPipe")

# %% [markdown]
# The last stage could run the backward pass of micro-batch 0 right after its forward pass, but GPipe postpones it
# for no reason. **1F1B** ([Narayanan et al. 2019](https://doi.org/10.1145/3341301.3359646), with a flush in
# [Narayanan et al. 2021](https://arxiv.org/abs/2104.04473)) runs a backward pass as soon as it can. Each stage goes
# through three phases:
#
# 1. **warm-up**: as many forward passes as there are stages *behind* this one (and never more than there are
#    micro-batches);
# 2. **steady state**: one forward, one backward, in turn, as long as there are forward passes left;
# 3. **cool-down**: the remaining backward passes.
#
# Backward passes run in the order of the forward passes. Will the bubble be smaller than GPipe's? Guess 1F1B's idle
# time, relative to GPipe's 1.0.

# %% nbgrader={"grade": false, "grade_id": "guess-bubble", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_bubble = 1.0
### END SOLUTION

# %% [markdown]
# ### Exercise 2: write 1F1B
#
# Return a list with one entry per stage, either a string such as `"F0 F1 B0 B1"` or a list of such words. `F3` is
# the forward pass of micro-batch 3, `B3` its backward pass. Your schedule must work for any number of stages and
# micro-batches, including fewer micro-batches than stages.

# %% nbgrader={"grade": false, "grade_id": "one-f-one-b", "locked": false, "schema_version": 3, "solution": true, "task": false}
def one_f_one_b(stages, micro_batches):
    """Return what every stage does, in order: a list of strings, or of lists of words."""
    ### BEGIN SOLUTION
    schedule = []
    for stage in range(stages):
        warm_up = min(stages - stage - 1, micro_batches)
        actions = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                actions.append(f"F{warm_up + k}")
            actions.append(f"B{k}")
        schedule.append(actions)
    return schedule
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "one-f-one-b-check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
check.schedule(
    one_f_one_b,
    cases=[(4, 8), (2, 4), (4, 2), (3, 7), (1, 3)], like="1f1b",
    hints={
        "This works for some sizes only. Which number in it should be `stages` or `micro_batches`?":
            "some sizes",
        "That has GPipe's memory. Run a backward pass as soon as you can.": "gpipe",
        "Every stage waits for a neighbor. What does the next stage need before it can send back "
        "a gradient?": "deadlock",
        "One micro-batch at a time: which stages are busy meanwhile?": "one at a time",
        "More micro-batches are in flight than necessary. Count the forward passes of the warm-up.": "memory",
        "The stages wait longer than necessary. Does the pipeline drain in between?":
            "bubble",
        "Count the passes of every stage: each micro-batch has one forward and one backward pass.":
            "incomplete",
    })
### BEGIN HIDDEN TESTS
check.schedule(one_f_one_b, cases=check.draw(12, stages=range(1, 10), micro_batches=range(1, 20)),
               like="1f1b")
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="GPipe's memory"
# -        warm_up = min(stages - stage - 1, micro_batches)
# +        warm_up = micro_batches

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="Every stage waits for a neighbor"
# -        warm_up = min(stages - stage - 1, micro_batches)
# +        warm_up = min(stage, micro_batches)

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="This works for some"
# -        warm_up = min(stages - stage - 1, micro_batches)
# +        warm_up = min(4 - stage - 1, micro_batches)

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="One micro-batch at a time"
# -        warm_up = min(stages - stage - 1, micro_batches)
# +        warm_up = 0

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="More micro-batches are in"
# -        warm_up = min(stages - stage - 1, micro_batches)
# +        warm_up = min(stages - stage, micro_batches)

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="The stages wait longer"
# def one_f_one_b(stages, micro_batches):
#     half = max(1, micro_batches // 2)
#     schedule = []
#     for stage in range(stages):
#         actions = []
#         for first, last in ((0, half), (half, micro_batches)):
#             ahead = min(stages - stage - 1, last - first)
#             actions += [f"F{k}" for k in range(first, first + ahead)]
#             for k in range(first, last):
#                 actions += [f"F{k + ahead}"] * (k + ahead < last) + [f"B{k}"]
#         schedule.append(actions)
#     return schedule

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="Count the passes of"
# -            actions.append(f"B{k}")
# +            if warm_up + k < micro_batches:
# +                actions.append(f"B{k}")

# %% tags=["explore"]
idle = [simulate(made).bubble_fraction for made in (parse(one_f_one_b(4, 8)), load("gpipe", 4, 8))]
check.compare("idle time, GPipe's is 1.0", guess_bubble, idle[0] / idle[1])
plots.pipeline(one_f_one_b(4, 8), "My 1F1B", steps=True)

# %% [markdown]
# **Same bubble, less memory.** Many people believe that 1F1B has a smaller bubble. It does not: the first stage
# still waits until the last one has sent its first gradient all the way back. (Step through it with the slider,
# and see which stage waits for which.) What 1F1B reduces is the peak number of in-flight micro-batches.

# %% [markdown]
# ### Exercise 3: how many are in flight?
#
# How many micro-batches are in flight at the peak, on a given stage (counted from 0)?

# %% nbgrader={"grade": false, "grade_id": "live", "locked": false, "schema_version": 3, "solution": true, "task": false}
def live(schedule, stages, stage, micro_batches):
    """Return the peak number of in-flight micro-batches on `stage` (an int).

    schedule: "gpipe" or "1f1b".
    """
    ### BEGIN SOLUTION
    if schedule == "gpipe":
        return micro_batches
    return min(stages - stage, micro_batches)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "live-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    live,
    cases=[("gpipe", 4, 0, 8), ("1f1b", 4, 0, 8), ("1f1b", 4, 1, 8), ("1f1b", 8, 1, 4)],
    expected=[8, 4, 3, 4],
    hints={
        "The forward pass after the warm-up precedes the first backward pass, so it counts, too.":
            [8, 3, 2, 4],
        "No more micro-batches can be in flight than there are.": [8, 4, 3, 7],
        "The number of stages behind it differs from stage to stage.": [8, 4, 4, 4],
        "The first stage holds the most, because it waits longest for its gradients.": [8, 1, 2, 2],
        "That is GPipe, which starts its backward passes after the last forward pass.": [4, 4, 3, 4],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(24, schedule=["gpipe", "1f1b", "1f1b"], stages=range(1, 100), back=range(99),
                   micro_batches=range(1, 1000))
cases = [(case["schedule"], case["stages"], case["back"] % case["stages"], case["micro_batches"])
         for case in drawn]
check.function(
    live, cases=cases,
    expected=[m if schedule == "gpipe" else formulas.in_flight(p, stage, m)
              for schedule, p, stage, m in cases])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="live" hint="That is GPipe, which"
# -        return micro_batches
# +        return min(stages - stage, micro_batches)

# %% [raw] tags=["mutant"] answer="live" hint="That is GPipe, which"
# def live(schedule, stages, stage, micro_batches):
#     return 4

# %% [raw] tags=["mutant"] answer="live" hint="it counts, too"
# -    return min(stages - stage, micro_batches)
# +    return min(stages - stage - 1, micro_batches)

# %% [raw] tags=["mutant"] answer="live" hint="No more micro-batches can"
# -    return min(stages - stage, micro_batches)
# +    return stages - stage

# %% [raw] tags=["mutant"] answer="live" hint="waits longest"
# -    return min(stages - stage, micro_batches)
# +    return min(stage + 1, micro_batches)

# %% [raw] tags=["mutant"] answer="live" hint="stages behind it"
# -    return min(stages - stage, micro_batches)
# +    return min(stages, micro_batches)

# %% [markdown]
# Does this hold for gigabytes, too? Here is a GPT of 24 layers on 4 virtual V100s, with 16 micro-batches. The last
# stage also computes the loss, whose activations are as large as the vocabulary, so it does not follow the rule.

# %% tags=["explore"]
GPT = ("--device virtual:v100 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --fp16 "
       "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
       "--world-size 4 --pipeline-model-parallel-size 4 ")
flushed = costs.of({name: f"--schedule {name}" for name in ("gpipe", "1f1b")},
                   GPT + "--gpus-per-node 4 --global-batch-size 16")
for cost in flushed:
    one = cost.by_stage[0] / live(cost.name, 4, 0, 16)
    print(f"{cost.name:6} {cost.milliseconds:.0f} ms, bubble {cost.bubble:.1%} (virtual)",
          "" if cost.fits else bad("does not fit"))
    for stage, gib in enumerate(cost.by_stage):
        print(f"   stage {stage}: {result(f'{gib:5.2f}')} GiB of activations, "
              f"predicted {one * live(cost.name, 4, stage, 16):5.2f}")

# %% [markdown]
# (The prediction scales the first stage's value to the other stages.) The step time is the same, with a fraction of
# the memory. With GPipe, more micro-batches mean a smaller bubble and more memory. **With 1F1B the memory does not
# depend on the number of micro-batches**, so you can have as many as the batch allows.

# %% [markdown]
# ### On real ranks
#
# The trainer takes your schedule: write it to a file, and pass the file to `--schedule`. This job has four ranks
# on two nodes, one stage each, and 8 micro-batches per step. `--timeline` records one step.

# %% tags=["explore"] short={"--train-iters 3": "--train-iters 1 --timeline-iteration 1 --seq-length 64"}
import json
from pathlib import Path

Path("code/my_1f1b.json").write_text(json.dumps(one_f_one_b(4, 8)))
SHORT = "--train-iters 3 --log-interval 1 --eval-iters 0 --micro-batch-size 1 --timeline"
!sbatch code/pp_two_nodes.sh --schedule code/my_1f1b.json {SHORT} megatron/timeline/my_1f1b

# %% tags=["explore"]
mine = jobs.wait()

# %% tags=["explore"]
for one in logs.read(mine.log).iterations:
    print(f"iteration {one.iteration}: loss {result(one.loss)}")
plots.pipeline("megatron/timeline/my_1f1b", "My 1F1B", simulated=True)

# %% [markdown]
# The lower timeline is the same schedule, simulated with the mean durations of that run. The real run takes
# longer because of communication, and because passes vary (four ranks may share fewer cores). The last stage
# computes the output matrix and the loss in addition to its layer. But the in-flight micro-batches are exactly
# those that you predicted. (Does it learn the same as with GPipe? Put `--schedule gpipe` into the cell and see. A
# schedule decides *when* to compute, not *what*.)

# %% [markdown]
# ## Without a flush
#
# The bubble exists because the pipeline **drains** at the end of every step: no micro-batch of the next step may
# start before the weights are updated. This is the **pipeline flush**. What if no stage waited? **PipeDream**
# does not wait: micro-batches arrive in an endless stream, in the order of 1F1B, and every stage updates its
# weights after each of its backward passes. The bubble is gone, except at the very beginning. What does that
# cost?
#
# Take the forward pass of a micro-batch on the first stage. Until its gradient comes back, the stage runs backward
# passes of earlier micro-batches, and updates its weights after each. So **the backward pass sees different weights
# than the forward pass did.** PyTorch notices when you try:
#
# > **The next backward pass fails on purpose.** The cell catches the error and prints it.

# %% tags=["explore"]
weight = torch.randn(4, 4, requires_grad=True)
y = torch.tanh(torch.randn(2, 4) @ weight) @ weight  # a forward pass
with torch.no_grad():
    weight -= 0.1  # an update comes in between
try:
    y.sum().backward()
except RuntimeError as error:
    print(bad("RuntimeError:"), str(error).partition(";")[0])

# %% [markdown]
# The saved activations belong to the old weights, and the chain rule needs the old weights, too. If you work
# around this (`weight.data -= ...` would), you still get a result. What is it?
#
# `async_pipeline` is a small pipeline in one process, with one layer per stage, whose source you can read
# (`async_pipeline.run??` shows it). The policy `naive` keeps one weight per stage and always uses the newest one. For
# each micro-batch it records which weight version each stage's forward and backward pass used.

# %% tags=["explore"]
naive = async_pipeline.run("naive", stages=3, micro_batches=4, batches=1)
print("version of the weight in (forward, backward) pass, by stage")
for number, used in enumerate(naive.used):
    print(f"micro-batch {number}: {used}")

# %% [markdown]
# Look at micro-batch 3. Is its gradient at least the gradient at *some* weights? The next cell computes the true
# gradient, with autograd, at **every** combination of versions that the three stages ever had, and takes the
# nearest. A relative distance of 0 would mean that it is the gradient at these weights; 1 is as far off as the
# gradient is long.

# %% tags=["explore"]
stashed = async_pipeline.run("pipedream", stages=3, micro_batches=4, batches=1)
for name, found in (("naive", naive), ("PipeDream", stashed)):
    distance, versions = async_pipeline.nearest(found, 3)
    mark = bad if distance > 1e-9 else good
    print(f"{name:9}: nearest at versions {versions}, distance {mark(f'{distance:.1e}')}")

# %% [markdown]
# **The naive gradient is not the gradient at any weights.** It is the gradient of the loss neither at the old
# weights nor at the new ones, and no theory says that such steps go downhill. (Often they do, for a while. That
# makes it worse: nothing fails.) PipeDream's remedy is **weight stashing**: together with the activations of a
# micro-batch, a stage stores the *version* of the weights that the forward pass used. The backward pass uses that
# version, and the update applies to the newest.
#
# ![A timeline of three stages under PipeDream. Every box is a forward or backward pass of a micro-batch and
# names the version of the weight that it uses. On stage 0 micro-batch 3 runs forward with version 1 and
# backward with version 1, although the newest is version 3 by then; on stage 2 every micro-batch runs
# backward right after its forward, so the newest version is the only one.](../images/weight_versions.svg)
#
# Read the line for PipeDream once more. The gradient is exact, but at version 1 on stage 0, version 2 on stage 1,
# and version 3 on stage 2. These weights were never one model: stage 0 had made one update, stage 1 two, and
# stage 2 three. PipeDream ([Narayanan et al. 2019](https://doi.org/10.1145/3341301.3359646)) can prevent
# that with **vertical sync**: every stage uses the version with which the micro-batch entered the pipeline at
# stage 0. It is off by default, because every stage must then store more metadata.

# %% [markdown]
# ### Exercise 4: weight versions
#
# Follow one stage. It starts with version 0, and every backward pass creates the next version. A forward pass
# uses the newest version; a backward pass uses the one that its forward pass used. Versions that no in-flight
# micro-batch needs are dropped, but never the newest. Return the version that each action uses, and the largest
# number of versions stored after any action.

# %% nbgrader={"grade": false, "grade_id": "stash", "locked": false, "schema_version": 3, "solution": true, "task": false}
def stash(actions):
    """Return the version of every action (a list) and the largest number of stored versions (an int).

    actions: of one stage, such as ["F0", "F1", "B0", "F2", "B1", "B2"].
    """
    ### BEGIN SOLUTION
    newest, in_flight, used, most = 0, {}, [], 1
    for action in actions:
        kind, micro_batch = action[0], int(action[1:])
        if kind == "F":
            in_flight[micro_batch] = newest
            used.append(newest)
        else:
            used.append(in_flight.pop(micro_batch))
            newest += 1
        most = max(most, len({newest, *in_flight.values()}))
    return used, most
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "stash-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check.function(
    stash,
    cases=[[["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"]], [["F0", "B0", "F1", "B1"]],
           [["F0", "F1", "F2", "B0", "F3", "B1", "F4", "B2", "B3", "B4"]],
           [["F0", "F1", "B0", "B1"]]],
    expected=[([0, 0, 0, 1, 0, 2, 1, 2], 2), ([0, 0, 1, 1], 1),
              ([0, 0, 0, 0, 1, 0, 2, 0, 1, 2], 3), ([0, 0, 0, 0], 2)],
    hints={
        "That backward pass used newer weights than its forward pass, so its result is no gradient.":
            [([0, 0, 0, 1, 1, 2, 2, 3], 1), ([0, 0, 1, 1], 1),
             ([0, 0, 0, 0, 1, 1, 2, 2, 3, 4], 1), ([0, 0, 0, 1], 1)],
        "The newest version is stored, too, even if no in-flight micro-batch uses it.":
            [([0, 0, 0, 1, 0, 2, 1, 2], 2), ([0, 0, 1, 1], 1),
             ([0, 0, 0, 0, 1, 0, 2, 0, 1, 2], 3), ([0, 0, 0, 0], 1)],
        "Those are all versions that ever existed. Which of them are no longer needed?":
            [([0, 0, 0, 1, 0, 2, 1, 2], 5), ([0, 0, 1, 1], 3),
             ([0, 0, 0, 0, 1, 0, 2, 0, 1, 2], 6), ([0, 0, 0, 0], 3)],
        "Micro-batches with the same version share one copy.":
            [([0, 0, 0, 1, 0, 2, 1, 2], 3), ([0, 0, 1, 1], 2),
             ([0, 0, 0, 0, 1, 0, 2, 0, 1, 2], 4), ([0, 0, 0, 0], 3)],
    })
### BEGIN HIDDEN TESTS
def followed(actions):
    newest, flying, versions, kept = 0, {}, [], []
    for action in actions:
        if action[0] == "F":
            flying[action[1:]] = newest
            versions.append(newest)
        else:
            versions.append(flying.pop(action[1:]))
            newest += 1
        kept.append(len({newest, *flying.values()}))
    return versions, max(kept)


def order_of_a_stage(stages, stage, micro_batches):
    ahead = min(stages - stage - 1, micro_batches)
    words = [f"F{k}" for k in range(ahead)]
    for k in range(micro_batches):
        words += [f"F{ahead + k}"] * (ahead + k < micro_batches) + [f"B{k}"]
    return words


drawn = [order_of_a_stage(case["stages"], case["stage"] % case["stages"], case["micro_batches"])
         for case in check.draw(16, stages=range(1, 8), stage=range(8), micro_batches=range(1, 24))]
check.function(stash, cases=[[words] for words in drawn],
               expected=[followed(words) for words in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="stash" hint="That backward pass used"
# def stash(actions):
#     newest, used = 0, []
#     for action in actions:
#         used.append(newest)
#         newest += action[0] == "B"
#     return used, 1

# %% [raw] tags=["mutant"] answer="stash" hint="The newest version is"
# -        most = max(most, len({newest, *in_flight.values()}))
# +        most = max(most, len(set(in_flight.values())))

# %% [raw] tags=["mutant"] answer="stash" hint="Those are all versions"
# -    return used, most
# +    return used, newest + 1

# %% [raw] tags=["mutant"] answer="stash" hint="share one copy"
# -        most = max(most, len({newest, *in_flight.values()}))
# +        most = max(most, len([newest, *in_flight.values()]))

# %% [markdown]
# How many versions does each stage store? Use your own functions:

# %% tags=["explore"]
for stage, actions in enumerate(to_text(parse(one_f_one_b(4, 16)))):
    print(f"stage {stage} of 4 keeps {result(stash(actions.split())[1])} versions")

# %% [markdown]
# The first stage stores as many versions as there are stages, which is a lot of memory for a large model.
# **PipeDream-2BW** (*double-buffered weights*, [Narayanan et al. 2021](https://arxiv.org/abs/2006.09503)) stores
# **two** on every stage. It accumulates the gradients of a batch of at least as many micro-batches as there are
# stages, and updates once per batch. All micro-batches of a batch use the same version: the one from before the
# previous batch, which is still in flight. So each gradient is a true one, at weights that are one update old.
# With a **flush**, one version is enough, and no weights are stale.
#
# ### Fill in the table
#
# For 4 stages and 8 micro-batches per batch, fill in what the **first** stage stores (weight versions and
# in-flight micro-batches), and the bubble fraction when *three* batches are trained one after another. For the
# last column: without a flush, the stream of 24 micro-batches is one long 1F1B; with a flush it is three short
# ones. Write it as
#
# ```python
# guess_table = {"flush": (versions, in_flight, bubble_fraction), "pipedream": (...), "2bw": (...)}
# ```

# %% nbgrader={"grade": false, "grade_id": "guess-table", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_table = {"flush": (1, 4, 3 / 11), "pipedream": (4, 4, 3 / 27), "2bw": (2, 4, 3 / 27)}
### END SOLUTION

# %% tags=["explore"]
for policy, guess in guess_table.items():
    run = async_pipeline.run(policy, stages=4, micro_batches=8, batches=3)
    print(f"{policy}, from the run: weight versions by stage {run.versions}, in flight {run.live}")
    measured = (run.versions[0], run.live[0], run.idle)
    for what, said, found in zip(("versions", "in flight", "bubble fraction"), guess, measured, strict=True):
        check.compare(f"  {what}", said, found)

# %% [markdown]
# ### Exercise 5: memory of a stage
#
# Put it together. How much memory does a stage need for its weights (all versions) and its activations? A batch has
# at least as many micro-batches as there are stages. (Gradients and optimizer state come on top, and are the same for
# all.)

# %% nbgrader={"grade": false, "grade_id": "stage-memory", "locked": false, "schema_version": 3, "solution": true, "task": false}
def stage_memory(policy, stages, stage, micro_batches, weights, activations):
    """Return the peak memory of a stage (counted from 0), in bytes.

    policy: "gpipe", "1f1b" (both with a flush), "pipedream" or "2bw".
    weights: bytes of one version.   activations: bytes of one micro-batch.
    """
    ### BEGIN SOLUTION
    behind = stages - stage
    versions = {"gpipe": 1, "1f1b": 1, "pipedream": behind, "2bw": 2}[policy]
    in_flight = micro_batches if policy == "gpipe" else behind
    return versions * weights + in_flight * activations
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "stage-memory-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    stage_memory,
    cases=[("gpipe", 4, 1, 8, 1000, 100), ("1f1b", 4, 1, 8, 1000, 100),
           ("pipedream", 4, 1, 8, 1000, 100), ("2bw", 4, 1, 8, 1000, 100),
           ("pipedream", 4, 3, 8, 1000, 100)],
    expected=[1800, 1300, 3300, 2300, 1100],
    hints={
        "The number of stages behind it differs from stage to stage.": [1800, 1400, 4400, 2400, 4400],
        "Without a flush, as many micro-batches are in flight as with 1F1B.":
            [1800, 1300, 3800, 2800, 1800],
        "With a flush, one version is enough.": [2800, 2300, 3300, 2300, 1100],
        "2BW stores two versions of the weights, not of the activations.":
            [1800, 1300, 3300, 2200, 1100],
        "The first stage stores the most versions.": [1800, 1200, 2200, 2200, 4400],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(24, policy=["gpipe", "1f1b", "pipedream", "2bw"], stages=range(1, 16),
                   back=range(16), more=range(20), weights=range(1, 10**9),
                   activations=range(1, 10**8))
cases = [(case["policy"], case["stages"], case["back"] % case["stages"],
          case["stages"] + case["more"], case["weights"], case["activations"]) for case in drawn]
check.function(
    stage_memory, cases=cases,
    expected=[(p - s if policy == "pipedream" else 2 if policy == "2bw" else 1) * w
              + (m if policy == "gpipe" else p - s) * a for policy, p, s, m, w, a in cases])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="stage-memory" hint="The number of stages"
# -    behind = stages - stage
# +    behind = stages

# %% [raw] tags=["mutant"] answer="stage-memory" hint="Without a flush, as"
# -    in_flight = micro_batches if policy == "gpipe" else behind
# +    in_flight = behind if policy == "1f1b" else micro_batches

# %% [raw] tags=["mutant"] answer="stage-memory" hint="one version is enough"
# -    versions = {"gpipe": 1, "1f1b": 1, "pipedream": behind, "2bw": 2}[policy]
# +    versions = {"gpipe": 2, "1f1b": 2, "pipedream": behind, "2bw": 2}[policy]

# %% [raw] tags=["mutant"] answer="stage-memory" hint="not of the activations"
# -    in_flight = micro_batches if policy == "gpipe" else behind
# +    in_flight = micro_batches if policy == "gpipe" else 2 if policy == "2bw" else behind

# %% [raw] tags=["mutant"] answer="stage-memory" hint="The first stage stores"
# -    behind = stages - stage
# +    behind = stage + 1

# %% [markdown]
# Large language models are trained **with** a flush today: the same run should give the same model on any number
# of stages, and stale weights are one more thing that can go wrong. The price is the bubble, and the rest of this
# lab is about making it smaller.

# %% [markdown]
# ## Where to split
#
# In a pipeline, all stages wait for the slowest one. An even split of the *layers* is not an even split of the
# *time*: the last stage also multiplies by the output matrix, which has a row for every token of the vocabulary,
# and computes the loss. So **profile** first: how long does each layer take for one micro-batch? Here is GPT-2
# small on a virtual V100:

# %% tags=["explore"]
GPT2 = ("--device virtual:v100 --num-layers 12 --hidden-size 768 --num-attention-heads 12 --fp16 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 ")
gpt2_times = layers.virtual(GPT2)
layers.table(gpt2_times, GPT2)

# %% [markdown]
# And a small GPT of four layers, on your CPU? `--balance 0-2-2-0` puts the embedding alone on the first stage and
# the head alone on the last one, so one run shows the time of every part.

# %% tags=["explore"]
!sbatch code/uneven_pipeline.sh --num-layers 4 --balance 0-2-2-0 {SHORT} megatron/timeline/profile

# %% tags=["explore"]
profile = jobs.wait()

# %% tags=["explore"]
my_times = layers.measured(timeline_of("megatron/timeline/profile"), "0-2-2-0")
layers.table(my_times)

# %% [markdown]
# ### Exercise 6: the best split
#
# Given the times of all parts, in order, split them into stages such that the **slowest stage is as fast as
# possible**. Every stage gets at least one part. Filling one stage after the other up to the average is easy to
# write, and often not optimal. Trying all splits is exact, but takes too long with many parts. **Dynamic
# programming** is exact and fast:
#
# - Let `best[s][n]` be the slowest stage's time in the best split of the *first* `n` parts into `s` stages.
# - The last of these stages starts at some part `b`, and the `b` parts before it are split optimally into `s - 1`
#   stages. So `best[s][n]` is the minimum, over all `b`, of `max(best[s - 1][b], sum(times[b:n]))`.
# - Store the `b` that gave the minimum. Starting from the end, these values give the split.

# %% nbgrader={"grade": false, "grade_id": "best-split", "locked": false, "schema_version": 3, "solution": true, "task": false}
def best_split(times, stages):
    """Return the number of parts of each stage: `stages` ints of at least 1."""
    ### BEGIN SOLUTION
    parts = len(times)
    before = [0.0]  # before[n]: of the first n parts
    for time in times:
        before.append(before[-1] + time)
    best, begins = before, []
    for stage in range(1, stages):
        new, begin = [float("inf")] * (parts + 1), [0] * (parts + 1)
        for n in range(stage + 1, parts + 1):
            new[n], begin[n] = min((max(best[b], before[n] - before[b]), b)
                                   for b in range(stage, n))
        best = new
        begins.append(begin)
    split, end = [], parts
    for begin in reversed(begins):
        split.append(end - begin[end])
        end = begin[end]
    return [end, *reversed(split)]
    ### END SOLUTION

# %% tags=["check-setup"]
def slowest(times, split):
    """Return the time of the slowest stage."""
    found, begin = 0, 0
    for count in split:
        found = max(found, sum(times[begin:begin + count]))
        begin += count
    return found


def is_split(split, times, stages):
    """Return whether the split gives every stage a part, and uses all parts."""
    return (isinstance(split, list | tuple) and len(split) == stages
            and all(type(count) is int and count >= 1 for count in split)
            and sum(split) == len(times))


def even(parts, stages):
    """Split evenly; the first stages get the remainder."""
    return [parts // stages + (stage < parts % stages) for stage in range(stages)]


def greedy(times, stages):
    """Fill each stage up to the average time."""
    average, split, filled = sum(times) / stages, [0], 0
    for number, time in enumerate(times):
        needed = stages - len(split)  # stages that have nothing yet
        if split[-1] and needed and (filled + time > average or len(times) - number == needed):
            split.append(0)
            filled = 0
        split[-1] += 1
        filled += time
    return split

# %% nbgrader={"grade": true, "grade_id": "best-split-check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
for times, stages, least in (([1, 1, 1, 1, 1, 1, 5], 3, 5), ([2, 3, 4, 5, 6, 7], 3, 11),
                             ([3, 4, 2, 6, 3, 5, 2], 3, 9), ([7, 1, 1], 3, 7), ([4, 2], 1, 6)):
    split = check.call(best_split, times, stages)
    said = f"best_split({times}, {stages}) returned {split}. "
    check.that(is_split(split, times, stages), said + "Each stage gets at least one part, and "
               "together they get all of them.")
    is_best = slowest(times, split) <= least
    check.that(is_best or split != even(len(times), stages), said + "Even layers are not even time.")
    check.that(is_best or split != greedy(times, stages),
               said + "That fills one stage after the other, and the last stage gets whatever is left.")
    check.that(is_best, said + "Another split has a faster slowest stage.")
### BEGIN HIDDEN TESTS
from math import inf


def least_of(times, stages):
    """Return the slowest stage's time in the best split."""
    best = [0] + [inf] * len(times)
    for _ in range(stages):
        best = [inf] + [min(max(best[begin], sum(times[begin:end])) for begin in range(end))
                        for end in range(1, len(times) + 1)]
    return best[-1]


drawn = check.draw(16, stages=range(1, 7), more=range(12),
                   times=lambda dice: [dice.randint(1, 40) for _ in range(20)])
problems = [(case["times"][:case["stages"] + case["more"]], case["stages"]) for case in drawn]
for times, stages in [*problems, ([4 + 3 * number % 7 for number in range(60)], 12)]:
    split = check.call(best_split, times, stages)
    check.that(is_split(split, times, stages) and slowest(times, split) <= least_of(times, stages),
               "Another split has a faster slowest stage.")
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="best-split" hint="Even layers are not even time"
# def best_split(times, stages):
#     parts = len(times)
#     return [parts // stages + (stage < parts % stages) for stage in range(stages)]

# %% [raw] tags=["mutant"] answer="best-split" hint="fills one stage after the other"
# def best_split(times, stages):
#     average, split, filled = sum(times) / stages, [0], 0
#     for number, time in enumerate(times):
#         needed = stages - len(split)
#         if split[-1] and needed and (filled + time > average or len(times) - number == needed):
#             split.append(0)
#             filled = 0
#         split[-1] += 1
#         filled += time
#     return split

# %% [raw] tags=["mutant"] answer="best-split" hint="gets at least one part"
# def best_split(times, stages):
#     return [len(times)] + [0] * (stages - 1)

# %% [raw] tags=["mutant"] answer="best-split" hint="Another split has"
# def best_split(times, stages):
#     return [1] * (stages - 1) + [len(times) - stages + 1]

# %% [markdown]
# Compare it with **brute force**, which tries all splits of GPT-2's parts into four stages:

# %% tags=["explore"]
import itertools
from time import perf_counter


def stage_times(times, split):
    ends = list(itertools.accumulate(split))
    return [sum(times[end - count:end]) for end, count in zip(ends, split, strict=True)]


def brute_force(times, stages):
    inner = range(1, len(times))
    cuts = ([0, *inside, len(times)] for inside in itertools.combinations(inner, stages - 1))
    splits = ([end - begin for begin, end in itertools.pairwise(cut)] for cut in cuts)
    return min(splits, key=lambda split: max(stage_times(times, split)))


for find in (best_split, brute_force):
    begin = perf_counter()
    split = find(gpt2_times, 4)
    seconds = perf_counter() - begin
    print(f"{find.__name__:11} {split}: slowest stage {max(stage_times(gpt2_times, split)):.1f} ms "
          f"(virtual), found in {1000 * seconds:.1f} ms")
my_split = best_split(my_times, 4)
spelled = ", ".join(f"{one:.0f} ms" for one in stage_times(my_times, my_split))
print(f"the small GPT on your CPU: {my_split}, stages of {spelled}")

# %% [markdown]
# The two may return different splits, when several are equally good, but never a different slowest stage.

# %% [markdown]
# ### Exercise 7: balance a real layout
#
# Fill in `LAYOUT` for GPT-2 small on four V100s of one node, in a pipeline of four stages. With three layers on every
# stage, a step takes this long:

# %% tags=["explore"]
evenly = costs.of({"3-3-3-3": "--balance 3-3-3-3"}, GPT2 + "--world-size 4 --gpus-per-node 4 "
                  "--pipeline-model-parallel-size 4 --global-batch-size 32")
costs.show(evenly)

# %% [markdown]
# Make it **at least 15% faster**, with a step time of less than 315 ms. `--balance` counts only the *layers* of each stage: the first stage also has the
# embedding, and the last one the head. Either of them may have no layers at all (`0`).

# %% nbgrader={"grade": false, "grade_id": "my-balance", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_balance.sh
#!/bin/bash
#SBATCH --job-name=my_balance
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=4
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--fp16 --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
       --seq-length 1024 --max-position-embeddings 1024"
BATCH="--micro-batch-size 4 --global-batch-size 32 --train-iters 4 --lr 1.5e-4"
### BEGIN SOLUTION
LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0"
### END SOLUTION
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 $MODEL $BATCH $LAYOUT $TEXT --log-interval 2 --eval-iters 0 "$@"

# %% nbgrader={"grade": true, "grade_id": "my-balance-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_balance.sh", only=[
    "--pipeline-model-parallel-size", "--balance", "--schedule"])
flags = script.flags
check.that(flags.pipeline_model_parallel_size == 4,
           "The pipeline has four stages here: --pipeline-model-parallel-size 4.")
check.that(flags.schedule in ("1f1b", "gpipe") and flags.chunks == 1,
           "The schedule stays 1F1B, with one chunk per stage: this exercise is about the split.")
cost = check.figures(script, "virtual:v100")
check.pass_mark(cost.milliseconds, "Too slow: all stages wait for one. Which one is it, and which "
                "stages could take over some of its layers?", error=cost.error, below=315)

# %% [raw] tags=["mutant"] answer="my-balance" hint="Too slow: all stages"
# -LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0"
# +LAYOUT="--pipeline-model-parallel-size 4"

# %% [raw] tags=["mutant"] answer="my-balance" hint="Too slow: all stages"
# -LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0"
# +LAYOUT="--pipeline-model-parallel-size 4 --balance 2-3-3-4"

# %% [raw] tags=["mutant"] answer="my-balance" hint="This would go wrong"
# -LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0"
# +LAYOUT="--pipeline-model-parallel-size 4 --balance 5-4-4-1"

# %% [raw] tags=["mutant"] answer="my-balance" hint="--micro-batch-size 2; the exercise uses 4"
# -LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0"
# +LAYOUT="--pipeline-model-parallel-size 4 --micro-batch-size 2"

# %% [raw] tags=["mutant"] answer="my-balance" hint="has four stages here"
# -LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0"
# +LAYOUT=""

# %% [raw] tags=["mutant"] answer="my-balance" hint="The schedule stays 1F1B"
# -LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0"
# +LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0 --schedule zb-h1"

# %% [raw] tags=["mutant"] answer="my-balance" hint="--ffn-hidden-size 1; the exercise uses 3072"
# -LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0"
# +LAYOUT="--pipeline-model-parallel-size 4 --ffn-hidden-size 1"

# %% [markdown]
# (A node of the course's cluster has two GPUs unless you start it with `lab cluster up --gpus v100:4`, so `sbatch`
# rejects this job at once. The estimate does not need the GPUs.)

# %% [markdown]
# ## The same in DeepSpeed
#
# You will find 1F1B in libraries. **DeepSpeed** has it in its `PipelineModule`: the model is a list of layers,
# split into stages. `code/examples/pipe_dream.py` trains a GPT with it, of 14 layers: the embedding, 12 blocks,
# and the head. Its script starts one process per stage with `srun`, here four on two nodes.

# %% tags=["explore"] short={"code/examples/pipe_dream.sh --iterations 3": "--ntasks-per-node=1 code/examples/pipe_dream.sh --balance 7,7 --iterations 1 --seq-length 32"}
!sbatch code/examples/pipe_dream.sh --iterations 3

# %% tags=["explore"]
four = jobs.wait()
!grep -E "DeepSpeed|stage|iteration|speed" {four.log}

# %% [markdown]
# The log begins with the split of the layers (`[4, 3, 3, 4]`) and with DeepSpeed's own schedule. At the end each
# stage prints its peak activation memory. Compare that with what you know: which stage holds the most? Now try
# two stages, split in the middle:

# %% tags=["explore"] short={"--iterations 3": "--iterations 1 --seq-length 32"}
!sbatch --ntasks-per-node=1 code/examples/pipe_dream.sh --balance 7,7 --iterations 3

# %% tags=["explore"]
two = jobs.wait()
pairs = zip(logs.lines(four.log, "| loss "), logs.lines(two.log, "| loss "), strict=True)
for one, other in pairs:
    number, loss, norm, _ = one.split(" | ")
    print(f"{number}: 4 stages {loss}, {norm}; 2 stages {', '.join(other.split(' | ')[1:3])}")

# %% [markdown]
# The losses agree again, except for the last digits: where the model is split does not matter.
#
# **Starting it.** DeepSpeed has a launcher of its own, `deepspeed`. It starts one process per GPU and tells each its
# rank, as `torchrun` does, and reaches further nodes from a list of host names (`--hostfile`) over ssh. Under
# Slurm you do not need it, because `srun` starts processes on all nodes, and many clusters do not allow ssh. On one
# machine it would be `deepspeed --num_accelerators 2 code/examples/pipe_dream.py --balance 7,7`.
#
# **Configuring it.** DeepSpeed reads a JSON file. This is the one of the two jobs:

# %% tags=["explore"]
!cat code/examples/pipe_dream.json

# %% [markdown]
# DeepSpeed creates the optimizer, clips the gradient, and asks the data loader for as many micro-batches as one
# step needs, so all the program does is call `engine.train_batch(batches)`. (`torch_adam` selects PyTorch's own
# Adam; the default one would have to be compiled first. `steps_per_print` keeps it quiet.) On GPUs the same file
# would also have `"fp16": {"enabled": true}`, and it could have `"zero_optimization": {"stage": 1}`, which shards
# the optimizer states. DeepSpeed's pipeline rejects ZeRO stages 2 and 3.

# %% [markdown]
# And its schedule, in its own words? This is what the last of four stages does first:

# %% tags=["explore"]
from lablib import deepspeed_cpu  # before deepspeed: lets it run without GPUs

# %% tags=["explore"]
from deepspeed.runtime.pipe.schedule import TrainSchedule


def commands_of(stages, stage, micro_batches):
    steps = TrainSchedule(micro_batches=micro_batches, stages=stages, stage_id=stage)
    return [repr(command) for step in steps for command in step]


print("\n".join(commands_of(4, 3, 8)[:10]))

# %% [markdown]
# ### Exercise 8: read DeepSpeed's schedule
#
# A **buffer** holds the activations of one micro-batch. It is reused when the micro-batch is done, so its number
# is *not* the micro-batch's. Micro-batches come in order, forward and backward. Translate the commands of one
# stage into our words, and leave out everything that is not computation.

# %% nbgrader={"grade": false, "grade_id": "from-deepspeed", "locked": false, "schema_version": 3, "solution": true, "task": false}
def from_deepspeed(commands):
    """Translate a list of commands into our words, such as ["F0", "F1", "B0", "B1"]."""
    ### BEGIN SOLUTION
    words, seen = [], {"F": 0, "B": 0}
    for command in commands:
        kind = {"ForwardPass": "F", "BackwardPass": "B"}.get(command.partition("(")[0])
        if kind:
            words.append(f"{kind}{seen[kind]}")
            seen[kind] += 1
    return words
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "from-deepspeed-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    from_deepspeed,
    cases=[[["LoadMicroBatch(buffer_id=0)", "ForwardPass(buffer_id=0)", "SendActivation(buffer_id=0)",
             "LoadMicroBatch(buffer_id=1)", "ForwardPass(buffer_id=1)", "RecvGrad(buffer_id=0)",
             "SendActivation(buffer_id=1)", "BackwardPass(buffer_id=0)",
             "LoadMicroBatch(buffer_id=0)", "ForwardPass(buffer_id=0)", "RecvGrad(buffer_id=1)",
             "SendActivation(buffer_id=0)", "BackwardPass(buffer_id=1)", "RecvGrad(buffer_id=0)",
             "BackwardPass(buffer_id=0)", "ReduceTiedGrads()", "ReduceGrads()", "OptimizerStep()"]]],
    expected=[["F0", "F1", "B0", "F2", "B1", "B2"]],
    hints={
        "Those are buffer numbers, and buffer 0 is reused.":
            [["F0", "F1", "B0", "F0", "B1", "B0"]],
        "Count forward and backward passes separately: B0 belongs to F0.":
            [["F0", "F1", "B2", "F3", "B4", "B5"]],
        "Sends and receives are not computation: translate only ForwardPass and BackwardPass.":
            [["F0", "F1", "B0", "B1", "F2", "B2", "B3", "B4", "B5"]],
    })
### BEGIN HIDDEN TESTS
def as_deepspeed(stages, stage, micro_batches):
    """Return the commands of one stage, and the same in our words."""
    ahead, buffers = min(stages - stage - 1, micro_batches), max(2, stages - stage)
    words = [f"F{k}" for k in range(ahead)]
    for k in range(micro_batches):
        words += [f"F{ahead + k}"] * (ahead + k < micro_batches) + [f"B{k}"]
    commands = []
    for word in words:
        place = f"(buffer_id={int(word[1:]) % buffers})"
        first, name, last = (("RecvActivation", "ForwardPass", "SendActivation") if word[0] == "F"
                             else ("RecvGrad", "BackwardPass", "SendGrad"))
        commands += [first + place, name + place, last + place]
    return [*commands, "ReduceTiedGrads()", "ReduceGrads()", "OptimizerStep()"], words


drawn = [as_deepspeed(case["stages"], case["stage"] % case["stages"], case["micro_batches"])
         for case in check.draw(12, stages=range(1, 8), stage=range(8), micro_batches=range(1, 20))]
check.function(from_deepspeed, cases=[[commands] for commands, _ in drawn],
               expected=[words for _, words in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="from-deepspeed" hint="Those are buffer numbers"
# -            words.append(f"{kind}{seen[kind]}")
# +            words.append(f"{kind}{command.partition('=')[2].rstrip(')')}")

# %% [raw] tags=["mutant"] answer="from-deepspeed" hint="Count forward and backward"
# -            words.append(f"{kind}{seen[kind]}")
# +            words.append(f"{kind}{len(words)}")

# %% [raw] tags=["mutant"] answer="from-deepspeed" hint="Sends and receives are"
# -        kind = {"ForwardPass": "F", "BackwardPass": "B"}.get(command.partition("(")[0])
# +        kind = {"ForwardPass": "F", "BackwardPass": "B", "RecvGrad": "B"}.get(
# +            command.partition("(")[0])

# %% tags=["explore"]
for stage, my_actions in enumerate(to_text(parse(one_f_one_b(4, 8)))):
    theirs = " ".join(from_deepspeed(commands_of(4, stage, 8)))
    print(f"stage {stage}: {theirs}  {good('as mine') if theirs == my_actions else bad('not as mine')}")

# %% [markdown]
# ### Exercise 9: three numbers that must agree
#
# DeepSpeed is configured by a JSON file, and three of its entries are redundant:
#
# - `train_micro_batch_size_per_gpu`: samples per micro-batch;
# - `gradient_accumulation_steps`: micro-batches per step that *each pipeline* processes;
# - `train_batch_size`: samples per step, of all pipelines together.
#
# With 8 ranks and 4 stages there are two (data-parallel) pipelines. If the three entries disagree, DeepSpeed
# refuses to start. Write them.

# %% nbgrader={"grade": false, "grade_id": "batch-config", "locked": false, "schema_version": 3, "solution": true, "task": false}
def batch_config(global_batch, micro_batch, ranks, stages):
    """Return the three entries, a dict of ints; raise ValueError if they cannot agree."""
    ### BEGIN SOLUTION
    samples = micro_batch * (ranks // stages)
    if ranks % stages or global_batch % samples:
        raise ValueError(f"{global_batch} samples cannot be divided evenly")
    return {"train_batch_size": global_batch, "train_micro_batch_size_per_gpu": micro_batch,
            "gradient_accumulation_steps": global_batch // samples}
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "batch-config-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    batch_config,
    cases=[(64, 2, 8, 4), (32, 4, 4, 4)],
    expected=[{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
               "gradient_accumulation_steps": 16},
              {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
               "gradient_accumulation_steps": 8}],
    hints={
        "The ranks of one pipeline process the same samples. How many pipelines are there?":
            [{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
              "gradient_accumulation_steps": 4},
             {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
              "gradient_accumulation_steps": 2}],
        "Each pipeline processes only its share of the batch.":
            [{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
              "gradient_accumulation_steps": 32},
             {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
              "gradient_accumulation_steps": 8}],
    })
check.raises(batch_config, ValueError, (10, 4, 4, 4), hint="10 samples are not divisible by "
             "the micro-batch size of 4.")
### BEGIN HIDDEN TESTS
drawn = check.draw(16, micro_batch=range(1, 65), steps=range(1, 1000), stages=range(1, 9),
                   replicas=range(1, 9))
check.function(
    batch_config,
    cases=[(case["micro_batch"] * case["steps"] * case["replicas"], case["micro_batch"],
            case["stages"] * case["replicas"], case["stages"]) for case in drawn],
    expected=[{"train_batch_size": case["micro_batch"] * case["steps"] * case["replicas"],
               "train_micro_batch_size_per_gpu": case["micro_batch"],
               "gradient_accumulation_steps": case["steps"]} for case in drawn])
check.raises(batch_config, ValueError, (64, 2, 6, 4), hint="6 ranks are not divisible by "
             "4 stages.")
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="batch-config" hint="The ranks of one"
# -    samples = micro_batch * (ranks // stages)
# +    samples = micro_batch * ranks

# %% [raw] tags=["mutant"] answer="batch-config" hint="Each pipeline processes only"
# -    samples = micro_batch * (ranks // stages)
# +    samples = micro_batch

# %% [raw] tags=["mutant"] answer="batch-config" hint="6 ranks are not divisible"
# -    if ranks % stages or global_batch % samples:
# +    if global_batch % samples:

# %% [raw] tags=["mutant"] answer="batch-config" hint="10 samples are not divisible"
# -    if ranks % stages or global_batch % samples:
# +    if ranks % stages:

# %% [markdown]
# ## Interleaving
#
# The bubble lasts as long as it takes to fill the pipeline and then to drain it. With *shorter* stages both are
# faster. **Interleaving** ([Narayanan et al. 2021](https://arxiv.org/abs/2104.04473)) gives every stage several
# small pieces of the model, called **chunks**, instead of one large piece. With 2 chunks on each of 4 stages, the
# layers are split into 8 pieces: stage 0 has pieces 0 and 4, stage 1 has 1 and 5, and so on. A micro-batch passes
# through every stage once per chunk.
#
# `F3.1` is the forward pass of micro-batch 3 on chunk 1 of this stage. Micro-batches are processed in groups, and
# a group has as many micro-batches as there are stages. A group goes through chunk 0, then the same group through
# chunk 1, and so on; then comes the next group. With 2 stages, 4 micro-batches, and 2 chunks, the forward passes
# of every stage are
#
# ```
# F0.0 F1.0 F0.1 F1.1   F2.0 F3.0 F2.1 F3.1
# ```
#
# Backward passes go in the same way, with the chunks from last to first: `B0.1 B1.1 B0.0 B1.0  B2.1 ...`
# The phases are those of 1F1B, but stage `s` warms up with `2 * (stages - s - 1) + (chunks - 1) * stages`
# forward passes (and never more than there are).

# %% [markdown]
# ### Exercise 10: write interleaved 1F1B
#
# The number of micro-batches is divisible by the number of stages, and there are at least 2 chunks.

# %% nbgrader={"grade": false, "grade_id": "interleaved", "locked": false, "schema_version": 3, "solution": true, "task": false}
def interleaved(stages, micro_batches, chunks):
    """Return what every stage does, in order: strings, or lists of words such as "F3.1"."""
    ### BEGIN SOLUTION
    order = [(group + k, chunk) for group in range(0, micro_batches, stages)
             for chunk in range(chunks) for k in range(stages)]
    forwards = [f"F{k}.{chunk}" for k, chunk in order]
    backwards = [f"B{k}.{chunks - 1 - chunk}" for k, chunk in order]
    schedule = []
    for stage in range(stages):
        warm_up = min(2 * (stages - stage - 1) + (chunks - 1) * stages, len(forwards))
        actions = forwards[:warm_up]
        for number, backward in enumerate(backwards):
            actions += [*forwards[warm_up + number:warm_up + number + 1], backward]
        schedule.append(actions)
    return schedule
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "interleaved-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check.schedule(
    interleaved,
    cases=[(4, 8, 2), (2, 4, 2), (2, 6, 3), (3, 6, 2)], like="interleaved",
    hints={
        "This works for some sizes only. Which number in it should depend on the sizes?": "some sizes",
        "The stages deadlock. In which order do the chunks run backward, and how many forward passes "
        "come first?": "deadlock",
        "More micro-batches are in flight than necessary. Count the forward passes of the warm-up.": "memory",
        "The stages wait longer than necessary. Does the pipeline drain after each group?":
            "bubble",
        "Every micro-batch has a forward and a backward pass on *each* chunk of a stage.": "incomplete",
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(8, stages=range(1, 7), groups=range(1, 5), chunks=range(2, 5))
check.schedule(interleaved, cases=[(case["stages"], case["stages"] * case["groups"], case["chunks"])
                                   for case in drawn], like="interleaved")
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="interleaved" hint="More micro-batches are in"
# -        warm_up = min(2 * (stages - stage - 1) + (chunks - 1) * stages, len(forwards))
# +        warm_up = len(forwards)

# %% [raw] tags=["mutant"] answer="interleaved" hint="This works for some"
# -    order = [(group + k, chunk) for group in range(0, micro_batches, stages)
# -             for chunk in range(chunks) for k in range(stages)]
# +    order = [(group + k, chunk) for group in range(0, micro_batches, 4)
# +             for chunk in range(chunks) for k in range(4)]

# %% [raw] tags=["mutant"] answer="interleaved" hint="The stages deadlock. In"
# -    order = [(group + k, chunk) for group in range(0, micro_batches, stages)
# -             for chunk in range(chunks) for k in range(stages)]
# +    order = [(k, chunk) for k in range(micro_batches) for chunk in range(chunks)]

# %% [raw] tags=["mutant"] answer="interleaved" hint="on *each* chunk"
# -             for chunk in range(chunks) for k in range(stages)]
# +             for chunk in [0] for k in range(stages)]

# %% [raw] tags=["mutant"] answer="interleaved" hint="The stages wait longer"
# def interleaved(stages, micro_batches, chunks):
#     actions = []
#     for group in range(0, micro_batches, stages):
#         numbers = range(group, group + stages)
#         actions += [f"F{k}.{chunk}" for chunk in range(chunks) for k in numbers]
#         actions += [f"B{k}.{chunk}" for chunk in reversed(range(chunks)) for k in numbers]
#     return [actions] * stages

# %% tags=["explore"]
plots.pipelines(one_f_one_b=one_f_one_b(4, 8), interleaved=interleaved(4, 8, 2))

# %% [markdown]
# The bubble is smaller, and the first stage has more chunks in flight, each half as large. That is not the only
# price.

# %% [markdown]
# ### Exercise 11: what interleaving buys, and what it costs
#
# How large is the bubble, and how many sends between stages does a step have? The **bubble overhead** is idle
# time divided by computing time; with one chunk it is `(stages - 1) / micro_batches`. One send hands one
# micro-batch from a piece of the model to the next: an activation forward, or a gradient backward. (With one
# stage there is nothing to send, so assume at least 2 stages.)

# %% nbgrader={"grade": false, "grade_id": "interleaving", "locked": false, "schema_version": 3, "solution": true, "task": false}
def interleaving(stages, micro_batches, chunks):
    """Return the bubble overhead (a float) and the number of sends per step (an int)."""
    ### BEGIN SOLUTION
    pieces = stages * chunks
    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "interleaving-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    interleaving,
    cases=[(4, 8, 1), (4, 8, 2), (2, 8, 4)],
    expected=[(0.375, 48), (0.1875, 112), (0.03125, 112)],
    hints={
        "That is the bubble fraction. The overhead divides by the computing time only.":
            [(0.2727272727, 48), (0.1578947368, 112), (0.0303030303, 112)],
        "Gradients travel back the same way, and those are sends, too.":
            [(0.375, 24), (0.1875, 56), (0.03125, 56)],
        "The last stage sends on to the first stage's next chunk, and that is a send, too.":
            [(0.375, 48), (0.1875, 96), (0.03125, 64)],
        "The bubble shrinks with the number of chunks.":
            [(0.375, 48), (0.375, 112), (0.125, 112)],
        "The last piece does not send its output anywhere.":
            [(0.375, 64), (0.1875, 128), (0.03125, 128)],
        "Those are the values for one pipeline only. They depend on the arguments.":
            [(0.1875, 112), (0.1875, 112), (0.1875, 112)],
    })
### BEGIN HIDDEN TESTS
check.function(
    interleaving,
    cases=check.draw(20, stages=range(2, 65), micro_batches=range(1, 1025), chunks=range(1, 9)),
    expected=lambda stages, micro_batches, chunks: (
        formulas.bubble_overhead(stages, micro_batches, chunks),
        2 * micro_batches * (stages * chunks - 1)))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="interleaving" hint="That is the bubble"
# -    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
# +    idle = (stages - 1) / (chunks * micro_batches + stages - 1)
# +    return idle, 2 * micro_batches * (pieces - 1)

# %% [raw] tags=["mutant"] answer="interleaving" hint="Those are the values"
# def interleaving(stages, micro_batches, chunks):
#     return 0.1875, 112

# %% [raw] tags=["mutant"] answer="interleaving" hint="Gradients travel back the"
# -    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
# +    return (stages - 1) / (chunks * micro_batches), micro_batches * (pieces - 1)

# %% [raw] tags=["mutant"] answer="interleaving" hint="The last stage sends"
# -    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
# +    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * chunks * (stages - 1)

# %% [raw] tags=["mutant"] answer="interleaving" hint="shrinks with the number of chunks"
# -    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
# +    return (stages - 1) / micro_batches, 2 * micro_batches * (pieces - 1)

# %% [raw] tags=["mutant"] answer="interleaving" hint="The last piece does"
# -    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
# +    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * pieces

# %% [markdown]
# So there are more sends, each as large as before, and each stage computes for a shorter time between two of them.
# Whether that pays off depends on the links. Here are four virtual V100s with the GPT of 24 layers, once on one node
# (NVLink) and once on four nodes with 25 Gbit/s Ethernet. Which number of chunks will be the fastest on the **slow**
# network: 1, 2, 3, or 6? Guess.

# %% nbgrader={"grade": false, "grade_id": "guess-chunks", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_chunks = 2
### END SOLUTION

# %% tags=["explore"]
CHUNKS = {chunks: "" if chunks == 1 else f"--num-layers-per-virtual-pipeline-stage {6 // chunks}"
          for chunks in (1, 2, 3, 6)}
SMALL_BATCH = GPT + "--global-batch-size 8 "
fast = costs.of({f"{chunks} chunks": flags for chunks, flags in CHUNKS.items()},
                SMALL_BATCH + "--gpus-per-node 4")

# %% tags=["explore"]
slow = costs.of({f"{chunks} chunks": flags for chunks, flags in CHUNKS.items()},
                SMALL_BATCH + "--gpus-per-node 1 --virtual-network ethernet:25gbit")
for chunks, one, other in zip(CHUNKS, fast, slow, strict=True):
    print(f"{chunks} chunks, {interleaving(4, 8, chunks)[1]:3} sends: NVLink "
          f"{one.milliseconds:.0f} ms, Ethernet {other.milliseconds:.0f} ms (virtual)")
best = min(zip(slow, CHUNKS, strict=True), key=lambda pair: pair[0].milliseconds)
check.compare("the best number of chunks on the slow network", guess_chunks, best[1])

# %% [markdown]
# On the fast link every additional chunk helps, a little less each time. On the slow one a few chunks help; with too
# many, communication takes more time than the smaller bubble saves.

# %% [markdown]
# ### Exercise 12: interleave for the slow network
#
# Fill in `LAYOUT` for four nodes with one V100 each and 25 Gbit/s Ethernet: a pipeline of four stages that is
# interleaved, but not with so many chunks that the sends take longer than what the smaller bubble saves. Use
# `--num-layers-per-virtual-pipeline-stage`, the number of layers in one chunk. Where your table has almost equal times,
# all of these numbers count: differences below 7% are smaller than the mean error of the modeled times.

# %% nbgrader={"grade": false, "grade_id": "my-interleaving", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_interleaving.sh
#!/bin/bash
#SBATCH --job-name=my_interleaving
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=1
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--fp16 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
       --seq-length 1024 --max-position-embeddings 1024"
BATCH="--micro-batch-size 1 --global-batch-size 8 --train-iters 4 --lr 1.5e-4"
### BEGIN SOLUTION
LAYOUT="--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
### END SOLUTION
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes 4 --nproc_per_node 1 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 --virtual-network ethernet:25gbit $MODEL $BATCH $LAYOUT $TEXT \
    --log-interval 2 --eval-iters 0 "$@"

# %% nbgrader={"grade": true, "grade_id": "my-interleaving-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_interleaving.sh", only=[
    "--pipeline-model-parallel-size", "--num-layers-per-virtual-pipeline-stage", "--schedule"])
flags = script.flags
check.that(flags.pipeline_model_parallel_size == 4,
           "The pipeline has four stages here: --pipeline-model-parallel-size 4.")
check.that(flags.chunks > 1 and flags.schedule == "interleaved",
           "That is not interleaved. How many chunks does a stage have?")
check.figures(script, "virtual:v100", network="ethernet:25gbit")
check.that(flags.chunks <= 3, "It takes too long: this many chunks pay off on a fast link only. "
           "What do the stages wait for?")

# %% [raw] tags=["mutant"] answer="my-interleaving" hint="It takes too long"
# -LAYOUT="--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
# +LAYOUT="--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1"

# %% [raw] tags=["mutant"] answer="my-interleaving" hint="not interleaved"
# -LAYOUT="--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
# +LAYOUT="--pipeline-model-parallel-size 4"

# %% [raw] tags=["mutant"] answer="my-interleaving" hint="This would go wrong"
# -LAYOUT="--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
# +LAYOUT="--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5"

# %% [raw] tags=["mutant"] answer="my-interleaving" hint="--num-layers 12; the exercise uses 24"
# -LAYOUT="--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
# +LAYOUT="--pipeline-model-parallel-size 4 --num-layers 12 --num-layers-per-virtual-pipeline-stage 1"

# %% [raw] tags=["mutant"] answer="my-interleaving" hint="--ffn-hidden-size 1; the exercise uses 4096"
# -LAYOUT="--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
# +LAYOUT="--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1 --ffn-hidden-size 1"

# %% [raw] tags=["mutant"] answer="my-interleaving" hint="has four stages here"
# -LAYOUT="--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
# +LAYOUT="--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 6"

# %% [markdown]
# (The course's cluster has two nodes unless you start it with more, so `sbatch` rejects this job at once with
# `Node count specification invalid`. The estimate does not need the nodes.)

# %% [markdown]
# ## Zero-bubble schedules
#
# A backward pass does two things. It computes the gradient of the **inputs** (`B`), which the previous stage
# waits for. It also computes the gradient of the **weights** (`W`), which nothing waits for until the optimizer
# step. **Zero-bubble** schedules ([Qi et al. 2023](https://arxiv.org/abs/2401.10241)) separate the two: they send
# the first on at once, and compute the second when there is nothing else to do. Guess: what share of 1F1B's idle
# time is left, if F, B, and W take the same time?

# %% nbgrader={"grade": false, "grade_id": "guess-left", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_left = 0.33
### END SOLUTION

# %% tags=["explore"]
zero, usual = simulate(load("zb-h1", 4, 8)), simulate(load("1f1b", 4, 8))
idle = [made.total - sum(made.busy) / len(made.busy) for made in (zero, usual)]
check.compare("share of 1F1B's idle time", guess_left, idle[0] / idle[1])
plots.pipeline(load("zb-h1", 4, 8), "Zero-bubble (ZB-H1)")

# %% [markdown]
# The hatched boxes fill the end of the pipeline, and the way back is shorter, because only B is on it. Peak
# memory is that of 1F1B's first stage, now on every stage, because the tensors that W needs stay in memory. The
# remaining bubble is at the beginning, where the first micro-batch fills the pipeline. The authors remove that,
# too: with more forward passes at the start, in exchange for about twice the memory (ZB-H2), and with an
# optimizer step that does not wait for all stages. The trainer has ZB-H1: `--schedule zb-h1`. **No schedule is
# free: each trades idle time, memory, and communication for one another.**

# %% tags=["explore"]
for name in ("gpipe", "1f1b", "interleaved", "zb-h1"):
    chunks = 2 if name == "interleaved" else 1
    schedule = load(name, 4, 8, chunks)
    idle, most = simulate(schedule).bubble_fraction, max(peak_live(schedule)) / chunks
    print(f"{name:12} bubble {result(f'{idle:5.1%}')} of the time, at most {most:.1f} micro-batches "
          "in flight on a stage")

# %% [markdown]
# ## Discuss
#
# 1. **The flush.** A colleague wants to train without one: "the bubble is 20 %, that is 20 % for free". What
#    do you ask, and what do you try first?
# 2. **More micro-batches.** With 1F1B the memory does not grow with their number, and the bubble shrinks. Why
#    not use a thousand?
# 3. **The best split.** `best_split` makes the slowest stage as fast as possible, and then the first stage
#    runs out of memory. Why the first one, and how would you change the search?
# 4. **Chunks or stages.** You have 16 GPUs and 48 layers. Compare 16 stages with 4 stages of 4 chunks each (and 4
#    pipelines).

# %% [markdown]
# Your trainer does not run these schedules yet. See what it can do so far:

# %% tags=["explore"] short={"!lab mytrainer": "!true"}
!lab mytrainer

# %% [markdown]
# ## Cleanup
#
# Cancel this lab's jobs in case they still run, and delete checkpoints, because they are large.

# %% tags=["explore"]
!scancel --quiet {mine.job} {profile.job} {four.job} {two.job}
!rm -rf megatron/timeline megatron/checkpoints/pp_two_nodes megatron/checkpoints/uneven_pipeline
!squeue

# %% [markdown]
# ## Summary
#
# - Activation memory is what autograd saves from forward to backward. The operation decides how much, the schedule
#   how long.
# - 1F1B has GPipe's bubble, but at most as many micro-batches in flight as there are stages, whatever the batch.
# - Without a flush, a backward pass must use its forward pass's weights, or its result is not a gradient. That takes
#   weight versions: as many as stages (PipeDream), two (2BW), or one and a bubble (flush).
# - All stages wait for the slowest one: profile, then split by time.
# - Interleaving divides the bubble by the number of chunks and multiplies the sends; it pays off on fast links.
# - The gradient of the weights, which nothing waits for, can fill the remaining bubble.
#
# ## Read next
#
# - [Narayanan et al. 2019, PipeDream](https://doi.org/10.1145/3341301.3359646): 1F1B, weight stashing, and
#   vertical sync.
# - [Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training](https://arxiv.org/abs/2006.09503):
#   PipeDream-Flush and 2BW.
# - [Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters Using
#   Megatron-LM](https://arxiv.org/abs/2104.04473): interleaving, with measurements on up to 3,072 GPUs.
# - [Qi et al. 2023, Zero Bubble Pipeline Parallelism](https://arxiv.org/abs/2401.10241): B and W apart, and
#   schedules found by a solver.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your
# scripts are in it.
