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
# # Make it fit: the memory of a training step
#
# GPT-2 small has 124 million parameters. In fp32, they take half a gigabyte. Why does a GPU with 16 GB run out of
# memory?
#
# This lab opens with that job. You find out what fills the memory, and then build the tools that free it:
#
# - **First sitting, 75 minutes.** You watch the memory of a step as a movie, write a meter for what autograd saves,
#   and use it to take a transformer layer apart. Then you discard activations for the first time, see why that gets
#   dropout wrong, and write a class that replays its random numbers.
# - **Second sitting, 75 minutes.** You write an activation checkpointing function that gets dropout, autocast, and nesting
#   right, and train with it in your own trainer. Gradient accumulation divides what is left. Then you compute the best
#   places for checkpoints under a memory limit.
# - **Third sitting, 65 minutes.** You write the attention that never stores its scores, see what the allocator adds, and
#   move activations to the host.
#
# Values are real: your CPU computes them. Time and memory of GPUs are **modeled** by virtual GPUs. Six of your answers
# are files in `mytrainer/`, the trainer that you build during this course, and all of them train a GPT in this lab.

# %% tags=["setup"]
import contextlib
import os

import torch
from torch.autograd.graph import saved_tensors_hooks

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace
os.makedirs("mytrainer", exist_ok=True)

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("lablib.saved", "layout_estimator", "minimegatron", "torch.autograd.graph.save_on_cpu",
           "torch.nn.functional.scaled_dot_product_attention", "torch.utils.checkpoint.CheckpointFunction",
           "torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential",
           "torch.utils.checkpoint.get_device_states", "torch.utils.checkpoint.set_device_states")

# %% tags=["explore"]
import matplotlib.pyplot as plt

import virtualgpu
from job_monitor import logs
from lab.mytrainer import gain
from labcore.colors import bad, good, mark, result
from lablib import jobs, memory_movie
from warmranks import record_ranks

jobs.connect()

# %% [markdown]
# ## Out of memory
#
# The job is the one of the classic course that this one follows: GPT-2 small on two nodes with two V100s each, with 32
# attention heads instead of GPT-2's 12. Somebody has raised the micro-batch size to 32, to use the GPUs better.

# %% tags=["explore"] short={"sbatch code": "sbatch --nodes=1 --gpus-per-node=1 code"}
!sbatch code/virtual_v100.sh --num-attention-heads 32 --micro-batch-size 32

# %% tags=["explore"]
failed = jobs.wait()
print(bad(logs.lines(failed.log, "out of memory")[-1]))

# %% [markdown]
# The parameters, their gradients, and Adam's two moments take 16 bytes per parameter in fp32, 2 GB together. The rest
# of what the job asked for depends on the batch. How many gigabytes would a step need in all, if the GPU had them?
# Commit to a number.

# %% answer="guess-needed"
### BEGIN SOLUTION
guess_needed = 60
### END SOLUTION

# %% tags=["explore"]
CLASSIC = ("--device virtual:v100 --world-size 4 --gpus-per-node 2 --virtual-network ethernet:25gbit "
           "--num-layers 12 --hidden-size 768 --num-attention-heads 32 --seq-length 1024 "
           "--max-position-embeddings 1024 ")
huge = memory_movie.record(CLASSIC + "--micro-batch-size 32 --global-batch-size 128")
check.compare("gigabytes (modeled)", guess_needed, huge.allocated / 1e9)
for name, sizes in huge.categories.items():
    print(f"{name:16} {max(sizes) / 1e9:7.2f} GB at most")

# %% [markdown]
# Almost all of it is **activations**: tensors that the forward pass saves because the backward pass needs them. They
# grow with the batch; parameters, gradients, and optimizer state do not.

# %% [markdown]
# ## The memory movie
#
# The next cell runs the trainer on a virtual V100 that never runs out of memory, and records every allocation of one
# step: each tensor when it appears, and when it is freed. The figure stacks them over the time of the step. All
# settings process four samples per GPU and step, in one micro-batch or in four.
#
# Before you move the sliders, predict: where in the step is the peak? Which of the five sliders lowers it most? Which
# ones make the step longer?

# %% tags=["explore"] short={"memory_movie.show()": "memory_movie.show(precisions=('fp16',), heads=(32,), lengths=(1024,))"}
memory_movie.show()

# %% [markdown]
# Read the movie from left to right. Parameters, gradients, and optimizer state are a floor that hardly moves, because
# this trainer keeps its gradients in one buffer from step to step. In the forward pass, activations climb layer by layer.
# The peak comes when the forward pass ends. In the backward pass, the hill melts from the last layer to the first. In
# fp16, the optimizer adds a block at the very end: an fp32 copy of the gradients.
#
# With four micro-batches, the hill becomes four **humps** of a quarter of its height. With full recomputation, the hill
# is almost gone, but the step is longer. More heads or longer sequences make the hill much higher, although the model has
# hardly more parameters. You will soon know why.

# %% [markdown]
# ### The classic job in fp16
#
# In fp32 and with 2 samples per micro-batch, the classic job needs 10.9 GB (modeled); the classic course's handout
# of 2021 reports 10 GB. Its next step is fp16, for which the handout reports 12 GB. How can fp16 need more? Predict what
# each of these settings takes:

# %% tags=["explore"]
for flags in ("--micro-batch-size 2 --global-batch-size 8", "--micro-batch-size 2 --global-batch-size 8 --fp16",
              "--micro-batch-size 4 --global-batch-size 16 --fp16"):
    one = memory_movie.record(CLASSIC + flags)
    print(f"{flags:54} {result(f'{one.allocated / 1e9:5.2f} GB')} (modeled, V100)")

# %% [markdown]
# Change one thing at a time: fp16 alone lowers the peak, though not to half of it. Dropout masks take one byte per element
# in either precision, the loss is computed in fp32, and lab 05 has shown that the parameters and the optimizer take no less.
# The higher peak comes from twice the micro-batch. So state the batch with every memory figure. We do not know the
# handout's own micro-batch size: 4 is inferred, because no other comes near 12 GB.
#
# Here is the whole script. You can add flags of the trainer after its name:

# %% tags=["explore"]
%%writefile code/classic.sh
#!/bin/bash
# GPT-2 small with the classic course's 32 heads, on two nodes with two virtual V100s each and 25-Gbit Ethernet, in fp16.
# From the workspace:  sbatch code/classic.sh [more flags of the trainer]
#SBATCH --job-name=classic
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--num-layers 12 --hidden-size 768 --num-attention-heads 32 --seq-length 1024 --max-position-embeddings 1024"
PRECISION="--fp16"
BATCH="--micro-batch-size 4 --global-batch-size 16 --train-iters 10 --lr 1.5e-4"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json --merge-file $DATA/gpt2-merges.txt
      --split 949,50,1"
FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \
    --nnodes "$SLURM_NNODES" --nproc_per_node "${SLURM_GPUS_ON_NODE:-2}" \
    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$((20000 + SLURM_JOB_ID % 10000))" --rdzv_id "$SLURM_JOB_ID" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" --device virtual --virtual-network ethernet:25gbit \
    $MODEL $PRECISION $BATCH $TEXT \
    --log-interval 5 --eval-iters 0 "$@"

# %% tags=["explore"] short={"sbatch code/classic.sh": "sbatch --nodes=1 --gpus-per-node=1 code/classic.sh --train-iters 2 --log-interval 1 --global-batch-size 4"}
!sbatch code/classic.sh

# %% tags=["explore"]
fp16_job = jobs.wait()
print(mark(logs.lines(fp16_job.log, "elapsed time")[-1], r"iteration \(ms\): [^ |]+"))
print(mark(logs.lines(fp16_job.log, "max allocated")[-1], r"max allocated: [^|]+"))
print("published (handout of the classic course, 2021): 315 ms, 12 GB; its micro-batch size is inferred")

# %% [markdown]
# (The log counts MB of 1,048,576 bytes.) In fp32, the handout's step takes 537 ms. We take its 315 ms and its 12 GB for
# figures of this run. Then the modeled memory is 5% too large, and the modeled time a sixth too short.

# %% [markdown]
# ## What autograd saves
#
# To shrink the hill, you have to know what it is made of. A linear layer saves its input, because the gradient of its
# weight is computed from it. PyTorch lets you watch. Within a block of
# [`saved_tensors_hooks(pack, unpack)`](https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.graph.saved_tensors_hooks),
# `pack(tensor)` is called whenever an operation saves a tensor, and its return value is stored in the tensor's place.
# In the backward pass, `unpack` gets that value, and returns the tensor:

# %% tags=["explore"]
def look(tensor):
    print(f"saved: {list(tensor.shape)!s:10} {str(tensor.dtype).removeprefix('torch.')}, storage "
          f"{tensor.untyped_storage().data_ptr() % 10**6:6} of {tensor.untyped_storage().nbytes():,} bytes")
    return tensor


layer, x = torch.nn.Linear(64, 256), torch.randn(8, 64, requires_grad=True)
with saved_tensors_hooks(look, lambda tensor: tensor):
    y = torch.relu(layer(x))
    left, right = y.chunk(2, dim=1)
    z = left * right

# %% [markdown]
# Five tensors are saved, but they do not take the sum of their bytes. The layer saves its weight, which is in memory
# anyway. And `y`, `left`, and `right` are three **views** of one **storage**, the memory behind a tensor: as long as
# one view is alive, all of it is.

# %% [markdown]
# ### Exercise 1: a saved-bytes meter
#
# Write `SavedBytes` in the first file of this lab. After `with SavedBytes(model.parameters()) as saved: y = model(x)`,
# `saved.bytes` is the size, in bytes, of the storages that autograd saved in the block. (You may assume that none of
# them is freed within the block.) Every storage counts once, with all its bytes, whatever is saved of it. The storages
# of the given parameters do not count, and neither do views of them, such as a transposed weight. The backward pass
# must still work, and must give the same gradients.
#
# Two details. `saved_tensors_hooks.__enter__` returns nothing, so `as saved` needs an `__enter__` of your own that
# calls it. And let `pack` detach what it returns: an operation may save its own result, which would then keep itself
# alive.

# %% answer="saved"
%%writefile mytrainer/saved.py
"""Measure what autograd saves for the backward pass."""

from torch.autograd.graph import saved_tensors_hooks


class SavedBytes(saved_tensors_hooks):
    """Counts the bytes that are saved for the backward pass within a `with` block.

    Attributes:
        bytes: those of all saved storages so far, except the parameters'.
    """

    def __init__(self, parameters=()):
        """Args:
            parameters: tensors whose storages do not count.
        """
        ### BEGIN SOLUTION
        super().__init__(self._pack, lambda tensor: tensor)
        self.bytes = 0
        self.seen = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def __enter__(self):
        super().__enter__()
        return self

    def _pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor.detach()
        ### END SOLUTION

