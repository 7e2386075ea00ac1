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
# # Single node: three ways to use two GPUs
#
# A model does not fit on your GPU. You get a second GPU, and the job still runs out of memory.
#
# To use it, you have to **split** the training, and there are three basic ways: each GPU processes some of the samples,
# holds a part of every layer, or holds some of the layers. You will read the first way, write the other two, compare
# all three, find out and prove why a colleague's job runs at half speed, and predict the step time and memory of a
# large model. The lab takes one to two hours; a good place to stop is before *Half the speed*. (After a restart of the
# kernel, run the cells above again.)
#
# The **ranks** (the processes of a distributed program) that run your code are real, and so is the training on this
# machine's CPU. The GPUs are **virtual**: their time and memory are modeled. Commit to each guess *before* you run
# the next cell.

# %% tags=["setup"]
import os

import torch
import torch.distributed as dist
from torch.nn import functional

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("job_monitor.layouts", "job_monitor.bytes_sent", "layout_estimator", "minimegatron", "virtualgpu")

# %% tags=["explore"]
import json
import time

from job_monitor import layouts, logs
from labcore.colors import bad, mark, result
from lablib import jobs, plots
from layout_estimator import costs
from warmranks import record_ranks

jobs.connect()

# %% [markdown]
# ## Two GPUs, and still out of memory
#
# GPT-2 large ([Radford et al.,
# 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)) has 36
# layers. In fp32, every parameter takes 16 bytes: 4 each for the parameter, its gradient, and Adam's two moments.
#
# > **The next job is meant to fail.** It trains this model on a node with two V100s of 16 GB each.

# %% tags=["explore"]
LARGE = ("--num-layers 36 --hidden-size 1280 --num-attention-heads 20 --micro-batch-size 1 "
         "--global-batch-size 16")
!sbatch --job-name=gpt2_large code/gpt2_small.sh {LARGE} --train-iters 2

# %% tags=["explore"]
large_job = jobs.wait()

# %% [markdown]
# The cause is far above the end of the log:

# %% tags=["explore"]
print(bad(logs.lines(large_job.log, "CUDA out of memory")[-1]))
print(logs.lines(large_job.log, "using world size")[0])
line = logs.lines(large_job.log, "number of parameters")[0]
print(line)
print("times 16 bytes:", result(f"{16 * int(line.split()[-1]) / 2**30:.1f} GiB"))

# %% [markdown]
# The second line shows why the second GPU did not help. The data-parallel size is 2, so each GPU holds a whole copy of
# the model. The copy fills most of the memory before the first activation is stored.

# %% [markdown]
# ## A script and a log
#
# Without flags, the script that you have just submitted trains GPT-2 *small*:

# %% tags=["explore"]
!cat code/gpt2_small.sh

# %% [markdown]
# - `torchrun` is the **launcher**. It starts the ranks, one per GPU that Slurm has allocated on this node, unless you
#   set `RANKS`. With `--standalone`, they rendezvous at a free port, so two jobs on one node do not collide.
#   `--device virtual` makes the GPUs virtual V100s.
# - `"$@"` stands for the flags that follow the script's name in `sbatch`. If a flag occurs twice, the last one
#   counts.
# - Instead of `srun --cpus-per-task` (lab 00), you can set `SRUN_CPUS_PER_TASK` to pass the CPUs on.
#
# What does a rank do? `pretrain_gpt.py` is a loop around this method:

# %% tags=["explore"]
import inspect

from minimegatron.training import Trainer

print(inspect.getsource(Trainer.step))

# %% [markdown]
# It accumulates the gradients of all micro-batches, sums them over the ranks that share a parameter, and updates the
# parameters. The code is the same for every **layout**, that is, for every way to split the training.
#
# Now train a *small* model for real, with one rank on one core of this machine:

# %% tags=["explore"] short={"--train-iters 10": "--train-iters 2 --num-layers 2 --hidden-size 64 --seq-length 64"}
!RANKS=1 sbatch --job-name=one_rank code/single_node.sh --train-iters 10 --log-interval 1 --eval-iters 0

# %% tags=["explore"]
one_rank = jobs.wait()

# %% tags=["explore"]
for phrase in ("using world size", "number of micro-batches", "number of parameters"):
    print(logs.lines(one_rank.log, phrase)[0])
line = logs.lines(one_rank.log, "elapsed time per iteration")[-1]
print("\n".join(field.strip() for field in line.strip(" |").split("|")))

# %% [markdown]
# You will compare other jobs with this time.

# %% [markdown]
# ## Three ways to split
#
# ![Three pairs of GPUs. Data-parallel: each holds all four layers and has its own samples. Tensor-parallel: each
# holds half of every layer. Pipeline-parallel: the first holds layers 0 and 1, the second layers 2 and 3. Arrows show
# what travels.](../images/ways_to_share.svg)
#
# Ranks exchange gradients in **data parallelism** (DP), activations of every layer in **tensor parallelism** (TP),
# and activations between **stages**, groups of layers, in **pipeline parallelism** (PP). Your model for all three is
# the MLP of a transformer layer, in miniature,
#
# $$ \text{output} = \text{GELU}(x A)\,B, \qquad
#    \text{loss} = \frac{1}{b\,d}\,\lVert \text{output} - y \rVert^2, $$
#
# with samples $x$ and targets $y$ of shape `[b, d]`, and the weights $A$ (`first`, `[d, h]`) and $B$ (`second`, `[h,
# d]`). However you split it, the loss and the gradients must be those of one process.
#
# The process group already exists: see `dist.get_rank()` and `dist.get_world_size()`. `dist.all_reduce(tensor)`
# replaces a tensor on every rank by the sum over all ranks. `dist.send(tensor, dst)` and `dist.recv(tensor, src)`
# move a tensor from one rank to another; `dist.isend` and `dist.irecv` return a work handle at once, whose `wait()`
# returns when the transfer is done.

# %% tags=["setup"]
def mlp(x, first, second):
    """Return the output of the MLP, [b, d]."""
    return functional.gelu(x @ first) @ second


def mean_squared_error(output, y):
    """Return the loss, a tensor with one element."""
    return (output - y).square().mean()

# %% [markdown]
# ### Data parallelism, for a start
#
# Every rank has the whole model and an equal share of the batch. To save memory, a rank runs its share as
# `micro_batches` micro-batches, one after the other: `chunk` splits the rows, and `backward()` adds to `.grad`. Two
# lines make this match single-process training on the full batch. What would go wrong without each?

# %% tags=["setup"]
def data_parallel_step(x, y, first, second, micro_batches):
    """Run forward and backward on this rank's share of the batch.

    Args:
        x: this rank's samples, [b, d].
        y: this rank's targets, [b, d].
        first: the first weight, [d, h]; its .grad is None at the start.
        second: the second weight, [h, d]; its .grad is None at the start.
        micro_batches: how many to split the share into.

    Returns the loss of the whole batch, a tensor with one element, the same on every rank.
    """
    total = torch.zeros(1)
    for part_x, part_y in zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True):
        loss = mean_squared_error(mlp(part_x, first, second), part_y)
        loss = loss / micro_batches / dist.get_world_size()  # a mean of means of equal size
        loss.backward()
        total += loss.detach()
    for tensor in (first.grad, second.grad, total):  # once per step, not per micro-batch
        dist.all_reduce(tensor)
    return total


def data_parallel(seed, samples, micro_batches):
    """Run a step on this rank's share; return the loss and the norms of the gradients."""
    from lablib import splits

    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, y, first, second = splits.problem(seed, samples)
    first.requires_grad_()
    second.requires_grad_()
    loss = data_parallel_step(x.chunk(ranks)[rank], y.chunk(ranks)[rank], first, second, micro_batches)
    return [float(loss), first.grad.norm().item(), second.grad.norm().item()]

