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
# # Pipeline I: from one device at a time to GPipe
#
# A model that is too large for one GPU can be split between its layers: the first layers live on one GPU, the next
# ones on another. This is **inter-layer model parallelism**. It is easy to do, and easy to do badly, because then all
# GPUs but one are idle. In this lab you see that happen, and then fix it: you write GPipe, the first of the pipeline
# schedules, and the trainer runs what you wrote.
#
# **You will be able to**
#
# - split a training step in two, so that only tensors cross the boundary;
# - split a mini-batch into micro-batches and still get exactly the same gradient;
# - write GPipe's schedule for any number of stages, view it as a timeline, and train with it;
# - derive the bubble fraction, and choose the number of micro-batches for it;
# - compute a pipeline's peak memory, and what recomputation costs and saves there;
# - use `torchgpipe`, which does all of this in one process.
#
# **How it works.** Run the cells with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Where a cell says
# *Your turn*, replace that line with your answer; the cell below it checks it at once. Where you are asked to guess,
# guess *before* you run. Guesses are not graded.
#
# **Real and virtual.** Training on the CPU is real: its losses come from your schedule. Where each stage should
# have a GPU of its own, the GPUs are **virtual**: modeled from data sheets and published measurements, and the
# same on every machine.

# %% tags=["setup"]
import math
import os

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab begin at the workspace

# %% tags=["check-setup"]
import numpy as np

from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("cluster_planner", "lablib.async_pipeline", "lablib.plots.bubbles", "layout_estimator",
           "minimegatron", *check.PIPELINE_LIBRARIES)

# %% tags=["explore"]
from job_monitor import logs
from lablib import jobs, plots
from layout_estimator import costs

jobs.connect()

# %% [markdown]
# ## One device at a time
#
# ![A model of six layers is cut into three stages of two layers, each on a GPU of its own. Activations go
# from stage to stage in the forward pass, gradients of activations come back in the backward
# pass.](../images/pipeline_stages.svg)
#
# Each part of the model is a **stage**, and each stage has its own device. In the **forward pass** a stage
# computes its layers and sends the result, its *activations*, to the next stage. The last stage computes the
# loss. In the **backward pass** each stage receives the gradient of what it sent, computes the gradients of its
# own weights, and sends the gradient of its input back.
#
# Split GPT-2 small into four stages, on two nodes with two **virtual** V100s each, and send one batch of 8 samples
# through. What share of the time will the four GPUs be busy, on average? Guess, from 0 to 1.

# %% nbgrader={"grade": false, "grade_id": "guess-share", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_share = 0.25
### END SOLUTION

# %% tags=["explore"] short={"--train-iters 4": "--train-iters 1 --timeline-iteration 1"}
!sbatch code/virtual_v100.sh --pipeline-model-parallel-size 4 --schedule gpipe --train-iters 4 --log-interval 1 \
    --micro-batch-size 8 --global-batch-size 8 --timeline megatron/timeline/one_at_a_time

# %% tags=["explore"]
one_at_a_time = jobs.wait()

# %% tags=["explore"]
alone = plots.timeline("megatron/timeline/one_at_a_time")
check.compare("share of the time that a GPU is busy (virtual)", guess_share, 1 - alone.bubble_fraction)
plots.pipeline("megatron/timeline/one_at_a_time", "One batch, four stages")

# %% [markdown]
# Read the figure from left to right. Each row is a stage, `F0` is the forward pass of batch 0, and `B0` its backward
# pass. At any moment **one** GPU computes and the others wait, for activations in the first half and for gradients in
# the second. Four GPUs are even slower than one GPU with enough memory would be, because of communication overhead.
#
# The gray part is called the **bubble**. Backward boxes are about twice as long as forward boxes: the backward
# pass has two matrix multiplications for each one in the forward pass. The last stage's boxes are longer still,
# because it also computes the logits and the loss.

# %% [markdown]
# ### Exercise 1: a schedule as data
#
# From now on a **schedule** is a list with one string per stage, which lists what the stage computes, in order.
# For one batch and two stages it is `["F0 B0", "F0 B0"]`. Dependencies are implied: `F0` of stage 1 needs `F0` of
# stage 0, and `B0` of stage 0 needs `B0` of stage 1.
#
# Write the schedule in which `batches` batches go through the stages one at a time. Each batch starts when the
# previous one has finished its backward pass.

# %% nbgrader={"grade": false, "grade_id": "one-by-one", "locked": false, "schema_version": 3, "solution": true, "task": false}
def one_by_one(stages, batches):
    """Return one string per stage, such as ["F0 B0", "F0 B0"] for 2 stages and 1 batch."""
    ### BEGIN SOLUTION
    return [" ".join(f"F{k} B{k}" for k in range(batches))] * stages
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "one-by-one-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.schedule(
    one_by_one,
    cases=[(2, 1), (2, 3), (4, 2)],
    live=[1, 1, 1],
    hints={"All forward passes come before the backward passes, so the batches overlap. Run one at a time.": "gpipe",
           "Return a list with one string per stage. How many stages are there?": "wrong stages",
           "Batches are numbered from 0, and each needs one F and one B on every stage.": "incomplete"})
### BEGIN HIDDEN TESTS
check.schedule(one_by_one, cases=check.draw(12, stages=range(1, 9), batches=range(1, 9)), live=lambda stages, batches: 1)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="one-by-one" hint="so the batches overlap"
# def one_by_one(stages, batches):
#     return [" ".join([f"F{k}" for k in range(batches)] + [f"B{k}" for k in range(batches)])] * stages

# %% [raw] tags=["mutant"] answer="one-by-one" hint="Return a list with"
# def one_by_one(stages, batches):
#     return [" ".join(f"F{k} B{k}" for k in range(batches))] * batches

# %% [raw] tags=["mutant"] answer="one-by-one" hint="Batches are numbered from"
# def one_by_one(stages, batches):
#     return [" ".join(f"F{k} B{k}" for k in range(1, batches + 1))] * stages

# %% [markdown]
# Now look at yours, with a backward pass twice as long as the forward pass. Step through it with the slider:

# %% tags=["explore"]
from pipeline_schedules import Durations, parse, problems, simulate

CLOCK = Durations(forward=1, backward=1, weight=1)  # a backward pass: its two matmuls, one unit each
if one_by_one(3, 2):
    display(plots.pipeline(simulate(parse(one_by_one(3, 2)), CLOCK), "One at a time", steps=True))

# %% [markdown]
# ### Exercise 2: how many GPUs do you pay for?
#
# Assume that all stages take the same time and communication takes none. What share of the time is a GPU busy
# when the batches go through `stages` stages one at a time? And how many GPU-hours does a training run take that
# would need `hours` on one (imaginary, large enough) GPU?