# %% tags=["driver"]
def metered(kind, rows, hidden, scale):
    """Return the saved bytes of a small model, and the gradient of its input's scale.

    Args:
        kind: "gelu" or "relu", an MLP; "views", a tensor and two views of it; "half", a view of half of
            it; "transposed", x @ weight.t().
        rows: rows of the input.
        hidden: its columns, an even number.
        scale: of the input.
    """
    from mytrainer.saved import SavedBytes

    factor = torch.tensor(scale, requires_grad=True)
    x = factor * torch.ones(rows, hidden)
    wide = torch.nn.Linear(hidden, 4 * hidden)
    narrow = torch.nn.Linear(4 * hidden, hidden)
    for parameter in (*wide.parameters(), *narrow.parameters()):
        torch.nn.init.constant_(parameter, 1 / hidden)
    parameters = [*wide.parameters(), *narrow.parameters()]
    with SavedBytes(parameters) as saved:
        if kind == "views":
            square = x * x
            left, right = square.chunk(2, dim=1)
            y = square.sin().sum() + (left * right).sum()
        elif kind == "half":
            y = (x * x)[:, :hidden // 2].sin()
        elif kind == "transposed":
            y = x @ narrow.weight.view(-1)[:hidden * hidden].view(hidden, hidden).t()
        else:
            y = narrow(getattr(torch.nn.functional, kind)(wide(x)))
    held = saved.bytes
    y.sum().backward()
    return [held, factor.grad.item()]

# %% check="saved" points=4
check.ranks(
    metered, ranks=1, rel=1e-4,
    cases=[{"kind": kind, "rows": 6, "hidden": 4, "scale": 2.0} for kind in ("gelu", "relu", "views", "transposed", "half")],
    expected=[[[864, 101.68222]], [[480, 96.0]], [[192, 321.2502]], [[96, 24.0]], [[192, -31.374894]]],
    hints={"Parameters are in memory anyway, and so are views of them. Compare storages, not tensors.":
               [[[1376, 101.68222]], [[992, 96.0]], [[192, 321.2502]], [[352, 24.0]], []],
           "A storage that several tensors share counts once.":
               [[[864, 101.68222]], [[864, 96.0]], [[384, 321.2502]], [[96, 24.0]], []],
           "Two views of one storage have different addresses, but they keep the same memory alive.":
               [[[864, 101.68222]], [[480, 96.0]], [[240, 321.2502]], [[96, 24.0]], []],
           "A view of half a tensor is saved, and the whole storage stays in memory.":
               [[[864, 101.68222]], [[480, 96.0]], [[192, 321.2502]], [[96, 24.0]], [[144, -31.374894]]]})
### BEGIN HIDDEN TESTS
import math

import torch


def metered_here(kind, rows, hidden, scale):
    """Return what metered returns, from formulas."""
    element = 4 * rows * hidden
    if kind == "views":
        return [2 * element, rows * hidden * (2 * scale**3 + 2 * scale * math.cos(scale**2))]
    if kind == "half":
        return [2 * element, rows * hidden * scale * math.cos(scale**2)]
    if kind == "transposed":
        return [element, float(rows * hidden)]
    middle = torch.tensor(scale + 1 / hidden, requires_grad=True)
    {"relu": torch.relu, "gelu": torch.nn.functional.gelu}[kind](middle).backward()
    return [element * (5 if kind == "relu" else 9), rows * hidden * 4 * middle.grad.item()]


check.ranks(metered, ranks=1, rel=1e-4, cases=check.draw(
    6, kind=["gelu", "relu", "views", "half", "transposed"], rows=range(2, 40), hidden=range(2, 40, 2),
    scale=check.between(0.5, 2)),
    expected=lambda ranks, kind, rows, hidden, scale: [metered_here(kind, rows, hidden, scale)])
### END HIDDEN TESTS

# %% [raw] mutant="saved" hint="Compare storages, not tensors"
# -        self.seen = {parameter.untyped_storage().data_ptr() for parameter in parameters}
# +        self.seen = set()

# %% [raw] mutant="saved" hint="counts once"
# -        if storage.data_ptr() not in self.seen:
# -            self.seen.add(storage.data_ptr())
# -            self.bytes += storage.nbytes()
# +        if storage.data_ptr() not in self.seen:
# +            self.bytes += tensor.nbytes

# %% [raw] mutant="saved" hint="different addresses"
# -        if storage.data_ptr() not in self.seen:
# -            self.seen.add(storage.data_ptr())
# -            self.bytes += storage.nbytes()
# +        if tensor.data_ptr() not in self.seen:
# +            self.seen.add(tensor.data_ptr())
# +            self.bytes += tensor.nbytes

# %% [raw] mutant="saved" hint="the whole storage stays"
# -            self.bytes += storage.nbytes()
# +            self.bytes += tensor.nbytes

# %% [raw] mutant="saved" hint="NoneType"
# -    def __enter__(self):
# -        super().__enter__()
# -        return self

# %% [markdown]
# ### What a transformer layer saves
#
# Take a transformer layer apart with your meter. Let $s$ be the sequence length, $b$ the micro-batch size, $h$ the
# hidden size, and $a$ the number of heads. A 16-bit tensor of hidden states has $2sbh$ bytes; the scores of all heads
# have $2as^2b$. What does each of these operations save, in units of $sbh$ and of $as^2b$? A dropout mask takes one
# byte per element. Derive the numbers from what each backward pass needs, before you run the next cell.
#
# | operation | its backward pass needs | $sbh$ | $as^2b$ |
# |---|---|---|---|
# | two layer norms | their inputs | ? | |
# | Q, K, and V projections | their shared input | ? | |
# | $QK^T$ | Q and K | ? | |
# | softmax | its output | | ? |
# | dropout of the probabilities | its mask | | ? |
# | probabilities times V | both factors | ? | ? |
# | output projection, dropout | its input, a mask | ? | |
# | $h \to 4h$, GELU, $4h \to h$, dropout | three inputs, a mask | ? | |
#
# Write down a pair for each row, in the order of the table: the multiples of $sbh$ and of $as^2b$.

# %% answer="guess-terms"
### BEGIN SOLUTION
guess_terms = [(4, 0), (2, 0), (4, 0), (0, 2), (0, 1), (2, 2), (3, 0), (19, 0)]
### END SOLUTION

# %% tags=["explore"]
def operations(s, b, h, a):
    """Yield the name of each operation of a layer, and the bytes that it saves, on a GPU in fp16."""
    from mytrainer.saved import SavedBytes
    from torch.nn import functional as F

    def tensor(*shape):
        return torch.empty(*shape, device="cuda", dtype=torch.float16, requires_grad=True)

    states, scores = tensor(s, b, h), tensor(a * b, s, s)
    heads, weight, square = tensor(a * b, s, h // a), tensor(4 * h, h), tensor(h, h)
    weights = [weight, square]

    def mlp():
        return F.dropout(F.linear(F.gelu(F.linear(states, weight)), weight.t()), 0.1)

    for name, run in {
            "two layer norms": lambda: [F.layer_norm(one, (h,)) for one in (states, tensor(s, b, h))],
            "Q, K, and V projections": lambda: [F.linear(states, square) for _ in range(3)],
            "Q K^T": lambda: heads @ tensor(a * b, h // a, s),
            "softmax": lambda: scores.softmax(-1),
            "dropout of the probabilities": lambda: F.dropout(scores, 0.1),
            "probabilities times V": lambda: scores @ heads,
            "output projection, dropout": lambda: F.dropout(F.linear(states, square), 0.1),
            "h -> 4h, GELU, 4h -> h, dropout": mlp}.items():
        with SavedBytes(weights) as saved:
            kept = run()  # its graph holds what is saved
        yield name, saved.bytes
        del kept


s, b, h, a = 1024, 4, 768, 32
hidden, square = s * b * h, a * s * s * b
print(f"{'':34}{'sbh':>7}{'as²b':>7}   (measured on a virtual V100)")
counted = virtualgpu.run(lambda: list(operations(s, b, h, a)), "v100:1")[0].value
for (name, size), guess in zip(counted, guess_terms, strict=True):
    squares = round(size / square) if size >= square else 0
    multiple = (size - squares * square) / hidden
    right = abs(guess[0] - multiple) < 0.1 and guess[1] == squares
    said = good("as you predicted") if right else bad(f"you predicted {guess}")
    print(f"{name:34}{multiple:7.2f}{squares:7}   {said}")
total = sum(size for _, size in counted)
print(f"{'together':34}{total / 1e9:.3f} GB; 34sbh + 5as²b = {result(f'{(34 * hidden + 5 * square) / 1e9:.3f} GB')}")

# %% [markdown]
# This is the count of [Korthikanti et al., 2022](https://arxiv.org/abs/2205.05198): $34sbh + 5as^2b$ bytes per layer.
# (The layer norms also save a mean and a reciprocal standard deviation per token, which the formula leaves out.) The
# second term is the larger one when $5as > 34h$. It is why the classic job's 32 heads matter so much: every head adds a matrix of $s^2$
# scores, while the hidden states do not change.

# %% [markdown]
# ## Activation checkpointing
#
# **Activation checkpointing** ([Chen et al., 2016](https://arxiv.org/abs/1604.06174)), or recomputation, saves only the
# *input* of a layer. When the backward pass reaches the layer, it runs the layer's forward pass again, and goes on from
# there. In PyTorch, that is a custom autograd function. Its `forward` runs without building a graph, so nothing inside
# it is saved except what you pass to `ctx.save_for_backward`. Its `backward` receives the gradient of the output and
# returns one gradient per argument of `forward`, with `None` for arguments that have none.
#
# Here is one that doubles its input, to show the form:

# %% tags=["explore"]
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, note):
        ctx.note = note  # not a tensor, so it need not go through save_for_backward
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        print(f"backward of {ctx.note}")
        return 2 * gradient, None


x = torch.tensor(3.0, requires_grad=True)
Double.apply(x, "the first one").backward()
print(x.grad)

# %% [markdown]
# ### Exercise 2: recompute in the backward pass
#
# Write `Recompute`. `Recompute.apply(function, x)` returns `function(x)`, where `x` is a tensor that requires a
# gradient, and saves `x` only. `function` may use parameters, such as those of a layer. After the backward pass, `x` and
# *all of them* have the same gradients as without `Recompute`. (A backward pass runs with gradients off, unless you turn
# them on with `torch.enable_grad()`.)

# %% answer="recompute"
class Recompute(torch.autograd.Function):
    """function(x), which saves x only and runs the function again in the backward pass."""

    @staticmethod
    def forward(ctx, function, x):
        ### BEGIN SOLUTION
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad
        ### END SOLUTION

# %% tags=["driver"]
def recomputed_gradients(x, first, second, weights):
    """Return the gradients of x, first, and second for sum(weights * second * (first * x)**2).

    Also return how many products first * x are in memory between the passes, and how many have been computed. If the
    backward pass goes through a graph that has been used up, say so instead.
    """
    import weakref

    products = []

    def function(x):
        product = first * x
        products.append(weakref.ref(product))
        return product**2

    x, first, second = (torch.tensor(value, requires_grad=True) for value in (x, first, second))
    y = Recompute.apply(lambda y: second * y, Recompute.apply(function, 1 * x))
    alive = sum(one() is not None for one in products)
    try:
        (torch.tensor(weights) * y).sum().backward()
    except RuntimeError as error:
        if "a second time" not in str(error):
            raise
        return "a second backward pass through the same graph"
    return [[0.0 if one.grad is None else one.grad.tolist() for one in (x, first, second)], alive, len(products)]

# %% check="recompute" points=4
check.function(
    recomputed_gradients,
    cases=[([1.0, 2.0], 3.0, 0.5, [1.0, 10.0])],
    expected=[[[[9.0, 180.0], 123.0, 369.0], 0, 2]],
    hints={"The parameters inside the function get no gradient. torch.autograd.grad(y, x) computes the gradient of x "
           "and of nothing else.": [[[[9.0, 180.0], 0.0, 0.0], 0, 2]],
           "The incoming gradient is lost: the output counts as if the loss were its sum.":
               [[[[18.0, 36.0], 30.0, 45.0], 0, 2]],
           "Your second forward pass is connected to the first pass's graph. Detach x.":
               ["a second backward pass through the same graph"],
           "Does the gradient of x reach the layers before it? Return it.": [[[0.0, 0.0, 369.0], 0, 2]],
           "What the function computed is still in memory between the passes, and it runs once. What does ctx hold?":
               [[[[9.0, 180.0], 123.0, 369.0], 1, 1]],
           "It runs twice, and yet what it computed is still in memory between the passes. What does ctx hold?":
               [[[[9.0, 180.0], 123.0, 369.0], 1, 2]]})
### BEGIN HIDDEN TESTS
check.function(
    recomputed_gradients, rel=1e-4,
    cases=check.draw(8, x=lambda dice: [dice.uniform(1, 3) for _ in range(3)], first=check.between(1, 3),
                     second=check.between(1, 3), weights=lambda dice: [dice.uniform(1, 3) for _ in range(3)]),
    expected=lambda x, first, second, weights: [[
        [2 * w * second * first**2 * one for w, one in zip(weights, x, strict=True)],
        sum(2 * w * second * first * one**2 for w, one in zip(weights, x, strict=True)),
        sum(w * (first * one)**2 for w, one in zip(weights, x, strict=True))], 0, 2])
### END HIDDEN TESTS

# %% [raw] mutant="recompute" hint="get no gradient"
# -        torch.autograd.backward(y, gradient)
# -        return None, x.grad
# +        return None, torch.autograd.grad(y, x, gradient)[0]

# %% [raw] mutant="recompute" hint="incoming gradient is lost"
# -        torch.autograd.backward(y, gradient)
# +        torch.autograd.backward(y, torch.ones_like(y))

# %% [raw] mutant="recompute" hint="connected to the first pass's graph"
# -        x = x.detach().requires_grad_()
# +        x.retain_grad()

# %% [raw] mutant="recompute" hint="Return it"
# -        return None, x.grad
# +        return None, None

# %% [raw] mutant="recompute" hint="and it runs once"
# -        return function(x)
# +        with torch.enable_grad():
# +            ctx.x = x.detach().requires_grad_()
# +            ctx.y = function(ctx.x)
# +        return ctx.y.detach()
# -        (x,) = ctx.saved_tensors
# -        x = x.detach().requires_grad_()
# -        with torch.enable_grad():
# -            y = ctx.function(x)
# -        torch.autograd.backward(y, gradient)
# -        return None, x.grad
# +        torch.autograd.backward(ctx.y, gradient)
# +        return None, ctx.x.grad

# %% [raw] mutant="recompute" hint="It runs twice, and yet"
# -        return function(x)
# +        with torch.enable_grad():
# +            ctx.x = x.detach().requires_grad_()
# +            ctx.y = function(ctx.x)
# +        return ctx.y.detach()
# -        (x,) = ctx.saved_tensors
# -        x = x.detach().requires_grad_()
# -        with torch.enable_grad():
# -            y = ctx.function(x)
# -        torch.autograd.backward(y, gradient)
# -        return None, x.grad
# +        ctx.function(ctx.x.detach())
# +        torch.autograd.backward(ctx.y, gradient)
# +        return None, ctx.x.grad

# %% [markdown]
# Does it work for a real layer? Dropout is the test:

# %% tags=["explore"]
layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
x = torch.randn(2, 8)
gradients = []
for run in (lambda x: Recompute.apply(layer, x), layer):
    torch.manual_seed(1)
    layer.zero_grad()
    run(x.requires_grad_()).sum().backward()
    gradients.append(layer[0].weight.grad.clone())
print("the same gradients:", good("yes") if torch.equal(*gradients) else bad("NO"))

# %% [markdown]
# The loss was computed with one dropout mask, and the gradient with another. The loss curve would look almost normal.

# %% [markdown]
# ## Replaying random numbers and autocast
#
# The second forward pass must compute exactly what the first one did. It depends on two kinds of state that are not arguments:
#
# - **Random numbers.** Each device has a **generator** with a state: `torch.get_rng_state()` and
#   `torch.set_rng_state(state)` for the CPU, `torch.cuda.get_rng_state()` and `torch.cuda.set_rng_state(state)` for the
#   current GPU. Dropout draws its mask from it and advances it.
# - **Autocast.** Under `torch.autocast(device_type, dtype=..., enabled=...)`, matmuls run in 16 bits. The backward pass
#   usually runs after the `with` block has ended. `torch.is_autocast_enabled(device_type)` and
#   `torch.get_autocast_dtype(device_type)` return what is set now.

# %% [markdown]
# ### Exercise 3: replay the state
#
# Write `States`. `States(device_type)` remembers the state of the CPU's generator, of the current GPU's if
# `device_type` is `"cuda"`, and of autocast on that kind of device. Within `with states.replay():`, all of them are set
# again. After the block, they are what they were before it, even if an error ended it: otherwise, the next layer to
# draw a mask would draw one that another layer has had. A `States` can be replayed more than once.

# %% answer="states"
%%writefile mytrainer/states.py
"""Remember the state that a forward pass depends on, and set it again."""

import contextlib

import torch


class States:
    """The random number generators and autocast, as they are when it is created."""

    def __init__(self, device_type):
        """Args:
            device_type: "cpu" or "cuda", where the forward pass runs.
        """
        ### BEGIN SOLUTION
        self.device_type = device_type
        self.generators = self._read()
        self.autocast = (torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type))
        ### END SOLUTION

    @contextlib.contextmanager
    def replay(self):
        """Set the remembered state within a `with` block."""
        ### BEGIN SOLUTION
        before, (enabled, dtype) = self._read(), self.autocast
        self._write(self.generators)
        try:
            with torch.autocast(self.device_type, dtype=dtype, enabled=enabled):
                yield
        finally:
            self._write(before)

    def _read(self):
        return torch.get_rng_state(), torch.cuda.get_rng_state() if self.device_type == "cuda" else None

    def _write(self, generators):
        on_cpu, on_gpu = generators
        torch.set_rng_state(on_cpu)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)
        ### END SOLUTION

# %% tags=["driver"]
def replayed_numbers(seed, between, fails):
    """Draw 2 numbers, some more, the first 2 again, twice, and the next one, as if nothing had happened."""
    from mytrainer.states import States

    torch.manual_seed(seed)
    states = States("cpu")
    first = torch.rand(2).tolist()
    torch.rand(between)
    again = []
    for _ in range(2):
        with contextlib.suppress(ArithmeticError), states.replay():
            again.append(torch.rand(2).tolist())
            if fails:
                raise ArithmeticError
    return [first, *again, torch.rand(1).item()]


def replayed_autocast(then, now):
    """Return whether autocast is on, and its dtype, in a replay and after it.

    Args:
        then: the dtype when the state was remembered, or "" for no autocast.
        now: the same when it is replayed.
    """
    from mytrainer.states import States

    def autocast(dtype):
        return torch.autocast("cpu", dtype=getattr(torch, dtype or "bfloat16"), enabled=bool(dtype))

    def current():
        dtype = str(torch.get_autocast_dtype("cpu")).removeprefix("torch.")
        return dtype if torch.is_autocast_enabled("cpu") else ""

    with autocast(then):
        states = States("cpu")
    with autocast(now):
        with states.replay():
            inside = current()
        return [inside, current()]


def replayed_autocast_on_gpu():
    """Multiply matrices on a GPU in a replay of the autocast that was on when the state was remembered."""
    from mytrainer.states import States

    with torch.autocast("cuda", dtype=torch.float16):
        states = States("cuda")
    with states.replay():
        product = torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    if product.dtype != torch.float16:
        raise RuntimeError(f"On a GPU, a matmul in the replay returns {product.dtype}, and in the first pass torch.float16. "
                           "For which device type does your States read and set autocast, and its dtype?")


