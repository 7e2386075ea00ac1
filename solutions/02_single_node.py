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
# To use it, you have to **split** the training, and there are three basic ways: each GPU processes some of the
# samples, holds a part of every layer, or holds some of the layers. You will read the first way, write the other two,
# compare all three, and find out why a colleague's job runs at half its speed.
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
# The second line shows why the second GPU did not help: the data-parallel size is 2, so each GPU holds a whole copy
# of the model, which fills most of its memory before there is a single activation.

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
# parameters, whatever the **layout**, the way to split the training.
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
# Every rank has the whole model and its own share of the batch, all of the same size. To save memory, a rank runs its
# share as `micro_batches` micro-batches, one after the other: `chunk` splits the rows, and `backward()` adds to
# `.grad`. Two lines make the result equal to one process with the whole batch. What would go wrong without each?

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
# In the backward pass, every rank has the gradient of the output, but computes only a partial sum of the gradient of
# $x$, so this needs a second all-reduce. Autograd does not see what `dist.all_reduce` does, so cut its graph there:
# `output = part.detach()` has the values of `part` without its history. All-reduce it, and call
# `output.requires_grad_()` to start a new graph. After `loss.backward()`, `part.backward(output.grad)` continues
# through the old one. (Megatron's $g$ and $f$ are `torch.autograd.Function`s. Define yours, if any, inside your
# function.)

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
# Now split between the two layers. Write `pipeline_step`, which both ranks call: rank 0 has the samples and $A$, and
# rank 1 the targets and $B$. Rank 0 sends the activations $\text{GELU}(xA)$. Rank 1, which works out their shape from
# its targets and its weight, computes the loss and sends back the gradient of the activations, with which rank 0
# continues the backward pass: `activations.backward(gradient)`.
#
# With the whole batch at once, one rank would always wait for the other. So split the batch into micro-batches
# ([Huang et al., 2019](https://arxiv.org/abs/1811.06965)), and let rank 0 send several before it waits for the first
# gradient. Beware of a deadlock: with the `gloo` backend, `dist.send` returns only after the other rank has called
# `dist.recv`, so if both send, both wait forever, and the check prints where.

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
#   GEMMs of the weight gradients; this trainer does not.)
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
# With half of the samples, a rank should take about half the time, unless other work slows this machine down. Is a
# rank hanging, or waiting for another?

# %% tags=["explore"]
!lab top --once {slow.job}

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
# Run the cell a few times: the rank is usually in the forward or the backward pass, and seldom in a collective. It is
# not waiting; it is computing, only slowly. (If you get *Permission denied*, go on without the stack.)
#
# A process may run only on the CPUs of its **affinity mask**, which it inherits from the process that started it.
# `taskset` prints a mask as a list of CPUs, and can also set it:

# %% tags=["explore"]
!srun --jobid={slow.job} --overlap bash -c 'for pid in {pids} $BASHPID; do taskset --cpu-list --pid $pid; done'
!srun --jobid={slow.job} --overlap ps -o pid,psr,pcpu {pids}

# %% [markdown]
# Nobody restricted the shell that ran `taskset`, in the third line. But each rank may use only one CPU, and both have
# the same. (`PSR` is the CPU on which a process last ran.)
#
# Who restricted them? `code/cpus_of.sh` lists a process, its parent, the parent's parent, and so on:

# %% tags=["explore"]
evidence = !srun --jobid={slow.job} --overlap bash code/cpus_of.sh {pids}
print("\n".join(evidence))

# %% [markdown]
# ### Exercise 3: who bound the ranks?
#
# Make this diagnosis from such a table, for any job. The column `CPUS` is a list as Linux prints it: `0-3,8` means
# the CPUs 0, 1, 2, 3, and 8.
#
# - A rank is **crowded** if its list has fewer CPUs than all ranks with this list have threads, taken together. (The
#   lists of two ranks are either equal or have no CPU in common.)
# - The **culprit** is the process from which a crowded rank has its list. Go up from the rank as long as the parent
#   has the same list, and stop there, even if a process further up also has a shorter list than its parent: that one
#   was still long enough.