# %% nbgrader={"grade": false, "grade_id": "naive-costs", "locked": false, "schema_version": 3, "solution": true, "task": false}
def naive_costs(stages, hours):
    """Return the share of the time a GPU is busy (0 to 1), and the GPU-hours paid for."""
    ### BEGIN SOLUTION
    return 1 / stages, float(hours * stages)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "naive-costs-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check.function(
    naive_costs,
    cases=[(4, 100), (1, 10), (2, 50)],
    expected=[(0.25, 400.0), (1.0, 10.0), (0.5, 100.0)],
    hints={"That is the share of the time in which a GPU is idle.": [(0.75, 400.0), (0.0, 10.0), (0.5, 100.0)],
           "Training does not get faster, because one GPU works at a time. And you pay for all of them.":
               [(0.25, 100.0), (1.0, 10.0), (0.5, 50.0)]})
### BEGIN HIDDEN TESTS
check.function(naive_costs, cases=check.draw(10, stages=range(1, 65), hours=check.between(1, 1000)),
               expected=lambda stages, hours: (1 / stages, float(hours * stages)))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="naive-costs" hint="in which a GPU is idle"
# -    return 1 / stages, float(hours * stages)
# +    return (stages - 1) / stages, float(hours * stages)

# %% [raw] tags=["mutant"] answer="naive-costs" hint="Training does not get"
# -    return 1 / stages, float(hours * stages)
# +    return 1 / stages, float(hours)

# %% [markdown]
# ## Splitting a step in two
#
# Within one process, autograd follows every tensor from the loss back to the first layer. Across a network it
# cannot: a received tensor has no history. So each stage runs its own backward pass, and somebody has to hand the
# gradient over. That is you:
#
# - A received tensor is a new leaf: `arrived.requires_grad_()` asks PyTorch to compute its gradient, which is in
#   `arrived.grad` after the backward pass.
# - `out.backward(gradient)` starts the backward pass at `out`, which is not a loss; `gradient` is the gradient of the
#   loss with respect to `out`.

# %% [markdown]
# ### Exercise 3: only tensors cross the boundary
#
# Run one training step over two stages. `send(tensor)` stands for the network: it returns what the other stage
# receives, a copy without a history. Leave the gradients in the weights (`.grad`), and return the two
# tensors that you sent.

# %% nbgrader={"grade": false, "grade_id": "train-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def train_step(first, second, x, y, loss_of, send):
    """One step over two stages: first and second are modules, loss_of(output, y) is the loss.

    Returns (the activations that went forward, the gradient that came back).
    """
    ### BEGIN SOLUTION
    out = first(x)
    arrived = send(out).requires_grad_()
    loss_of(second(arrived), y).backward()
    out.backward(send(arrived.grad))
    return out, arrived.grad
    ### END SOLUTION

# %% tags=["driver"]
def step_over_the_cut(first, second, x, y):
    """Run the step on linear layers with these weights; return what was sent and the gradients."""
    import torch

    stages = []
    for weight in (first, second):
        matrix = torch.tensor(weight, dtype=torch.float64)
        stage = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, dtype=torch.float64)
        stage.weight.data = matrix
        stages.append(stage)
    sent = train_step(*stages, torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64),
                      torch.nn.functional.mse_loss, lambda tensor: tensor.detach().clone())
    grads = [stage.weight.grad for stage in stages]
    return {"sent forward": sent[0].tolist(), "sent back": sent[1].tolist(),
            "gradient of the first": None if grads[0] is None else grads[0].tolist(),
            "gradient of the second": None if grads[1] is None else grads[1].tolist()}

# %% nbgrader={"grade": true, "grade_id": "train-step-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    step_over_the_cut,
    cases=[([[2.0]], [[3.0]], [[1.0]], [[5.0]])],
    expected=[{"sent forward": [[2.0]], "sent back": [[6.0]],
               "gradient of the first": [[6.0]], "gradient of the second": [[4.0]]}],
    hints={
        "The first stage has no gradients. Its backward pass starts at what it sent, with the gradient it received.":
            [{"sent forward": [[2.0]], "sent back": [[6.0]],
              "gradient of the first": None, "gradient of the second": [[4.0]]}],
        "Send back the gradient of what arrived, not what arrived.":
            [{"sent forward": [[2.0]], "sent back": [[2.0]],
              "gradient of the first": [[2.0]], "gradient of the second": [[4.0]]}],
    })
### BEGIN HIDDEN TESTS
def matrices(seed, size, samples):
    draw = np.random.default_rng(seed)
    return [draw.normal(size=shape).round(3).tolist()
            for shape in ((size + 1, size), (2, size + 1), (samples, size), (samples, 2))]


def right_step(first, second, x, y):
    first, second, x, y = map(np.array, (first, second, x, y))
    out = x @ first.T
    slope = 2 * (out @ second.T - y) / y.size
    back = slope @ second
    return {"sent forward": out.tolist(), "sent back": back.tolist(),
            "gradient of the first": (back.T @ x).tolist(), "gradient of the second": (slope.T @ out).tolist()}


check.function(step_over_the_cut, cases=[matrices(**case) for case in check.draw(
    6, seed=range(10**6), size=range(1, 5), samples=range(1, 5))], expected=right_step)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="train-step" hint="The first stage has no gradients"
# -    out.backward(send(arrived.grad))
# +    send(arrived.grad)

# %% [raw] tags=["mutant"] answer="train-step" hint="Send back the gradient"
# -    out.backward(send(arrived.grad))
# -    return out, arrived.grad
# +    out.backward(send(arrived.detach()))
# +    return out, arrived.detach()

# %% [markdown]
# This is all that a pipeline sends: activations forward and their gradients back, both of shape `[samples, sequence
# length, hidden size]`. No weights cross the boundary, and no gradients of weights.
#
# ## Micro-batches
#
# Now comes the idea of **GPipe** ([Huang et al. 2019](https://arxiv.org/abs/1811.06965)). Split the batch, now
# called the **mini-batch**, into **micro-batches**. When stage 0 has sent the first micro-batch on, it does not
# wait but starts the second one. The gradients of the micro-batches accumulate in `.grad`, and the optimizer
# takes one step for all of them. Is that still the same training? It is, if you average with care.

# %% [markdown]
# ### Exercise 4: the gradient of the whole mini-batch
#
# `loss_of` returns the *mean* over the samples it is given. Accumulate the gradients of all micro-batches so that
# `.grad` holds what one backward pass over the whole mini-batch would give. The last micro-batch may be smaller
# than the others.