def replayed_on_gpu(first, between):
    """Return what two replays and the code after them draw on a GPU whose generator counts up from `first`.

    Args:
        first: the generator's state when it is remembered.
        between: numbers that are drawn before the first replay.
    """
    from unittest import mock

    state = [first]

    def get(device=0):
        return torch.tensor(state)

    def put(new, device=0):
        state[0] = int(new)

    def draw():
        state[0] += 1
        return state[0] - 1

    fakes = {"get_rng_state": get, "set_rng_state": put, "current_device": lambda: 0, "device_count": lambda: 1,
             "is_available": lambda: True, "get_rng_state_all": lambda: [get()],
             "set_rng_state_all": lambda new: put(new[0])}
    with mock.patch.multiple("torch.cuda", **fakes):
        from mytrainer.states import States

        states = States("cuda")
        state[0] += between
        found = []
        for _ in range(2):
            with states.replay():
                found.append(draw())
        return [*found, draw()]

# %% check="states" points=4
# The random numbers are the same, and later ones are not affected.
check.ranks(
    replayed_numbers, ranks=1, rel=1e-4,
    cases=[{"seed": 1, "between": 3, "fails": False}, {"seed": 1, "between": 3, "fails": True}],
    expected=[[[[0.7576316, 0.2793109], [0.7576316, 0.2793109], [0.7576316, 0.2793109], 0.7998586]],
              [[[0.7576316, 0.2793109], [0.7576316, 0.2793109], [0.7576316, 0.2793109], 0.7998586]]],
    hints={"The replay draws new numbers.":
               [[[[0.7576316, 0.2793109], [0.7998586, 0.3971373], [0.7998586, 0.3971373], 0.7998586]], []],
           "After the replay, the generator goes on from the remembered state. Numbers that were drawn once are drawn "
           "again.":
               [[[[0.7576316, 0.2793109], [0.7576316, 0.2793109], [0.7576316, 0.2793109], 0.4030693]], []],
           "After an error in the block, the generator must be restored, too.":
               [[], [[[0.7576316, 0.2793109], [0.7576316, 0.2793109], [0.7576316, 0.2793109], 0.4030693]]],
           "The second replay is not like the first one. Does the first one change what is remembered?":
               [[[[0.7576316, 0.2793109], [0.7576316, 0.2793109], [0.4030693, 0.7346845], 0.0292816]], []]})
# So are those of the GPU.
check.ranks(
    replayed_on_gpu, ranks=1, cases=[{"first": 5, "between": 3}], expected=[[[5, 5, 8]]],
    hints={"The GPU's generator is not replayed: dropout would draw another mask there.": [[[8, 9, 10]]],
           "The GPU's generator goes on from the remembered state. Restore it, too.": [[[5, 5, 6]]]})
# Autocast is that of the first pass.
check.ranks(
    replayed_autocast, ranks=1,
    cases=[{"then": "bfloat16", "now": ""}, {"then": "", "now": "bfloat16"}, {"then": "float16", "now": "bfloat16"}],
    expected=[[["bfloat16", ""]], [["", "bfloat16"]], [["float16", "bfloat16"]]],
    hints={"Autocast was on with another dtype.":
               [[["bfloat16", ""]], [["", "bfloat16"]], [["bfloat16", "bfloat16"]]],
           "The first pass ran without autocast, and the replay runs with it. Turn it off there.":
               [[["bfloat16", ""]], [["bfloat16", "bfloat16"]], [["float16", "bfloat16"]]],
           "Autocast is what it is now, and not what it was.":
               [[["", ""]], [["bfloat16", "bfloat16"]], [["bfloat16", "bfloat16"]]]})
check.gpus(replayed_autocast_on_gpu, {}, "h100:1")
### BEGIN HIDDEN TESTS
import torch


def numbers_here(seed, between):
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(2, generator=generator).tolist()
    torch.rand(between, generator=generator)
    return [first, first, first, torch.rand(1, generator=generator).item()]


check.ranks(replayed_on_gpu, ranks=1, cases=check.draw(3, first=range(1000), between=range(1, 50)),
            expected=lambda ranks, first, between: [[first, first, first + between]])
check.ranks(replayed_numbers, ranks=1, rel=1e-4,
            cases=check.draw(4, seed=range(1000), between=range(50), fails=[True, False]),
            expected=lambda ranks, seed, between, fails: [numbers_here(seed, between)])
### END HIDDEN TESTS

# %% [raw] mutant="states" hint="draws new numbers"
# -        self._write(self.generators)

# %% [raw] mutant="states" hint="goes on from the remembered state"
# -            self._write(before)
# +            pass

# %% [raw] mutant="states" hint="must be restored, too"
# -        try:
# -            with torch.autocast(self.device_type, dtype=dtype, enabled=enabled):
# -                yield
# -        finally:
# -            self._write(before)
# +        with torch.autocast(self.device_type, dtype=dtype, enabled=enabled):
# +            yield
# +        self._write(before)

# %% [raw] mutant="states" hint="change what is remembered"
# -            self._write(before)
# +            self.generators = self._read()

# %% [raw] mutant="states" hint="The GPU's generator is not replayed"
# -        return torch.get_rng_state(), torch.cuda.get_rng_state() if self.device_type == "cuda" else None
# +        return torch.get_rng_state(), None

# %% [raw] mutant="states" hint="The GPU's generator goes on"
# -            self._write(before)
# +            self._write((before[0], None))

# %% [raw] mutant="states" hint="and not what it was"
# -            with torch.autocast(self.device_type, dtype=dtype, enabled=enabled):
# -                yield
# +            yield

# %% [raw] mutant="states" hint="Turn it off there"
# -            with torch.autocast(self.device_type, dtype=dtype, enabled=enabled):
# -                yield
# +            with torch.autocast(self.device_type, dtype=dtype) if enabled else contextlib.nullcontext():
# +                yield

# %% [raw] mutant="states" hint="For which device type does"
# -            with torch.autocast(self.device_type, dtype=dtype, enabled=enabled):
# +            with torch.autocast("cpu", dtype=dtype, enabled=enabled):

# %% [raw] mutant="states" hint="For which device type does"
# -        self.autocast = (torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type))
# +        self.autocast = (torch.is_autocast_enabled(device_type), torch.get_autocast_dtype("cpu"))

# %% [raw] mutant="states" hint="another dtype"
# -            with torch.autocast(self.device_type, dtype=dtype, enabled=enabled):
# +            with torch.autocast(self.device_type, dtype=torch.bfloat16, enabled=enabled):

# %% [markdown]
# **This is the end of the first sitting.** You know what fills the memory, to the byte, how to discard it, and how to
# replay what a forward pass depends on. Next, you put these together. (After a restart of the kernel, run the cells above
# again.)

# %% [markdown]
# ## A checkpoint for any function
#
# **The second sitting starts here.** `Recompute` takes one tensor and returns one tensor. Real layers are not like that.
# The core attention of the course's trainer takes a description of its dropout, which is not a tensor, and three tensors.
# Other functions return several tensors, or call `checkpoint` themselves: a group of layers within a group of groups. And the first layer's input may
# need no gradient at all, for example if the embedding is frozen. Then autograd would not call the `backward` of your
# function, because none of its inputs requires a gradient, and the parameters inside it would silently get none.

# %% [markdown]
# ### Exercise 4: checkpoint
#
# Write `checkpoint(function, *arguments)` in `mytrainer/checkpointing.py`. It returns what `function(*arguments)`
# returns: a tensor, or a tuple of tensors. Begin with your `Recompute`, and use your `States`. The check has four parts,
# so run it after each step:
#
# 1. **Any arguments.** Tensors, with or without `requires_grad`, integer tensors, and anything else, in any order. If a
#    tensor is modified in place between the passes, the backward pass raises `RuntimeError`, as it does without
#    checkpoints.
# 2. **Several outputs.** `backward` receives one gradient per output. Some outputs do not require a gradient, such as
#    integers; skip those.
# 3. **The same numbers.** Random numbers and autocast are those of the first pass, so gradients are the same bits.
# 4. **Everything else.** Calls may be nested. Parameters get gradients even if no argument requires one. Under
#    `torch.no_grad()`, `checkpoint` calls the function and saves nothing. And on a virtual H100, it needs no more memory
#    than `Recompute`.

# %% answer="checkpointing"
%%writefile mytrainer/checkpointing.py
"""Activation checkpointing: save the inputs of a function only, and run it again in the backward pass."""

import torch
from mytrainer.states import States


def checkpoint(function, *arguments):
    """Return function(*arguments), whose activations the backward pass computes again.

    Args:
        function: returns a tensor or a tuple of tensors; may use parameters and dropout.
        arguments: tensors, which are saved, and other objects.
    """
    ### BEGIN SOLUTION
    if not torch.is_grad_enabled():
        return function(*arguments)
    return Checkpoint.apply(function, torch.empty(0, requires_grad=True), *arguments)


class Checkpoint(torch.autograd.Function):
    """The autograd function behind `checkpoint`."""

    @staticmethod
    def forward(ctx, function, _trigger, *arguments):
        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        ctx.function, ctx.states = function, States("cuda" if any(one.is_cuda for one in tensors) else "cpu")
        ctx.others = [None if isinstance(one, torch.Tensor) else (one,) for one in arguments]
        ctx.save_for_backward(*tensors)
        return function(*arguments)

    @staticmethod
    def backward(ctx, *gradients):
        saved = iter(ctx.saved_tensors)
        arguments = [other[0] if other else next(saved) for other in ctx.others]
        arguments = [one.detach().requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one
                     for one in arguments]
        with torch.enable_grad(), ctx.states.replay():
            outputs = ctx.function(*arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        used = [(one, gradient) for one, gradient in zip(outputs, gradients, strict=True) if one.requires_grad]
        torch.autograd.backward(*zip(*used, strict=True))
        return None, None, *(one.grad if isinstance(one, torch.Tensor) else None for one in arguments)
    ### END SOLUTION

# %% tags=["driver"]
def any_arguments(x, y, index, power):
    """Return the gradients of x, y, and a parameter; an integer tensor, a number, and a constant are arguments, too."""
    from mytrainer.checkpointing import checkpoint

    weight = torch.nn.Parameter(torch.tensor(2.0))
    x, y = (torch.tensor(value, requires_grad=True) for value in (x, y))

    def function(power, x, index, constant, y):
        return constant * weight * x[index]**power * y

    checkpoint(function, power, 1 * x, torch.tensor(index), torch.tensor(10.0), 1 * y).sum().backward()
    return [[] if one.grad is None else one.grad.tolist() for one in (x, y, weight)]


def modified_argument(x):
    """Return the gradient of x if an argument is modified in place after the forward pass, or the error's name."""
    from mytrainer.checkpointing import checkpoint

    x = torch.tensor(x, requires_grad=True)
    argument = 1 * x
    y = checkpoint(lambda argument: argument**2, argument)
    argument.add_(1)
    try:
        y.sum().backward()
    except RuntimeError:
        return "RuntimeError"
    return [] if x.grad is None else x.grad.tolist()


def several_outputs(x, y, factors):
    """Return the gradients of x and y; of four outputs, one is an integer and one is not used."""
    from mytrainer.checkpointing import checkpoint

    x, y = (torch.tensor(value, requires_grad=True) for value in (x, y))
    product, _, square, _ = checkpoint(lambda x, y: (x * y, x.argmax(), x**2, x + y), 1 * x, 1 * y)
    try:
        (factors[0] * product + factors[1] * square).sum().backward()
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
        return "does not require grad"
    return [x.grad.tolist(), y.grad.tolist()]


def masked_twice(seed, x, under_autocast):
    """Return the output and the gradient of dropout after dropout, and the random number after it.

    Args:
        seed: of the generator.
        x: a vector.
        under_autocast: whether the forward pass runs under autocast; then, the dtypes of both passes are returned.
    """
    from mytrainer.checkpointing import checkpoint

    dtypes = []

    def function(x):
        dtypes.append(str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype).removeprefix("torch."))
        return torch.nn.functional.dropout(x * x, 0.5)

    torch.manual_seed(seed)
    x = torch.tensor(x, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=under_autocast):
        y = checkpoint(function, checkpoint(function, 1 * x))
    y.sum().backward()
    return [dtypes] if under_autocast else [y.tolist(), x.grad.tolist(), torch.rand(1).item()]


def masked_on_gpu():
    """Draw numbers from a GPU's generator, which counts, in nested checkpoints whose first tensors are on the CPU."""
    from unittest import mock

    state, drawn = [0], []

    def get(device=0):
        return torch.tensor(state)

    def put(new, device=0):
        state[0] = int(new)

    def function(scale, x):
        state[0] += 1
        drawn.append(state[0])
        return scale * x

    fakes = {"get_rng_state": get, "set_rng_state": put, "current_device": lambda: 0,
             "get_rng_state_all": lambda: [get()], "set_rng_state_all": lambda new: put(new[0])}
    with mock.patch.multiple("torch.cuda", **fakes):
        from mytrainer.checkpointing import checkpoint

        x, scale = torch.ones(8, device="cuda", requires_grad=True), torch.tensor(1.0)
        checkpoint(function, scale, checkpoint(function, scale, 1 * x)).sum().backward()
    if sorted(drawn) != [1, 1, 2, 2]:
        raise RuntimeError("On a GPU, the second pass draws another dropout mask. Any argument may be on the GPU: whose "
                           "generator does your States remember?")


def nested(x, depth):
    """Return the gradients of x and of a parameter through nested checkpoints."""
    from mytrainer.checkpointing import checkpoint

    weight = torch.nn.Parameter(torch.tensor(3.0))
    x = torch.tensor(x, requires_grad=True)

    def function(x, depth):
        return weight * x if depth == 0 else checkpoint(function, weight * x, depth - 1)

    checkpoint(function, 1 * x, depth).sum().backward()
    return [x.grad.tolist(), weight.grad.item()]


def without_gradients(x):
    """Return a parameter's gradient if no argument requires one, and whether a result under no_grad requires one."""
    from mytrainer.checkpointing import checkpoint

    weight = torch.nn.Parameter(torch.tensor(3.0))
    y = checkpoint(lambda x: weight * x, torch.tensor(x))
    if y.requires_grad:
        y.sum().backward()
    with torch.no_grad():
        z = checkpoint(lambda x: weight * x, torch.tensor(x))
    return [0.0 if weight.grad is None else weight.grad.item(), z.requires_grad]


def checkpointed_step(width, layers, tokens):
    """Run one forward and backward pass of MLPs, each of them in a checkpoint."""
    from mytrainer.checkpointing import checkpoint

    mlps = [torch.nn.Sequential(torch.nn.Linear(width, 4 * width, bias=False, device="cuda"), torch.nn.GELU(),
                                torch.nn.Linear(4 * width, width, bias=False, device="cuda")) for _ in range(layers)]
    x = torch.randn(tokens, width, device="cuda")
    for mlp in mlps:
        x = checkpoint(mlp, x)
    x.sum().backward()

