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
# You know GPipe, micro-batches and the bubble from [Pipeline I](10_pipeline_1.ipynb). GPipe keeps the
# activations of *all* micro-batches until the last forward pass is done. In this lab you write **1F1B**, which
# keeps far less, and train with it. Then you find out what else can be bought, and what it costs: never to
# wait for an update, to cut the model where the time is, to give every stage several small pieces.
#
# **You will be able to**
#
# - say what autograd keeps for the backward pass, and write a function that keeps less;
# - write 1F1B and interleaved 1F1B as schedules, and predict their bubble, memory and messages;
# - explain why a pipeline without a flush needs versions of its weights, and count them;
# - find the best split of a model into stages, exactly;
# - read DeepSpeed's schedule and its configuration, and start it on a cluster.
#
# **How it works.** Cells run with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Where it
# says *Your turn*, you replace a line by your answer; the cell below it checks the answer at once.
# Where you are asked for a guess, guess *before* you run: it gives no marks.
#
# **Real and virtual.** The small GPTs train for real, on CPUs. Time and memory of GPUs are **virtual**:
# modeled, and the same on every machine.

# %% tags=["setup"]
import os

import torch

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab begin at the workspace

# %% tags=["check-setup"]
from labkit import check
from minimegatron import formulas

# What answers cannot import: they would hold the solution.
check.mask("deepspeed", "lab.notebook.async_pipeline", "lab.notebook.curves", "lab.notebook.saved",
           "layout_estimator", "minimegatron", "pipeline_schedules", "torch.distributed.pipelining",
           "torchgpipe")

# %% tags=["explore"]
from job_monitor import logs
from lab.notebook import async_pipeline, jobs, plots, saved
from labcore.colors import bad, good, result
from layout_estimator import costs, layers
from pipeline_schedules import load, parse, peak_live, simulate, timeline_of, to_text

jobs.connect()
!scancel --user=$USER

# %% [markdown]
# ## What a stage keeps
#
# The backward pass of an operation needs something from its forward pass: a linear layer its input, to
# compute the gradient of its weight. Autograd keeps it from the forward pass to the backward pass. That
# is all that **activation memory** is. You can watch it: PyTorch tells a hook about every tensor that it
# saves. First the MLP of a transformer, with two different functions in the middle (the weights are left
# out: they are there anyway).

# %% tags=["explore"]
expand, shrink = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
weights = [*expand.parameters(), *shrink.parameters()]
x = torch.randn(8, 64, requires_grad=True)

print("Linear, ReLU, Linear")
saved.show(lambda x: shrink(torch.relu(expand(x))), x, weights=weights)
print("Linear, GELU, Linear")
saved.show(lambda x: shrink(torch.nn.functional.gelu(expand(x))), x, weights=weights);

# %% [markdown]
# Why does GELU take more? For its gradient, ReLU only has to know where its *output* is above 0. And its
# output is the next layer's input, which is kept anyway: one tensor serves both. GELU needs its *input*.

# %% [markdown]
# ### Exercise 1: bytes that are kept
#
# Count the bytes that are kept of `Linear(hidden, wide)`, an activation function, `Linear(wide, hidden)`.
# No weights; a tensor that serves two operations counts once.

# %% nbgrader={"grade": false, "grade_id": "mlp-kept", "locked": false, "schema_version": 3, "solution": true, "task": false}
def mlp_kept(rows, hidden, wide, activation, bytes_each=4):
    """Bytes that are kept of an input of `rows` x `hidden` numbers.

    activation: "relu" or "gelu".
    """
    ### BEGIN SOLUTION
    in_the_middle = {"relu": 1, "gelu": 2}[activation]
    return rows * (hidden + in_the_middle * wide) * bytes_each
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "mlp-kept-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    mlp_kept,
    cases=[(8, 64, 256, "relu"), (8, 64, 256, "gelu"), (100, 10, 40, "gelu", 2)],
    expected=[10240, 18432, 18000],
    hints={
        "The result of the whole is kept by whoever uses it, not here.": [12288, 20480, 20000],
        "ReLU's output and the next layer's input are one tensor.": [18432, 18432, 18000],
        "The first layer needs its input, too: for the gradient of its weight.":
            [8192, 16384, 16000],
        "A number takes bytes_each bytes.": [2560, 4608, 9000],
    })
### BEGIN HIDDEN TESTS
check.function(
    mlp_kept, cases=check.draw(16, rows=range(1, 5000), hidden=range(1, 5000), wide=range(1, 20000),
                               activation=["relu", "gelu"], bytes_each=[2, 4]),
    expected=lambda rows, hidden, wide, activation, bytes_each:
        bytes_each * rows * (hidden + wide * (2 if activation == "gelu" else 1)))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="mlp-kept" hint="by whoever uses it"
# -    return rows * (hidden + in_the_middle * wide) * bytes_each
# +    return rows * (2 * hidden + in_the_middle * wide) * bytes_each

# %% [raw] tags=["mutant"] answer="mlp-kept" hint="are one tensor"
# -    in_the_middle = {"relu": 1, "gelu": 2}[activation]
# +    in_the_middle = 2

# %% [raw] tags=["mutant"] answer="mlp-kept" hint="needs its input, too"
# -    return rows * (hidden + in_the_middle * wide) * bytes_each
# +    return rows * in_the_middle * wide * bytes_each

# %% [raw] tags=["mutant"] answer="mlp-kept" hint="bytes_each bytes"
# -    return rows * (hidden + in_the_middle * wide) * bytes_each
# +    return rows * (hidden + in_the_middle * wide)

# %% [markdown]
# ### Exercise 2: a function that keeps little
#
# **Max-pooling** takes the largest of every `size` neighbors. Which of them was the largest is all that
# its backward pass has to know: this one gets the gradient, the others get 0. `MaxPool` below is a
# **custom autograd function**: `forward` computes and says what is to be kept, `backward` gets the
# gradient of the result and gives that of the input. Write `backward`.
#
# For example with `size` 3: of `[1, 5, 2, 7, 3, 0]` the result is `[5, 7]`. When the gradient of that is
# `[10, 20]`, that of the input is `[0, 10, 0, 20, 0, 0]`.

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
        """gradient: of the result. Returns that of x, as long as x was, and None for size."""
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
        "Only the largest had a part in the result: the others get 0.":
            [[10.0, 10.0, 10.0, 20.0, 20.0, 20.0], [1.0, 1.0, -1.0, -1.0]],
        "place counts within each group: where does the group begin?":
            [[20.0, 10.0, 0.0, 0.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0]],
        "Pass the gradient on that came, not only where it goes.":
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