# %% nbgrader={"grade": false, "grade_id": "accumulate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accumulate(model, loss_of, micro_batches):
    """Leave the mini-batch's gradient in `.grad`. micro_batches: a list of (x, y), len(x) samples each."""
    ### BEGIN SOLUTION
    samples = sum(len(x) for x, _ in micro_batches)
    for x, y in micro_batches:
        loss = loss_of(model(x), y)
        (loss * len(x) / samples).backward()
    ### END SOLUTION

# %% tags=["driver"]
def accumulated(weight, x, y, size):
    """Return the weights' gradient after micro-batches of `size` samples."""
    import torch

    x, y = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    model = torch.nn.Linear(x.shape[1], y.shape[1], bias=False, dtype=torch.float64)
    model.weight.data = torch.tensor(weight, dtype=torch.float64)
    accumulate(model, torch.nn.functional.mse_loss, list(zip(x.split(size), y.split(size), strict=True)))
    return None if model.weight.grad is None else model.weight.grad.tolist()

# %% nbgrader={"grade": true, "grade_id": "accumulate-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    accumulated,
    cases=[{"weight": [[1.0]], "x": [[1.0], [1.0], [4.0]], "y": [[0.0], [0.0], [0.0]], "size": 2}],
    expected=[[[12.0]]],
    hints={
        "That is the sum over the micro-batches, but the loss of the mini-batch is a mean.": [[[34.0]]],
        "That is the mean over the micro-batches. Should the small one count as much as the large one?": [[[17.0]]],
        "That is the last micro-batch alone. Do not zero gradients between micro-batches.": [[[32.0 / 3]]],
    })
### BEGIN HIDDEN TESTS
def drawn_samples(seed, samples, inputs, size):
    draw = np.random.default_rng(seed)
    weight, x, y = (draw.normal(size=shape).round(3).tolist()
                    for shape in ((2, inputs), (samples, inputs), (samples, 2)))
    return {"weight": weight, "x": x, "y": y, "size": size}


def whole_gradient(weight, x, y, size):
    weight, x, y = map(np.array, (weight, x, y))
    return ((2 * (x @ weight.T - y) / y.size).T @ x).tolist()


check.function(accumulated, cases=[drawn_samples(**case) for case in check.draw(
    8, seed=range(10**6), samples=range(1, 9), inputs=range(1, 4), size=range(1, 6))], expected=whole_gradient)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="accumulate" hint="the loss of the mini-batch is a mean"
# -        (loss * len(x) / samples).backward()
# +        loss.backward()

# %% [raw] tags=["mutant"] answer="accumulate" hint="That is the mean"
# -        (loss * len(x) / samples).backward()
# +        (loss / len(micro_batches)).backward()

# %% [raw] tags=["mutant"] answer="accumulate" hint="That is the last"
# -        loss = loss_of(model(x), y)
# +        model.zero_grad()
# +        loss = loss_of(model(x), y)

# %% [markdown]
# (For text, count tokens instead of samples, because padding has no loss. The trainer also divides by the number of
# tokens.)
#
# ## GPipe
#
# GPipe's order is simple. Every stage runs the forward passes of **all** micro-batches and then all backward
# passes; then the optimizer takes its step. The next mini-batch enters only after that step, so the pipeline drains
# between two mini-batches. This is the **pipeline flush**. Because of it, every pass of a mini-batch uses the same
# weights, and the result is the same as without a pipeline.

# %% [markdown]
# ### Exercise 5: write GPipe
#
# Write the schedule for any number of stages and micro-batches, in the same form as above: one string per stage.
# Several answers are correct; yours is judged by its behavior. Is every micro-batch there? Does it run without a
# deadlock? Do the stages compute at the same time?

# %% nbgrader={"grade": false, "grade_id": "my-gpipe", "locked": false, "schema_version": 3, "solution": true, "task": false}
def my_gpipe(stages, micro_batches):
    """Return GPipe's schedule, one string per stage: all forward passes, then all backward passes."""
    ### BEGIN SOLUTION
    forwards = [f"F{k}" for k in range(micro_batches)]
    backwards = [f"B{k}" for k in reversed(range(micro_batches))]  # the last one's activations are fresh
    return [" ".join(forwards + backwards)] * stages
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "my-gpipe-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check.schedule(
    my_gpipe,
    cases=[{"stages": 4, "micro_batches": 8}, {"stages": 2, "micro_batches": 3}, {"stages": 1, "micro_batches": 2}],
    like="gpipe",
    hints={
        "It works for some pipelines only. Which number did you hard-code?": "some sizes",
        "One micro-batch at a time is what GPipe avoids. Which stages are busy meanwhile?": "one at a time",
        "The stages deadlock. Follow micro-batch 0 by hand: in which order do its forward and backward "
        "passes reach each stage?": "deadlock",
        "No two stages ever run forward passes at once in this order. A stage should process micro-batches in the order in "
        "which they arrive.": "serial forwards",
        "No two stages ever run backward passes at once in this order. A stage should process gradients in the order in which "
        "they arrive.": "serial backwards",
        "A backward pass precedes a forward pass. In GPipe all forward passes come first.": "forwards first",
        "Each stage needs an F and a B of each micro-batch, numbered from 0.": "incomplete",
    })
### BEGIN HIDDEN TESTS
check.schedule(my_gpipe, cases=check.draw(16, stages=range(1, 9), micro_batches=range(1, 17)), like="gpipe")
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="my-gpipe" hint="One micro-batch at a time"
# def my_gpipe(stages, micro_batches):
#     return [" ".join(f"F{k} B{k}" for k in range(micro_batches))] * stages

# %% [raw] tags=["mutant"] answer="my-gpipe" hint="It works for some"
# def my_gpipe(stages, micro_batches):
#     order = [f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in range(micro_batches)]
#     return [" ".join(order)] * 4

# %% [raw] tags=["mutant"] answer="my-gpipe" hint="The stages deadlock. Follow"
# def my_gpipe(stages, micro_batches):
#     last = [f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in range(micro_batches)]
#     others = [f"F{k} B{k}" for k in range(micro_batches)]
#     return [" ".join(others)] * (stages - 1) + [" ".join(last)]

# %% [raw] tags=["mutant"] answer="my-gpipe" hint="No two stages ever run backward"
# -    return [" ".join(forwards + backwards)] * stages
# +    return [" ".join(forwards + backwards[::1 if stage % 2 else -1]) for stage in range(stages)]