# %% check="checkpointing" points=9
with check.parts():
    with check.part(2, "takes any arguments"):
        check.ranks(any_arguments, ranks=1, cases=[{"x": [1.0, 2.0, 3.0], "y": [1.0, 10.0], "index": [2, 0], "power": 2}],
                    expected=[[[[400.0, 0.0, 120.0], [180.0, 20.0], 190.0]]],
                    hints={"The parameter gets no gradient.": [[[[400.0, 0.0, 120.0], [180.0, 20.0], []]]]})
        check.ranks(modified_argument, ranks=1, cases=[{"x": [1.0, 2.0]}], expected=[["RuntimeError"]],
                    hints={"An argument was modified after the forward pass, and the gradient is silently wrong. Who can "
                           "notice that, if ctx holds the tensors itself?": [[[4.0, 6.0]]]})
        ### BEGIN HIDDEN TESTS
        def any_here(x, y, index, power):
            at = [x[one] for one in index]
            of_x = [float(sum(20 * power * x[one]**(power - 1) * y[place] for place, one in enumerate(index)
                              if one == number)) for number in range(len(x))]
            return [of_x, [20 * one**power for one in at], 10 * sum(one**power * two for one, two in zip(at, y, strict=True))]

        check.ranks(any_arguments, ranks=1, rel=1e-4, cases=check.draw(
            3, x=lambda dice: [dice.uniform(1, 3) for _ in range(4)], y=lambda dice: [dice.uniform(1, 3) for _ in range(2)],
            index=lambda dice: dice.sample(range(4), 2), power=[1, 2, 3]),
            expected=lambda ranks, x, y, index, power: [any_here(x, y, index, power)])
        ### END HIDDEN TESTS
    with check.part(2, "returns several outputs"):
        check.ranks(several_outputs, ranks=1, cases=[{"x": [1.0, 2.0], "y": [3.0, 5.0], "factors": [1.0, 10.0]}],
                    expected=[[[[23.0, 45.0], [1.0, 2.0]]]],
                    hints={"Only the gradient of the first output is used.": [[[[3.0, 5.0], [1.0, 2.0]]]],
                           "One of the outputs is an integer, which requires no gradient. torch.autograd.backward refuses "
                           "it, so leave it out, with its gradient.": [["does not require grad"]]})
        ### BEGIN HIDDEN TESTS
        check.ranks(several_outputs, ranks=1, rel=1e-4, cases=check.draw(
            3, x=lambda dice: [dice.uniform(1, 3) for _ in range(3)], y=lambda dice: [dice.uniform(1, 3) for _ in range(3)],
            factors=lambda dice: [dice.uniform(1, 3) for _ in range(2)]),
            expected=lambda ranks, x, y, factors: [[
                [factors[0] * two + 2 * factors[1] * one for one, two in zip(x, y, strict=True)],
                [factors[0] * one for one in x]]])
        ### END HIDDEN TESTS
    with check.part(2, "recomputes exactly"):
        check.ranks(masked_twice, ranks=1, rel=0,  # the same bits
                    cases=[{"seed": 1, "x": [1.0, 2.0, 3.0, 4.0], "under_autocast": True},
                           {"seed": 1, "x": [1.0, 2.0, 3.0, 4.0], "under_autocast": False}],
                    expected=[[[["bfloat16"] * 4]],
                              [[[0.0, 128.0, 648.0, 0.0], [0.0, 256.0, 864.0, 0.0], 0.5724719762802124]]],
                    hints={"The second forward pass runs in another dtype than the first one.":
                               [[[["bfloat16", "bfloat16", "float32", "float32"]]], []]})
        check.gpus(masked_on_gpu, {}, "h100:1")
        ### BEGIN HIDDEN TESTS
        import torch

        def masked_here(seed, x):
            torch.manual_seed(seed)
            x = torch.tensor(x, requires_grad=True)
            y = x
            for _ in range(2):
                y = torch.nn.functional.dropout(y * y, 0.5)
            y.sum().backward()
            return [y.tolist(), x.grad.tolist(), torch.rand(1).item()]

        check.ranks(masked_twice, ranks=1, rel=0, cases=check.draw(
            3, seed=range(1000), x=lambda dice: [dice.uniform(1, 3) for _ in range(40)], under_autocast=[False]),
            expected=lambda ranks, seed, x, under_autocast: [masked_here(seed, x)])
        ### END HIDDEN TESTS
    with check.part(3, "nests, works without gradients, and saves little"):
        check.ranks(nested, ranks=1, cases=[{"x": [1.0, 2.0], "depth": 0}, {"x": [1.0, 2.0], "depth": 2}],
                    expected=[[[[3.0, 3.0], 3.0]], [[[27.0, 27.0], 81.0]]])
        check.ranks(without_gradients, ranks=1, cases=[{"x": [1.0, 2.0]}], expected=[[[3.0, False]]],
                    hints={"No argument requires a gradient, so autograd never calls your backward, and the parameter "
                           "inside gets no gradient. Give your autograd function one more argument that does, such as an "
                           "empty tensor.": [[[0.0, False]]],
                           "Under torch.no_grad(), the result requires a gradient.": [[[3.0, True]]]})
        cost = check.gpus(checkpointed_step, {"width": 512, "layers": 8, "tokens": 16384}, "h100:1",
                          least={"flops": (4 * 8 * 2 - 1) * 2 * 16384 * 512 * 2048})
        check.pass_mark(cost.peak_memory, f"{cost.peak_memory:.2f} GiB at the peak: what do you save beside the "
                        "arguments?", error=cost.memory_error, below=1.2)
        ### BEGIN HIDDEN TESTS
        check.ranks(nested, ranks=1, rel=1e-4, cases=check.draw(
            2, x=lambda dice: [dice.uniform(1, 3) for _ in range(3)], depth=[1, 2, 3, 4]),
            expected=lambda ranks, x, depth: [[[3.0**(depth + 1)] * 3, (depth + 1) * 3.0**depth * sum(x)]])
        ### END HIDDEN TESTS

# %% [raw] mutant="checkpointing" hint="The parameter gets no gradient"
# -        torch.autograd.backward(*zip(*used, strict=True))
# -        return None, None, *(one.grad if isinstance(one, torch.Tensor) else None for one in arguments)
# +        wanted = [one for one in arguments if isinstance(one, torch.Tensor) and one.requires_grad]
# +        found = iter(torch.autograd.grad(*zip(*used, strict=True), wanted) if False else torch.autograd.grad(
# +            [one for one, _ in used], wanted, [gradient for _, gradient in used], allow_unused=True))
# +        return None, None, *(next(found) if isinstance(one, torch.Tensor) and one.requires_grad else None
# +                             for one in arguments)

# %% [raw] mutant="checkpointing" hint="the gradient is silently wrong"
# -        ctx.save_for_backward(*tensors)
# +        ctx.tensors = tensors
# -        saved = iter(ctx.saved_tensors)
# +        saved = iter(ctx.tensors)

# %% [raw] mutant="checkpointing" hint="Only the gradient of the first output"
# -        torch.autograd.backward(*zip(*used, strict=True))
# +        torch.autograd.backward(*used[0])

# %% [raw] mutant="checkpointing" hint="which requires no gradient"
# -        used = [(one, gradient) for one, gradient in zip(outputs, gradients, strict=True) if one.requires_grad]
# +        used = list(zip(outputs, gradients, strict=True))

# %% [raw] mutant="checkpointing" hint="in another dtype"
# -        with torch.enable_grad(), ctx.states.replay():
# +        with torch.enable_grad():

# %% [raw] mutant="checkpointing" hint="another dropout mask"
# -        ctx.function, ctx.states = function, States("cuda" if any(one.is_cuda for one in tensors) else "cpu")
# +        ctx.function, ctx.states = function, States("cpu")

# %% [raw] mutant="checkpointing" hint="whose generator"
# -        ctx.function, ctx.states = function, States("cuda" if any(one.is_cuda for one in tensors) else "cpu")
# +        ctx.function, ctx.states = function, States(tensors[0].device.type if tensors else "cpu")

# %% [raw] mutant="checkpointing" hint="never calls your backward"
# -    return Checkpoint.apply(function, torch.empty(0, requires_grad=True), *arguments)
# +    return Checkpoint.apply(function, None, *arguments)

# %% [raw] mutant="checkpointing" hint="Under torch.no_grad"
# -    if not torch.is_grad_enabled():
# -        return function(*arguments)
# +    with torch.enable_grad():
# +        return Checkpoint.apply(function, torch.empty(0, requires_grad=True), *arguments)

# %% [raw] mutant="checkpointing" hint="what do you save beside"
# -        ctx.save_for_backward(*tensors)
# +        ctx.save_for_backward(*tensors)
# +        with torch.enable_grad():
# +            ctx.outputs = function(*arguments)

# %% [markdown]
# PyTorch has this function, too, in two versions. `torch.utils.checkpoint.checkpoint(function, x, use_reentrant=True)`
# works like yours: its backward pass calls `backward` again, hence *reentrant*. `use_reentrant=False`, which PyTorch
# recommends, builds the graph in the first pass and uses `saved_tensors_hooks`, as your meter does: `pack` stores a
# placeholder, and the first `unpack` runs the function again. So it also handles a tensor that the function takes from
# outside without being passed in. (Without the argument, PyTorch warns and takes the reentrant version.)
#
# The layer with dropout from the first sitting, once more, with all three:

# %% tags=["explore"]
def same_gradients():
    """Return which checkpoints give a layer with dropout the same gradients as none, bit for bit."""
    from mytrainer.checkpointing import checkpoint as mine
    from torch.utils.checkpoint import checkpoint as theirs

    layer, x, gradients = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)), torch.randn(2, 8), {}
    for name, run in {"no checkpoint": layer, "yours": lambda x: mine(layer, x),
                      "PyTorch, reentrant": lambda x: theirs(layer, x.requires_grad_(), use_reentrant=True),
                      "PyTorch, non-reentrant": lambda x: theirs(layer, x, use_reentrant=False)}.items():
        torch.manual_seed(1)
        layer.zero_grad()
        run(x).sum().backward()
        gradients[name] = layer[0].weight.grad.clone()
    right = gradients.pop("no checkpoint")
    return {name: torch.equal(one, right) for name, one in gradients.items()}


for name, same in record_ranks(same_gradients, 1)[0].value.items():
    print(f"{name:23} the same bits:", good("yes") if same else bad("NO"))

# %% [markdown]
# And what do they cost?

# %% tags=["explore"]
def one_step(name):
    from mytrainer.checkpointing import checkpoint as mine
    from torch.utils.checkpoint import checkpoint as theirs

    how = {"no checkpoints": lambda mlp, x: mlp(x), "yours": mine,
           "PyTorch, reentrant": lambda mlp, x: theirs(mlp, x, use_reentrant=True),
           "PyTorch, non-reentrant": lambda mlp, x: theirs(mlp, x, use_reentrant=False)}[name]
    mlps = [torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024),
                                torch.nn.Dropout(0.1)).cuda().half() for _ in range(12)]
    x = torch.randn(16384, 1024, device="cuda", dtype=torch.half, requires_grad=True)
    for mlp in mlps:
        x = how(mlp, x)
    x.sum().backward()


for name in ("no checkpoints", "yours", "PyTorch, reentrant", "PyTorch, non-reentrant"):
    rank = virtualgpu.run(lambda name=name: one_step(name), "h100:1")[0]
    print(f"{name:22} {1000 * rank.seconds:6.1f} ms, {result(f'{rank.peak / 2**30:.2f} GiB')} at the peak (modeled, H100)")

# %% [markdown]
# ## In your trainer
#
# `code/my_trainer.py` takes Megatron's flags, and calls your `checkpoint` for them:
#
# - `--recompute-granularity full --recompute-method uniform --recompute-num-layers N` checkpoints all layers, in groups
#   of N. Only the input of each group is saved.
# - `--recompute-granularity full --recompute-method block --recompute-num-layers N` checkpoints the first N layers one
#   by one. The others save everything.
# - `--recompute-granularity selective` checkpoints only the core of attention: the operations with $as^2b$ in the
#   table. It saves most of the memory for a few percent of the FLOPs.
#
# ![Six layers while the backward pass is at layer 3. Without recomputation, the activations of layers 0 to 3 are in
# memory. Uniform, in groups of two: the inputs of layers 0 and 2, and the activations of layers 2 and 3, computed
# again. Block, the first two layers: the inputs of layers 0 and 1, and the activations of layers 2 and 3, which were
# never dropped.](../images/recompute_layers.svg)
#
# Recomputation must not change the training. Compare the losses of your trainer with those of the course's, on two real
# ranks:

# %% tags=["explore"] short={"(FULL, \"--recompute-granularity selective\")": "(FULL,)"}
from lab.mytrainer import journey

FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2"
for flags in (FULL, "--recompute-granularity selective"):
    difference = journey.loss_difference(2 if os.path.exists("mytrainer/ddp.py") else 1, flags)
    print(f"{flags:88} largest relative difference {result(f'{difference:.1e}')}")

# %% [markdown]
# And on virtual V100s? The memory falls, and the time rises. By how many percent do you expect full recomputation to
# lengthen the step, and by how many selective recomputation?

# %% answer="guess-longer"
### BEGIN SOLUTION
guess_longer = {"full": 33, "selective": 6}
### END SOLUTION

# %% tags=["explore"] short={"12 --hidden": "4 --hidden"}
GPT2 = ("--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
        "--max-position-embeddings 1024 --make-vocab-size-divisible-by 50304 --attention-dropout 0 "
        "--hidden-dropout 0 --micro-batch-size 4 --global-batch-size 4 ")
rows = [("nothing", ""), ("selective", "--recompute-granularity selective"), ("full", FULL)]
gains = {name: gain.measure("v100:1", flags=GPT2 + flags) for name, flags in rows}
for name, one in gains.items():
    print(f"{name:10} {1000 * one.seconds:6.1f} ms per step, {result(f'{one.peak / 2**30:.2f} GiB')} (modeled, V100)")
for name, guess in guess_longer.items():
    check.compare(f"percent longer with {name} recomputation (modeled)", guess,
                  100 * (gains[name].seconds / gains["nothing"].seconds - 1))

# %% [markdown]
# A forward pass is a third of a step's FLOPs, because the backward pass computes two matrix products for each one of
# the forward pass. The vocabulary's projection, the loss, and the optimizer are not recomputed, so recomputation adds
# less than a third to the step. Selective recomputation takes more than its few percent of the FLOPs, because softmax and the scores' kernels
# are memory-bound.

# %% [markdown]
# ### The classic job, with checkpointing
#
# The classic course's second step adds three flags to the script:

# %% tags=["explore"] short={"sbatch code/classic.sh": "sbatch --nodes=1 --gpus-per-node=1 code/classic.sh --train-iters 2 --log-interval 1 --global-batch-size 4"}
!sbatch code/classic.sh --recompute-granularity full --recompute-method uniform --recompute-num-layers 1

# %% tags=["explore"]
checkpointing_job = jobs.wait()
for job in (fp16_job, checkpointing_job):
    print(mark(logs.lines(job.log, "elapsed time")[-1], r"iteration \(ms\): [^ |]+"))
    print(mark(logs.lines(job.log, "max allocated")[-1], r"max allocated: [^|]+"))
print("published (handout of the classic course, 2021): 12 GB, then 3 GB; their micro-batch size is inferred")