# %% answer="crowded"
def crowded(table, ranks, threads):
    """Diagnose ranks that share too few CPUs.

    Args:
        table: lines of "PID PPID CPUS COMMAND", after a header line.
        ranks: the process IDs of the node's ranks.
        threads: how many threads each rank computes with.

    Returns (the list of the crowded ranks' process IDs, in the order of `ranks`, and the process ID
    of the culprit of the first of them), or ([], None).
    """
    ### BEGIN SOLUTION
    parents, allowed = {}, {}
    for line in table.splitlines()[1:]:
        pid, parent, cpus = line.split()[:3]
        parents[int(pid)], numbers = int(parent), set()
        for part in cpus.split(","):
            first, _, last = part.partition("-")
            numbers |= set(range(int(first), int(last or first) + 1))
        allowed[int(pid)] = numbers
    found = []
    for rank in ranks:
        together = sum(allowed[other] == allowed[rank] for other in ranks)
        if len(allowed[rank]) < threads * together:
            found.append(rank)
    if not found:
        return [], None
    culprit = found[0]
    while allowed.get(parents[culprit]) == allowed[culprit]:
        culprit = parents[culprit]
    return found, culprit
    ### END SOLUTION

# %% tags=["check-setup"]
TABLES = {
    "one core": """PID PPID CPUS COMMAND
811 1 0-7 slurmstepd: [31.0]
823 811 3 torchrun --standalone --nproc_per_node 2
840 823 3 python -u pretrain_gpt.py
841 823 3 python -u pretrain_gpt.py""",
    "a core for each": """PID PPID CPUS COMMAND
811 1 0-7 slurmstepd: [32.0]
823 811 0-7 torchrun --standalone --nproc_per_node 2
840 823 3 python -u pretrain_gpt.py
841 823 4 python -u pretrain_gpt.py""",
    "two of four": """PID PPID CPUS COMMAND
90 1 0-15 slurmstepd: [33.0]
95 90 0-7,12 torchrun --standalone --nproc_per_node 4
101 95 0-1,12 python -u pretrain_gpt.py
102 95 2-3 python -u pretrain_gpt.py
103 95 0-1,12 python -u pretrain_gpt.py
104 95 4-5 python -u pretrain_gpt.py""",
    "small job": """PID PPID CPUS COMMAND
60 1 4,6 slurmstepd: [34.0]
61 60 4,6 torchrun --standalone --nproc_per_node 2
70 61 4,6 python -u pretrain_gpt.py
71 61 4,6 python -u pretrain_gpt.py"""}

# %% check="crowded" points=4
check.function(
    crowded,
    cases=[(TABLES["one core"], [840, 841], 1), (TABLES["small job"], [70, 71], 1),
           (TABLES["a core for each"], [840, 841], 1), (TABLES["two of four"], [101, 102, 103, 104], 2),
           (TABLES["small job"], [70, 71], 2)],
    expected=[([840, 841], 823), ([], None), ([], None), ([101, 103], 101), ([70, 71], 60)],
    hints={
        "As many CPUs as threads are enough.":
            [([840, 841], 823), ([70, 71], 60), ([], None), ([101, 103], 101), ([70, 71], 60)],
        "0-1,12 are three CPUs: a range counts all its numbers.":
            [([840, 841], 823), ([], None), ([], None), ([101, 102, 103, 104], 101), ([70, 71], 60)],
        "Each rank computes with several threads, and each thread wants a CPU.":
            [([840, 841], 823), ([], None), ([], None), ([], None), ([], None)],
        "Count the ranks with the same list, not all ranks: a core for each is enough.":
            [([840, 841], 823), ([], None), ([840, 841], 840), ([101, 102, 103, 104], 101), ([70, 71], 60)],
        "The ranks have only inherited their list. Go up to the process where it comes from.":
            [([840, 841], 840), ([], None), ([], None), ([101, 103], 101), ([70, 71], 70)],
        "You accuse the process above the culprit, whose list was still long enough.":
            [([840, 841], 811), ([], None), ([], None), ([101, 103], 95), ([70, 71], 1)]})