# %% [raw] tags=["mutant"] answer="my-gpipe" hint="runs B7 (position 0) before F7"
# -    return [" ".join(forwards + backwards)] * stages
# +    return [" ".join(backwards + forwards)] * stages

# %% [raw] tags=["mutant"] answer="my-gpipe" hint="No two stages ever run forward"
# def my_gpipe(stages, micro_batches):
#     forwards, backwards = range(micro_batches), range(micro_batches)
#     text = []
#     for stage in range(stages):
#         order = forwards if stage % 2 == 0 else reversed(forwards)
#         text.append(" ".join([f"F{k}" for k in order] + [f"B{k}" for k in backwards]))
#     return text

# %% [raw] tags=["mutant"] answer="my-gpipe" hint="A backward pass precedes"
# def my_gpipe(stages, micro_batches):
#     text = []
#     for stage in range(stages):
#         early = min(stages - 1 - stage, micro_batches)
#         order = [f"F{k}" for k in range(early)]
#         for k in range(early, micro_batches):
#             order += [f"F{k}", f"B{k - early}"]
#         order += [f"B{k}" for k in range(micro_batches - early, micro_batches)]
#         text.append(" ".join(order))
#     return text

# %% [raw] tags=["mutant"] answer="my-gpipe" hint="Each stage needs an"
# -    forwards = [f"F{k}" for k in range(micro_batches)]
# +    forwards = [f"F{k}" for k in range(1, micro_batches)]

# %% [markdown]
# Look at it. Move the slider and count how many stages are busy at each moment. Below each stage you see how many
# micro-batches' activations it holds, which matters later.

# %% tags=["explore"]
if my_gpipe(4, 6):
    display(plots.pipeline(simulate(parse(my_gpipe(4, 6)), CLOCK), "My GPipe", steps=True))

# %% [markdown]
# The trainer validates every schedule before running it, and explains what is wrong. This one is wrong on purpose:
# stage 0 insists on finishing micro-batch 0, and stage 1 wants micro-batch 1 first.

# %% tags=["explore"]
for problem in problems(parse(["F0 B0 F1 B1", "F0 F1 B0 B1"])):
    print(problem)

# %% [markdown]
# ### Train with it
#
# Your function goes into a file, and the trainer loads it with `--schedule`. Train the small GPT on four ranks,
# on the CPUs of two nodes, first with the trainer's own GPipe and then with yours. Then use yours with two
# stages, on one node.

# %% tags=["explore"]
import inspect
from pathlib import Path

Path("code/my_gpipe.py").write_text(inspect.getsource(my_gpipe))
!cat code/my_gpipe.py

# %% tags=["explore"] short={"--train-iters 6": "--train-iters 3 --hidden-size 64 --seq-length 64"}
SHORT = "--train-iters 6 --log-interval 1 --eval-iters 0"
!sbatch code/pp_two_nodes.sh {SHORT} --schedule gpipe --timeline megatron/timeline/built_in

# %% tags=["explore"]
built_in = jobs.wait()

# %% tags=["explore"]
!sbatch code/pp_two_nodes.sh {SHORT} --schedule code/my_gpipe.py --timeline megatron/timeline/mine

# %% tags=["explore"]
mine = jobs.wait()

# %% tags=["explore"]
!sbatch --nodes=1 code/pp_two_nodes.sh {SHORT} --schedule code/my_gpipe.py --pipeline-model-parallel-size 2

# %% tags=["explore"]
two_stages = jobs.wait()

# %% tags=["explore"]
print("iteration   built-in       mine   mine, 2 stages")
for lines in zip(*(logs.read(job.log).iterations for job in (built_in, mine, two_stages)), strict=True):
    print(f"{lines[0].iteration:9}" + "".join(f"{line.loss or math.nan:11.6f}" for line in lines))

# %% [markdown]
# The losses agree up to rounding: the order of the passes does not change the mini-batch's gradient. This holds
# for four stages and for two. Here is the real run, and below it the simulated schedule with the same mean durations:

# %% tags=["explore"]
plots.pipeline("megatron/timeline/mine", "My GPipe", simulated=True)

# %% [markdown]
# Do not be surprised if the real timeline is ragged. All ranks share this machine's cores, so a stage that runs
# alone is faster than four that run at once. Only four devices can show what a pipeline is good for. Here they
# are, virtual: the same batch of 8 samples as in the beginning, now in 8 micro-batches. How many times faster
# will the step be?

# %% nbgrader={"grade": false, "grade_id": "guess-times", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_times = 3
### END SOLUTION

# %% tags=["explore"] short={"--train-iters 4": "--train-iters 1 --timeline-iteration 1"}
!sbatch code/virtual_v100.sh --pipeline-model-parallel-size 4 --schedule code/my_gpipe.py --train-iters 4 \
    --log-interval 1 --micro-batch-size 1 --global-batch-size 8 --timeline megatron/timeline/eight_parts

# %% tags=["explore"]
eight_parts = jobs.wait()

# %% tags=["explore"]
parts = plots.timeline("megatron/timeline/eight_parts")
check.compare("times as fast (virtual)", guess_times, float(alone.total / parts.total))
plots.pipelines(one_batch="megatron/timeline/one_at_a_time", eight_micro_batches="megatron/timeline/eight_parts")

# %% [markdown]
# ## The bubble
#
# How large is the gray part that remains? Measure time in units of one micro-batch on one stage, with $p$ stages and
# $m$ micro-batches. Look at one row of your GPipe:
#
# - A stage is **busy** for $m$ forward and $m$ backward passes.
# - The last stage's first forward pass waits until the $p - 1$ stages before it have finished theirs, and at the end
#   stage 0 waits for as many backward passes. Every stage loses the same time, at the beginning, in the middle, or at
#   the end.
#
# The **bubble fraction** is the idle share of the whole step. Work out how long a step takes, and for how much of it a
# stage is busy.

# %% [markdown]
# ### Exercise 6: the bubble fraction
#
# Assume that all stages take the same time and communication takes none:

# %% nbgrader={"grade": false, "grade_id": "bubble", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bubble(p, m):
    """Return the bubble fraction of GPipe, 0 to 1, for p stages and m micro-batches."""
    ### BEGIN SOLUTION
    return (p - 1) / (m + p - 1)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "bubble-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    bubble,
    cases=[(4, 1), (4, 7), (1, 5), (5, 16)],
    expected=[0.75, 0.3, 0.0, 0.2],
    hints={
        "That is the bubble overhead, idle time per useful time. The bubble fraction divides by the whole step.":
            [3.0, 3 / 7, 0.0, 0.25],
        "That is the share of the time in which a stage is busy.": [0.25, 0.7, 1.0, 0.8],
        "At the start all stages but one wait. How many are those?": [0.8, 4 / 11, 1 / 6, 5 / 21],
        "That ignores the number of micro-batches: more of them must make the bubble smaller.": [0.75, 0.75, 0.75, 0.75],
    })