# %% [markdown]
# The modeled peak is 11% above the published 3 GB.

# %% [markdown]
# ## Humps: gradient accumulation
#
# A rank can process several micro-batches per step and add up their gradients, as your `train.py` does. It needs the
# activations of only *one* micro-batch at a time. Each hump of the movie is one micro-batch. But look closely. Are all humps the same height? In the
# first forward pass, the gradients of this step do not exist yet. How many more bytes per parameter does a later hump need,
# in fp32, if gradients are freed at the end of each step?

# %% answer="guess-hump"
### BEGIN SOLUTION
guess_hump = 4
### END SOLUTION

# %% tags=["explore"]
def peaks_of(micro_batches):
    """Return the peak of each micro-batch of a small model, in MB, with gradients freed at the end of a step."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False, device="cuda") for _ in range(8)])
    found = []
    for _ in range(micro_batches):
        torch.cuda.reset_peak_memory_stats()
        model(torch.randn(4096, 2048, device="cuda")).sum().backward()
        found.append(torch.cuda.max_memory_allocated() / 1e6)
    return found, sum(one.numel() for one in model.parameters())


(peaks, parameters), = [rank.value for rank in virtualgpu.run(lambda: peaks_of(4), "h100:1")]
print("peaks of four micro-batches, in MB:", ", ".join(f"{peak:.0f}" for peak in peaks), "(modeled)")
check.compare("bytes per parameter (modeled)", guess_hump, 1e6 * (peaks[-1] - peaks[0]) / parameters)

# %% [markdown]
# The first micro-batch's gradients appear while its activations disappear, so at its peak, only the last layer's exist.
# From the second one on, all gradients are there before the forward pass begins. So *two* micro-batches of a size can fail
# where one fits. (The course's trainer keeps its gradients in one flat buffer from step to step, as Megatron-LM does, so its
# humps are equally high.)
#
# And what does the *last* micro-batch add? Nothing by itself: the optimizer step follows it. In fp16, that step begins with
# an fp32 copy of the gradients. If recomputation and small micro-batches have made the humps low, can this copy be the
# peak of the whole step? Predict, and then run:

# %% tags=["explore"]
small = memory_movie.record(CLASSIC + "--fp16 --recompute-granularity full --recompute-method uniform "
                            "--recompute-num-layers 1 --micro-batch-size 1 --global-batch-size 16")
gradients, totals = small.categories["gradients"], small.totals
freed = next(at for at, size in enumerate(totals) if size < 0.9 * totals[0])  # the copy of the step before
copied = next(at for at, size in enumerate(gradients) if at > freed and size > 2 * gradients[freed])  # the next copy
print(f"highest hump {max(totals[freed:copied]) / 1e9:.2f} GB, optimizer step "
      f"{result(f'{max(totals[copied:]) / 1e9:.2f} GB')} (modeled, V100)")

# %% [markdown]
# ### The classic job, with accumulation
#
# The third step keeps fp16 and checkpointing, and processes 64 samples per step, in four micro-batches per GPU. How much
# more memory than the second one does it need? Look at the movie again before you run it.

# %% tags=["explore"] short={"sbatch code/classic.sh": "sbatch --nodes=1 --gpus-per-node=1 code/classic.sh --train-iters 2 --log-interval 1", "--global-batch-size 64": "--global-batch-size 16"}
!sbatch code/classic.sh --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --global-batch-size 64

# %% tags=["explore"]
accumulation_job = jobs.wait()
for job in (fp16_job, checkpointing_job, accumulation_job):
    print(mark(logs.lines(job.log, "elapsed time")[-1], r"iteration \(ms\): [^ |]+"))
    print(mark(logs.lines(job.log, "max allocated")[-1], r"max allocated: [^|]+"))

# %% [markdown]
# The memory did not change, and the step takes far less than four times as long: the gradients are all-reduced once for
# four micro-batches. You pay with a batch four times as large.

# %% [markdown]
# ## Where to put the checkpoints
#
# Recomputing every layer costs a forward pass. If some memory is left, why recompute
# everything? And if memory is very tight, groups of layers save even more than single ones, because only the first
# layer's input is saved. When the backward pass reaches a group, all activations of its layers are back in memory at
# once. For $L$ equal layers that save $k$ bytes each, with inputs of $c$ bytes, groups of $g$ layers need about
#
# $$ M(g) = \Big(\frac{L}{g} - 1\Big)\,c + g\,k \quad\text{bytes}, \qquad\text{which is smallest at}\quad g = \sqrt{Lc/k}, $$
#
# so $M = 2\sqrt{Lck} - c$: the memory grows with the square root of the depth, which is the result of [Chen et al.,
# 2016](https://arxiv.org/abs/1604.06174). But equal groups are not the best ones. When the backward pass reaches an early
# group, the later ones have been freed, and few inputs are saved before it. What is the best placement for *any* layers
# and *any* limit?
#
# There are three choices for each layer: to save everything, to recompute the core of its attention only
# (`selective`), or to recompute all of it (`full`), alone or in a group. A **plan** lists, in order, the groups of
# consecutive layers that are recomputed, as `(start, stop)`, and the numbers of the layers whose core is, as in
# `[(0, 2), 2, 3]`. All other layers save everything. Count the activations of the layers, in bytes:
#
# - `saved[i]` is what layer `i` saves. Its input, `inputs[i]` bytes, is a part of that.
# - `selective[i]` is a pair: the forward time of the layer's core, and the bytes that the layer saves if its core is
#   recomputed.
# - In the forward pass, a layer adds what it saves, and a group adds the input of its first layer.
# - The backward pass goes through the layers from the last one to the first. When it reaches a group, its input is replaced
#   by everything that its layers save, and so it is with a layer whose core is recomputed. When it has passed a layer or a
#   group, its activations are freed.
# - A plan takes the sum of `times[i]`, the forward times, of all layers in groups, and the times of the cores.

# %% [markdown]
# ### Exercise 5: the best placement
#
# Write `place(times, saved, inputs, budget, selective)`. It returns a plan with the least recomputation time among those
# whose activations never exceed `budget` bytes, and raises `ValueError` if there is none. Times are real numbers, and
# bytes are integers. It must be exact, and fast enough for 24 layers of different costs, which have too many plans to try:
# the check stops `place` after half a million additions and comparisons of bytes.
#
# What do the layers from $n$ on need to know about those before?

# %% answer="placement"
%%writefile mytrainer/placement.py
"""Place checkpoints for the least time under a memory limit."""


def place(times, saved, inputs, budget, selective=None):
    """Return what to recompute, in order.

    A pair (start, stop) is a group of layers, and a number is a layer of which the core alone is recomputed.

    Args:
        times: forward time of each layer.
        saved: bytes that each layer saves, with its input.
        inputs: bytes of each layer's input.
        budget: bytes that the activations may take.
        selective: for each layer the forward time of its core, and the bytes that it saves if that is recomputed;
            None if no core is recomputed.

    Raises ValueError if no plan fits.
    """
    ### BEGIN SOLUTION
    layers = len(times)
    fronts = [[] for _ in range(layers + 1)]  # of the first n layers: (bytes, time, plan)
    fronts[0] = [(0, 0.0, ())]
    for start in range(layers):
        for held, time, plan in undominated(fronts[start]):
            if held + saved[start] <= budget:
                fronts[start + 1].append((held + saved[start], time, plan))
                if selective is not None:  # the backward pass has all of the layer in memory, too
                    core, kept = selective[start]
                    fronts[start + 1].append((held + kept, time + core, (*plan, start)))
            work, more = held, 0.0
            for stop in range(start + 1, layers + 1):
                work += saved[stop - 1]
                more += times[stop - 1]
                if work > budget:
                    break
                fronts[stop].append((held + inputs[start], time + more, (*plan, (start, stop))))
    if not fronts[layers]:
        raise ValueError(f"no plan fits {budget} bytes")
    return list(min(fronts[layers], key=lambda one: one[1])[2])


def undominated(front):
    """Return the plans that no other one beats in both bytes and time."""
    best, kept = float("inf"), []
    for one in sorted(front, key=lambda one: one[:2]):
        if one[1] < best:
            best = one[1]
            kept.append(one)
    return kept
    ### END SOLUTION

# %% tags=["driver"]
def counting(most):
    """Return a class of integers that count additions and comparisons, and the error that too many of them raise.

    A sum with such an integer is another one.

    Args:
        most: operations until the error.
    """
    class TooMuchWork(Exception):
        pass

    def counted(name):
        def operation(self, other):
            Bytes.work += 1
            if Bytes.work > most:
                raise TooMuchWork
            result = getattr(int, name)(self, other)
            return Bytes(result) if type(result) is int else result
        return operation

    class Bytes(int):
        work = 0
        __add__, __radd__, __sub__ = counted("__add__"), counted("__radd__"), counted("__sub__")
        __lt__, __le__, __gt__, __ge__ = counted("__lt__"), counted("__le__"), counted("__gt__"), counted("__ge__")

    return Bytes, TooMuchWork


def placed(times, saved, inputs, budget, selective=None):
    """Return the student's plan, or the name of the error that place raises, or that it works too long."""
    from mytrainer.placement import place

    integer, too_much_work = counting(500_000)
    try:
        options = None if selective is None else [(core, integer(kept)) for core, kept in selective]
        plan = place(times, [integer(one) for one in saved], [integer(one) for one in inputs], budget, options)
        return [[one if isinstance(one, int) else list(one) for one in plan]]
    except ValueError:
        return ["ValueError"]
    except too_much_work:
        return ["TooMuchWork"]

# %% tags=["check-setup"]
def peak_of(plan, saved, inputs, selective=None):
    """Return the peak of a plan's activations, in bytes."""
    held = peak = at = 0
    for one in [*plan, (len(saved), len(saved))]:
        start, stop = (one, one + 1) if isinstance(one, int) else one
        held += sum(saved[at:start])
        peak = max(peak, held)
        if start < stop:
            peak = max(peak, held + sum(saved[start:stop]))
            held += selective[start][1] if isinstance(one, int) else inputs[start]
        at = stop
    return max(peak, held)


def time_of(plan, times, selective=None):
    """Return the recomputation time of a plan."""
    return sum(selective[one][0] if isinstance(one, int) else sum(times[slice(*one)]) for one in plan)


def is_plan(plan, layers, selective=None):
    """Return whether groups and layers are in order, do not overlap, and are not empty."""
    try:
        groups = [(one, one + 1) if type(one) is int and selective is not None else one for one in plan]
        ends = [0] + [at for start, stop in groups for at in (start, stop)]
        return all(type(at) is int for at in ends) and all(
            start < stop for start, stop in groups) and ends == sorted(ends) and ends[-1] <= layers
    except (TypeError, ValueError):
        return False

# %% check="placement" points=5
def require_best(case, least):
    """Require a plan that fits and takes no longer than `least`; None: that there is none."""
    times, saved, inputs, budget = case["times"], case["saved"], case["inputs"], case["budget"]
    selective = case.get("selective")
    (run,) = check.ranks(placed, ranks=1, cases=[case], expected=None)
    (plan,) = run.values[0]
    said = (f"{len(times)} layers{', whose cores may be recomputed' * (selective is not None)}, a budget of {budget} bytes: "
            f"place returns {plan}. ")
    check.that(plan != "TooMuchWork", f"{len(times)} layers: after half a million additions and comparisons of bytes, place "
               "has not finished. Of two plans for the same first layers, when can you drop one?")
    if least is None:
        check.that(plan == "ValueError", said + "No plan fits. Raise ValueError.")
        return
    check.that(plan != "ValueError" or len(times) > 2, f"{len(times)} layers, a budget of {budget} bytes: place raises "
               "ValueError, but a plan fits. A slower plan for the first layers that holds fewer bytes can win later. Which "
               "plans must you keep?")
    check.that(plan != "ValueError", f"{len(times)} layers, a budget of {budget} bytes: place raises ValueError, but some "
               "plans fit. Which group sizes do you try?")
    check.that(is_plan(plan, len(times), selective), said + "That is not a list of groups (start, stop), in order and "
               "without overlap, or of the numbers of layers between them, if their cores may be recomputed.")
    peak = peak_of(plan, saved, inputs, selective)
    check.that(peak <= budget, said + f"Its activations take {peak} bytes. What is in memory while a group, "
               "or a core, is recomputed?")
    time = time_of(plan, times, selective)
    check.that(time <= least * (1 + 1e-9), said + f"It recomputes for {time:g} units of time. There is a faster plan that fits.")


SAME = {"times": [1, 1, 1, 1, 1, 1], "saved": [10, 10, 10, 10, 10, 10], "inputs": [2, 2, 2, 2, 2, 2]}
require_best({"times": [1, 5], "saved": [10, 10], "inputs": [2, 2], "budget": 15}, 1)
require_best({**SAME, "budget": 60}, 0)
require_best({**SAME, "inputs": [5] * 6, "budget": 30}, 4)
for budget, least in ((59, 1), (35, 3), (22, 5), (20, 5), (11, None)):
    require_best({**SAME, "budget": budget}, least)
require_best({"times": [5, 1, 3], "saved": [10, 4, 6], "inputs": [1, 3, 2], "budget": 19}, 1)
MANY = {"times": [(5 * at + 3) % 9 + 1 for at in range(24)], "saved": [8 + 11 * at % 23 for at in range(24)],
        "inputs": [1 + 3 * at % 6 for at in range(24)]}
for budget, least in ((90, 79), (120, 65)):
    require_best({**MANY, "budget": budget}, least)
for budget, least in ((59, 0.25), (40, 1.25), (28, 3.5), (20, 5)):
    require_best({**SAME, "selective": [(0.25, 6)] * 6, "budget": budget}, least)
### BEGIN HIDDEN TESTS
def least_of(times, saved, inputs, budget, selective=None):
    """Return the least time of a plan that fits, or None."""
    layers, best = len(times), {(0, 0): 0}
    for start in range(layers):
        for (at, held), time in sorted(best.items()):
            if at != start:
                continue
            options = [(start + 1, held + saved[start], held + saved[start], time)]
            options += [(stop, held + inputs[start], held + sum(saved[start:stop]), time + sum(times[start:stop]))
                        for stop in range(start + 1, layers + 1)]
            if selective is not None:
                core, kept = selective[start]
                options.append((start + 1, held + kept, held + saved[start], time + core))
            for stop, after, work, total in options:
                if work <= budget and total < best.get((stop, after), float("inf")):
                    best[stop, after] = total
    return min((time for (at, _), time in best.items() if at == layers), default=None)


def drawn_layers(dice):
    count = dice.choice([5, 8, 12, 24])
    saved = [dice.randint(8, 30) for _ in range(count)]
    times, inputs = [dice.uniform(1, 9) for _ in range(count)], [dice.randint(1, 6) for _ in range(count)]
    cores = [(time * dice.uniform(0.1, 0.6), max(size, round(dice.uniform(0.3, 0.9) * whole)))
             for time, size, whole in zip(times, inputs, saved, strict=True)]
    return {"times": times, "saved": saved, "inputs": inputs, "budget": dice.randint(max(saved), min(sum(saved), 160)),
            **({"selective": cores} if dice.random() < 0.6 else {})}