# %% [markdown]
# Without the division, the gradients are those of a sum instead of a mean. Without the all-reduce, the copies of the
# model drift apart. You will build this in [lab 04](04_data_parallelism.ipynb).

# %% [markdown]
# ### Exercise 1: tensor parallelism
#
# Now split the weights. Write `shard`, which returns a rank's part of both weights, and `tensor_parallel_step`, which
# runs one forward and backward pass with these parts. Every column of $A$ produces one column of $xA$, so each rank
# holds some columns and computes its part of the hidden layer alone, GELU included: the layer is **column-parallel**.
# Each column of the hidden layer is multiplied by one *row* of $B$, so the second layer is **row-parallel**. Each
# rank ends up with a partial sum of the output,
#
# $$ \text{GELU}(xA)\,B = \text{GELU}(xA_0)\,B_0 + \text{GELU}(xA_1)\,B_1, $$
#
# and one all-reduce adds them up. This is how Megatron splits an MLP ([Shoeybi et al.,
# 2019](https://arxiv.org/abs/1909.08053)).
#
# That leaves the backward pass. Autograd does not record `dist.all_reduce`, so cut its graph there: all-reduce a copy
# without history, and let a new graph start at the sum. (`detach` alone shares the memory of the original, which an
# all-reduce in place would overwrite.) `tensor.backward(gradient)` continues the backward pass of a graph at any tensor. In
# the end, every rank must have the whole gradient of $x$, and the gradients of its own shards. (Megatron uses two
# `torch.autograd.Function`s instead, $f$ and $g$. If you write such functions, define them inside your own.)

# %% answer="tensor-parallel"
def shard(first, second):
    """Return this rank's columns of `first` and its rows of `second`.

    Rank 0 has the first columns and rows, rank 1 the next, and so on. Each rank has equally many.
    """
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return first.chunk(ranks, dim=1)[rank], second.chunk(ranks, dim=0)[rank]
    ### END SOLUTION


def tensor_parallel_step(x, y, first, second):
    """Run forward and backward, and leave the gradients in x.grad, first.grad, and second.grad.

    Args:
        x: all samples, [b, d], the same on every rank; requires a gradient.
        y: all targets, [b, d], the same on every rank.
        first: this rank's columns of the first weight, from `shard`; requires a gradient.
        second: this rank's rows of the second weight, from `shard`; requires a gradient.

    Returns the loss, a tensor with one element, the same on every rank.
    """
    ### BEGIN SOLUTION
    part = functional.gelu(x @ first) @ second
    output = part.detach().clone()
    dist.all_reduce(output)
    output.requires_grad_()
    loss = mean_squared_error(output, y)
    loss.backward()
    part.backward(output.grad)
    dist.all_reduce(x.grad)
    return loss.detach()
    ### END SOLUTION

# %% tags=["driver"]
def tensor_parallel(seed, samples, hidden=8, norms=True):
    """Run forward and backward; return the loss and this rank's gradients, or their norms."""
    from lablib import splits

    x, y, *weights = splits.problem(seed, samples, hidden)
    first, second = (one.clone().requires_grad_() for one in shard(*weights))
    x.requires_grad_()
    loss = tensor_parallel_step(x, y, first, second)
    gradients = [x.grad, first.grad, second.grad]
    return [float(loss), *([one.norm().item() for one in gradients] if norms else gradients)]


def tensor_parallel_shards(seed, samples, shard_seed, columns):
    """Run forward and backward with a shard that this rank alone has; return the loss and gradients."""
    from lablib import splits

    x, y, *_ = splits.problem(seed, samples)
    first, second = (one.requires_grad_() for one in splits.problem(shard_seed, samples, columns)[2:])
    x.requires_grad_()
    loss = tensor_parallel_step(x, y, first, second)
    return [float(loss), x.grad, first.grad, second.grad]

# %% tags=["check-setup"]
import numpy as np
import torch

from lablib import splits


def one_process(x, y, first, second):
    """Return the loss of the whole MLP, and the gradients of x, first, and second."""
    inputs = [tensor.requires_grad_() for tensor in (x, first, second)]
    loss = (torch.nn.functional.gelu(x @ first) @ second - y).square().mean()
    return [loss.item(), *(one.numpy() for one in torch.autograd.grad(loss, inputs))]

# %% check="tensor-parallel" points=5
(run,) = check.ranks(
    tensor_parallel, cases=[{"seed": 1, "samples": 4}], ranks=2, rel=1e-4,
    expected=[[[0.6737998, 2.157136, 1.178128, 0.141395], [0.6737998, 2.157136, 1.181654, 0.1356546]]],
    # The values are [loss, norm of x.grad, norm of first.grad, norm of second.grad] for each rank.
    hints={
        "Every rank has only its own partial sum of the output.":
            [[[0.5300425, 1.842994, 1.056226, 0.1522765], [0.5052444, 1.842994, 1.026259, 0.1169468]]],
        "The loss is right, but each rank has only its own partial sum of the gradient of x.":
            [[[0.6737998, 1.182635, 1.178128, 0.141395], [0.6737998, 1.205408, 1.181654, 0.1356546]]],
        "The loss is right, but the gradients of the weights are twice as large. Every rank already has the whole "
        "gradient of the output, and an all-reduce counts it once per rank.":
            [[[0.6737998, 2.365269, 2.356255, 0.28279], [0.6737998, 2.410815, 2.363308, 0.2713092]]],
        "The loss is right, but all gradients are twice as large. Every rank already has the whole gradient of the "
        "output, and an all-reduce counts it once per rank.":
            [[[0.6737998, 4.314272, 2.356255, 0.28279], [0.6737998, 4.314272, 2.363308, 0.2713092]]],
        "The loss is right, but the ranks have other columns and rows: rank 0 has the first ones, rank 1 the next.":
            [[[0.6737998, 2.157136, 1.416416, 0.1288994], [0.6737998, 2.157136, 0.8820746, 0.1475794]]]})


def require_two_all_reduces(run, samples, columns):
    """Require that every rank all-reduces the output and the gradient of x, and computes with its own shard only."""
    for rank in range(len(run.values)):
        used = [(call.op, call.bytes) for call in run.calls(rank)]
        check.that(used == [("all_reduce", 24 * samples)] * 2,
                   f"One all-reduce of the output and one of the gradient of x suffice; each has {samples} x 6 "
                   f"elements, {24 * samples} bytes. Rank {rank} called "
                   + (", ".join(f"{op} with {size} bytes" for op, size in used) or "nothing") + ".")
        flops, share = run.records[rank].flops, 6 * 2 * samples * 6 * columns  # six matmuls
        check.that(flops <= share + 1,
                   f"Rank {rank} does {flops:.0f} FLOPs, but its share of the work is {share}. Each rank needs only "
                   "its own columns and rows.")


require_two_all_reduces(run, 4, 4)
### BEGIN HIDDEN TESTS
def shares(ranks, problem):
    loss, x, first, second = one_process(*problem)
    return [[loss, x, *one] for one in zip(
        np.split(first, ranks, axis=1), np.split(second, ranks), strict=True)]


def joined(seed, samples, columns, shard_seed):
    """Return the problem of which every rank has the weights of its own seed as its shard."""
    x, y, *_ = splits.problem(seed, samples)
    first, second = zip(*(splits.problem(one, samples, columns)[2:] for one in shard_seed), strict=True)
    return x, y, torch.cat(first, dim=1), torch.cat(second)


check.ranks(tensor_parallel, ranks=[1, 4], rel=1e-3,
            expected=lambda ranks, seed, samples, hidden, norms: shares(ranks, splits.problem(seed, samples, hidden)),
            cases=check.draw(1, seed=check.between(2, 90), samples=[3, 5], hidden=[8, 16], norms=[False]))