# %% [raw] tags=["mutant"] answer="max-pool" hint="where does the group begin?"
# -        groups = torch.zeros(len(place), ctx.size, dtype=gradient.dtype)
# -        groups[torch.arange(len(place)), place] = gradient
# -        return groups.view(-1), None
# +        of_x = torch.zeros(len(place) * ctx.size, dtype=gradient.dtype)
# +        of_x[place] = gradient
# +        return of_x, None

# %% [raw] tags=["mutant"] answer="max-pool" hint="Pass the gradient on"
# -        groups[torch.arange(len(place)), place] = gradient
# +        groups[torch.arange(len(place)), place] = 1.0

# %% [markdown]
# PyTorch's own pooling keeps its whole input as well. Compare:

# %% tags=["explore"]
x = torch.randn(1, 4096, requires_grad=True)
print("PyTorch's max_pool1d")
theirs = saved.show(lambda x: torch.nn.functional.max_pool1d(x, 4), x)
print("yours")
yours = saved.show(lambda x: MaxPool.apply(x.view(-1), 4), x)
print(f"yours keeps {result(f'{yours / theirs:.0%}')} of it")

# %% [markdown]
# A place between 0 and 3 would fit into a byte, and yet it takes eight. Such savings are what fused kernels
# are made of. But there is a larger lever: *how long* things are kept. That is for the schedule to say.

# %% [markdown]
# ## 1F1B: one forward, one backward
#
# A stage keeps the activations of a micro-batch from its forward to its backward pass; between the two the
# micro-batch is **in flight**, its activations are **live**. GPipe runs all forwards first. Here it is with
# 4 stages and 8 micro-batches; a backward takes twice as long as a forward. The curve below a stage is the
# number of live micro-batches.

# %% tags=["explore"]
plots.pipeline(load("gpipe", 4, 8), "GPipe")

# %% [markdown]
# The last stage could run the backward of micro-batch 0 right after its forward. It keeps that work for
# later, for no reason. **1F1B** runs a backward as soon as there is one. Each stage goes through three
# phases:
#
# 1. **warm-up**: as many forwards as there are stages *behind* this one (and never more than there are
#    micro-batches);
# 2. **steady state**: one forward, one backward, in turn, as long as there are forwards;
# 3. **cool-down**: the backwards that are left.
#
# Backwards run in the order of the forwards. Will the bubble be smaller than GPipe's? Guess: 1F1B's idle
# time for GPipe's 1.0.

# %% nbgrader={"grade": false, "grade_id": "guess-bubble", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_bubble = 1.0
### END SOLUTION

# %% [markdown]
# ### Exercise 3: write 1F1B
#
# Return a list with one entry per stage: a text such as `"F0 F1 B0 B1"`, or a list of such words. `F3` is
# the forward pass of micro-batch 3, `B3` its backward pass. It must work for any number of stages and
# micro-batches, also for fewer micro-batches than stages.

# %% nbgrader={"grade": false, "grade_id": "one-f-one-b", "locked": false, "schema_version": 3, "solution": true, "task": false}
def one_f_one_b(stages, micro_batches):
    """What every stage does, in order: a list of texts, or of lists of words."""
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
        "This is right for some sizes. Which number in it should be `stages` or `micro_batches`?":
            "some sizes",
        "That is GPipe's memory: run a backward as soon as there is one.": "gpipe",
        "Every stage waits for a neighbor. What does the stage behind this one need before it can "
        "give back a gradient?": "deadlock",
        "One micro-batch at a time: who works while it is elsewhere?": "one at a time",
        "It keeps more than it has to: count the forwards of the warm-up.": "memory",
        "The stages wait longer than they have to: does the pipeline run empty in between?":
            "bubble",
        "Count forwards and backwards of every stage: each micro-batch has one of both.":
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

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="right for some sizes"
# -        warm_up = min(stages - stage - 1, micro_batches)
# +        warm_up = min(4 - stage - 1, micro_batches)

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="One micro-batch at a time"
# -        warm_up = min(stages - stage - 1, micro_batches)
# +        warm_up = 0

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="It keeps more than it has to"
# -        warm_up = min(stages - stage - 1, micro_batches)
# +        warm_up = min(stages - stage, micro_batches)

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="wait longer than they have to"
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

# %% [raw] tags=["mutant"] answer="one-f-one-b" hint="Count forwards and backwards"
# -            actions.append(f"B{k}")
# +            if warm_up + k < micro_batches:
# +                actions.append(f"B{k}")

# %% tags=["explore"]
idle = [simulate(made).bubble_fraction for made in (parse(one_f_one_b(4, 8)), load("gpipe", 4, 8))]
check.compare("idle time, GPipe's is 1.0", guess_bubble, idle[0] / idle[1])
plots.pipeline(one_f_one_b(4, 8), "My 1F1B", steps=True)

# %% [markdown]
# **Same bubble, less memory.** Many people believe that 1F1B waits less. It does not: the first
# stage still has to wait until the last one has handed its first gradient all the way back. (Move the slider,
# step by step, and see who waits for what.) What is gained is the peak of live activations.

# %% [markdown]
# ### Exercise 4: how many are live?
#
# How many micro-batches are live at the peak, on a given stage (counted from 0)?