for case in [one["layers"] for one in check.draw(8, layers=drawn_layers)]:
    require_best(case, least_of(**case))


def mlp_forward(width):
    """Run the forward pass of an MLP on 4,096 tokens."""
    import torch

    wide, narrow = (torch.empty(shape, device="cuda") for shape in ((width, 4 * width), (4 * width, width)))
    torch.nn.functional.gelu(torch.empty(4096, width, device="cuda") @ wide) @ narrow


# MLPs of three widths, with microseconds from a virtual GPU, and megabytes.
(drawn,) = check.draw(1, widths=lambda dice: dice.sample(range(512, 2049, 128), 3), share=check.between(0.2, 0.6),
                      order=lambda dice: [dice.randrange(3) for _ in range(12)])
micro = [int(1000 * check.baseline(mlp_forward, {"width": width}, "h100:1").milliseconds) for width in drawn["widths"]]
mega = [4096 * 4 * width // 10**6 for width in drawn["widths"]]
case = {"times": [micro[one] for one in drawn["order"]], "saved": [9 * mega[one] for one in drawn["order"]],
        "inputs": [mega[one] for one in drawn["order"]]}
case["budget"] = max(9 * max(mega), int(drawn["share"] * sum(case["saved"])))
require_best(case, least_of(**case))
### END HIDDEN TESTS

# %% [raw] mutant="placement" hint="in order and without"
# -    return list(min(fronts[layers], key=lambda one: one[1])[2])
# +    plan = min(fronts[layers], key=lambda one: one[1])[2]
# +    return [(layer, 1) for start, stop in plan for layer in range(start, stop)]

# %% [raw] mutant="placement" hint="while a group"
# -                work += saved[stop - 1]
# +                work += inputs[start] if stop == start + 1 else 0

# %% [raw] mutant="placement" hint="There is a faster plan"
# %%writefile mytrainer/placement.py
# def place(times, saved, inputs, budget, selective=None):
#     layers = len(times)
#     for size in range(1, layers + 1):
#         groups = [(at, min(at + size, layers)) for at in range(0, layers, size)]
#         if max(sum(inputs[start] for start, _ in groups[:number]) + sum(saved[start:stop])
#                for number, (start, stop) in enumerate(groups)) <= budget:
#             return groups
#     raise ValueError("no plan fits")

# %% [raw] mutant="placement" hint="Which group sizes"
# -            for stop in range(start + 1, layers + 1):
# +            for stop in range(start + 1, start + 2):

# %% [raw] mutant="placement" hint="Which group sizes"
# %%writefile mytrainer/placement.py
# def place(times, saved, inputs, budget, selective=None):
#     layers, plan = len(times), []
#     while True:
#         held, ok = 0, True
#         for layer in range(layers):
#             ok = ok and held + saved[layer] <= budget
#             held += inputs[layer] if (layer, layer + 1) in plan else saved[layer]
#         if ok:
#             return sorted(plan)
#         left = [layer for layer in range(layers) if (layer, layer + 1) not in plan]
#         if not left:
#             raise ValueError("no plan fits")
#         layer = min(left, key=lambda layer: times[layer] / saved[layer])
#         plan.append((layer, layer + 1))

# %% [raw] mutant="placement" hint="has not finished"
# -        for held, time, plan in undominated(fronts[start]):
# +        for held, time, plan in fronts[start]:

# %% [raw] mutant="placement" hint="has not finished"
# %%writefile mytrainer/placement.py
# def place(times, saved, inputs, budget, selective=None):
#     found = []
#
#     def extend(at, held, time, plan):
#         if at == len(times):
#             found.append((time, plan))
#             return
#         if held + saved[at] <= budget:
#             extend(at + 1, held + saved[at], time, plan)
#         for stop in range(at + 1, len(times) + 1):
#             if held + sum(saved[at:stop]) <= budget:
#                 extend(stop, held + inputs[at], time + sum(times[at:stop]), [*plan, (at, stop)])
#
#     extend(0, 0, 0, [])
#     if not found:
#         raise ValueError("no plan fits")
#     return min(found)[1]

# %% [raw] mutant="placement" hint="that holds fewer bytes can win later"
# -        for held, time, plan in undominated(fronts[start]):
# +        for held, time, plan in sorted(fronts[start], key=lambda one: one[1])[:1]:

# %% [raw] mutant="placement" hint="or a core, is recomputed"
# -            if held + saved[start] <= budget:
# -                fronts[start + 1].append((held + saved[start], time, plan))
# -                if selective is not None:  # the backward pass has all of the layer in memory, too
# -                    core, kept = selective[start]
# -                    fronts[start + 1].append((held + kept, time + core, (*plan, start)))
# +            if held + saved[start] <= budget:
# +                fronts[start + 1].append((held + saved[start], time, plan))
# +            if selective is not None and held + selective[start][1] <= budget:
# +                core, kept = selective[start]
# +                fronts[start + 1].append((held + kept, time + core, (*plan, start)))

# %% [raw] mutant="placement" hint="There is a faster plan"
# -                if selective is not None:  # the backward pass has all of the layer in memory, too
# -                    core, kept = selective[start]
# -                    fronts[start + 1].append((held + kept, time + core, (*plan, start)))

# %% [raw] mutant="placement" hint="Raise ValueError"
# -    if not fronts[layers]:
# -        raise ValueError(f"no plan fits {budget} bytes")
# +    if not fronts[layers]:
# +        return [(0, layers)]

# %% [markdown]
# Draw your plans for a real model: 96 layers of width 4,096 with FlashAttention, whose times and bytes come from a virtual
# H100. A layer saves $17c$ bytes, $34sbh$ to its input's $2sbh$. Before you run the cell, compute the best group size
# $\sqrt{Lc/k}$ for 96 layers and for 12. How much memory does `block`, which recomputes the first layers one by one, need
# once it recomputes every layer?

# %% tags=["explore"] short={"range(3, 28)]": "(6, 14)]"}
def milliseconds_of(plan, layer):
    return 1000 * layer.forward * sum(stop - start for start, stop in plan)


def my_plans(layer, count, budgets):
    """Return your plan for each budget that has one."""
    from mytrainer.placement import place

    found = {}
    for budget in budgets:
        with contextlib.suppress(ValueError):
            found[budget] = place([layer.forward] * count, [layer.saved] * count, [layer.input_bytes] * count, budget)
    return found


COUNT = 96
layer = memory_movie.layer("h100", "--hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --micro-batch-size 1 "
                           "--bf16 --use-flash-attn --attention-dropout 0")
# Budgets from 3% to 100% of what all layers save.
budgets = [int(COUNT * layer.saved * 0.03 * 33**((step - 3) / 24)) for step in range(3, 28)]
mine = record_ranks(my_plans, 1, layer, COUNT, budgets)[0].value  # reads the file anew
figure, axes = plt.subplots(figsize=(7, 4))
axes.plot([budget / 1e9 for budget in mine], [milliseconds_of(plan, layer) for plan in mine.values()], ".-",
          label="your plans")
sizes = (1, 2, 3, 4, 6, 8)
axes.plot([((COUNT / size - 1) * layer.input_bytes + size * layer.saved) / 1e9 for size in sizes],
          [milliseconds_of([(0, COUNT)], layer)] * len(sizes), "o", label="uniform, groups of 1, 2, 3, 4, 6, and 8")
blocks = range(0, COUNT, 5)
axes.plot([(n * layer.input_bytes + (COUNT - n) * layer.saved) / 1e9 for n in blocks],
          [milliseconds_of([(0, n)], layer) for n in blocks], "s", markersize=4, label="block")
axes.axvline((2 * (COUNT * layer.input_bytes * layer.saved)**0.5 - layer.input_bytes) / 1e9, color="gray", linestyle="--", label=r"$2\sqrt{Lck} - c$")
axes.set(xlabel="activations, GB", ylabel="ms of recomputation (modeled, H100)", xscale="log")
axes.legend(fontsize=8)
plt.show()
least = min(mine)
print(f"all layers save {COUNT * layer.saved / 1e9:.1f} GB; the smallest of these budgets with a plan is "
      f"{result(f'{least / 1e9:.2f} GB')}, in groups of", [stop - start for start, stop in mine[least]])

# %% [markdown]
# Three things are worth remembering. Your plans leave the last layers alone: the backward pass needs what they save at once,
# and has freed it before it reaches a group. If every layer is recomputed, the best groups have about $\sqrt{Lc/k}$ layers:
# 2 or 3 of 96, and single layers of 12, where the root is below 1. If some layers save everything, larger groups cost
# nothing, because a group may fill the memory that the layers after it have freed. So no point of `uniform` or `block` is
# below your plans: with 12 such layers and a budget of $103c$, `block` recomputes seven of them, and a single group of six
# fits, too. With little memory, the groups at the front are
# larger than those at the back, where more inputs are in memory.
#
# (With FlashAttention, recomputing the core would save nothing, so there were two choices per layer here.) Your trainer
# uses `place` with all three. With `--activation-memory-mb`, it measures what a layer saves, with and without its core,
# with your `SavedBytes`, asks your `place` for a plan, and runs it with your `checkpoint`. The core's share of a layer's
# forward time is estimated from FLOPs, $s/(6h + s)$:

# %% tags=["explore"] short={"(None, 1500, 700)": "(None, 700)", "GPT2 + ": "GPT2.replace('layers 12', 'layers 4') + "}
for megabytes in (None, 1500, 700):
    flags = "" if megabytes is None else f"--activation-memory-mb {megabytes}"
    one = gain.measure("v100:1", flags=GPT2 + flags)
    print(f"{flags:30} {1000 * one.seconds:6.1f} ms per step, {result(f'{one.peak / 2**30:.2f} GiB')} (modeled, V100)")

# %% [markdown]
# **This is the end of the second sitting.** Your trainer recomputes what it has discarded, no more than the memory demands,
# and the losses do not change.

# %% [markdown]
# ## Attention that never stores its scores
#
# **The third sitting starts here.** Selective recomputation removes $5as^2b$ from what is *saved*. But the scores are still
# computed as a whole, layer by layer, and at $s = 32{,}768$, one head's scores in fp32 take 4 GiB. **FlashAttention** ([Dao et al.,
# 2022](https://arxiv.org/abs/2205.14135)) never materializes them: it processes keys and values in blocks, and combines
# the blocks with an **online softmax** ([Milakov and Gimelshein, 2018](https://arxiv.org/abs/1805.02867)).
#
# Softmax needs the sum of all exponentials of a row, but you can begin with a part of it. For each query, keep
# $\ell = \log\sum_j e^{s_j}$ over the keys so far, and the output $o$ that is right for these keys. A new block with scores
# $s_j$ and values $v_j$ changes both:
#
# $$ \ell' = \log\Big(e^{\ell} + \sum_j e^{s_j}\Big). $$
#
# By which factor must the old $o$ be multiplied, and with which weights are the new values added?
#
# The backward pass recomputes each block of probabilities from $\ell$ alone. The gradient of a softmax is, with the
# gradients $dp$ of its probabilities,
#
# $$ ds_j = p_j\,\Big(dp_j - \sum_k p_k\,dp_k\Big). $$
#
# The sum is over *all* keys, also those of other blocks. Why does it need no pass over them? (Insert $dp_k$, and look for
# something that you have saved.)

# %% [markdown]
# ### Exercise 6: tiled attention
#
# Write `attention(query, key, value, block)`: **causal** attention, in which query $i$ sees the keys up to $i$. All
# tensors are `[n, s, d]`, with $n$ heads times samples. Process `block` keys at a time; the last block may be smaller.
# Save only `query`, `key`, `value`, the output, and $\ell$, `[n, s]`, and have no tensor of `[n, s, s]` at any time.
# Queries before a block's first key do not see it, so leave them out. `torch.logaddexp` and `torch.logsumexp` are exact for
# large scores, where `exp` overflows.
#
# Inputs may be in 16 bits, as in the GPT below. Then lab 05's rule holds: compute exponentials in fp32, and add up $\ell$,
# the output, and the gradients in fp32. The output and the gradients have the inputs' dtype. Inputs in fp32 stay in fp32.

# %% answer="attention"
%%writefile mytrainer/attention.py
"""Causal attention with an online softmax, which never materializes all scores (Dao et al. 2022)."""

import torch


def attention(query, key, value, block=128):
    """Return softmax(Q K^T / sqrt(d)) V with a causal mask.

    Args:
        query, key, value: [n, s, d], in 16 bits or in fp32.
        block: keys that are processed at a time.
    """
    return TiledAttention.apply(query, key, value, block)


class TiledAttention(torch.autograd.Function):
    """The autograd function behind `attention`."""

    ### BEGIN SOLUTION
    @staticmethod
    def scores(query, key, first, block):
        """Return the scaled scores of a block of keys, and of the queries from `first` on that may see them."""
        scores = (query[:, first:] @ key[:, first:first + block].mT).float() / query.shape[-1]**0.5
        mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(mask, float("-inf"))

    @staticmethod
    def forward(ctx, query, key, value, block):
        out = torch.zeros_like(query, dtype=torch.float32)
        total = torch.full(query.shape[:2], float("-inf"), device=query.device)
        for first in range(0, query.shape[1], block):
            scores = TiledAttention.scores(query, key, first, block)
            old, own = total[:, first:], scores.logsumexp(-1)
            new = torch.logaddexp(old, own)
            out[:, first:] = ((old - new).exp()[..., None] * out[:, first:]
                              + (scores - new[..., None]).exp().to(value.dtype) @ value[:, first:first + block])
            total[:, first:] = new
        ctx.block, out = block, out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total)
        return out

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, out, total = ctx.saved_tensors
        of_query = torch.zeros_like(query, dtype=torch.float32)
        of_key, of_value = torch.empty_like(key), torch.empty_like(value)
        mean = (gradient.float() * out.float()).sum(-1, keepdim=True)
        for first in range(0, query.shape[1], ctx.block):
            keys = slice(first, first + ctx.block)
            weights = (TiledAttention.scores(query, key, first, ctx.block) - total[:, first:, None]).exp()
            of_value[:, keys] = weights.to(gradient.dtype).mT @ gradient[:, first:]
            of_scores = weights * (gradient[:, first:] @ value[:, keys].mT - mean[:, first:]) / query.shape[-1]**0.5
            of_scores = of_scores.to(key.dtype)
            of_query[:, first:] += of_scores @ key[:, keys]
            of_key[:, keys] = of_scores.mT @ query[:, first:]
        return of_query.to(query.dtype), of_key, of_value, None
    ### END SOLUTION

# %% tags=["driver"]
def attended(query, key, value, block, weights):
    """Return the output of the student's attention, and the gradients of sum(weights * output)."""
    from mytrainer.attention import attention

    inputs = [torch.tensor(one, requires_grad=True) for one in (query, key, value)]
    out = attention(*inputs, block)
    (torch.tensor(weights) * out).sum().backward()
    return [out.tolist(), *([] if one.grad is None else one.grad.tolist() for one in inputs)]