drawn = check.draw(1, seed=check.between(2, 90), samples=[3, 5], columns=[2, 4],
                   shard_seed=check.for_each_rank(check.between(100, 900)))
runs = check.ranks(tensor_parallel_shards, ranks=[2, 3], rel=1e-3, cases=drawn,
                   expected=lambda ranks, **given: shares(ranks, joined(**given)))
for run in runs:
    require_two_all_reduces(run, drawn[0]["samples"], drawn[0]["columns"])
### END HIDDEN TESTS

# %% [raw] mutant="tensor-parallel" hint="its own partial sum of the output"
# -    dist.all_reduce(output)

# %% [raw] mutant="tensor-parallel" hint="its own partial sum of the gradient of x"
# -    dist.all_reduce(x.grad)

# %% [raw] mutant="tensor-parallel" hint="other columns and rows"
# -    return first.chunk(ranks, dim=1)[rank], second.chunk(ranks, dim=0)[rank]
# +    return first[:, rank::ranks], second[rank::ranks]

# %% [raw] mutant="tensor-parallel" hint="of the weights are twice as large"
# -    part.backward(output.grad)
# +    dist.all_reduce(output.grad)
# +    part.backward(output.grad)
# -    dist.all_reduce(x.grad)

# %% [raw] mutant="tensor-parallel" hint="all gradients are twice as large"
# -    part.backward(output.grad)
# +    dist.all_reduce(output.grad)
# +    part.backward(output.grad)

# %% [raw] mutant="tensor-parallel" hint="suffice; each has"
# -    dist.all_reduce(x.grad)
# +    for tensor in (x.grad, loss.detach().clone()):
# +        dist.all_reduce(tensor)

# %% [raw] mutant="tensor-parallel" hint="needs only its own columns and rows"
# -    part = functional.gelu(x @ first) @ second
# +    ranks = dist.get_world_size()
# +    part = functional.gelu(x @ torch.cat([first] * ranks, dim=1))
# +    part = part @ torch.cat([second] * ranks) / ranks

# %% [markdown]
# ### Exercise 2: pipeline parallelism
#
# Now split between the two layers. Write `pipeline_step`, which both ranks call. Rank 0 has the samples and $A$; rank 1
# has the targets and $B$. Rank 0 sends the activations $\text{GELU}(xA)$. Rank 1 needs a buffer to receive them in: the
# targets and the weight determine its shape. Rank 1 then computes the loss, and sends back the gradient of the
# activations. Rank 0 continues the backward pass with `activations.backward(gradient)`.
#
# With the whole batch at once, one rank would always wait for the other. So split the batch into micro-batches
# ([Huang et al., 2019](https://arxiv.org/abs/1811.06965)). If there are at least two, rank 0 sends the second one before it
# waits for the first gradient; the check looks for that. Beware of a deadlock: with the `gloo` backend, `dist.send` returns only after the other rank has called
# `dist.recv`. If both ranks send, both wait forever. The check then prints where.

# %% answer="pipeline-parallel"
def pipeline_step(x, y, weight, micro_batches):
    """Run forward and backward as one of two stages, and leave the gradient in weight.grad.

    Args:
        x: all samples, [b, d]; None on rank 1.
        y: all targets, [b, d]; None on rank 0.
        weight: [d, h] on rank 0, [h, d] on rank 1; its .grad is None at the start.
        micro_batches: how many to split the batch into; b is divisible by it.

    Returns the loss of the whole batch, a tensor with one element, on rank 1; None on rank 0.
    """
    ### BEGIN SOLUTION
    if x is not None:
        waiting = []
        for part in x.chunk(micro_batches):
            activations = functional.gelu(part @ weight)
            dist.send(activations.detach(), dst=1)
            waiting.append(activations)
        for activations in waiting:
            gradient = torch.empty_like(activations)
            dist.recv(gradient, src=1)
            activations.backward(gradient)
        return None
    total, waiting = torch.zeros(1), []
    for part in y.chunk(micro_batches):
        activations = torch.empty(len(part), len(weight))
        dist.recv(activations, src=0)
        activations.requires_grad_()
        loss = mean_squared_error(activations @ weight, part) / micro_batches
        waiting.append((activations, loss))
        total += loss.detach()
    for activations, loss in waiting:
        loss.backward()
        dist.send(activations.grad, dst=0)
    return total
    ### END SOLUTION

# %% tags=["driver"]
def pipeline(seed, samples, micro_batches, norms=True):
    """Run a step as this rank's stage; return the loss (rank 1) and the weight's gradient, or its
    norm."""
    from lablib import splits

    x, y, *weights = splits.problem(seed, samples)
    rank = dist.get_rank()
    weight = weights[rank].requires_grad_()
    loss = pipeline_step(None if rank else x, y if rank else None, weight, micro_batches)
    return [None if loss is None else float(loss),
            weight.grad.norm().item() if norms else weight.grad]

# %% check="pipeline-parallel" points=5
(run,) = check.ranks(
    pipeline, cases=[{"seed": 1, "samples": 8, "micro_batches": 4}], ranks=2, rel=1e-4,
    expected=[[[None, 1.668396], [0.6736073, 0.1971379]]],
    # The values are [loss, norm of the weight's gradient]; rank 0 has no loss.
    hints={
        "Rank 0 sends activations while rank 1 sends a gradient, so neither receives. Let rank 1 finish all "
        "forward passes first, or send with dist.isend.": "deadlock",
        "The loss and the gradients are too large: the mean over the batch is the mean over its micro-batches.":
            [[[None, 6.673585], [2.694429, 0.7885514]]],
        "The last stage is right. Which gradient belongs to which activations on rank 0?":
            [[[None, 1.631702], [0.6736073, 0.1971379]]]})


def require_micro_batches(run, samples, micro_batches):
    """Require that both stages send one tensor per micro-batch, and that they work at the same time."""
    size = samples // micro_batches
    for rank, text in ((0, "activations"), (1, "gradients")):
        sizes = [call.bytes for call in run.calls(rank, "send")]
        check.that(sizes == [32 * size] * micro_batches,
                   f"Rank {rank} should send the {text} of {micro_batches} micro-batches, {size} x 8 elements "
                   f"({32 * size} bytes) each. It sends {sizes or 'nothing'} bytes.")
    for later in run.calls(0, "send")[1:2]:
        first_gradient = run.calls(0, "recv")[0].finished
        check.that(first_gradient is None or first_gradient >= later.started,
                   "Rank 0 waits for the gradient of its first micro-batch before it sends the second. Only one of the "
                   "stages works at any time.")


require_micro_batches(run, 8, 4)
### BEGIN HIDDEN TESTS
def stages(ranks, seed, samples, micro_batches, norms):
    """Rank 0 has the samples and the first weight of its seed, and rank 1 the rest of another one."""
    (x, _, first, _), (_, y, _, second) = (splits.problem(one, samples) for one in seed)
    loss, _, first, second = one_process(x, y, first, second)
    return [[None, first], [loss, second]]


drawn = check.draw(2, seed=check.for_each_rank(check.between(2, 90)), samples=[6, 12], micro_batches=[1, 2, 3],
                   norms=[False])
for run, case in zip(check.ranks(pipeline, ranks=2, rel=1e-3, expected=stages, cases=drawn), drawn, strict=True):
    require_micro_batches(run, case["samples"], case["micro_batches"])
### END HIDDEN TESTS

# %% [raw] mutant="pipeline-parallel" hint="so neither receives"
# -        waiting.append((activations, loss))
# -        total += loss.detach()
# -    for activations, loss in waiting:
# -        loss.backward()
# -        dist.send(activations.grad, dst=0)
# +        total += loss.detach()
# +        loss.backward()
# +        dist.send(activations.grad, dst=0)