### BEGIN HIDDEN TESTS
def drawn_job(seed, per_node, threads, above, each, kind):
    """A table with ranks that are bound in one of several ways, and the verdict."""
    first = 1000 + 7 * seed
    cpus = [seed % 5 + at + seed % 2 * (at // 3) for at in range(4 * per_node * threads)]
    chain = [first + 3 * at for at in range(above)]
    pids = [chain[-1] + 10 + 2 * at for at in range(per_node)]
    few = cpus[:per_node * threads - 1]
    lists = {one: cpus for one in chain + pids}
    culprit = chain[each % above]
    if kind == "launcher":
        lists.update({one: few for one in chain[each % above:] + pids})
    elif kind == "enough":
        lists.update({one: cpus[:per_node * threads] for one in pids})
        culprit = None
    elif kind == "own":
        for at, one in enumerate(pids):
            lists[one] = cpus[at * threads:(at + 1) * threads]
        culprit = None
    else:
        lists.update({one: few for one in pids})
        culprit = pids[0]
    lines = ["PID PPID CPUS COMMAND"]
    for one, parent in zip(chain + pids, [1, *chain[:-1]] + [chain[-1]] * per_node, strict=True):
        some, last = [], None
        for number in lists[one]:
            if last is not None and number == last + 1:
                some[-1] = (some[-1][0], number)
            else:
                some.append((number, number))
            last = number
        spelled = ",".join(f"{a}-{z}" if z > a else f"{a}" for a, z in some)
        lines.append(f"{one} {parent} {spelled} python -u train.py")
    return ("\n".join(lines), pids, threads), (pids if culprit else [], culprit)


drawn = [drawn_job(**case) for case in check.draw(
    24, seed=range(10**6), per_node=[2, 4, 8], threads=[1, 2, 4], above=[2, 3, 4], each=range(4),
    kind=["launcher", "enough", "own", "ranks"])]
check.function(crowded, cases=[case for case, _ in drawn], expected=[told for _, told in drawn])
### END HIDDEN TESTS

# %% [raw] mutant="crowded" hint="As many CPUs as threads"
# -        if len(allowed[rank]) < threads * together:
# +        if len(allowed[rank]) <= threads * together:

# %% [raw] mutant="crowded" hint="each thread wants a CPU"
# -        if len(allowed[rank]) < threads * together:
# +        if len(allowed[rank]) < together:

# %% [raw] mutant="crowded" hint="not all ranks"
# -        together = sum(allowed[other] == allowed[rank] for other in ranks)
# +        together = len(ranks)

# %% [raw] mutant="crowded" hint="have only inherited"
# -    while allowed.get(parents[culprit]) == allowed[culprit]:
# -        culprit = parents[culprit]

# %% [raw] mutant="crowded" hint="above the culprit"
# -    while allowed.get(parents[culprit]) == allowed[culprit]:
# -        culprit = parents[culprit]
# +    while allowed.get(parents[culprit]) == allowed[culprit]:
# +        culprit = parents[culprit]
# +    culprit = parents[culprit]

# %% [raw] mutant="crowded" hint="a range counts all its numbers"
# -            numbers |= set(range(int(first), int(last or first) + 1))
# +            numbers.add(part)

# %% [markdown]
# Now find the culprit of the real job. Then read the job's script, and the file that it names:

# %% tags=["explore"]
victims, culprit = crowded("\n".join(evidence), ranks, threads=1)
print(f"crowded: {victims}, bound by process {result(str(culprit))}")
!grep --extended-regexp --after-context=4 '^# one_core|^srun' code/half_speed.sh
!cat code/one_core.sh

# %% [markdown]
# `one_core.sh` works if `srun` starts one task per rank: then `$SLURM_LOCALID` is 0 for one rank and 1 for the other.
# Here, `srun` starts a single task, the launcher, which gets core 0, and both ranks inherit that. On a cluster that
# binds tasks to CPUs (this course's own does not), forgetting `--cpus-per-task` does the same damage; `srun
# --cpu-bind=verbose` prints every task's mask.

# %% tags=["explore"]
!scancel {slow.job}

# %% [markdown]
# ### Exercise 4: repair the job
#
# Write the last command of the script. It starts two ranks with one launcher (`--nproc_per_node 2`), and each of them
# can use a core of its own, also on a cluster that binds tasks. Pass the trainer the variables that the script
# defines, and `"$@"` after them.

# %% answer="repaired"
%%writefile code/my_two_ranks.sh
#!/bin/bash
# A small GPT on one node, data-parallel over two ranks, each on a core of its own.
#SBATCH --job-name=my_two_ranks
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
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
# ### Exercise 5: make it fit, and fast
#
# Train GPT-2 large on the same two V100s, with a global batch of 16 and in fp32. Only one line is missing,
# `LAYOUT="..."`, with the layout, the micro-batch, and the global batch. The check models your job: it must fit, and
# be at most about a quarter slower than the fastest known. Which of the three ways saves memory for parameters, and
# which for activations? Two more flags save memory ([Korthikanti et al., 2022](https://arxiv.org/abs/2205.05198)).
# With tensor parallelism, `--sequence-parallel` also splits the activations of which both ranks would have a copy.
# `--recompute-activations` discards the largest activations inside the attention, and recomputes them in the backward
# pass.

# %% answer="large"
%%writefile code/my_large.sh
#!/bin/bash
#SBATCH --job-name=my_large
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--num-layers 36 --hidden-size 1280 --num-attention-heads 20 \
       --seq-length 1024 --max-position-embeddings 1024 --device virtual:v100"
OPTIMIZER="--lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
OUTPUT="--train-iters 2 --log-interval 1 --eval-iters 0"
### BEGIN SOLUTION
LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
### END SOLUTION

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 2 \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" $MODEL $LAYOUT $OPTIMIZER $TEXT $OUTPUT

# %% check="large" points=4
script = check.script("code/my_large.sh", only=[
    "--micro-batch-size", "--global-batch-size", "--tensor-model-parallel-size",
    "--sequence-parallel", "--pipeline-model-parallel-size", "--schedule", "--balance",
    "--use-distributed-optimizer", "--overlap-grad-reduce", "--ddp-bucket-size",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers",
    "--distribute-saved-activations"])
flags = script.flags
check.that(flags.global_batch_size == 16,
           "The global batch is not 16: --global-batch-size counts the samples of all ranks.")
cost = check.figures(script, "virtual:v100")
check.that(cost.fits or flags.data_parallel_size == 1,
           "This ends in CUDA out of memory: each GPU holds the whole model, with all parameters and gradients.")
check.that(cost.fits or flags.pipeline_model_parallel_size == 1,
           "This ends in CUDA out of memory: the first stage keeps the activations of two micro-batches.")
check.that(cost.fits, "This ends in CUDA out of memory: the model is split well, but how large is the "
           "micro-batch, and which activations does each rank still have in full?")
check.pass_mark(cost.milliseconds, error=cost.error, below=5570, hint=(
    f"It fits, and a step takes {cost.milliseconds:.0f} ms (virtual). There is a faster way: do the stages "
    "wait, or is more computed twice than necessary?"))

# %% [raw] mutant="large" hint="each GPU holds the whole model"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--micro-batch-size 1 --global-batch-size 16"

# %% [raw] mutant="large" hint="the activations of two micro-batches"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"

# %% [raw] mutant="large" hint="how large is the"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 16"

# %% [raw] mutant="large" hint="computed twice than necessary"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--pipeline-model-parallel-size 2 --recompute-granularity full --recompute-method uniform \
# +        --micro-batch-size 4 --global-batch-size 16"

# %% [raw] mutant="large" hint="computed twice than necessary"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--tensor-model-parallel-size 2 --recompute-granularity full --recompute-method uniform \
# +        --micro-batch-size 1 --global-batch-size 16"

# %% [raw] mutant="large" hint="The global batch is not 16"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 4"

# %% [raw] mutant="large" hint="This would go wrong"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--tensor-model-parallel-size 3 --micro-batch-size 1 --global-batch-size 16"

# %% [raw] mutant="large" hint="--fp16; the exercise does not use it"
# -LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
# +LAYOUT="--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16 --fp16"

# %% [markdown]
# While it runs, look at the GPUs with `nvidia-smi`:

# %% tags=["explore"] short={"sbatch code/my_large.sh": "sed 's/layers 36/layers 2/; s/size 1280/size 640/; s/size 16/size 4/' code/my_large.sh | sbatch"}
!sbatch code/my_large.sh

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
# is the fraction of time in which any kernel ran, however well it used the GPU. So look at the step time instead,
# beside estimates of other layouts. `states` are the GiB of parameters, gradients, and optimizer state, `activ.`
# those of activations, `update` what the optimizer step allocates after these are freed, and `all` the peak; `of
# peak` is the MFU (lab 01), and `waiting` the share of the step spent waiting for collectives.

# %% tags=["explore"]
my_large = jobs.wait()

# %% tags=["explore"]
print(mark(logs.lines(my_large.log, "elapsed time per iteration")[-1], "elapsed time[^|]*"))
costs.show(costs.of({"data-parallel": "", "tensor-parallel": "--tensor-model-parallel-size 2",
                     "pipeline-parallel": "--pipeline-model-parallel-size 2",
                     "data-parallel, recompute": "--recompute-activations",
                     "pipeline-parallel, recompute":
                         "--pipeline-model-parallel-size 2 --recompute-activations"},
                    f"--device virtual:v100 --world-size 2 --gpus-per-node 2 --seq-length 1024 "
                    f"--max-position-embeddings 1024 {LARGE}"))

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
!scancel --quiet {slow.job}
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