def attended_in_bf16(seed):
    """Return the dtypes and values of what `attended` returns, for 512 random keys in blocks of 8, in bf16."""
    from mytrainer.attention import attention

    generator = torch.Generator().manual_seed(seed)
    *inputs, weights = (torch.randn(1, 512, 16, generator=generator).bfloat16() for _ in range(4))
    inputs = [(one / 2 if one is inputs[0] else one).requires_grad_() for one in inputs]
    out = attention(*inputs, 8)
    (weights * out).sum().backward()
    found = [out, *(torch.zeros(0) if one.grad is None else one.grad for one in inputs)]
    return [[str(one.dtype) for one in found], *(one.detach().float() for one in found)]


def attention_step(n, s, d, block):
    """Run a forward and a backward pass of attention on a GPU."""
    from mytrainer.attention import attention

    inputs = [torch.randn(n, s, d, device="cuda", requires_grad=True) for _ in range(3)]
    attention(*inputs, block).sum().backward()

# %% tags=["check-setup"]
import torch


def dense(query, key, value, weights):
    """Return the output of attention with all scores in fp64, and its gradients."""
    query, key, value = (torch.as_tensor(one).double().requires_grad_() for one in (query, key, value))
    s = query.shape[1]
    scores = query @ key.mT / query.shape[-1]**0.5
    scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), float("-inf"))
    out = scores.softmax(-1) @ value
    (torch.as_tensor(weights) * out).sum().backward()
    return [one.tolist() for one in (out, query.grad, key.grad, value.grad)]

# %% check="attention" points=7
CASE = {"query": [[[1.0], [2.0], [0.0]]], "key": [[[1.0], [0.5], [2.0]]], "value": [[[1.0], [3.0], [8.0]]],
        "weights": [[[1.0], [1.0], [1.0]]]}
WIDE = {"query": [[[2.0, 0.0, 0.0, 0.0]] * 2], "key": [[[2.0, 0.0, 0.0, 0.0], [0.0] * 4]],
        "value": [[[1.0, 0.0, 0.0, 0.0], [0.0] * 4]], "weights": [[[1.0] * 4] * 2], "block": 1}
with check.parts():
    with check.part(2, "the forward pass"):
        runs = check.ranks(attended, ranks=1, cases=[{**CASE, "block": block} for block in (3, 2)], expected=None)
        for run in runs:
            out = [row[0] for row in run.values[0][0][0]]
            check.that(abs(out[0] - 1) < 1e-5 and abs(out[1] - 1.5378828) < 1e-5 and abs(out[2] - 4) < 1e-5,
                       f"The outputs are {[round(one, 4) for one in out]} instead of 1, 1.5379, and 4, with keys 1, 0.5, "
                       "and 2, and values 1, 3, and 8. " + (
                           "The first query sees later keys." if abs(out[0] - 1) > 1e-5 else
                           "With a single block, it is right. How do the earlier blocks' outputs change?"
                           if run is runs[1] else ""))
        (run,) = check.ranks(attended, ranks=1, cases=[WIDE], expected=None)
        wide = run.values[0][0][0][1][0]
        check.that(abs(wide - 0.8807971) < 1e-5, f"With d = 4, two keys of scores 4 and 0, and values 1 and 0, an output is "
                   f"{wide:.4f} instead of 0.8808. Is each score divided by the square root of d?")
        big = {**CASE, "query": [[[1000.0], [2000.0], [0.0]]], "block": 1}
        (run,) = check.ranks(attended, ranks=1, cases=[big], expected=None)
        out = [row[0] for row in run.values[0][0][0]]
        check.that(all(abs(one - right) < 1e-5 for one, right in zip(out, (1, 1, 4), strict=True)),
                   f"With scores of 1,000 and more, the outputs are {out} instead of 1, 1, and 4. exp overflows there.")
        ### BEGIN HIDDEN TESTS
        def drawn_tensor(dice):
            return [[[dice.uniform(-2, 2) for _ in range(3)] for _ in range(7)] for _ in range(2)]

        drawn = check.draw(3, query=drawn_tensor, key=drawn_tensor, value=drawn_tensor, weights=drawn_tensor,
                           block=[1, 2, 3, 5, 7, 9])
        for case in drawn:
            (run,) = check.ranks(attended, ranks=1, cases=[case], expected=None)
            right = dense(case["query"], case["key"], case["value"], case["weights"])[0]
            check.that(torch.allclose(torch.tensor(run.values[0][0]), torch.tensor(right), rtol=1e-4, atol=1e-5),
                       f"The output differs from dense attention's, with n = 2 and 7 keys in blocks of {case['block']}. "
                       "Are the [s, d] matrices independent, and may the last block be smaller?")
        ### END HIDDEN TESTS
    with check.part(3, "the backward pass, without a matrix of scores"):
        (run,) = check.ranks(attended, ranks=1, cases=[{**CASE, "block": 2}], expected=None)
        names = ("query", "key", "value")
        rights = [[0.0, -0.1966119, 1.5], [-0.7864477, 0.7864477, 0.0], [2.0643919, 0.6022748, 0.3333333]]
        for name, found, right in zip(names, run.values[0][1:], rights, strict=True):
            values = [row[0] for row in found[0]] if found else None
            check.that(values is not None and all(abs(one - other) < 1e-5 for one, other in zip(values, right, strict=True)),
                       f"The gradients of the {name} vectors are {values} instead of {right}, in blocks of 2.")
        (run,) = check.ranks(attended, ranks=1, cases=[WIDE], expected=None)
        of_key = [row[0] for row in run.values[0][2][0]] if run.values[0][2] else None
        check.that(of_key is not None and all(abs(one - right) < 1e-5 for one, right in zip(
            of_key, (0.1049936, -0.1049936), strict=True)), (
            f"With d = 4, the gradients of the key vectors begin with {of_key} instead of [0.1050, -0.1050]. The gradient of the "
            "scores passes through their factor, too."))
        cost = check.gpus(attention_step, {"n": 8, "s": 4096, "d": 64, "block": 256}, "h100:1",
                          least={"flops": 6 * 8 * 4096**2 * 64})
        check.pass_mark(cost.peak_memory, f"{cost.peak_memory:.2f} GiB at the peak: all scores together would take 0.5 "
                        "GiB. Is there a tensor of [n, s, s], or are all of its blocks saved?", error=cost.memory_error, below=0.4)
        flops = cost.ranks[0].flops
        check.that(flops < 10 * 8 * 4096**2 * 64, f"{flops:.2g} FLOPs: seven products over half of the scores take about "
                   f"{7 * 8 * 4096**2 * 64:.2g}. Which queries see no key of a block?")
        ### BEGIN HIDDEN TESTS
        def drawn_rows(dice):
            return [[[dice.uniform(-2, 2) for _ in range(3)] for _ in range(7)] for _ in range(2)]

        for case in check.draw(3, query=drawn_rows, key=drawn_rows, value=drawn_rows, weights=drawn_rows,
                               block=[1, 2, 3, 5, 7, 9]):
            (run,) = check.ranks(attended, ranks=1, cases=[case], expected=None)
            rights = dense(case["query"], case["key"], case["value"], case["weights"])[1:]
            for name, found, right in zip(("query", "key", "value"), run.values[0][1:], rights, strict=True):
                check.that(bool(found) and torch.allclose(torch.tensor(found), torch.tensor(right), rtol=1e-4, atol=1e-5),
                           f"The gradient of the {name} differs from dense attention's, with n = 2 and 7 keys in blocks of "
                           f"{case['block']}. Are the [s, d] matrices independent, and may the last block be smaller?")
        ### END HIDDEN TESTS
    with check.part(2, "inputs in 16 bits"):
        def require_precision(seed):
            """Require errors that rounding inputs and results to bf16 explains."""
            (run,) = check.ranks(attended_in_bf16, ranks=1, cases=[{"seed": seed}], expected=None)
            dtypes, *found = run.values[0]
            check.that(dtypes[0] == "torch.bfloat16", f"In bf16, the output has the dtype {dtypes[0]}.")
            generator = torch.Generator().manual_seed(seed)
            query, key, value, weights = (torch.randn(1, 512, 16, generator=generator).bfloat16() for _ in range(4))
            rights = map(torch.tensor, dense(query / 2, key, value, weights))
            for name, one, right in zip(("output", "gradient of the query", "gradient of the key", "gradient of the value"),
                                        map(torch.tensor, found), rights, strict=True):
                error = float((one - right).norm() / right.norm()) if one.shape == right.shape else 1.0
                check.that(error < 0.005, f"In bf16, with 512 keys in blocks of 8, the error of the {name} is {error:.1%}. A "
                           "number in bf16 has 8 significant bits: where it stands in an exponent, probabilities are off by "
                           "percents, and where it is a sum over blocks, errors add up. Which of yours need fp32?")

        require_precision(1)
        ### BEGIN HIDDEN TESTS
        for one in check.draw(1, seed=range(2, 2**31)):
            require_precision(one["seed"])
        ### END HIDDEN TESTS

# %% [raw] mutant="attention" hint="Are the [s, d] matrices independent"
# -            old, own = total[:, first:], scores.logsumexp(-1)
# +            old, own = total[:, first:], scores[:1].logsumexp(-1)

# %% [raw] mutant="attention" hint="differs from dense attention's"
# -            of_scores = weights * (gradient[:, first:] @ value[:, keys].mT - mean[:, first:]) / query.shape[-1]**0.5
# +            of_scores = weights * (gradient[:, first:] @ value[:, keys].mT - mean[:1, first:]) / query.shape[-1]**0.5

# %% [raw] mutant="attention" hint="How do the earlier blocks"
# -            out[:, first:] = ((old - new).exp()[..., None] * out[:, first:]
# +            out[:, first:] = (out[:, first:]

# %% [raw] mutant="attention" hint="divided by the square root of d"
# -        scores = (query[:, first:] @ key[:, first:first + block].mT).float() / query.shape[-1]**0.5
# +        scores = (query[:, first:] @ key[:, first:first + block].mT).float()

# %% [raw] mutant="attention" hint="passes through their factor"
# -            of_scores = weights * (gradient[:, first:] @ value[:, keys].mT - mean[:, first:]) / query.shape[-1]**0.5
# +            of_scores = weights * (gradient[:, first:] @ value[:, keys].mT - mean[:, first:])

# %% [raw] mutant="attention" hint="sees later keys"
# -        return scores.masked_fill(mask, float("-inf"))
# +        return scores

# %% [raw] mutant="attention" hint="exp overflows"
# -            old, own = total[:, first:], scores.logsumexp(-1)
# +            old, own = total[:, first:], scores.exp().sum(-1).log()

# %% [raw] mutant="attention" hint="The gradients of the "
# -            of_query[:, first:] += of_scores @ key[:, keys]
# +            of_query[:, first:] = of_scores @ key[:, keys]

# %% [raw] mutant="attention" hint="The gradients of the "
# -            of_scores = weights * (gradient[:, first:] @ value[:, keys].mT - mean[:, first:]) / query.shape[-1]**0.5
# +            of_scores = weights * (gradient[:, first:] @ value[:, keys].mT) / query.shape[-1]**0.5

# %% [raw] mutant="attention" hint="Which of yours need fp32"
# -        total = torch.full(query.shape[:2], float("-inf"), device=query.device)
# +        total = query.new_full(query.shape[:2], float("-inf"))

# %% [raw] mutant="attention" hint="Which of yours need fp32"
# -        scores = (query[:, first:] @ key[:, first:first + block].mT).float() / query.shape[-1]**0.5
# +        scores = query[:, first:] @ key[:, first:first + block].mT / query.shape[-1]**0.5
# -        out = torch.zeros_like(query, dtype=torch.float32)
# -        total = torch.full(query.shape[:2], float("-inf"), device=query.device)
# +        out, total = torch.zeros_like(query), query.new_full(query.shape[:2], float("-inf"))
# -        of_query = torch.zeros_like(query, dtype=torch.float32)
# +        of_query = torch.zeros_like(query)
# -        mean = (gradient.float() * out.float()).sum(-1, keepdim=True)
# +        mean = (gradient * out).sum(-1, keepdim=True)

# %% [raw] mutant="attention" hint="the output has the dtype"
# -        ctx.block, out = block, out.to(query.dtype)
# +        ctx.block = block
# -        query, key, value, out, total = ctx.saved_tensors
# +        query, key, value, out, total = ctx.saved_tensors
# +        gradient = gradient.to(query.dtype)

# %% [raw] mutant="attention" hint="are all of its blocks saved"
# -        for first in range(0, query.shape[1], block):
# +        ctx.blocks = []
# +        for first in range(0, query.shape[1], block):
# -            old, own = total[:, first:], scores.logsumexp(-1)
# +            ctx.blocks.append(scores)
# +            old, own = total[:, first:], scores.logsumexp(-1)
# -            weights = (TiledAttention.scores(query, key, first, ctx.block) - total[:, first:, None]).exp()
# +            weights = (ctx.blocks[first // ctx.block] - total[:, first:, None]).exp()

# %% [raw] mutant="attention" hint="Which queries see no key of a block"
# -        scores = (query[:, first:] @ key[:, first:first + block].mT).float() / query.shape[-1]**0.5
# -        mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
# +        scores = (query @ key[:, first:first + block].mT).float() / query.shape[-1]**0.5
# +        mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1 - first)
# -            old, own = total[:, first:], scores.logsumexp(-1)
# +            old, own = total, scores.logsumexp(-1)
# -            out[:, first:] = ((old - new).exp()[..., None] * out[:, first:]
# -                              + (scores - new[..., None]).exp().to(value.dtype) @ value[:, first:first + block])
# -            total[:, first:] = new
# +            out = ((old - new).exp()[..., None] * out
# +                   + (scores - new[..., None]).exp().to(value.dtype) @ value[:, first:first + block])
# +            total = new
# -            weights = (TiledAttention.scores(query, key, first, ctx.block) - total[:, first:, None]).exp()
# -            of_value[:, keys] = weights.to(gradient.dtype).mT @ gradient[:, first:]
# -            of_scores = weights * (gradient[:, first:] @ value[:, keys].mT - mean[:, first:]) / query.shape[-1]**0.5
# +            weights = (TiledAttention.scores(query, key, first, ctx.block) - total[..., None]).exp()
# +            of_value[:, keys] = weights.to(gradient.dtype).mT @ gradient
# +            of_scores = weights * (gradient @ value[:, keys].mT - mean) / query.shape[-1]**0.5
# -            of_query[:, first:] += of_scores @ key[:, keys]
# -            of_key[:, keys] = of_scores.mT @ query[:, first:]
# +            of_query += of_scores @ key[:, keys]
# +            of_key[:, keys] = of_scores.mT @ query

# %% [raw] mutant="attention" hint="Is there a tensor"
# -        for first in range(0, query.shape[1], block):
# +        block = query.shape[1]
# +        for first in range(0, query.shape[1], block):

# %% [markdown]
# Your trainer runs it with `--tiled-attention`. The next cell compares it with standard attention and with FlashAttention,
# at a sequence length of 4,096. Which of the three takes the least memory, and which the least time?

# %% tags=["explore"] short={"LONG = \"--num-layers 12": "LONG = \"--num-layers 2"}
LONG = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 4096 --max-position-embeddings 4096 " \
       "--make-vocab-size-divisible-by 50304 --attention-dropout 0 --hidden-dropout 0 --micro-batch-size 1 --bf16 "