# %% [raw] mutant="pipeline-parallel" hint="is the mean over its micro-batches"
# -        loss = mean_squared_error(activations @ weight, part) / micro_batches
# +        loss = mean_squared_error(activations @ weight, part)

# %% [raw] mutant="pipeline-parallel" hint="belongs to which activations"
# -        for activations in waiting:
# +        for activations in reversed(waiting):

# %% [raw] mutant="pipeline-parallel" hint="bytes) each. It sends"
# -    if x is not None:
# +    micro_batches = 1
# +    if x is not None:

# %% [raw] mutant="pipeline-parallel" hint="Only one of the stages works"
# def pipeline_step(x, y, weight, micro_batches):
#     if dist.get_rank() == 0:
#         for part in x.chunk(micro_batches):
#             activations = functional.gelu(part @ weight)
#             dist.send(activations.detach(), dst=1)
#             gradient = torch.empty_like(activations)
#             dist.recv(gradient, src=1)
#             activations.backward(gradient)
#         return None
#     total = torch.zeros(1)
#     for part in y.chunk(micro_batches):
#         activations = torch.empty(len(part), len(weight))
#         dist.recv(activations, src=0)
#         activations.requires_grad_()
#         loss = mean_squared_error(activations @ weight, part) / micro_batches
#         loss.backward()
#         dist.send(activations.grad, dst=0)
#         total += loss.detach()
#     return total

# %% [markdown]
# What does rank 0 communicate in one step, with the same 16 samples?

# %% tags=["explore"]
for function, case in ((data_parallel, (1, 16, 4)), (tensor_parallel, (1, 16)), (pipeline, (1, 16, 4))):
    records = record_ranks(function, 2, *case)
    print(f"{function.__name__:16}", "loss", f"{records[1].value[0]:.6f}  rank 0:",
          ", ".join(f"{call.op} {call.bytes} B" for call in records[0].calls))

# %% [markdown]
# The losses are the same. Data parallelism all-reduces gradients *once per step*. Tensor parallelism all-reduces
# activations *once per MLP, direction, and micro-batch*. Pipeline parallelism sends activations and their gradients
# *once per boundary and micro-batch*.

# %% [markdown]
# ## The same three in a full trainer
#
# `pretrain_gpt.py` has flags for two of them, `--tensor-model-parallel-size` $t$ and `--pipeline-model-parallel-size`
# $p$. A **replica** of the model then takes $t\,p$ ranks, and there are as many as the world size allows.
#
# Train GPT-2 small on one virtual V100, and on two in each of the three ways, always with a global batch of 8, the
# samples that all ranks process in one optimizer step. Guess each **speedup**, the step time of one GPU divided by
# that of two: 2 at best.

# %% answer="guess-speed"
### BEGIN SOLUTION
guess_dp, guess_tp, guess_pp = 1.9, 1.6, 1.9
### END SOLUTION

# %% tags=["explore"] short={"--train-iters 6": "--train-iters 4 --num-layers 2 --hidden-size 192"}
PROFILE = "--train-iters 6 --profile-execution yes"
!RANKS=1 sbatch --job-name=gpt2_one --gpus-per-node=1 code/gpt2_small.sh {PROFILE}
!sbatch --job-name=gpt2_dp code/gpt2_small.sh {PROFILE}
!sbatch --job-name=gpt2_tp code/gpt2_small.sh {PROFILE} --tensor-model-parallel-size 2
!sbatch --job-name=gpt2_pp code/gpt2_small.sh {PROFILE} --pipeline-model-parallel-size 2

# %% tags=["explore"]
four = jobs.wait_latest(4)

# %% tags=["explore"]
names = ("one GPU", "data-parallel", "tensor-parallel", "pipeline-parallel")
one, dp, tp, pp = [layouts.read(name, job, sequence_length=1024)
                   for name, job in zip(names, four, strict=True)]
layouts.show([one, dp, tp, pp])
for name, guess, run in (("data-parallel", guess_dp, dp), ("tensor-parallel", guess_tp, tp),
                         ("pipeline-parallel", guess_pp, pp)):
    check.compare(f"{name}, speedup (virtual)", guess, one.milliseconds / run.milliseconds)

# %% tags=["explore"]
layouts.plot([one, dp, tp, pp])

# %% [markdown]
# How many bytes does rank 0 send in one step? Let $P$ be the number of parameters, $L$ the number of layers, $h$ the
# hidden size, $V$ the vocabulary size (padded from 50,257), $b$ the micro-batch, $s$ the sequence length, and $m$ the
# number of micro-batches, 4 without data parallelism. In fp32, every element has 4 bytes.
#
# - **Data-parallel:** an all-reduce of the gradients. In a ring ([Patarasuk and Yuan,
#   2009](https://doi.org/10.1016/j.jpdc.2008.09.002)), each of $n$ ranks sends $2(n-1)/n$ times the size of the
#   tensor: with two ranks, $4P$ bytes.
# - **Tensor-parallel:** an all-reduce of $4bsh$ bytes in each direction for the attention and the MLP of every layer.
#   The word embedding and the output matrix, which are split by vocabulary, add one each: $(4L+2)\,m \cdot 4bsh$
#   bytes.
# - **Pipeline-parallel:** activations, $m \cdot 4bsh$ bytes. But GPT-2 uses its word embedding also as the output
#   matrix, so each stage has a copy, and their gradients need an all-reduce: $4Vh$ bytes more.

# %% tags=["explore"]
L, h, V, b, s, m = 12, 768, 50_304, 2, 1024, 4
P = one.parameters[0, 0]
for run, formula in ((dp, 4 * P), (tp, (4 * L + 2) * m * 4 * b * s * h),
                     (pp, m * 4 * b * s * h + 4 * V * h)):
    print(f"{run.name:18} formula {formula / 1e6:9,.2f} MB   recorded "
          f"{result(f'{run.sent[0] / 1e6:9,.2f}')} MB")

# %% [markdown]
# The formula for tensor parallelism leaves out the loss: with a split vocabulary, the cross-entropy all-reduces three
# numbers per token (the maximum, the sum of exponentials, the correct logit). Now the memory:

# %% tags=["explore"]
for name, run in (("one GPU", one), ("data-parallel", dp), ("tensor-parallel", tp),
                  ("pipeline-parallel", pp)):
    for rank, gib in sorted(run.memory.items()):
        held = run.parameters.get((rank, 0) if run is tp else (0, rank), run.parameters[0, 0])
        print(f"{name:18} rank {rank}: {held:12,} parameters, {gib:6.2f} GiB at the peak (virtual)")

# %% [markdown]
# - **Data-parallel**: one all-reduce per step, here after the backward pass; `--overlap-grad-reduce` starts it
#   earlier. But plain data parallelism saves no memory. ZeRO does, by sharding the model's state over the replicas
#   ([Rajbhandari et al., 2020](https://arxiv.org/abs/1910.02054)).
# - **Tensor-parallel**: half of the parameters, gradients, optimizer state, and most activations. But every
#   all-reduce delays the next matrix multiplication, which costs time even within this node, where one NVLink of 25
#   GB/s in each direction connects the two GPUs. (Megatron-LM hides the all-reduces of the backward pass behind the
#   weight-gradient GEMMs; this trainer does not.)
# - **Pipeline-parallel**: few bytes, but each stage waits for the other at the start and the end of the step. With
#   $p$ equal stages and $m$ micro-batches, this **bubble** takes a fraction of $(p-1)/(m+p-1)$ of the step. Here, the
#   stages are not equal: the last one also has the output matrix. And rank 0 starts its second micro-batch before the
#   gradient of the first one comes back, so its activations are not halved.