# %% nbgrader={"grade": false, "grade_id": "live", "locked": false, "schema_version": 3, "solution": true, "task": false}
def live(schedule, stages, stage, micro_batches):
    """The most micro-batches in flight on `stage` at one time (an int).

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
        "The forward after the warm-up comes before the first backward: it counts, too.":
            [8, 3, 2, 4],
        "There cannot be more in flight than there are micro-batches.": [8, 4, 3, 7],
        "Every stage has another number of stages behind it.": [8, 4, 4, 4],
        "The first stage keeps the most: it waits longest for its gradients.": [8, 1, 2, 2],
        "GPipe keeps all: its backwards begin after the last forward.": [4, 4, 3, 4],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(24, schedule=["gpipe", "1f1b", "1f1b"], stages=range(1, 20), back=range(19),
                   micro_batches=range(1, 30))
cases = [(case["schedule"], case["stages"], case["back"] % case["stages"], case["micro_batches"])
         for case in drawn]
check.function(
    live, cases=cases,
    expected=[m if schedule == "gpipe" else formulas.in_flight(p, stage, m)
              for schedule, p, stage, m in cases])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="live" hint="GPipe keeps all"
# -        return micro_batches
# +        return min(stages - stage, micro_batches)

# %% [raw] tags=["mutant"] answer="live" hint="GPipe keeps all"
# def live(schedule, stages, stage, micro_batches):
#     return 4

# %% [raw] tags=["mutant"] answer="live" hint="it counts, too"
# -    return min(stages - stage, micro_batches)
# +    return min(stages - stage - 1, micro_batches)

# %% [raw] tags=["mutant"] answer="live" hint="than there are micro-batches"
# -    return min(stages - stage, micro_batches)
# +    return stages - stage

# %% [raw] tags=["mutant"] answer="live" hint="waits longest"
# -    return min(stages - stage, micro_batches)
# +    return min(stage + 1, micro_batches)

# %% [raw] tags=["mutant"] answer="live" hint="stages behind it"
# -    return min(stages - stage, micro_batches)
# +    return min(stages, micro_batches)

# %% [markdown]
# Is it true of gigabytes as well? A GPT of 24 layers on 4 virtual V100s, 16 micro-batches. The last stage has
# the loss besides, whose activations are as large as the vocabulary, so it does not follow the rule.

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
# (The prediction takes the first stage's figure as given and follows from it for the others.) Same time,
# and a fraction of the memory. With GPipe, more micro-batches mean a smaller bubble and more memory.
# **With 1F1B the memory does not depend on the number of micro-batches**, so one may have as many as the
# batch has.

# %% [markdown]
# ### On real ranks
#
# The trainer takes your schedule: write it to a file, and give the file to `--schedule`. This job has four
# ranks on two nodes, a stage each, and 8 micro-batches in every step. `--timeline` records one step.

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
# Below stands the same order, simulated with the mean times of that run: what the run takes longer is messages, and
# passes that did not take the same time (four ranks may share fewer cores). The last stage has the output
# matrix and the loss besides its layer. But the live activations are exactly those that you predicted.
# (Does it learn the same as with GPipe? Put `--schedule gpipe` into the cell and see: a schedule says *when*, not
# *what*.)

# %% [markdown]
# ## Without a flush
#
# The bubble is there because the pipeline runs **empty** at the end of every step: no micro-batch of
# the next step may start before the weights are updated. This is called a **flush**. What if nobody waited?
# **PipeDream** does not: the micro-batches come in an endless stream, in the order of 1F1B, and every stage
# updates its weights after each of its backward passes. The bubble is gone (but for the first micro-batches).
# What does it cost?
#
# Take the forward pass of a micro-batch on the first stage. Until its gradient comes back, the stage runs
# backward passes of earlier micro-batches, and updates after each. So **the backward pass meets other weights
# than the forward pass did.** PyTorch notices when you try:
#
# > **Watch out: the next backward pass is meant to fail.** The cell catches the error and prints it.

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
# The kept activations belong to the old weight, and the product rule needs the old weight, too. Who
# goes around this (`weight.data -= ...` would), gets numbers all the same. What are they?
#
# `async_pipeline` is a small pipeline in one process, a layer per stage, which you can look into
# (`async_pipeline.run??` shows it). The policy `naive` has one weight per stage and always uses the newest
# one. For each micro-batch it notes which version of the weight each stage's forward and backward pass used.

# %% tags=["explore"]
naive = async_pipeline.run("naive", stages=3, micro_batches=4, batches=1)
print("version of the weight in (forward, backward) pass, by stage")
for number, used in enumerate(naive.used):
    print(f"micro-batch {number}: {used}")

# %% [markdown]
# Look at micro-batch 3. Is its gradient that of *some* weights, at least? We compute the true gradient, with
# autograd, at **every** combination of versions that the three stages ever had, and take the nearest. A
# distance of 0 would mean: it is the gradient of these weights. 1 would be as far off as the gradient is long.

# %% tags=["explore"]
stashed = async_pipeline.run("pipedream", stages=3, micro_batches=4, batches=1)
for name, found in (("naive", naive), ("PipeDream", stashed)):
    distance, versions = async_pipeline.nearest(found, 3)
    mark = bad if distance > 1e-9 else good
    print(f"{name:9}: nearest at versions {versions}, distance {mark(f'{distance:.1e}')}")

# %% [markdown]
# **The naive gradient belongs to no weights at all.** It is not the gradient of the loss, neither at the
# old weights nor at the new ones, and no theory says that such steps lead downhill. (Often they do, for a
# while. That makes it worse: nothing fails.) PipeDream's remedy is **weight stashing**: with the
# activations of a micro-batch, a stage keeps the *version* of the weight that its forward pass used. The backward
# pass takes that one; the step is made from the newest.
#
# ![A timeline of three stages under PipeDream. Every box is a forward or backward pass of a micro-batch and
# names the version of the weight that it uses. On stage 0 micro-batch 3 runs forward with version 1 and
# backward with version 1, although the newest is version 3 by then; on stage 2 every micro-batch runs
# backward right after its forward, so the newest version is the only one.](../images/weight_versions.svg)
#
# Read the line for PipeDream once more. The gradient is exact, but at version 1 on stage 0, version 2 on stage 1,
# and version 3 on stage 2. These weights never were one model: stage 0 had made one update, stage 1 two, and
# stage 2 three. PipeDream ([Narayanan et al. 2019](https://doi.org/10.1145/3341301.3359646)) can prevent
# that with **vertical sync**: every stage uses the version with which the micro-batch entered the pipeline at
# stage 0. It is off by default, because it takes more bookkeeping on every stage.

# %% [markdown]
# ### Exercise 5: weight versions
#
# Follow one stage. Version 0 is there at the beginning, and every backward pass makes the next version. A
# forward pass uses the newest; a backward pass the one that its forward used. Versions that no micro-batch
# in flight needs are dropped, but never the newest. Return the version that each action uses, and the
# largest number of versions that are kept after any action.

# %% nbgrader={"grade": false, "grade_id": "stash", "locked": false, "schema_version": 3, "solution": true, "task": false}
def stash(actions):
    """(version of every action: a list, the most versions kept: an int).

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
        "That backward pass met a newer weight than its forward pass: nobody's gradient.":
            [([0, 0, 0, 1, 1, 2, 2, 3], 1), ([0, 0, 1, 1], 1),
             ([0, 0, 0, 0, 1, 1, 2, 2, 3, 4], 1), ([0, 0, 0, 1], 1)],
        "The newest version is kept, too, even if nobody in flight uses it.":
            [([0, 0, 0, 1, 0, 2, 1, 2], 2), ([0, 0, 1, 1], 1),
             ([0, 0, 0, 0, 1, 0, 2, 0, 1, 2], 3), ([0, 0, 0, 0], 1)],
        "Those are all versions that there ever were. Which of them does nobody need any more?":
            [([0, 0, 0, 1, 0, 2, 1, 2], 5), ([0, 0, 1, 1], 3),
             ([0, 0, 0, 0, 1, 0, 2, 0, 1, 2], 6), ([0, 0, 0, 0], 3)],
        "Micro-batches that share a version share one copy.":
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