for name, flags in (("standard", ""), ("yours", "--tiled-attention"), ("FlashAttention", "--use-flash-attn")):
    one = gain.measure("h100:1", flags=LONG + flags)
    print(f"{name:15} {1000 * one.seconds:6.1f} ms per step, {result(f'{one.peak / 2**30:.2f} GiB')} (modeled, H100)")

# %% [markdown]
# Both save $34sbh$ instead of $34sbh + 5as^2b$ bytes per layer (and less, because the dropout mask is gone). Your
# version still sends every block of scores through the GPU's memory several times, in a dozen kernels per block, and in
# fp32. This is why it takes longer than standard attention, although it does fewer FLOPs: it moves more bytes, and 32
# blocks per layer make hundreds of kernels, each too small to keep the GPU busy. (The model has no fusion; on a real GPU,
# `torch.compile` would merge some of these kernels.) FlashAttention does all of it in *one* kernel whose blocks stay in the SM's shared memory. Most of its gain in time comes
# from that. With a causal mask, both tiled versions also skip half of the scores, so they do 7/12 of the FLOPs: seven
# half matrix products, where standard attention has six whole ones. That is the smaller part of the gain: without a
# mask, FlashAttention does *more* FLOPs, because the backward pass recomputes the scores, and it is still faster
# ([Dao et al., 2022](https://arxiv.org/abs/2205.14135), section 3.1).

# %% [markdown]
# ## What the allocator adds
#
# A GPU's memory is not a bag of bytes. PyTorch's **caching allocator** rounds each request up, takes **segments** from
# CUDA, and keeps them when tensors are freed. `torch.cuda.memory_allocated()` counts the tensors, and
# `torch.cuda.memory_reserved()` the segments. The difference is free but reserved, and if it is scattered in pieces that
# are too small for the next request, it is **fragmentation**. Four jobs differ in what they recompute: (a) nothing, (b)
# selectively, (c) every layer, (d) every layer in groups of four. Which of them reserves the most beyond what it
# allocates, as a share of that?

# %% answer="guess-most"
### BEGIN SOLUTION
guess_most = "d"
### END SOLUTION

# %% tags=["explore"]
ONE = "--device virtual:v100 --world-size 1 --gpus-per-node 1 --num-layers 12 --hidden-size 768 --num-attention-heads 12 " \
      "--seq-length 1024 --max-position-embeddings 1024 --fp16 --micro-batch-size 8 --global-batch-size 8 "
print(f"{'in GB (modeled, V100)':24} {'requested':>10} {'allocated':>10} {'reserved':>9}")
beyond = {}
for name, flags in (("a: no recomputation", ""), ("b: selective", "--recompute-granularity selective"),
                    ("c: full, 1 layer each", "--recompute-granularity full --recompute-method uniform"),
                    ("d: full, 4 layers each", "--recompute-granularity full --recompute-method uniform "
                     "--recompute-num-layers 4")):
    one = memory_movie.record(ONE + flags)
    beyond[name[0]] = one.reserved / one.allocated - 1
    print(f"{name:24} {one.requested / 1e9:10.3f} {one.allocated / 1e9:10.3f} {one.reserved / 1e9:9.3f}  "
          f"{result(f'{beyond[name[0]]:.0%} more')}")
print(f"the most: {max(beyond, key=beyond.get)}; you predicted {guess_most}")

# %% [markdown]
# Rounding to 512 bytes costs next to nothing. Recomputation costs more: its tensors are freed and allocated in the middle
# of the backward pass, between those of other layers. As a share, single layers are the worst: with them, the tensors' total is
# the smallest, and the holes are not (1.0 GB against 0.4 GB in groups of four and 0.6 GB with selective recomputation).
# `nvidia-smi` shows the reserved memory and CUDA's own, so it always
# shows more than your tensors take. If a job runs out of memory with much of it reserved but unallocated, try
# `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, which PyTorch's own message suggests, before you recompute more.

# %% [markdown]
# ## Or move it away
#
# The host has much more memory than the GPU. **Offloading** copies what autograd saves to the host, and back in the
# backward pass. The link is PCIe: 16 GB/s on a V100 and 64 GB/s on an H100 in each direction, by data sheet.
#
# A layer saves $34sbh$ bytes with FlashAttention. Its forward pass takes $24sbh^2$ FLOPs in the matrix products with
# weights, and $2s^2bh$ in causal attention. Assume that a GPU computes 500 TFLOP/s, about half of an H100's peak in bf16
# by data sheet. Copies reach 50 GB/s, which we measured between an H100 and pinned memory, and nothing overlaps. At which
# sequence length does offloading a layer become faster than recomputing it, for $h = 8{,}192$? Commit to a number.

# %% answer="guess-break-even"
### BEGIN SOLUTION
guess_length = 240_000
### END SOLUTION

# %% tags=["explore"]
# Twice 34sbh bytes over 50 GB/s take as long as 24sbh² + 2s²bh FLOPs at 500 TFLOP/s.
check.compare("sequence length (by the formula)", guess_length, (2 * 34 / 50e9 * 500e12 - 24 * 8192) / 2)

# %% [markdown]
# At sequence lengths of a few thousand, offloading loses on its own: without the $s^2$ term, it would take a width of
# 28,333, and the model with a trillion parameters in [Narayanan et al., 2021](https://arxiv.org/abs/2104.04473) is only
# 25,600 wide. On very long sequences, the $s^2$ term tips it. On shorter ones, offloading pays when copies *overlap* with
# computation, or when memory matters more than time.

# %% [markdown]
# ### Exercise 7: offload
#
# Write `Offload`, with the same hooks as your meter. Within `with Offload(parameters):`, every tensor of at least `least`
# bytes that autograd saves is copied to the host, and its memory on the device is not held any longer. Parameters, and
# views of them, stay where they are. The backward pass copies tensors back, with the same shape, dtype, and device. On a
# GPU, use pinned host memory, `torch.empty(..., pin_memory=True)`, and `non_blocking=True` for both copies. On a CPU, keep a
# copy, so that the same tests run.
#
# A virtual GPU copies to pageable memory as fast as to pinned memory. A real one does not: we measured 50 GB/s and 5 to 13
# GB/s on an H100. So the check does not judge the time, but the recorded copies to the host.

# %% answer="offload"
%%writefile mytrainer/offload.py
"""Keep what autograd saves in the host's memory."""

import torch
from torch.autograd.graph import saved_tensors_hooks


class Offload(saved_tensors_hooks):
    """Copies saved tensors to the host, and back in the backward pass."""

    def __init__(self, parameters=(), least=2**20):
        """Args:
            parameters: tensors that stay on the device.
            least: bytes; smaller tensors stay, too.
        """
        ### BEGIN SOLUTION
        super().__init__(self._pack, self._unpack)
        self.least = least
        self.stay = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def _pack(self, tensor):
        if tensor.nbytes < self.least or tensor.untyped_storage().data_ptr() in self.stay:
            return tensor.detach()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return tensor.device, host.copy_(tensor.detach(), non_blocking=True)

    def _unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        device, host = packed
        return host.to(device, non_blocking=True)
        ### END SOLUTION

# %% tags=["driver"]
def offloaded(x, weight):
    """Return the gradients of x and weight for sum((weight * x)**2 * x) with everything offloaded."""
    from mytrainer.offload import Offload

    x, weight = torch.tensor(x, requires_grad=True), torch.nn.Parameter(torch.tensor(weight))
    with Offload([weight], least=0):
        y = ((weight * x)**2 * x).sum()
    y.backward()
    return [x.grad.tolist(), weight.grad.item()]


def offloaded_step(width, layers, tokens, least):
    """Run one forward and backward pass of MLPs with Offload; `least` is its argument, in bytes."""
    from mytrainer.offload import Offload

    mlps = torch.nn.Sequential(*[torch.nn.Sequential(
        torch.nn.Linear(width, 4 * width, bias=False, device="cuda"), torch.nn.GELU(),
        torch.nn.Linear(4 * width, width, bias=False, device="cuda")) for _ in range(layers)])
    x = torch.randn(tokens, width, device="cuda")
    with Offload(mlps.parameters(), least):
        y = mlps(x)
    del x
    y.sum().backward()

# %% check="offload" points=3
check.ranks(offloaded, ranks=1, cases=[{"x": [1.0, 2.0], "weight": 3.0}], expected=[[[[27.0, 108.0], 54.0]]])
def priced_step(least, wanted):
    """Return the cost of a step in which exactly `wanted` bytes must be copied to the host, to pinned memory."""
    cost = check.gpus(offloaded_step, {"width": 512, "layers": 8, "tokens": 16384, "least": least}, "h100:1",
                      least={"flops": (3 * 8 * 2 - 1) * 2 * 16384 * 512 * 2048})
    copied = cost.ranks[0].downloaded
    said = (f"Eight MLPs, least={least:,}: {sum(copied.values()):,} bytes are copied to the host, and the activations of at "
            f"least this size have {wanted:,}. ")
    check.that(sum(copied.values()) >= wanted, said + "What do you not copy?")
    check.that(sum(copied.values()) <= wanted, said + (
        "Do parameters stay on the device, also as transposed views?" if least == 1024 else "Smaller tensors stay."))
    check.that(not copied.get("pageable"), f"{copied.get('pageable', 0):,} bytes are copied to pageable memory, or the CPU "
               "waits for the copy. Which two arguments are missing?")
    return cost


HIDDEN = 4 * 16384 * 512  # bytes of an MLP's input; it also saves two tensors that are four times as wide
cost = priced_step(1024, 8 * 9 * HIDDEN)
check.pass_mark(cost.peak_memory, f"{cost.peak_memory:.2f} GiB at the peak: the device still holds what was copied. What "
                "does pack return?", error=cost.memory_error, below=0.9)
priced_step(4 * HIDDEN, 8 * 8 * HIDDEN)
priced_step(4 * HIDDEN + 1, 0)
### BEGIN HIDDEN TESTS
check.ranks(offloaded, ranks=1, rel=1e-4, cases=check.draw(
    4, x=lambda dice: [dice.uniform(1, 3) for _ in range(5)], weight=check.between(1, 3)),
    expected=lambda ranks, x, weight: [[[3 * weight**2 * one**2 for one in x], 2 * weight * sum(one**3 for one in x)]])
### END HIDDEN TESTS

# %% [raw] mutant="offload" hint="What do you not copy"
# -        if tensor.nbytes < self.least or tensor.untyped_storage().data_ptr() in self.stay:
# +        if True:

# %% [raw] mutant="offload" hint="What do you not copy"
# -        if tensor.nbytes < self.least or tensor.untyped_storage().data_ptr() in self.stay:
# +        if tensor.nbytes <= self.least or tensor.untyped_storage().data_ptr() in self.stay:

# %% [raw] mutant="offload" hint="Do parameters stay on the device"
# -        if tensor.nbytes < self.least or tensor.untyped_storage().data_ptr() in self.stay:
# +        if tensor.nbytes < self.least:

# %% [raw] mutant="offload" hint="Smaller tensors stay"
# -        if tensor.nbytes < self.least or tensor.untyped_storage().data_ptr() in self.stay:
# +        if tensor.untyped_storage().data_ptr() in self.stay:

# %% [raw] mutant="offload" hint="Which two arguments are missing"
# -        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
# -        return tensor.device, host.copy_(tensor.detach(), non_blocking=True)
# +        return tensor.device, tensor.detach().cpu()

# %% [raw] mutant="offload" hint="What does pack return"
# -        return tensor.device, host.copy_(tensor.detach(), non_blocking=True)
# +        host.copy_(tensor.detach(), non_blocking=True)
# +        return tensor.detach()

# %% tags=["explore"] short={"in (\"\", \"--offload-activations\", FULL)": "in (\"--offload-activations\",)", "GPT2 + ": "GPT2.replace('layers 12', 'layers 2') + "}
for flags in ("", "--offload-activations", FULL):
    one = gain.measure("h100:1", flags=GPT2 + "--bf16 --use-flash-attn " + flags)
    print(f"{flags:88} {1000 * one.seconds:6.1f} ms, {result(f'{one.peak / 2**30:.2f} GiB')} (modeled, H100)")

# %% [markdown]
# At a width of 768, recomputing is cheap and PCIe is slow. The copies here are on the stream of the computation, so none
# of them is hidden. PyTorch's own [offloading for activations](https://docs.pytorch.org/torchtune/main/generated/torchtune.training.OffloadActivations.html)
# in torchtune runs them on a second stream, which hides what fits beside the layers.

# %% [markdown]
# ## Your trainer now
#
# `lab mytrainer` tests the files of this lab on two ranks. With full recomputation, its row for lab 06 has a lower peak and
# fewer tokens per second than the one for lab 04. The largest model that fits is the same. What limits it?

# %% tags=["explore"] short={"!lab mytrainer": "!true"}
!lab mytrainer

# %% [markdown]
# ## Discuss
#
# 1. **Fewer inputs, more memory.** Groups of 4 layers save fewer inputs than groups of 1, and yet their peak can be higher.
#    When?
# 2. **Is replaying enough?** For which layers is it not enough to replay random numbers and autocast? Think of layers
#    that remember something.
# 3. **Checkpoints and pipelines.** A pipeline stage has several micro-batches in flight. Which of this lab's techniques
#    helps more there than on one GPU, and which helps less?
# 4. **Recompute or shard?** You have four GPUs, and the model does not fit one. Compare recomputation, offloading, and
#    sharding the optimizer state over the four.
# 5. **More GPUs or more micro-batches?** The GPUs wait for the network half of the time. Compare a faster network, a larger
#    global batch, and fewer GPUs.

# %% [markdown]
# ## Cleanup
#
# Keep `mytrainer/`: the next labs add to it.

# %% tags=["explore"]
!scancel --quiet {fp16_job.job} {checkpointing_job.job} {accumulation_job.job}
!rm -f code/classic.sh
!ls mytrainer

# %% [markdown]
# ## What you have built
#
# - `saved.py` counts what the backward pass holds: $34sbh + 5as^2b$ bytes per layer without recomputation.
# - `states.py` and `checkpointing.py` discard it and recompute it exactly, bit for bit.
# - `placement.py` finds the fastest plan under a memory limit.
# - `attention.py` never materializes the scores, and `offload.py` moves the rest to the host.
#
# Parameters, gradients, and optimizer state have not become smaller, and they limit the largest model that fits. They are
# next: sharding divides them over the data-parallel ranks.
#
# ## Read next
#
# - [Chen et al., 2016](https://arxiv.org/abs/1604.06174), *Training deep nets with sublinear memory cost*: checkpointing,
#   and the square root.
# - [Korthikanti et al., 2022](https://arxiv.org/abs/2205.05198), *Reducing activation recomputation in large transformer
#   models*: the bytes of a layer, and selective recomputation.
# - [Jain et al., 2020](https://arxiv.org/abs/1910.02653), *Checkmate*: the best placement for any graph, by integer
#   programming.
# - [Dao et al., 2022](https://arxiv.org/abs/2205.14135), *FlashAttention*: the memory traffic of attention, and how to
#   avoid it.
# - [A guide to PyTorch's CUDA caching allocator](https://zdevito.github.io/2022/08/04/cuda-caching-allocator.html), by
#   one of its authors: segments, blocks, and fragmentation.
# - [Megatron-LM's checkpoint function](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/tensor_parallel/random.py):
#   what yours looks like in a framework with several random number generators.