# %% tags=["explore"]
bubble = 1 / (4 + 2 - 1)
print(f"no waiting: {one.milliseconds / 2:.0f} ms; with a bubble of {bubble:.0%}: "
      f"{one.milliseconds / 2 / (1 - bubble):.0f} ms; the run: {result(f'{pp.milliseconds:.0f}')} ms (virtual)")

# %% [markdown]
# ## Half the speed
#
# A colleague trains the small model with two data-parallel ranks, each with a core of its own, and complains: "Two
# ranks are as slow as one." Submit the job. **Do not read the script yet.**

# %% tags=["explore"] short={"--train-iters 2000": "--train-iters 2000 --num-layers 2 --hidden-size 64 --seq-length 64"}
!sbatch code/half_speed.sh --train-iters 2000 --log-interval 1 --eval-iters 0

# %% tags=["explore"]
slow = jobs.show()
for _ in range(200):
    if slow.log.exists() and len(logs.read(slow.log).iterations) >= 6:
        break
    time.sleep(0.25)


def milliseconds(job):
    """Return the median time of a job's iterations, without the first."""
    times = sorted(one.milliseconds for one in logs.read(job.log).iterations[1:])
    return times[len(times) // 2]


print(f"one rank: {milliseconds(one_rank):.0f} ms; two ranks: {result(f'{milliseconds(slow):.0f}')} ms")

# %% [markdown]
# Each rank processes half of the samples, so a step should take about half as long, unless other work slows this
# machine down. Is a rank hanging, or waiting for another?

# %% tags=["explore"]
!lab top --once

# %% [markdown]
# Both ranks run at the same pace, neither is stalled, and there is no error. What are they doing?
# [py-spy](https://github.com/benfred/py-spy) prints the Python stack of a running process. `srun --overlap` runs it
# beside the ranks:

# %% tags=["explore"]
found = !lab top --json {slow.job}
ranks = [rank["pid"] for rank in json.loads("\n".join(found))["jobs"][0]["ranks"]]
pids = " ".join(map(str, ranks))
!srun --jobid={slow.job} --overlap py-spy dump --pid {ranks[0]} | head -n 9

# %% [markdown]
# Run the cell a few times. You will see the rank in the forward pass, in the backward pass, and in the all-reduce.
# (If you get *Permission denied*, go on without the stack.) Two suspects remain:
#
# - **A core.** Both ranks run on the same core, so each gets half of its time.
# - **The all-reduce.** Each rank computes only half as long as one rank would, but then the all-reduce of the gradients
#   takes as long as the other half.
#
# A few stacks convict neither. A shared core would slow down the all-reduce as well, and a slow all-reduce does not
# show up in a stack that is taken while the rank computes.
#
# ### Exercise 3: convict a suspect
#
# An **experiment** can decide: run the training twice, and change *one* thing between the runs. It convicts a suspect
# if the two suspects predict different ratios of the two step times. If they predict the same ratio, the experiment
# tells you nothing, whatever its result.
#
# Write `code/my_experiment.sh`, a job that runs the trainer exactly twice, first one run and then the other. You may
# change the number of ranks (1 or 2), the number of cores that they can use (1 or 2), or the global batch. `taskset
# --cpu-list "$CORE" COMMAND` runs a command, and everything that it starts, on a single core. Start each run
# with `srun --cpus-per-task="$SLURM_CPUS_PER_TASK"`, so that it has both cores unless you take one away, and launch it
# with `torchrun --standalone --nproc_per_node RANKS $TRAIN "$@"`. A flag after `$TRAIN`, such as `--global-batch-size
# 16`, overrides the one inside.
#
# Calculate both predictions before you submit. With a core to itself, a rank takes one unit of time per sample, so one
# rank takes 8 units for a batch of 8. Two ranks that share a core take two units per sample each, whoever is guilty. If
# the all-reduce is guilty, it adds 4 units with two ranks, whatever the batch. Otherwise, it takes no time. Noise blurs
# small differences, so the larger of the two predicted ratios must be at least 1.3 times the smaller.

# %% answer="experiment"
%%writefile code/my_experiment.sh
#!/bin/bash
# Two training runs that differ in one thing.
#SBATCH --job-name=my_experiment
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
CORE=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
DATA=$LAB_HOME/data/bpe-4096
TRAIN="$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py \
       --num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256 --device cpu \
       --micro-batch-size 2 --global-batch-size 8 --train-iters 8 --lr 1e-3 \
       --data-path $DATA/text_document --vocab-file $DATA/vocab.json \
       --merge-file $DATA/merges.txt --split 949,50,1 --log-interval 1 --eval-iters 0"
### BEGIN SOLUTION
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" taskset --cpu-list "$CORE" \
    torchrun --standalone --nproc_per_node 2 $TRAIN "$@"
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    torchrun --standalone --nproc_per_node 2 $TRAIN "$@"
### END SOLUTION

# %% tags=["check-setup"]
from dataclasses import asdict


def conditions(run, job):
    """Return the three things that an experiment may change, as {name: value}."""
    cores = run.bound or (int(run.cpus_per_task or 1) if run.by_srun else job.cpus_per_node)
    return {"ranks": run.world_size, "cores": min(cores, 2), "global batch": run.flags.global_batch_size}


def predictions(run):
    """Return the units of time that each suspect predicts, as {suspect: units}."""
    compute = run["global batch"] / run["ranks"] * max(1, run["ranks"] / run["cores"])
    return {"a core": compute, "the all-reduce": compute + (4 if run["ranks"] > 1 else 0)}


FREE = ("world_size", "data_parallel_size", "global_batch_size", "lr_decay_samples")  # follow from what may change


def fixed(run):
    """Return every flag that no run may change, as {name: value}."""
    return {name: value for name, value in asdict(run.flags).items() if name not in FREE}


def model_of(run):
    """Return the model's size, and the device."""
    flags = run.flags
    return (flags.num_layers, flags.hidden_size, flags.num_attention_heads, flags.seq_length, flags.ffn_hidden_size,
            flags.make_vocab_size_divisible_by, str(flags.device))

# %% check="experiment" points=4
job = check.script("code/my_experiment.sh", given=None)
check.that(not job.problems, "This would go wrong. " + " ".join(job.problems))
check.that(len(job.runs) == 2, f"It runs the trainer {len(job.runs)} times. An experiment with one change needs "
           "exactly two runs, one after the other.")
check.that(all(model_of(run) == (4, 256, 8, 256, 1024, 128, "cpu") for run in job.runs),
           "A run changes the model or the device. Pass $TRAIN to both.")
differing = sorted(name for name, value in fixed(job.runs[0]).items() if fixed(job.runs[1])[name] != value)
check.that(not differing, "The two runs also differ in what this experiment leaves alone: " + ", ".join(differing))
first, second = (conditions(run, job) for run in job.runs)
check.that(all((run.by_srun and run.cpus_per_task == "2") or run.bound for run in job.runs),
           "How many cores a run can use is unclear: it depends on the cluster, because not every Slurm binds tasks to "
           'CPUs. Start both runs with srun --cpus-per-task="$SLURM_CPUS_PER_TASK", and take a core away with taskset.')
changed = [name for name in first if first[name] != second[name]]
check.that(bool(changed), "Both runs are the same, so both suspects predict equal times.")
check.that(len(changed) == 1, f"The runs differ in {' and '.join(changed)}. If the times differ, which change did it?")
one, two = predictions(first), predictions(second)
ratios = {suspect: two[suspect] / one[suspect] for suspect in one}
low, high = sorted(ratios.values())
check.that(high / low >= 1.3, "Both suspects predict about the same result: " + ", ".join(
    f"if it is {suspect}, the second run takes {ratio:.2f} times as long" for suspect, ratio in ratios.items())
    + ". Whatever you measure, you will not know more than before.")

# %% [raw] mutant="experiment" hint="exactly two runs"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" taskset --cpu-list "$CORE" \
# -    torchrun --standalone --nproc_per_node 2 $TRAIN "$@"

# %% [raw] mutant="experiment" hint="Both runs are the same"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" taskset --cpu-list "$CORE" \
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \

# %% [raw] mutant="experiment" hint="Both suspects predict about the same result"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" taskset --cpu-list "$CORE" \
# -    torchrun --standalone --nproc_per_node 2 $TRAIN "$@"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# -    torchrun --standalone --nproc_per_node 2 $TRAIN "$@"
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" taskset --cpu-list "$CORE" \
# +    torchrun --standalone --nproc_per_node 1 $TRAIN "$@"
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# +    torchrun --standalone --nproc_per_node 1 $TRAIN "$@"

# %% [raw] mutant="experiment" hint="which change did it?"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# -    torchrun --standalone --nproc_per_node 2 $TRAIN "$@"
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# +    torchrun --standalone --nproc_per_node 1 $TRAIN "$@"

# %% [raw] mutant="experiment" hint="it depends on the cluster"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# -    torchrun --standalone --nproc_per_node 2 $TRAIN "$@"
# +srun torchrun --standalone --nproc_per_node 2 $TRAIN "$@"

# %% [raw] mutant="experiment" hint="This would go wrong"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# -    torchrun --standalone --nproc_per_node 2 $TRAIN "$@"
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# +    torchrun --standalone --nproc_per_node 3 $TRAIN "$@"

# %% [raw] mutant="experiment" hint="differ in what this experiment leaves alone"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# -    torchrun --standalone --nproc_per_node 2 $TRAIN "$@"
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# +    torchrun --standalone --nproc_per_node 2 $TRAIN --tensor-model-parallel-size 2 "$@"

# %% [raw] mutant="experiment" hint="changes the model"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# -    torchrun --standalone --nproc_per_node 2 $TRAIN "$@"
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
# +    torchrun --standalone --nproc_per_node 2 $TRAIN --num-layers 2 "$@"

# %% [markdown]
# Cancel the colleague's job, which would disturb your measurement, and run your experiment:

# %% tags=["explore"] short={"my_experiment.sh": "my_experiment.sh --train-iters 3 --num-layers 2 --hidden-size 64 --seq-length 64"}
evidence = !srun --jobid={slow.job} --overlap bash code/cpus_of.sh {pids}
!scancel {slow.job}
!sbatch code/my_experiment.sh

# %% tags=["explore"]
experiment = jobs.wait()

# %% tags=["explore"]
lines = logs.read(experiment.log).iterations
starts = [at for at, line in enumerate(lines) if line.iteration == 1]
runs = [sorted(line.milliseconds for line in lines[start + 1:end])
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
before, after = (run[len(run) // 2] for run in runs)
print(f"{before:.0f} ms per iteration, then {after:.0f} ms: {result(f'{after / before:.2f}')} times as long")

# %% [markdown]
# Compare the ratio with your two predictions. The machine also runs other processes, so expect it near one of them, not
# on it. If it is near neither, other processes took your cores: run the job again.
#
# Now that you know *what*, find out *who*. A process may run only on the CPUs of its **affinity mask**, which it
# inherits from the process that started it. Before you canceled the job, `code/cpus_of.sh` listed both ranks, their
# parent, its parent, and so on, with the CPUs that each may use. The script that comes after that list should keep ranks
# from taking cores from each other; the colleague's job starts its launcher with it:

# %% tags=["explore"]
print("\n".join(evidence))
!cat code/one_core.sh

# %% [markdown]
# Follow the column `CPUS` upward from the ranks: the list gets longer above the launcher, `torchrun`. So the ranks
# inherited theirs from the launcher. `one_core.sh` works if `srun` starts one task per rank: then `$SLURM_LOCALID` is 0
# for one rank and 1 for the other. Here, `srun` starts a single task, the launcher, which gets core 0, and both ranks
# inherit that. On a cluster that binds tasks to CPUs (this course's own does not), forgetting `--cpus-per-task` does
# the same damage; `srun --cpu-bind=verbose` prints every task's mask.

# %% [markdown]
# ### Exercise 4: repair the job
#
# Write a script that does what your colleague wanted: one launcher starts two ranks (`--nproc_per_node 2`) on one node
# (`--nodes 1`), and each can use a CPU of its own, even on a cluster that binds tasks to CPUs. Write the directives that
# request this, and no more, and the last command. Pass the script's variables to the trainer, and then `"$@"`.

# %% answer="repaired"
%%writefile code/my_two_ranks.sh
#!/bin/bash
# A small GPT on one node, data-parallel over two ranks, each on a core of its own.
#SBATCH --job-name=my_two_ranks
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
### BEGIN SOLUTION
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
### END SOLUTION
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/bpe-4096
MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256 --device cpu"
BATCH="--micro-batch-size 2 --global-batch-size 8 --train-iters 10"
OPTIMIZER="--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.01 --clip-grad 1.0"
TEXT="--data-path $DATA/text_document --vocab-file $DATA/vocab.json \
      --merge-file $DATA/merges.txt --split 949,50,1"
OUTPUT="--log-interval 1 --eval-iters 0"
TRAINER=$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py
### BEGIN SOLUTION
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    torchrun --standalone --nproc_per_node 2 \
    "$TRAINER" $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT "$@"
### END SOLUTION

# %% check="repaired" points=3
job = check.script("code/my_two_ranks.sh")
check.that(job.run.bound is None or job.run.bound >= 2,
           f"The script leaves torchrun {job.run.bound} CPU, and both ranks inherit that.")
# srun gives a task one CPU by default; without srun, the launcher has all CPUs of the job on its node.
cpus = int(job.run.cpus_per_task or 1) if job.run.by_srun else job.cpus_per_node
check.that(cpus >= 2, "Where Slurm binds tasks, both ranks share a CPU: the launcher has only one, unless the job "
           "requests two and you pass it the CPUs of the task.")
check.that(job.cpus_per_node <= 2, f"The job requests {job.cpus_per_node} CPUs, and its two ranks use one each.")
more = check.program("code/my_two_ranks.sh", "pretrain_gpt.py", arguments=["--train-iters", "7"], job_id=2)
check.that(list(more.run.arguments[-2:]) == ["--train-iters", "7"],
           'The flags that follow the script in sbatch do not reach the trainer. What does "$@" stand for?')
check.that(job.run.port == "0" or more.run.port != job.run.port, f"Every job uses port {job.run.port}, so two jobs "
           "on the same node collide. With --standalone, torchrun picks a free port.")

# %% [raw] mutant="repaired" hint="Every job uses port"
# -    torchrun --standalone --nproc_per_node 2 \
# +    torchrun --nproc_per_node 2 \

# %% [raw] mutant="repaired" hint="and both ranks inherit that"
# -    torchrun --standalone --nproc_per_node 2 \
# +    bash "$LAB_HOME/code/one_core.sh" torchrun --standalone --nproc_per_node 2 \

# %% [raw] mutant="repaired" hint="and you pass it"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
# +srun --kill-on-bad-exit=1 \

# %% [raw] mutant="repaired" hint="and both ranks inherit that"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
# -    torchrun --standalone --nproc_per_node 2 \
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
# +    numactl --physcpubind=0 torchrun --standalone --nproc_per_node 2 \

# %% [raw] mutant="repaired" hint="and you pass it"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
# +srun --cpus-per-task=1 --kill-on-bad-exit=1 \

# %% [raw] mutant="repaired" hint="and both ranks inherit that"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --cpu-bind=map_cpu:0,1 \

# %% [raw] mutant="repaired" hint="unless the job requests two"
# -#SBATCH --ntasks-per-node=1
# -#SBATCH --cpus-per-task=2
# +#SBATCH --ntasks-per-node=1
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
# +srun --kill-on-bad-exit=1 \

# %% [raw] mutant="repaired" hint="unless the job requests two"
# -#SBATCH --ntasks-per-node=1
# -#SBATCH --cpus-per-task=2
# +#SBATCH --ntasks-per-node=1
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
# -    torchrun --standalone --nproc_per_node 2 \
# +torchrun --standalone --nproc_per_node 2 \

# %% [raw] mutant="repaired" hint="and its two ranks use one each"
# -#SBATCH --cpus-per-task=2
# +#SBATCH --cpus-per-task=8

# %% [raw] mutant="repaired" hint="do not reach the trainer"
# -    "$TRAINER" $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT "$@"
# +    "$TRAINER" $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT

# %% [raw] mutant="repaired" hint="nodes x ranks per node"
# -    torchrun --standalone --nproc_per_node 2 \
# +    torchrun --standalone --nproc_per_node 1 \

# %% tags=["explore"] short={"my_two_ranks.sh": "my_two_ranks.sh --train-iters 2 --num-layers 2 --hidden-size 64 --seq-length 64"}
!sbatch code/my_two_ranks.sh

# %% tags=["explore"]
two_ranks = jobs.wait()

# %% tags=["explore"]
for name, job in (("one rank", one_rank), ("two ranks on one core", slow), ("two ranks, repaired", two_ranks)):
    print(f"{name:22} {milliseconds(job):8.1f} ms per iteration (on this machine)")

# %% [markdown]
# ## Do they learn the same?
#
# On virtual GPUs, tensors have shapes but no values, but you have trained the small model for real, on one rank and
# on two data-parallel ones. Add the other two layouts. After the last iteration, **how far apart** will the largest
# and the smallest of the four losses be?

# %% answer="guess-apart"
### BEGIN SOLUTION
guess_apart = 0.01
### END SOLUTION

# %% tags=["explore"] short={"--train-iters 10": "--train-iters 2 --num-layers 2 --hidden-size 64 --seq-length 64"}
SMALL = "--train-iters 10 --log-interval 1 --eval-iters 0"
!sbatch --job-name=tp_small code/single_node.sh {SMALL} --tensor-model-parallel-size 2
!sbatch --job-name=pp_small code/single_node.sh {SMALL} --pipeline-model-parallel-size 2

# %% tags=["explore"]
others = jobs.wait_latest(2)

# %% tags=["explore"]
small = {"one rank": logs.read(one_rank.log), "data-parallel": logs.read(two_ranks.log),
         "tensor-parallel": logs.read(others[0].log), "pipeline-parallel": logs.read(others[1].log)}
losses = [log.iterations[-1].loss for log in small.values()]
for name, log in small.items():
    last = log.iterations[-1]
    print(f"{name:18} loss {last.loss:.6f}, grad norm {last.grad_norm:.3f}")
check.compare("largest minus smallest loss", guess_apart, max(losses) - min(losses))
plots.loss(**small)

# %% [markdown]
# The four curves lie on top of each other: every step sees the same samples, and only the order of the additions
# differs. **How you split the training does not change what the model learns.** So if the curve of a new layout is
# different, look for a bug.

# %% [markdown]
# ## Make it fit
#
# Back to GPT-2 large, which ran out of memory on two V100s. On a real cluster, every failed attempt sends you back to
# the end of the queue. A *shallow* model, with a few layers of full width, is cheap to measure, and you can predict the
# deep one from it.
#
# **Activation checkpointing** ([Chen et al., 2016](https://arxiv.org/abs/1604.06174)) discards activations and
# recomputes them in the backward pass. With `--recompute-granularity full`, each layer keeps only its input.
# `--recompute-activations` is selective: it recomputes only the largest activations, those inside the attention
# ([Korthikanti et al., 2022](https://arxiv.org/abs/2205.05198)). Here are seven settings with 4 and with 8 layers:

# %% tags=["explore"]
TENSOR, PIPELINE = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
FULL = "--recompute-granularity full --recompute-method uniform"
SETTINGS = [f"{flags} --micro-batch-size {size}" for flags, size in (
    ("", 1), ("--recompute-activations", 1), (TENSOR, 1), (TENSOR, 4), (PIPELINE, 1),
    (f"{PIPELINE} --recompute-activations", 1), (f"{TENSOR} {FULL}", 1))]
WIDE = ("--device virtual:v100 --world-size 2 --gpus-per-node 2 --hidden-size 1280 --num-attention-heads 20 "
        "--seq-length 1024 --max-position-embeddings 1024 --global-batch-size 16")


def measured(layers):
    """Return {setting: (milliseconds per step, GiB at the peak)}, modeled."""
    found = costs.of({one: f"{one} --num-layers {layers}" for one in SETTINGS}, WIDE)
    return {one.name: (one.milliseconds, one.total) for one in found}


four, eight = measured(4), measured(8)
for one in SETTINGS:
    print(f"{four[one][0]:5.0f} ms {four[one][1]:5.2f} GiB   {eight[one][0]:5.0f} ms {eight[one][1]:5.2f} GiB   {one}")

# %% [markdown]
# ### Exercise 5: measure small, predict large
#
# Write `fastest_that_fits`, which chooses the setting for a deep model from two shallow ones. Your choice has to fit, and take at most 15%
# longer than the fastest setting that fits. The hidden tests draw other costs, depths, and memory sizes, and one of
# them models the deep model itself. Return `None` if nothing fits.

# %% answer="fastest-that-fits"
def fastest_that_fits(small, large, layers, capacity):
    """Return a setting that fits and is nearly the fastest of those that do, or None if none fits.

    Args:
        small: {setting: (milliseconds per step, GiB at the peak)} of the shallow model.
        large: the same of a model with more layers, and otherwise equal.
        layers: the number of layers of `small`, of `large`, and of the model to train.
        capacity: memory of a GPU, in GiB.
    """
    ### BEGIN SOLUTION
    few, some, many = layers
    times = {}
    for setting in small:
        time, memory = (before + (after - before) / (some - few) * (many - few)
                        for before, after in zip(small[setting], large[setting], strict=True))
        if memory <= capacity:
            times[setting] = time
    return min(times, key=times.get, default=None)
    ### END SOLUTION

# %% tags=["check-setup"]
def deep(case):
    """Return {setting: (milliseconds, GiB)} of the model to train: all costs are affine in the layers."""
    few, some, many = case["layers"]
    return {name: tuple(a + (b - a) / (some - few) * (many - few)
                        for a, b in zip(case["small"][name], case["large"][name], strict=True))
            for name in case["small"]}


def drawn_runs(dice):
    """Draw settings whose costs grow with the layers by different amounts."""
    few, some, many = 2 * dice.choice([1, 2, 3]), 2 * dice.choice([4, 5, 6]), 4 * dice.choice(range(8, 25))
    base = dice.uniform(60, 150)
    small, large, memories = {}, {}, []
    for rank, name in enumerate(dice.sample(["plain", "recompute", "split", "split and recompute", "stages"], 5)):
        time, memory = base * 1.4 ** rank, 0.6 / 1.5 ** rank
        fixed = dice.uniform(0.2, 4) * base, dice.uniform(0.8, 2.0) + 0.3 * rank
        small[name] = (fixed[0] + few * time, fixed[1] + few * memory)
        large[name] = (fixed[0] + some * time, fixed[1] + some * memory)
        memories.append(fixed[1] + many * memory)
    return {"small": small, "large": large, "layers": (few, some, many),
            "capacity": round(dice.choice(memories) * dice.choice([0.96, 1.04]), 2)}

# %% check="fastest-that-fits" points=4
case = {"small": {"copies": (400.0, 3.97), "copies, recompute": (434.0, 3.39), "tensor": (455.0, 2.74),
                  "pipeline": (600.0, 3.89), "pipeline, recompute": (640.0, 3.47),
                  "tensor, recompute all": (700.0, 2.33)},
        "large": {"copies": (733.0, 5.54), "copies, recompute": (801.0, 4.40), "tensor": (1010.0, 3.56),
                  "pipeline": (942.0, 5.08), "pipeline, recompute": (1018.0, 4.10),
                  "tensor, recompute all": (1480.0, 2.72)},
        "layers": (4, 8, 48)}


def require_fastest(choice, case, truth):
    """Require that a choice fits, and that no setting that fits is much faster."""
    fitting = [time for time, memory in truth.values() if memory <= case["capacity"]]
    if not fitting:
        check.that(choice is None, "No setting fits this model. Return None.")
        return
    check.that(choice is not None, "A setting fits, but you found none. Does a model with no layers take no memory?")
    check.that(choice in truth, "Return a setting as a key of `small` spells it.")
    time, memory = truth[choice]
    check.that(memory <= case["capacity"],
               f"With {case['layers'][2]} layers, your setting takes {memory:.2f} of {case['capacity']} GiB (virtual): "
               "CUDA out of memory. How much memory does each layer add?")
    check.pass_mark(time / min(fitting), f"It fits, and a step takes {time:.0f} ms (virtual). Another setting fits, "
                    "too, and your step takes more than 15% longer.", error=0.074, below=1.15)


for capacity in (16.0, 14.0, 6.0):
    require_fastest(check.call(fastest_that_fits, case["small"], case["large"], case["layers"], capacity),
                    {**case, "capacity": capacity}, deep(case))
### BEGIN HIDDEN TESTS
for case in (one["case"] for one in check.draw(12, case=drawn_runs)):
    require_fastest(check.call(fastest_that_fits, case["small"], case["large"], case["layers"], case["capacity"]),
                    case, deep(case))

from layout_estimator import costs

(drawn,) = check.draw(1, hidden=[1024, 1280, 1536], layers=[24, 32, 40, 48], capacity=check.between(11, 20))
names = ["--micro-batch-size 1", "--micro-batch-size 1 --recompute-activations",
         "--micro-batch-size 1 --tensor-model-parallel-size 2",
         "--micro-batch-size 1 --tensor-model-parallel-size 2 --recompute-granularity full --recompute-method uniform"]
few, some, many = (
    {name: (one.milliseconds, one.total) for name, one in zip(names, costs.of(
        {name: f"{name} --num-layers {layers}" for name in names},
        "--device virtual:v100 --world-size 2 --gpus-per-node 2 --num-attention-heads 16 --seq-length 1024 "
        f"--max-position-embeddings 1024 --global-batch-size 16 --hidden-size {drawn['hidden']}"), strict=True)}
    for layers in (2, 6, drawn["layers"]))
case = {"small": few, "large": some, "layers": (2, 6, drawn["layers"]), "capacity": drawn["capacity"]}
require_fastest(check.call(fastest_that_fits, case["small"], case["large"], case["layers"], case["capacity"]),
                case, many)
### END HIDDEN TESTS

# %% [raw] mutant="fastest-that-fits" hint="How much memory does each layer add?"
# -        if memory <= capacity:
# +        if large[setting][1] <= capacity:

# %% [raw] mutant="fastest-that-fits" hint="takes more than 15% longer"
# -    return min(times, key=times.get, default=None)
# +    return max(times, key=times.get, default=None)

# %% [raw] mutant="fastest-that-fits" hint="takes more than 15% longer"
# -            times[setting] = time
# +            times[setting] = large[setting][0]

# %% [raw] mutant="fastest-that-fits" hint="takes more than 15% longer"
# -            times[setting] = time
# +            times[setting] = small[setting][0]

# %% [raw] mutant="fastest-that-fits" hint="Does a model with no layers take no memory?"
# -        time, memory = (before + (after - before) / (some - few) * (many - few)
# -                        for before, after in zip(small[setting], large[setting], strict=True))
# +        time, memory = (after / some * many for after in large[setting])

# %% [raw] mutant="fastest-that-fits" hint="No setting fits this model"
# -    return min(times, key=times.get, default=None)
# +    return min(times, key=times.get, default=min(large, key=lambda one: large[one][1]))

# %% [raw] mutant="fastest-that-fits" hint="as a key of `small` spells it"
# -    return min(times, key=times.get, default=None)
# +    return min(times.values(), default=None)

# %% [markdown]
# Choose for GPT-2 large, and train it:

# %% tags=["explore"] short={"{LARGE} {setting}": "{LARGE} {setting} --num-layers 2 --hidden-size 640 --global-batch-size 4"}
setting = fastest_that_fits(four, eight, (4, 8, 36), 15.78)  # GiB that CUDA reports for a 16 GB V100
print(f"your choice: {result(str(setting))}")
!sbatch --job-name=my_large code/gpt2_small.sh {LARGE} {setting} --train-iters 4

# %% [markdown]
# While it runs, look at the GPUs with `nvidia-smi`:

# %% tags=["explore"]
screen, busy = [], 0
while busy < 2 and not (now := jobs.show()).is_over:
    if now.state == "RUNNING":
        screen = !srun --jobid={now.job} --overlap nvidia-smi
    busy = sum("Default" in line and " 0% " not in line for line in screen)  # GPUs that have done a step
    time.sleep(1)
print("\n".join(screen))

# %% [markdown]
# `Memory-Usage` is what PyTorch has reserved, more than the tensors take, plus the CUDA context and NCCL. `GPU-Util`
# is the fraction of time in which any kernel ran, however well it used the GPU. So judge a layout by its step time.

# %% tags=["explore"]
my_large = jobs.wait()

# %% tags=["explore"]
step = milliseconds(my_large)
predicted = layouts.extrapolate({4: four[setting][0], 8: eight[setting][0]}, 36)
check.compare("milliseconds per step with 36 layers (virtual)", predicted, step)

# %% [markdown]
# The prediction is this good because the GPU is modeled: every layer takes exactly as long as the next. On real GPUs,
# fragmentation and clock changes bend the line. So measure at the two largest depths that you can afford, and leave
# some memory free.

# %% [markdown]
# ## Discuss
#
# 1. **A slower link.** Two GPUs without NVLink communicate over PCIe. Which of the three layouts suffers most, and
#    which least? And across a network?
# 2. **Eight GPUs.** Your model needs two GPUs, and the node has eight. How do you split the training?
# 3. **Half of the parameters, not half of the memory.** Why do a tensor-parallel rank and the first stage not need
#    exactly half of the memory of one GPU?
# 4. **Bind or not.** A rank that moves between cores loses its caches. When does binding help, who should do it, and
#    how would you notice that it went wrong?

# %% [markdown]
# ## Clean up

# %% tags=["explore"]
!rm -rf megatron/checkpoints/one_rank megatron/checkpoints/half_speed megatron/checkpoints/*_small
!rm -rf megatron/tensorboard/gpt2_*/run_default
!squeue

# %% [markdown]
# ## What you have learned
#
# The second GPU did not help because it held a second copy of the model. Tensor parallelism pays for half a copy with
# all-reduces in every layer, and pipeline parallelism with a bubble. Data parallelism is the simplest, and usually
# the fastest if the model fits.
#
# In [the next lab](03_multi_node.ipynb), the ranks of one training run are on two nodes.
#
# ## Read next
#
# - [Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053), *Megatron-LM*: column- and row-parallel layers, with $f$
#   and $g$ in a few lines of code.
# - [Huang et al., 2019](https://arxiv.org/abs/1811.06965), *GPipe*: micro-batches, the bubble, and recomputation.
# - [Narayanan et al., 2021](https://arxiv.org/abs/2104.04473), *Efficient large-scale language model training on GPU
#   clusters*: how to combine the three on up to 3,072 GPUs.