### BEGIN HIDDEN TESTS
check.function(bubble, cases=check.draw(20, p=range(1, 65), m=range(1, 1025)),
               expected=lambda p, m: (p - 1) / (m + p - 1))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="bubble" hint="the bubble overhead"
# -    return (p - 1) / (m + p - 1)
# +    return (p - 1) / m

# %% [raw] tags=["mutant"] answer="bubble" hint="That is the share"
# -    return (p - 1) / (m + p - 1)
# +    return m / (m + p - 1)

# %% [raw] tags=["mutant"] answer="bubble" hint="At the start all"
# -    return (p - 1) / (m + p - 1)
# +    return p / (m + p)

# %% [raw] tags=["mutant"] answer="bubble" hint="That ignores the number"
# -    return (p - 1) / (m + p - 1)
# +    return 0.75

# %% tags=["explore"]
plots.bubbles(bubble)

# %% [markdown]
# Each line is a number of stages. What matters is the number of micro-batches *per stage*: with four times as many
# micro-batches as stages, the bubble fraction is below a fifth.
#
# Does the formula hold for the runs? The last virtual stage is slower than the others, and the real stages share
# their cores:

# %% tags=["explore"]
if bubble(4, 1) is not None:
    for name, m, run in (("one batch, virtual", 1, "one_at_a_time"), ("8 micro-batches, virtual", 8, "eight_parts"),
                         ("4 micro-batches, real, on shared cores", 4, "mine")):
        measured = float(plots.timeline(f"megatron/timeline/{run}").bubble_fraction)
        print(f"{name:40} formula {bubble(4, m):6.1%}   run {measured:6.1%}")

# %% [markdown]
# With one batch in flight, unequal stages do not matter. With eight they do: the formula assumes equal stages, and a
# stage that waits for a slower one is idle, too. Exercise 8 accounts for that.

# %% [markdown]
# ### Exercise 7: how many micro-batches?
#
# What is the smallest number of micro-batches with which a pipeline of `p` stages has a bubble of at most `percent`
# percent? (Compare whole numbers to avoid rounding errors.)

# %% nbgrader={"grade": false, "grade_id": "micro-batches-for", "locked": false, "schema_version": 3, "solution": true, "task": false}
def micro_batches_for(p, percent):
    """Return the smallest number of micro-batches, at least 1. percent: an int from 1 to 100."""
    ### BEGIN SOLUTION
    m = 1
    while 100 * (p - 1) > percent * (m + p - 1):
        m += 1
    return m
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "micro-batches-for-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    micro_batches_for,
    cases=[(4, 20), (8, 10), (5, 30), (1, 5), (2, 60)],
    expected=[12, 63, 10, 1, 1],
    hints={
        "One fewer is enough: a bubble of exactly `percent` is allowed.": [13, 64, 10, 1, 1],
        "Rounding down leaves a slightly larger bubble than allowed.": [12, 63, 9, 1, 1],
        "That is m + p - 1, the length of the whole step. How many of these are micro-batches?": [15, 70, 14, 1, 2],
        "A pipeline needs at least one micro-batch.": [12, 63, 10, 0, 1],
    })