# %% [raw] tags=["mutant"] answer="stash" hint="nobody's gradient"
# def stash(actions):
#     newest, used = 0, []
#     for action in actions:
#         used.append(newest)
#         newest += action[0] == "B"
#     return used, 1

# %% [raw] tags=["mutant"] answer="stash" hint="The newest version is kept, too"
# -        most = max(most, len({newest, *in_flight.values()}))
# +        most = max(most, len(set(in_flight.values())))

# %% [raw] tags=["mutant"] answer="stash" hint="that there ever were"
# -    return used, most
# +    return used, newest + 1

# %% [raw] tags=["mutant"] answer="stash" hint="share one copy"
# -        most = max(most, len({newest, *in_flight.values()}))
# +        most = max(most, len([newest, *in_flight.values()]))

# %% [markdown]
# How many does each stage keep, then? Use your own functions:

# %% tags=["explore"]
for stage, actions in enumerate(to_text(parse(one_f_one_b(4, 16)))):
    print(f"stage {stage} of 4 keeps {result(stash(actions.split())[1])} versions")

# %% [markdown]
# The first stage keeps as many versions as there are stages: for a large model that is a lot of memory.
# **PipeDream-2BW** (*double-buffered weights*) keeps **two** on every stage. It adds up the gradients of a
# batch of at least as many micro-batches as there are stages, and updates once per batch. All micro-batches
# of a batch use the same version: that of all batches before but the last one, which is still under way. So
# each gradient is a true one, of weights that are one update old. With a **flush** one version is enough, and
# nothing is old.
#
# ### Fill in the table
#
# For 4 stages and 8 micro-batches in a batch, fill in what the **first** stage keeps, versions and
# live micro-batches, and what share of the time stages wait when *three* batches are trained one after
# another. For the last column: the stream of 24 micro-batches without a flush is one long 1F1B, with a
# flush it is three short ones. Write it as
#
# ```python
# guess_table = {"flush": (versions, live, idle), "pipedream": (...), "2bw": (...)}
# ```

# %% nbgrader={"grade": false, "grade_id": "guess-table", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_table = {"flush": (1, 4, 3 / 11), "pipedream": (4, 4, 3 / 27), "2bw": (2, 4, 3 / 27)}
### END SOLUTION

# %% tags=["explore"]
for policy, guess in guess_table.items():
    run = async_pipeline.run(policy, stages=4, micro_batches=8, batches=3)
    print(f"{policy}, from the run: weights kept by stage {run.versions}, live {run.live}")
    measured = (run.versions[0], run.live[0], run.idle)
    for what, said, found in zip(("versions", "live", "idle share"), guess, measured, strict=True):
        check.compare(f"  {what}", said, found)

# %% [markdown]
# ### Exercise 6: memory of a stage
#
# Put it together. What does a stage need for its weights (all versions of them) and its activations? There
# are at least as many micro-batches in a batch as stages. (Gradients and the optimizer's states come on top,
# the same for all.)