### BEGIN HIDDEN TESTS
check.function(micro_batches_for, cases=check.draw(20, p=range(1, 20_000), percent=range(1, 101)),
               expected=lambda p, percent: max(1, -(-100 * (p - 1) // percent) - (p - 1)))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="micro-batches-for" hint="One fewer is enough"
# -    while 100 * (p - 1) > percent * (m + p - 1):
# +    while p > 1 and 100 * (p - 1) >= percent * (m + p - 1):

# %% [raw] tags=["mutant"] answer="micro-batches-for" hint="Rounding down leaves a"
# def micro_batches_for(p, percent):
#     return max(1, 100 * (p - 1) // percent - (p - 1))

# %% [raw] tags=["mutant"] answer="micro-batches-for" hint="That is m +"
# def micro_batches_for(p, percent):
#     return max(1, -(-100 * (p - 1) // percent))

# %% [raw] tags=["mutant"] answer="micro-batches-for" hint="at least one micro-batch"
# -    m = 1
# +    m = 0 if p == 1 else 1

# %% [markdown]
# ### Exercise 8: unequal stages
#
# Real stages differ: the last one computes the logits. Follow the micro-batches through the forward phase. The
# first one takes the time of every stage, one after the other. Each later one leaves the pipeline one *slowest
# stage* after the previous one. The backward phase works the same way, in the other direction.
#
# How long does a step of GPipe take?

# %% nbgrader={"grade": false, "grade_id": "step-time", "locked": false, "schema_version": 3, "solution": true, "task": false}
def step_time(forward, backward, m):
    """Return the step time, in ms, with m micro-batches. forward, backward: ms of each stage."""
    ### BEGIN SOLUTION
    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "step-time-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    step_time,
    cases=[([10, 10], [20, 20], 1), ([10, 10], [20, 20], 4), ([10, 10, 16], [20, 20, 40], 5), ([10, 14], [30, 20], 2)],
    expected=[60, 150, 340, 118],
    hints={
        "That omits the pipeline's warm-up and cool-down: it is the slowest stage's time only.": [30, 120, 280, 88],
        "That runs all passes one after the other, but the stages run at the same time.": [60, 240, 580, 148],
        "Not every stage is as slow as the slowest: the first micro-batch takes each stage's own time.": [60, 150, 392, 132],
        "The forward and the backward phase each have their own slowest stage.": [60, 150, 340, 114],
        "Of m micro-batches, how many follow the first?": [90, 180, 396, 162],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(20, m=range(1, 33), stages=range(1, 9), seed=range(10**6))
cases = []
for case in drawn:
    times = np.random.default_rng(case["seed"]).integers(1, 100, size=(2, case["stages"])).tolist()
    cases.append((*times, case["m"]))
check.function(step_time, cases=cases, expected=lambda forward, backward, m: (
    sum(forward) + sum(backward) + (m - 1) * (max(forward) + max(backward))))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="step-time" hint="That omits the pipeline's"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return m * (max(forward) + max(backward))

# %% [raw] tags=["mutant"] answer="step-time" hint="That runs all passes"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return m * (sum(forward) + sum(backward))

# %% [raw] tags=["mutant"] answer="step-time" hint="Not every stage is"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return (m + len(forward) - 1) * (max(forward) + max(backward))

# %% [raw] tags=["mutant"] answer="step-time" hint="The forward and the"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return sum(forward) + sum(backward) + (m - 1) * max(f + b for f, b in zip(forward, backward))

# %% [raw] tags=["mutant"] answer="step-time" hint="Of m micro-batches, how"
# -    return sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
# +    return sum(forward) + m * max(forward) + sum(backward) + m * max(backward)

# %% [markdown]
# Try it on your virtual run: the mean durations of its stages should predict the step time.

# %% tags=["explore"]
def mean_time(run, kind):
    """Return the mean duration of this kind of action on each stage, in ms."""
    return [float(sum(span.end - span.start for span in spans if span.kind == kind))
            / sum(span.kind == kind for span in spans) for spans in run.spans.values()]


if step_time([1], [1], 1):
    print("stage by stage, forward ", [round(one, 1) for one in mean_time(parts, "F")], "ms")
    print("stage by stage, backward", [round(one, 1) for one in mean_time(parts, "B")], "ms")
    print(f"your function: {step_time(mean_time(parts, 'F'), mean_time(parts, 'B'), 8):.1f} ms")
    print(f"the run:       {float(parts.total):.1f} ms")

# %% [markdown]
# The difference is communication: each boundary adds one send in the forward phase and one in the backward phase.
#
# ## What GPipe stores
#
# A micro-batch's activations are needed in its backward pass, and GPipe starts the backward passes only after all
# forward passes. So every stage holds the activations of **all** micro-batches at once: the strips in the figures
# above rise to $m$. Splitting a mini-batch into more micro-batches does not save any memory, but the pipeline wants
# many of them.
#
# GPipe therefore came with **activation checkpointing**: a stage saves only its *input* for each micro-batch, and
# recomputes the rest just before the backward pass. `torchgpipe` ([Kim et al.
# 2020](https://arxiv.org/abs/2004.09910)) has three modes:
#
# | `checkpoint=` | saved after the forward pass |
# |---|---|
# | `"never"` | everything, for every micro-batch |
# | `"always"` | only the input, for every micro-batch |
# | `"except_last"` | only the input, but everything for the last micro-batch: its backward pass comes next |

# %% [markdown]
# ### Exercise 9: peak activation memory
#
# How many bytes does a stage hold at its peak? In GPipe's backward phase the last micro-batch comes first. Before a
# checkpointed micro-batch's backward pass, its activations are recomputed from its input, which is freed after that
# pass. After the backward pass of a micro-batch, nothing of it remains. (Count the input separately, in addition to
# `everything`.)

# %% nbgrader={"grade": false, "grade_id": "kept-bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def kept_bytes(mode, m, everything, input):
    """Bytes at the peak. mode: "never", "always" or "except_last"; m: micro-batches;

    everything, input: bytes of one micro-batch's activations inside of the stage, and of its input.
    """
    ### BEGIN SOLUTION
    whole = m if mode == "never" else 1
    return m * input + whole * everything
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "kept-bytes-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    kept_bytes,
    cases=[("never", 8, 100, 5), ("always", 8, 100, 5), ("except_last", 8, 100, 5), ("always", 1, 70, 3)],
    expected=[840, 140, 140, 73],
    hints={
        "The inputs are saved, too.": [800, 100, 100, 70],
        "During a micro-batch's backward pass its activations are in memory again, even with checkpointing.":
            [840, 40, 140, 3],
        "That counts two at once, but the last micro-batch's activations are freed before the next is recomputed.":
            [840, 140, 240, 73],
        "You have the modes reversed: without checkpointing everything is saved.": [140, 840, 840, 73],
    })
### BEGIN HIDDEN TESTS
check.function(kept_bytes, cases=check.draw(24, mode=["never", "always", "except_last"], m=range(1, 65),
                                            everything=range(10**6, 10**9), input=range(10**4, 10**6)),
               expected=lambda mode, m, everything, input: m * input + (m if mode == "never" else 1) * everything)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="kept-bytes" hint="The inputs are saved"
# -    return m * input + whole * everything
# +    return whole * everything

# %% [raw] tags=["mutant"] answer="kept-bytes" hint="During a micro-batch's backward"
# -    whole = m if mode == "never" else 1
# +    whole = {"never": m, "always": 0, "except_last": 1}[mode]

# %% [raw] tags=["mutant"] answer="kept-bytes" hint="That counts two at"
# -    whole = m if mode == "never" else 1
# +    whole = {"never": m, "always": 1, "except_last": 2}[mode]

# %% [raw] tags=["mutant"] answer="kept-bytes" hint="You have the modes"
# -    whole = m if mode == "never" else 1
# +    whole = 1 if mode == "never" else m

# %% [markdown]
# ### Exercise 10: the cost of recomputation
#
# Recomputation costs time. Assume that the backward pass takes twice as long as the forward pass. How much
# computation does a step take, relative to `"never"`?

# %% nbgrader={"grade": false, "grade_id": "extra-work", "locked": false, "schema_version": 3, "solution": true, "task": false}
def extra_work(mode, m):
    """Return a step's computation; 1.0 is "never". mode: "never", "always", or "except_last"."""
    ### BEGIN SOLUTION
    again = {"never": 0, "always": m, "except_last": m - 1}[mode]
    return (3 * m + again) / (3 * m)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "extra-work-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    extra_work,
    cases=[("never", 4), ("always", 4), ("except_last", 4), ("except_last", 1)],
    expected=[1.0, 4 / 3, 1.25, 1.0],
    hints={
        "Only the forward pass is recomputed, not the whole step.": [1.0, 2.0, 1.75, 1.0],
        "The forward and backward pass do not take equally long here.": [1.0, 1.5, 1.375, 1.0],
        "One micro-batch is not recomputed.": [1.0, 4 / 3, 4 / 3, 4 / 3],
    })
### BEGIN HIDDEN TESTS
check.function(extra_work, cases=check.draw(20, mode=["never", "always", "except_last"], m=range(1, 10**6)),
               expected=lambda mode, m: 1 + {"never": 0, "always": m, "except_last": m - 1}[mode] / (3 * m))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="extra-work" hint="not the whole step"
# -    return (3 * m + again) / (3 * m)
# +    return (m + again) / m

# %% [raw] tags=["mutant"] answer="extra-work" hint="The forward and backward"
# -    return (3 * m + again) / (3 * m)
# +    return (2 * m + again) / (2 * m)

# %% [raw] tags=["mutant"] answer="extra-work" hint="One micro-batch is not"
# -    again = {"never": 0, "always": m, "except_last": m - 1}[mode]
# +    again = 0 if mode == "never" else m

# %% [markdown]
# ### Exercise 11: a pipeline that fits
#
# Now at full size: GPT-2 small in fp16 on four **virtual** V100s with 16 GB, two on each node, with GPipe and 40
# samples per step. Which micro-batch size do you choose, and how many of each stage's three layers do you recompute?
# This is what the trainer estimates (`block N` recomputes N layers of each stage):

# %% tags=["explore"]
PIPELINE = ("--device virtual:v100 --virtual-network ethernet:25gbit --world-size 4 --gpus-per-node 2 "
            "--pipeline-model-parallel-size 4 --schedule gpipe --fp16 --global-batch-size 40 --num-layers 12 "
            "--hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024")
BLOCK = " --recompute-granularity full --recompute-method block --recompute-num-layers 3"
costs.show(costs.of({"micro-batch 4, nothing": "--micro-batch-size 4",
                     "micro-batch 1, nothing": "--micro-batch-size 1",
                     "micro-batch 4, block 3": "--micro-batch-size 4" + BLOCK,
                     "micro-batch 10, block 3": "--micro-batch-size 10" + BLOCK}, PIPELINE))

# %% [markdown]
# The first two lines show that smaller micro-batches save time, but no memory. Now write a job that fits, with a
# step time of **less than 590 ms**. *Your turn:* write a line `BATCH="..."` with the micro-batch size and the
# recomputation flags.

# %% nbgrader={"grade": false, "grade_id": "my-pipeline", "locked": false, "schema_version": 3, "solution": true, "task": false}
%%writefile code/my_pipeline.sh
#!/bin/bash
#SBATCH --job-name=my_pipeline
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--fp16 --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
       --seq-length 1024 --max-position-embeddings 1024"
LAYOUT="--pipeline-model-parallel-size 4 --schedule gpipe --global-batch-size 40"
### BEGIN SOLUTION
BATCH="--micro-batch-size 1 --recompute-granularity full --recompute-method block --recompute-num-layers 2"
### END SOLUTION
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes 2 --nproc_per_node 2 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 --virtual-network ethernet:25gbit $MODEL $LAYOUT $BATCH $TEXT \
    --lr 1.5e-4 --train-iters 3 --log-interval 1 --eval-iters 0 "$@"

# %% nbgrader={"grade": true, "grade_id": "my-pipeline-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_pipeline.sh", only=[
    "--micro-batch-size", "--recompute-granularity", "--recompute-method", "--recompute-num-layers"])
cost = check.figures(script, "virtual:v100", network="ethernet:25gbit")
check.that(cost.fits, "It does not fit. A smaller micro-batch does not help, because GPipe holds all of them. What does?")
check.pass_mark(cost.milliseconds, error=cost.error, below=590, hint=(
    "It fits, but it takes too long. Two things cost time: the bubble, and every layer that you recompute without need."))

# %% [raw] tags=["mutant"] answer="my-pipeline" hint="It does not fit"
# -BATCH="--micro-batch-size 1 --recompute-granularity full --recompute-method block --recompute-num-layers 2"
# +BATCH="--micro-batch-size 1"

# %% [raw] tags=["mutant"] answer="my-pipeline" hint="it takes too long"
# -BATCH="--micro-batch-size 1 --recompute-granularity full --recompute-method block --recompute-num-layers 2"
# +BATCH="--micro-batch-size 20 --recompute-granularity full --recompute-method uniform"

# %% [raw] tags=["mutant"] answer="my-pipeline" hint="it takes too long"
# -BATCH="--micro-batch-size 1 --recompute-granularity full --recompute-method block --recompute-num-layers 2"
# +BATCH="--micro-batch-size 20 --recompute-granularity full --recompute-method block --recompute-num-layers 2"

# %% [raw] tags=["mutant"] answer="my-pipeline" hint="This would go wrong"
# -BATCH="--micro-batch-size 1 --recompute-granularity full --recompute-method block --recompute-num-layers 2"
# +BATCH="--micro-batch-size 3 --recompute-granularity full --recompute-method block --recompute-num-layers 2"

# %% [raw] tags=["mutant"] answer="my-pipeline" hint="--global-batch-size 8; the exercise uses 40"
# -BATCH="--micro-batch-size 1 --recompute-granularity full --recompute-method block --recompute-num-layers 2"
# +BATCH="--micro-batch-size 1 --global-batch-size 8"

# %% [raw] tags=["mutant"] answer="my-pipeline" hint="--kv-channels 1; the exercise uses 64"
# -BATCH="--micro-batch-size 1 --recompute-granularity full --recompute-method block --recompute-num-layers 2"
# +BATCH="--micro-batch-size 1 --ffn-hidden-size 1 --kv-channels 1"

# %% tags=["explore"] short={"my_pipeline.sh": "my_pipeline.sh --train-iters 1 --global-batch-size 4"}
!sbatch code/my_pipeline.sh

# %% tags=["explore"]
fitting = jobs.wait()

# %% tags=["explore"]
!grep -E "elapsed time|out of memory" {fitting.log} | tail -n 2

# %% [markdown]
# ## torchgpipe: a pipeline in one process
#
# [torchgpipe](https://torchgpipe.readthedocs.io) is a library that implements GPipe. One process drives all devices,
# with a thread for each. It needs the model as an `nn.Sequential`, and the **balance**: the number of layers on each
# device. Here are eight GPT blocks on four devices, all of which are this CPU:

# %% tags=["explore"]
import copy
import sys

import torch

sys.path.insert(0, "code/examples")
from torchgpipe import GPipe

from gpt_layers import Block, Size, build
from lablib import torchgpipe_cpu  # lets the stages run side by side on a CPU

small = Size(layers=8, hidden=128, heads=4, positions=64, vocabulary=1000)
plain = torch.nn.Sequential(*(build(Block, small, seed) for seed in range(8)))
piped = GPipe(copy.deepcopy(plain), balance=[2, 2, 2, 2], devices=["cpu"] * 4, chunks=4, checkpoint="except_last")

x = torch.randn(8, 64, 128)
for model in (plain, piped):
    model(x).square().mean().backward()
pairs = zip(plain.parameters(), piped.parameters(), strict=True)
worst = max((one.grad - other.grad).abs().max().item() for one, other in pairs)
print(f"largest difference between the gradients: {worst:.1e}")

# %% [markdown]
# The gradient is the same, up to rounding. You did not have to write any communication: on GPUs, the library copies
# from device to device.
#
# The workspace has a complete program that uses it, `code/examples/gpipe.py`. It trains a GPT of 14 layers (the
# embedding, 12 blocks, the head) on four devices, with the balance `[4, 3, 3, 4]`. Run it first with one chunk, then
# with four, without and with checkpointing:

# %% tags=["explore"] short={"--iterations 3": "--iterations 1 --batch-size 4 --seq-length 32"}
RUN = "python code/examples/gpipe.py --preset tiny --iterations 3"
!{RUN} --chunks 1 --checkpoint never | tail -n 3

# %% tags=["explore"]
!{RUN} --chunks 4 --checkpoint never | tail -n 3

# %% tags=["explore"]
!{RUN} --chunks 4 --checkpoint always | tail -n 3

# %% [markdown]
# Compare the loss, the time, and the activations of the three. (The time is your machine's: stages that share a few
# cores gain little. The memory is counted tensor by tensor.)
#
# The library can also choose the balance, by the layers' time or by their size (activations, parameters, and
# optimizer state). Here are the eight blocks again, followed by a large matrix, as in the last stage of a GPT. Where
# do the nine layers go? (The program has `--balance time` and `--balance size`.)

# %% tags=["explore"]
from torchgpipe.balance import balance_by_size, balance_by_time

with_head = torch.nn.Sequential(*copy.deepcopy(plain), torch.nn.Linear(128, 16_000))
with_head.zero_grad()  # the library insists
print("layers on each device, balanced by time:", balance_by_time(4, with_head, x, device="cpu"))
print("layers on each device, balanced by size:",
      balance_by_size(4, with_head, x, chunks=4, param_scale=4.0, device="cpu"))

# %% [markdown]
# ### Exercise 12: chunks
#
# `chunks` is torchgpipe's word for the number of micro-batches. It splits as `torch.chunk` does. Every chunk gets
# `samples / chunks` samples, rounded *up*, and the last one gets the remainder. If nothing remains, there are fewer
# chunks. What are the sizes of the micro-batches?

# %% nbgrader={"grade": false, "grade_id": "chunk-sizes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def chunk_sizes(samples, chunks):
    """Return the sizes of the micro-batches, a list of ints. samples: the mini-batch size."""
    ### BEGIN SOLUTION
    size = math.ceil(samples / chunks)
    return [min(size, samples - begin) for begin in range(0, samples, size)]
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "chunk-sizes-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    chunk_sizes,
    cases=[(8, 4), (10, 4), (9, 4), (3, 4)],
    expected=[[2, 2, 2, 2], [3, 3, 3, 1], [3, 3, 3], [1, 1, 1]],
    hints={
        "That is as even as possible, but torch.chunk gives every chunk but the last the rounded-up size.":
            [[2, 2, 2, 2], [3, 3, 2, 2], [3, 2, 2, 2], [1, 1, 1, 0]],
        "Samples are missing, because you rounded down.": [[2, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2], [0, 0, 0, 0]],
        "There are no empty chunks.": [[2, 2, 2, 2], [3, 3, 3, 1], [3, 3, 3, 0], [1, 1, 1, 0]],
        "That is more samples than you have: the last chunk gets the remainder.":
            [[2, 2, 2, 2], [3, 3, 3, 3], [3, 3, 3, 3], [1, 1, 1, 1]],
    })
### BEGIN HIDDEN TESTS
def cut(samples, chunks):
    size = -(-samples // chunks)
    return [size] * (samples // size) + [samples % size] * (samples % size > 0)


check.function(chunk_sizes, cases=check.draw(24, samples=range(1, 5000), chunks=range(1, 500)), expected=cut)
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="chunk-sizes" hint="That is as even"
# def chunk_sizes(samples, chunks):
#     return [samples // chunks + (k < samples % chunks) for k in range(chunks)]

# %% [raw] tags=["mutant"] answer="chunk-sizes" hint="Samples are missing"
# def chunk_sizes(samples, chunks):
#     return [samples // chunks] * chunks

# %% [raw] tags=["mutant"] answer="chunk-sizes" hint="There are no empty"
# def chunk_sizes(samples, chunks):
#     size = math.ceil(samples / chunks)
#     return [max(0, min(size, samples - k * size)) for k in range(chunks)]

# %% [raw] tags=["mutant"] answer="chunk-sizes" hint="That is more samples"
# def chunk_sizes(samples, chunks):
#     return [math.ceil(samples / chunks)] * chunks

# %% [markdown]
# ## Discuss
#
# 1. **More micro-batches for nothing?** The bubble shrinks with every micro-batch you add. Why does nobody use a
#    thousand?
# 2. **Two ways to four GPUs.** The model fits on one GPU. Would you rather use data parallelism or a pipeline?
#    And if the network is slow?
# 3. **The price of the flush.** The bubble exists because the pipeline drains at every step. What would happen if
#    the next mini-batch simply followed?
# 4. **A batch in the wrong order.** Your GPipe runs the backward passes in some order. Does it change the
#    gradient? The memory?

# %% [markdown]
# Your trainer does not use what you wrote in this lab: it splits the batch, but not yet the model. See what it can do
# so far:

# %% tags=["explore"] short={"!lab mytrainer": "!true"}
!lab mytrainer

# %% [markdown]
# ## Cleanup
#
# Cancel this lab's jobs in case they still run, and delete checkpoints, because they are large.

# %% tags=["explore"]
!scancel --quiet {two_stages.job} {eight_parts.job} {fitting.job}
!rm -rf megatron/checkpoints/pp_two_nodes
!squeue

# %% [markdown]
# ## Summary
#
# - If you split a model between layers, one device works at a time. Only activations and their gradients cross
#   the boundary.
# - Micro-batches let the stages compute at the same time. Their gradients add up to the mini-batch's if each is
#   weighted by its size.
# - GPipe runs all forward passes, then all backward passes, then flushes. Its bubble fraction is $(p - 1) / (m +
#   p - 1)$.
# - The slowest stage sets the pace. Balance by time, not by the number of layers.
# - Every stage holds the activations of all $m$ micro-batches. Checkpointing saves their inputs instead, for at
#   most a third more computation.
#
# ## Read next
#
# - [Huang et al. 2019, GPipe](https://arxiv.org/abs/1811.06965): micro-batches, the flush, and recomputation, on
#   giant image and translation models.
# - [Kim et al. 2020, torchgpipe](https://arxiv.org/abs/2004.09910): how a pipeline fits into PyTorch's autograd
#   and streams.
# - [Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters Using
#   Megatron-LM](https://arxiv.org/abs/2104.04473): section 2.2 compares the bubble of GPipe with that of later
#   schedules.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your
# scripts are in it.
#
# **Next:** the same bubble with less memory, and then a smaller bubble: [Pipeline II](11_pipeline_2.ipynb).