# %% nbgrader={"grade": false, "grade_id": "stage-memory", "locked": false, "schema_version": 3, "solution": true, "task": false}
def stage_memory(policy, stages, stage, micro_batches, weights, activations):
    """Bytes of a stage (counted from 0) at the peak.

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
        "Every stage has another number of stages behind it.": [1800, 1400, 4400, 2400, 4400],
        "Without a flush the micro-batches that are in flight are as many as in 1F1B.":
            [1800, 1300, 3800, 2800, 1800],
        "With a flush one version is enough.": [2800, 2300, 3300, 2300, 1100],
        "2BW keeps two versions: of the weights, not of the activations.":
            [1800, 1300, 3300, 2200, 1100],
        "It is the first stage that keeps the most versions.": [1800, 1200, 2200, 2200, 4400],
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

# %% [raw] tags=["mutant"] answer="stage-memory" hint="Every stage has another"
# -    behind = stages - stage
# +    behind = stages

# %% [raw] tags=["mutant"] answer="stage-memory" hint="as many as in 1F1B"
# -    in_flight = micro_batches if policy == "gpipe" else behind
# +    in_flight = behind if policy == "1f1b" else micro_batches

# %% [raw] tags=["mutant"] answer="stage-memory" hint="one version is enough"
# -    versions = {"gpipe": 1, "1f1b": 1, "pipedream": behind, "2bw": 2}[policy]
# +    versions = {"gpipe": 2, "1f1b": 2, "pipedream": behind, "2bw": 2}[policy]

# %% [raw] tags=["mutant"] answer="stage-memory" hint="not of the activations"
# -    in_flight = micro_batches if policy == "gpipe" else behind
# +    in_flight = micro_batches if policy == "gpipe" else 2 if policy == "2bw" else behind

# %% [raw] tags=["mutant"] answer="stage-memory" hint="first stage that keeps the most"
# -    behind = stages - stage
# +    behind = stage + 1

# %% [markdown]
# Large language models are trained **with** a flush today: a run should be the same training on any number
# of stages, and old weights are one more thing that could be wrong. The price is the bubble, and the rest
# of this lab is about making it smaller.

# %% [markdown]
# ## Where to cut
#
# In a pipeline all wait for the slowest stage. Layers that are cut evenly are not *time* that is cut evenly:
# the last stage also multiplies with the output matrix, which has a row for every word, and computes the
# loss. First **profile**: what does each layer take for one micro-batch? On a virtual V100, for GPT-2:

# %% tags=["explore"]
GPT2 = ("--device virtual:v100 --num-layers 12 --hidden-size 768 --num-attention-heads 12 --fp16 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 ")
gpt2_times = layers.virtual(GPT2)
layers.table(gpt2_times)

# %% [markdown]
# And for a small GPT of four layers, on your CPU? `--balance 0-2-2-0` gives the first stage the embedding alone
# and the last one the head alone. One run shows what all parts take.

# %% tags=["explore"]
!sbatch code/uneven_pipeline.sh --num-layers 4 --balance 0-2-2-0 {SHORT} megatron/timeline/profile

# %% tags=["explore"]
profile = jobs.wait()

# %% tags=["explore"]
my_times = layers.measured(timeline_of("megatron/timeline/profile"), "0-2-2-0")
layers.table(my_times)

# %% [markdown]
# ### Exercise 7: the best split
#
# Given the times of all parts, in their order: cut them into stages such that the **slowest stage is as
# quick as possible**. Every stage gets at least one part. To fill one stage after the other up to the average
# is quick to write, and often not the best. Trying all cuts is exact, and takes for ever with many parts.
# **Dynamic programming** is exact and quick:
#
# - let `best[s][n]` be the slowest stage's time of the best split of the *first* `n` parts into `s` stages;
# - the last of these stages begins at some part `b`; the `b` parts before it are split in the best way into
#   `s - 1` stages. So `best[s][n]` is the smallest, over all `b`, of `max(best[s - 1][b], sum(times[b:n]))`;
# - note which `b` it was: from the end, these tell the split.

# %% nbgrader={"grade": false, "grade_id": "best-split", "locked": false, "schema_version": 3, "solution": true, "task": false}
def best_split(times, stages):
    """How many parts each stage gets: a list of `stages` numbers of at least 1."""
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
    """The time of the slowest stage."""
    found, begin = 0, 0
    for count in split:
        found = max(found, sum(times[begin:begin + count]))
        begin += count
    return found


def is_split(split, times, stages):
    """Whether it is a list that gives every stage a part, and gives all of them away."""
    return (isinstance(split, list | tuple) and len(split) == stages
            and all(type(count) is int and count >= 1 for count in split)
            and sum(split) == len(times))


def even(parts, stages):
    """As many for each stage; the first ones get the rest."""
    return [parts // stages + (stage < parts % stages) for stage in range(stages)]


def greedy(times, stages):
    """Fill every stage up to the average."""
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
               said + "That fills one stage after the other, and what is left over meets the last.")
    check.that(is_best, said + "With some other cut the slowest stage is quicker.")
### BEGIN HIDDEN TESTS
from math import inf


def least_of(times, stages):
    """The slowest stage of the best split."""
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
               "With some other cut the slowest stage is quicker.")
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

# %% [raw] tags=["mutant"] answer="best-split" hint="With some other cut"
# def best_split(times, stages):
#     return [1] * (stages - 1) + [len(times) - stages + 1]

# %% [markdown]
# Against **brute force**, which tries all cuts of GPT-2's parts into four stages:

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
# The two may differ in the split, where several are equally good. Never in the slowest stage.

# %% [markdown]
# ### Exercise 8: balance a real layout
#
# Fill in `LAYOUT`: GPT-2 on four V100s of one node, in a pipeline of four stages. With three layers on every
# stage it takes this long:

# %% tags=["explore"]
evenly = costs.of({"3-3-3-3": "--balance 3-3-3-3"}, GPT2 + "--world-size 4 --gpus-per-node 4 "
                  "--pipeline-model-parallel-size 4 --global-batch-size 32")
costs.show(evenly)

# %% [markdown]
# Less than **275 ms** is possible. `--balance` counts the *layers* of each stage only: the first stage has
# the embedding besides, and the last one the head. Either of them may have none (`0`).

# %% nbgrader={"grade": false, "grade_id": "my-balance", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_balance.sh
#!/bin/bash
#SBATCH --job-name=my_balance
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
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

srun torchrun --standalone --nproc_per_node 4 \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 $MODEL $BATCH $LAYOUT $TEXT --log-interval 2 --eval-iters 0 "$@"

# %% nbgrader={"grade": true, "grade_id": "my-balance-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_balance.sh", only=[
    "--pipeline-model-parallel-size", "--balance", "--schedule"])
flags = script.flags
check.that(flags.pipeline_model_parallel_size == 4,
           "The pipeline has four stages here: --pipeline-model-parallel-size 4.")
check.that(flags.schedule in ("1f1b", "gpipe") and flags.chunks == 1,
           "The schedule stays 1F1B, with one chunk per stage: it is the cut that counts here.")
cost = check.figures(script, "virtual:v100")
check.that(cost.milliseconds < 275, "Too slow: all wait for one stage. Which one is it, and who "
           "could take what it has too much?")

# %% [raw] tags=["mutant"] answer="my-balance" hint="all wait for one stage"
# -LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0"
# +LAYOUT="--pipeline-model-parallel-size 4"

# %% [raw] tags=["mutant"] answer="my-balance" hint="all wait for one stage"
# -LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-4-0"
# +LAYOUT="--pipeline-model-parallel-size 4 --balance 4-4-3-1"

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
# ## The same in DeepSpeed
#
# You will meet 1F1B in libraries. **DeepSpeed** has it in its `PipelineModule`: the model is a list of layers,
# cut into stages. `code/examples/pipe_dream.py` trains a GPT with it: the embedding, 12 blocks and the head,
# 14 layers in all. Its script starts one process for each stage with `srun`, here four on two nodes.

# %% tags=["explore"] short={"code/examples/pipe_dream.sh --iterations 3": "--ntasks-per-node=1 code/examples/pipe_dream.sh --balance 7,7 --iterations 1 --seq-length 32"}
!sbatch code/examples/pipe_dream.sh --iterations 3

# %% tags=["explore"]
four = jobs.wait()
!grep -E "DeepSpeed|stage|iteration|speed" {four.log}

# %% [markdown]
# The log begins with how the layers were cut (`[4, 3, 3, 4]`) and with DeepSpeed's own schedule.
# At the end each stage says how much it kept. Compare with what you know: which stage keeps the most? Now two
# stages, cut in the middle:

# %% tags=["explore"] short={"--iterations 3": "--iterations 1 --seq-length 32"}
!sbatch --ntasks-per-node=1 code/examples/pipe_dream.sh --balance 7,7 --iterations 3

# %% tags=["explore"]
two = jobs.wait()
pairs = zip(logs.lines(four.log, "| loss "), logs.lines(two.log, "| loss "), strict=True)
for one, other in pairs:
    number, loss, norm, _ = one.split(" | ")
    print(f"{number}: 4 stages {loss}, {norm}; 2 stages {', '.join(other.split(' | ')[1:3])}")

# %% [markdown]
# The same losses again, but for the last digits: where the model is cut does not matter.
#
# **How it is started.** DeepSpeed has a launcher of its own, `deepspeed`. It starts one process for each GPU
# and tells them their ranks, as `torchrun` does, and reaches further nodes from a list of host names
# (`--hostfile`) with ssh. Under Slurm nobody needs it, since `srun` starts processes on all nodes, and many
# clusters do not allow ssh. On one machine it would be
# `deepspeed --num_accelerators 2 code/examples/pipe_dream.py --balance 7,7`.
#
# **How it is configured.** In a JSON file. This is the one of the two jobs:

# %% tags=["explore"]
!cat code/examples/pipe_dream.json

# %% [markdown]
# DeepSpeed makes the optimizer, clips the gradient, and asks the data loader for as many micro-batches as one step
# needs: all that the program does is `engine.train_batch(batches)`. (`torch_adam` takes PyTorch's own Adam; the
# usual one would be compiled first. `steps_per_print` keeps it quiet.) On GPUs the same file would also have
# `"fp16": {"enabled": true}`, and it could have `"zero_optimization": {"stage": 1}`, which shards the optimizer
# states. DeepSpeed's pipeline refuses ZeRO's stages 2 and 3.

# %% [markdown]
# And its schedule, in its own words? This is what the last of four stages does first:

# %% tags=["explore"]
from lab.notebook import deepspeed_cpu  # before deepspeed: lets it run without GPUs

# %% tags=["explore"]
from deepspeed.runtime.pipe.schedule import TrainSchedule


def commands_of(stages, stage, micro_batches):
    steps = TrainSchedule(micro_batches=micro_batches, stages=stages, stage_id=stage)
    return [repr(command) for step in steps for command in step]


print("\n".join(commands_of(4, 3, 8)[:10]))

# %% [markdown]
# ### Exercise 9: read DeepSpeed's schedule
#
# A **buffer** is a place for the activations of a micro-batch. It is used again when the micro-batch is done,
# so its number is *not* the micro-batch's. Micro-batches come in their order, forward and backward. Translate
# the commands of one stage into our words, and leave out what is not computing.

# %% nbgrader={"grade": false, "grade_id": "from-deepspeed", "locked": false, "schema_version": 3, "solution": true, "task": false}
def from_deepspeed(commands):
    """Our words, such as ["F0", "F1", "B0", "B1"], for a list of texts."""
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
        "Those are the numbers of the buffers: buffer 0 is used a second time.":
            [["F0", "F1", "B0", "F0", "B1", "B0"]],
        "Forwards and backwards are counted each for itself: B0 belongs to F0.":
            [["F0", "F1", "B2", "F3", "B4", "B5"]],
        "Messages are not computing: only ForwardPass and BackwardPass.":
            [["F0", "F1", "B0", "B1", "F2", "B2", "B3", "B4", "B5"]],
    })
### BEGIN HIDDEN TESTS
def as_deepspeed(stages, stage, micro_batches):
    """(commands, our words) of one stage."""
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

# %% [raw] tags=["mutant"] answer="from-deepspeed" hint="numbers of the buffers"
# -            words.append(f"{kind}{seen[kind]}")
# +            words.append(f"{kind}{command.partition('=')[2].rstrip(')')}")

# %% [raw] tags=["mutant"] answer="from-deepspeed" hint="each for itself"
# -            words.append(f"{kind}{seen[kind]}")
# +            words.append(f"{kind}{len(words)}")

# %% [raw] tags=["mutant"] answer="from-deepspeed" hint="Messages are not computing"
# -        kind = {"ForwardPass": "F", "BackwardPass": "B"}.get(command.partition("(")[0])
# +        kind = {"ForwardPass": "F", "BackwardPass": "B", "RecvGrad": "B"}.get(
# +            command.partition("(")[0])

# %% tags=["explore"]
for stage, mine in enumerate(to_text(parse(one_f_one_b(4, 8)))):
    theirs = " ".join(from_deepspeed(commands_of(4, stage, 8)))
    print(f"stage {stage}: {theirs}  {good('as mine') if theirs == mine else bad('not as mine')}")

# %% [markdown]
# ### Exercise 10: three numbers that must agree
#
# DeepSpeed is configured by a JSON file. Three of its entries say the same thing twice:
#
# - `train_micro_batch_size_per_gpu`: samples of a micro-batch;
# - `gradient_accumulation_steps`: micro-batches of a step that *each pipeline* works through;
# - `train_batch_size`: samples of a step, of all pipelines together.
#
# With 8 ranks and 4 stages there are two pipelines (data-parallel). If the three do not agree, DeepSpeed
# refuses to start. Write them.

# %% nbgrader={"grade": false, "grade_id": "batch-config", "locked": false, "schema_version": 3, "solution": true, "task": false}
def batch_config(global_batch, micro_batch, ranks, stages):
    """The three entries, as a dict of ints. Raises ValueError where they cannot agree."""
    ### BEGIN SOLUTION
    samples = micro_batch * (ranks // stages)
    if ranks % stages or global_batch % samples:
        raise ValueError(f"{global_batch} samples cannot be shared out")
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
        "The ranks of one pipeline work on the same samples: how many pipelines are there?":
            [{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
              "gradient_accumulation_steps": 4},
             {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
              "gradient_accumulation_steps": 2}],
        "Each pipeline has a share of the batch only.":
            [{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
              "gradient_accumulation_steps": 32},
             {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
              "gradient_accumulation_steps": 8}],
    })
check.raises(batch_config, ValueError, (10, 4, 4, 4), hint="10 samples are no whole number of "
             "micro-batches of 4.")
### BEGIN HIDDEN TESTS
drawn = check.draw(16, micro_batch=range(1, 9), steps=range(1, 65), stages=range(1, 9),
                   replicas=range(1, 9))
check.function(
    batch_config,
    cases=[(case["micro_batch"] * case["steps"] * case["replicas"], case["micro_batch"],
            case["stages"] * case["replicas"], case["stages"]) for case in drawn],
    expected=[{"train_batch_size": case["micro_batch"] * case["steps"] * case["replicas"],
               "train_micro_batch_size_per_gpu": case["micro_batch"],
               "gradient_accumulation_steps": case["steps"]} for case in drawn])
check.raises(batch_config, ValueError, (64, 2, 6, 4), hint="6 ranks are no whole number of "
             "pipelines of 4.")
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="batch-config" hint="how many pipelines are there?"
# -    samples = micro_batch * (ranks // stages)
# +    samples = micro_batch * ranks

# %% [raw] tags=["mutant"] answer="batch-config" hint="a share of the batch"
# -    samples = micro_batch * (ranks // stages)
# +    samples = micro_batch

# %% [raw] tags=["mutant"] answer="batch-config" hint="no whole number of pipelines"
# -    if ranks % stages or global_batch % samples:
# +    if global_batch % samples:

# %% [raw] tags=["mutant"] answer="batch-config" hint="no whole number of micro-batches"
# -    if ranks % stages or global_batch % samples:
# +    if ranks % stages:

# %% [markdown]
# ## Interleaving
#
# The bubble is as long as it takes to get through the pipeline: filling it, then emptying it. With
# *shorter* stages that is quicker. **Interleaving** gives every stage several small pieces of the model,
# **chunks**, in place of one large piece. With 2 chunks on each of 4 stages the layers are cut into 8 pieces: stage 0 has
# pieces 0 and 4, stage 1 has 1 and 5, and so on. A micro-batch passes every stage once per chunk.
#
# `F3.1` is the forward pass of micro-batch 3 on chunk 1 of this stage. The micro-batches go in groups of as
# many as there are stages. A group passes chunk 0, then the same group chunk 1, and so on; then comes the
# next group. With 2 stages, 4 micro-batches and 2 chunks, the forwards of every stage are
#
# ```
# F0.0 F1.0 F0.1 F1.1   F2.0 F3.0 F2.1 F3.1
# ```
#
# Backwards go in the same way, with the chunks from last to first: `B0.1 B1.1 B0.0 B1.0  B2.1 ...`
# The phases are those of 1F1B, but stage `s` warms up with `2 * (stages - s - 1) + (chunks - 1) * stages`
# forwards (and never more than there are).

# %% [markdown]
# ### Exercise 11: write interleaved 1F1B
#
# The number of micro-batches is a multiple of the stages, and there are at least 2 chunks.

# %% nbgrader={"grade": false, "grade_id": "interleaved", "locked": false, "schema_version": 3, "solution": true, "task": false}
def interleaved(stages, micro_batches, chunks):
    """What every stage does, in order: a list of texts, or of lists of words such as "F3.1"."""
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
        "This is right for some sizes. Which number in it should depend on the sizes?": "some sizes",
        "Stages wait for each other: in which order do the chunks run backward, and how many forwards "
        "come first?": "deadlock",
        "It keeps more than it has to: count the forwards of the warm-up.": "memory",
        "The stages wait longer than they have to: does the pipeline run empty after each group?":
            "bubble",
        "Every micro-batch has a forward and a backward on *each* chunk of a stage.": "incomplete",
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(8, stages=range(1, 7), groups=range(1, 5), chunks=range(2, 5))
check.schedule(interleaved, cases=[(case["stages"], case["stages"] * case["groups"], case["chunks"])
                                   for case in drawn], like="interleaved")
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="interleaved" hint="keeps more than it has to"
# -        warm_up = min(2 * (stages - stage - 1) + (chunks - 1) * stages, len(forwards))
# +        warm_up = len(forwards)

# %% [raw] tags=["mutant"] answer="interleaved" hint="right for some sizes"
# -    order = [(group + k, chunk) for group in range(0, micro_batches, stages)
# -             for chunk in range(chunks) for k in range(stages)]
# +    order = [(group + k, chunk) for group in range(0, micro_batches, 4)
# +             for chunk in range(chunks) for k in range(4)]

# %% [raw] tags=["mutant"] answer="interleaved" hint="Stages wait for each other"
# -    order = [(group + k, chunk) for group in range(0, micro_batches, stages)
# -             for chunk in range(chunks) for k in range(stages)]
# +    order = [(k, chunk) for k in range(micro_batches) for chunk in range(chunks)]

# %% [raw] tags=["mutant"] answer="interleaved" hint="on *each* chunk"
# -             for chunk in range(chunks) for k in range(stages)]
# +             for chunk in [0] for k in range(stages)]

# %% [raw] tags=["mutant"] answer="interleaved" hint="run empty after each group"
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
# The bubble is smaller, and more is live on the first stage (each of them is a half now). That is not the only
# price.

# %% [markdown]
# ### Exercise 12: what interleaving buys, and what it costs
#
# How large is the bubble, and how many messages pass between stages in a step? The **bubble overhead** is
# idle time against computing time; with one chunk it is `(stages - 1) / micro_batches`. A message is what one
# piece of the model hands to the next one, for one micro-batch: an activation forward, or a gradient
# backward. (With one stage there is nobody to send to; take at least 2 stages.)

# %% nbgrader={"grade": false, "grade_id": "interleaving", "locked": false, "schema_version": 3, "solution": true, "task": false}
def interleaving(stages, micro_batches, chunks):
    """(bubble overhead: a float, messages of a step: an int)."""
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
        "That is the bubble's share of the whole time. The overhead is against computing only.":
            [(0.2727272727, 48), (0.1578947368, 112), (0.0303030303, 112)],
        "Gradients come back the same way: those are messages, too.":
            [(0.375, 24), (0.1875, 56), (0.03125, 56)],
        "From the last stage it goes on to the first one, to its next chunk: that is a message, too.":
            [(0.375, 48), (0.1875, 96), (0.03125, 64)],
        "The bubble shrinks with the number of chunks.":
            [(0.375, 48), (0.375, 112), (0.125, 112)],
        "The last piece has nobody to send its output to.":
            [(0.375, 64), (0.1875, 128), (0.03125, 128)],
        "Those are the figures of one pipeline: they depend on the arguments.":
            [(0.1875, 112), (0.1875, 112), (0.1875, 112)],
    })
### BEGIN HIDDEN TESTS
check.function(
    interleaving,
    cases=check.draw(20, stages=range(2, 20), micro_batches=range(1, 100), chunks=range(1, 9)),
    expected=lambda stages, micro_batches, chunks: (
        formulas.bubble_overhead(stages, micro_batches, chunks),
        2 * micro_batches * (stages * chunks - 1)))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="interleaving" hint="against computing only"
# -    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
# +    idle = (stages - 1) / (chunks * micro_batches + stages - 1)
# +    return idle, 2 * micro_batches * (pieces - 1)

# %% [raw] tags=["mutant"] answer="interleaving" hint="figures of one pipeline"
# def interleaving(stages, micro_batches, chunks):
#     return 0.1875, 112

# %% [raw] tags=["mutant"] answer="interleaving" hint="Gradients come back"
# -    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
# +    return (stages - 1) / (chunks * micro_batches), micro_batches * (pieces - 1)

# %% [raw] tags=["mutant"] answer="interleaving" hint="on to the first one"
# -    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
# +    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * chunks * (stages - 1)

# %% [raw] tags=["mutant"] answer="interleaving" hint="shrinks with the number of chunks"
# -    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
# +    return (stages - 1) / micro_batches, 2 * micro_batches * (pieces - 1)

# %% [raw] tags=["mutant"] answer="interleaving" hint="nobody to send"
# -    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * (pieces - 1)
# +    return (stages - 1) / (chunks * micro_batches), 2 * micro_batches * pieces

# %% [markdown]
# So there are more messages, each as large as before, and each stage computes for a shorter time between
# two of them. Whether that pays depends on the links. Here are four virtual V100s with the GPT of 24 layers,
# once on one node (NVLink), once on four nodes with an Ethernet of 25 Gbit/s. Which number of chunks will be
# the fastest on the **slow** network, of 1, 2, 3 and 6? Guess.

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
    print(f"chunks {chunks}, messages {interleaving(4, 8, chunks)[1]:3}: NVLink "
          f"{one.milliseconds:.0f} ms, Ethernet {other.milliseconds:.0f} ms (virtual)")
best = min(zip(slow, CHUNKS, strict=True), key=lambda pair: pair[0].milliseconds)
check.compare("the best number of chunks on the slow network", guess_chunks, best[1])

# %% [markdown]
# On the fast link every further chunk helps, a little less each time. On the slow one a few chunks help; with
# too many, the messages take more time than the bubble gives back.

# %% [markdown]
# ### Exercise 13: interleave for the slow network
#
# Fill in `LAYOUT` for four nodes with one V100 each and an Ethernet of 25 Gbit/s: a pipeline of four stages in
# which an iteration takes less than **245 ms**. Use `--num-layers-per-virtual-pipeline-stage`, the layers of
# one chunk.

# %% nbgrader={"grade": false, "grade_id": "my-interleaving", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_interleaving.sh
#!/bin/bash
#SBATCH --job-name=my_interleaving
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
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

srun --kill-on-bad-exit=1 bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
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
           "That is not interleaved: how many chunks has a stage?")
cost = check.figures(script, "virtual:v100", network="ethernet:25gbit")
check.that(cost.milliseconds < 245, "It takes too long: so many chunks pay on a fast link only. "
           "What do the stages wait for?")

# %% [raw] tags=["mutant"] answer="my-interleaving" hint="pay on a fast link only"
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
# (The course's cluster has two nodes unless you start it with more, so `sbatch` refuses this job at once:
# `Node count specification invalid`. The estimate does not need the nodes.)

# %% [markdown]
# ## Where does the last bubble go?
#
# A backward pass does two things. It computes the gradient of the **inputs** (`B`), for which the stage before
# waits. And it computes the gradient of the **weights** (`W`), for which nobody waits until the step is made.
# **Zero-bubble** schedules take them apart, hand on the first at once, and do the second when there is
# nothing else to do. Guess: what share of 1F1B's idle time is left, if F, B and W take the same time?

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
# The hatched boxes fill the end of the pipeline, and the way back is shorter, since only B is on it. The
# memory is that of 1F1B's first stage, now on every stage: what W still needs stays live. What is left is at the
# beginning, where the first micro-batch fills the pipeline. Its authors let that go, too: with more forwards
# at the start, in exchange for about twice the memory (ZB-H2), and with a step of the optimizer that does not
# wait for all stages. The trainer has ZB-H1: `--schedule zb-h1`. **No schedule is free: waiting, memory
# and messages are traded for each other.**

# %% tags=["explore"]
for name in ("gpipe", "1f1b", "interleaved", "zb-h1"):
    chunks = 2 if name == "interleaved" else 1
    schedule = load(name, 4, 8, chunks)
    idle, most = simulate(schedule).bubble_fraction, max(peak_live(schedule)) / chunks
    print(f"{name:12} bubble {result(f'{idle:5.1%}')} of the time, at most {most:.1f} micro-batches "
          "live on a stage")

# %% [markdown]
# ## Discuss
#
# 1. **The flush.** A colleague wants to train without one: "the bubble is 20 %, that is 20 % for free". What
#    do you ask, and what do you try first?
# 2. **More micro-batches.** With 1F1B the memory does not grow with their number, and the bubble shrinks. Why
#    not take a thousand?
# 3. **The best split.** `best_split` makes the slowest stage as quick as possible, and then the first stage
#    runs out of memory. Why the first one, and how would you change the search?
# 4. **Chunks or stages.** 16 cards, 48 layers. Compare 16 stages with 4 stages of 4 chunks each (and 4
#    pipelines).

# %% [markdown]
# ## Clean up
#
# Nothing of yours should go on running, and checkpoints are large.

# %% tags=["explore"]
!scancel --user=$USER
!rm -rf megatron/timeline megatron/checkpoints/pp_two_nodes megatron/checkpoints/uneven_pipeline
!squeue

# %% [markdown]
# ## Summary
#
# - Activation memory is what autograd keeps from forward to backward: how much is the operation's affair, how
#   long the schedule's.
# - 1F1B has GPipe's bubble; it keeps at most as many micro-batches as there are stages, whatever the batch.
# - Without a flush a backward pass must use its forward's weights, or its gradient belongs to no weights. That
#   takes versions: as many as stages (PipeDream), two (2BW), or one and a bubble (flush).
# - All wait for the slowest stage: profile, then cut by time.
# - Interleaving divides the bubble by the chunks and multiplies the messages; it pays where links are fast.
# - What nobody waits for, the gradient of the weights, can fill what is left.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your
# scripts are in it.
