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
# # Tensor and sequence parallelism
#
# Lab 08 removed the redundant copies of a model's state, but every GPU still computes whole layers. A layer can be
# too large for that. In this lab you divide the layer itself, and the only communication inside it is a few
# all-reduces:
#
# - **First sitting, 80 minutes.** You partition the matrices of an MLP and the heads of an attention over the GPUs of a
#   node, with as little communication as possible.
# - **Second sitting, 80 minutes.** The vocabulary is partitioned, too, and no GPU ever has all logits of a token.
#   Random numbers stop depending on the layout. Then you put the block of a modern language model together from your own
#   files, and train it.
# - **Third sitting, 80 minutes.** Sequence parallelism partitions what is left. You hide the communication, clip
#   gradients by a norm that counts every parameter once, and predict what a layer keeps for its backward pass.
#
# Values are real: CPU ranks compute them. Time and memory of GPUs are **modeled** by virtual GPUs. Your answers are
# files in `mytrainer/`, and your trainer will train with them.

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
check.mask("accelerate", "deepspeed", "lab.mytrainer", "layout_estimator", "minimegatron", "transformers",
           "torch.distributed.tensor.distribute_module", "torch.distributed.tensor.distribute_tensor",
           "torch.distributed.tensor.parallel.ColwiseParallel", "torch.distributed.tensor.parallel.RowwiseParallel",
           "torch.distributed.tensor.parallel.SequenceParallel", "torch.distributed.tensor.parallel.loss_parallel",
           "torch.distributed.tensor.parallel.parallelize_module")

# %% tags=["explore"]
import virtualgpu
from labcore.colors import bad, good, mark, result
from lablib import tensor
from warmranks import run_ranks

# %% [markdown]
# ## A layer that fits on no GPU
#
# How much memory does a single transformer layer need? The next cell trains one layer, on one sequence, on one virtual
# H100 with 80 GB. It does what your trainer does: parameters and activations in bf16, and gradients, master weights,
# and Adam's moments in fp32. Attention is a FlashAttention kernel. The shapes are published: GPT-3 ([Brown et al.,
# 2020](https://arxiv.org/abs/2005.14165)), Llama 3 405B ([Llama Team, 2024](https://arxiv.org/abs/2407.21783)), and
# the model of one trillion parameters of [Narayanan et al., 2021](https://arxiv.org/abs/2104.04473).

# %% tags=["explore"]
SHAPES = {"GPT-3 175B, 1 of 96": dict(hidden=12288, inner=4 * 12288, heads=96, kv_heads=96, length=2048, is_gated=False),
          "Llama 3 405B, 1 of 126": dict(hidden=16384, inner=53248, heads=128, kv_heads=8, length=8192),
          "GPT 1T, 1 of 128": dict(hidden=25600, inner=4 * 25600, heads=160, kv_heads=160, length=2048, is_gated=False)}


def trained(shape):
    """Train one layer on a GPU; return whether it fits."""
    try:
        tensor.layer_step(**shape)
    except torch.OutOfMemoryError:
        return False
    return True


for name, shape in SHAPES.items():
    rank = virtualgpu.run(lambda shape=shape: trained(shape), "h100:1")[0]
    print(f"{name:24}", result(f"{rank.peak / 1e9:.0f} GB at the peak (modeled)") if rank.value else bad("CUDA out of memory"))

# %% [markdown]
# One layer of the trillion-parameter model does not fit on the GPU, and it has 128 layers. ZeRO shards the optimizer
# state, and ZeRO-3 even the parameters. But it gathers them before it computes, and it never shards activations: a GPU
# still computes a whole layer for a whole sequence, with everything in memory that this takes.
#
# There is a second limit. With data parallelism alone, one sequence per GPU is the least work you can give it. Llama 3
# 405B was trained with batches of 16 million tokens in sequences of 8,192, which are 2,048 sequences. So at most 2,048
# GPUs would have had work to do, and its 16,384 H100s would not.
#
# Both limits have the same cure: divide the layer, so that several GPUs compute it together, for the same sequence.
# This is **tensor parallelism** ([Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053)). Its degree, the number of
# GPUs that share every layer, is $t$. Llama 3 405B was trained with $t=8$.

# %% [markdown]
# ## Two ways to divide a matrix
#
# Let $Y = XW^\top$, where $X$ has a row for each token, and $W$ is stored as PyTorch stores the weight of a linear
# layer, $[\text{out}, \text{in}]$. There are two ways to divide it over $t$ ranks:
#
# - **Column-parallel**: rank $i$ has some of the output features, the rows $W_i$ of $W$. It needs all of $X$, and
#   computes $Y_i = XW_i^\top$, its columns of $Y$. (The name comes from the paper, which writes $Y=XA$ and divides the
#   columns of $A = W^\top$.)
# - **Row-parallel**: rank $i$ has the weights of some of the input features, the columns $W_i$ of $W$. It needs only
#   its columns $X_i$ of $X$. What it computes is one term of a sum:
#
# $$Y = \sum_{i} X_i W_i^\top$$
#
# A library could offer either of them as a linear layer that looks like any other, with the whole $X$ as its input and
# the whole $Y$ as its output. Each would then end with a collective, an all-gather of the $Y_i$ or an all-reduce of the
# terms, and its backward pass would have another one. An MLP consists of two or three linear layers and a nonlinearity
# that works on each feature by itself. How many collectives do you need if you look at the MLP as a whole?
#
# ![An MLP on two ranks: each has half of the inner features. A gradient and an output are partial sums
# there.](../images/tensor_parallel_mlp.svg)
#
# The MLP of most models today is **SwiGLU** ([Shazeer, 2020](https://arxiv.org/abs/2002.05202)), with three matrices and
# no biases:
#
# $$\text{MLP}(x) = W_\text{down}\left(\text{silu}(W_\text{gate}\,x) \odot W_\text{up}\,x\right)$$
#
# Autograd computes gradients on each rank as if the rank were alone, so you have to tell it what the other ranks did.
# Think of the forward pass of the whole group as one computation. A rank that uses a copy of $x$ contributes one
# term to the gradient of $x$, and so does every other rank. And what is the gradient of a rank's term, given the gradient
# of the sum? With these two questions answered, you can write the two ends of the shared part as a pair of autograd
# functions, which the paper calls $f$ and $g$.

# %% [markdown]
# ### Exercise 1: a tensor-parallel MLP
#
# Write `tensor_parallel.py`. Hidden states $x$ of shape `[s, b, h]` are the same on all ranks outside of the **region**
# that the ranks share. Inside, each rank has its own features.
#
# - `enter` and `leave` make the gradients right on every rank: that of $x$, the same on all ranks, and those of each
#   rank's own parameters. Neither modifies its input, nor a gradient that autograd passes to it, because other operations
#   may still need them.
# - Any number of ranks works, including numbers that do not divide the features evenly. `parameter` is given, and it
#   takes care of the shapes. (Other libraries refuse such layers. For a vocabulary, you will need them.)
# - `MLP` communicates as little as possible. How many collectives does it need in the forward pass, how many in the
#   backward pass, and of how many bytes? The check counts them.

# %% answer="tensor-parallel"
%%writefile mytrainer/tensor_parallel.py
"""Linear layers whose matrices are partitioned over the ranks of a tensor-parallel group."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


class Region:
    """The t ranks that share every layer, and how hidden states enter and leave the shared part.

    Outside, hidden states x [s, b, h] are the same on all t ranks. Inside, each rank has its own part of the features.

    Attributes:
        group: their process group.
        rank: this rank's number in the group.
        size: t.
        splits_sequence: whether each rank has only its s/t positions outside. False here.
    """

    splits_sequence = False

    def __init__(self, group):
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def enter(self, x):
        """Return x, the same on all ranks, for each rank to compute something else from it.

        The gradient of x is complete, and the same on all ranks.
        """
        ### BEGIN SOLUTION
        return Enter.apply(x, self.group)
        ### END SOLUTION

    def leave(self, x):
        """Return the sum of the ranks' x, each of which is a term."""
        ### BEGIN SOLUTION
        return Leave.apply(x, self.group)
        ### END SOLUTION

    def columns(self, x, *layers):
        """Enter with x [s, b, in], and return the output [s, b, out/t] of each column-parallel layer in a list."""
        ### BEGIN SOLUTION
        x = self.enter(x)
        return [F.linear(x, layer.weight, layer.bias) for layer in layers]


class Enter(torch.autograd.Function):
    """f of Shoeybi et al. (2019): identity in the forward pass, all-reduce in the backward pass."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Leave(torch.autograd.Function):
    """g of Shoeybi et al. (2019): all-reduce in the forward pass, identity in the backward pass."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None
        ### END SOLUTION


def parameter(full_shape, region, dim=None, parts=None):
    """Return an uninitialized parameter: this rank's part of a tensor that the region's ranks share.

    Args:
        full_shape: the shape of the whole tensor.
        region: the ranks.
        dim: the dimension that is partitioned; None if every rank has a copy.
        parts: the number of parts. With fewer parts than ranks, neighboring ranks have copies of the same part. It
            divides the number of ranks; None: one part per rank.

    The parameter remembers its `full_shape`, its `part`, a tuple of slices of the full tensor, and `copies`, the number
    of ranks that have the same part.
    """
    part, count = [slice(None)] * len(full_shape), 1 if dim is None else parts or region.size
    if dim is not None:
        number, length = region.rank * count // region.size, full_shape[dim]
        part[dim] = slice(length * number // count, length * (number + 1) // count)
    shape = [len(range(*one.indices(length))) for one, length in zip(part, full_shape, strict=True)]
    made = torch.nn.Parameter(torch.empty(shape))
    made.full_shape, made.part, made.copies = tuple(full_shape), tuple(part), region.size // count
    return made


class ColumnParallelLinear(torch.nn.Module):
    """y_i = x W_i^T + b_i: rank i has the rows W_i of W [out, in]. Region.columns computes it.

    Attributes:
        weight: a parameter() [out/t, in].
        bias: a parameter() [out/t], or None.
    """

    def __init__(self, inputs, outputs, region, bias=False, parts=None):
        """Args:
            inputs: input features.
            outputs: output features of all ranks together.
            region: the ranks.
            bias: whether there is a bias.
            parts: the number of parts, as in parameter().
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.weight = parameter((outputs, inputs), region, 0, parts)
        self.bias = parameter((outputs,), region, 0, parts) if bias else None
        ### END SOLUTION


class RowParallelLinear(torch.nn.Module):
    """y = sum_i x_i W_i^T + b: rank i has the columns W_i of W [out, in], and the part x_i of the features.

    Attributes:
        weight: a parameter() [out, in/t].
        bias: a parameter() [out], of which every rank has a copy, or None.
    """

    def __init__(self, inputs, outputs, region, bias=False):
        super().__init__()
        self.region = region
        ### BEGIN SOLUTION
        self.weight = parameter((outputs, inputs), region, 1)
        self.bias = parameter((outputs,), region) if bias else None
        ### END SOLUTION

    def forward(self, x):
        """Map x [s, b, in/t] to [s, b, out], and leave the region."""
        ### BEGIN SOLUTION
        y = self.region.leave(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias
        ### END SOLUTION


class MLP(torch.nn.Module):
    """SwiGLU (Shazeer, 2020): down(silu(gate(x)) * up(x)), with 1/t of the inner features on each rank.

    Attributes:
        gate, up, down: the linear layers.
    """

    def __init__(self, hidden, inner, region):
        super().__init__()
        self.region = region
        ### BEGIN SOLUTION
        self.gate = ColumnParallelLinear(hidden, inner, region)
        self.up = ColumnParallelLinear(hidden, inner, region)
        self.down = RowParallelLinear(inner, hidden, region)
        ### END SOLUTION

    def forward(self, x):
        """Map x [s, b, h] to the same shape."""
        ### BEGIN SOLUTION
        gate, up = self.region.columns(x, self.gate, self.up)
        return self.down(F.silu(gate) * up)
        ### END SOLUTION

# %% tags=["driver"]
def tp_region(x, own, weights):
    """Enter with x, leave with tanh(x + own), and run the backward pass of the weighted sum of the result.

    Return the result, and the gradients of x and of this rank's own values.
    """
    from mytrainer.tensor_parallel import Region

    region = Region(dist.group.WORLD)
    x, own = (torch.tensor(values, requires_grad=True) for values in (x, own))
    moved = 1 * own
    out = region.leave((region.enter(x) + moved).tanh())
    (out * torch.tensor(weights)).sum().backward()
    return [out.tolist(), x.grad.tolist(), own.grad.tolist()]


def tp_layers(kind, hidden, inner, tokens, seed, shared):
    """Run both passes of an MLP, or of two linear layers with biases and tanh between them.

    Args:
        kind: "MLP" or "biases".
        hidden: hidden size.
        inner: inner size.
        tokens: the number of tokens.
        seed: of the values of this rank's parts.
        shared: of the values that all ranks have.

    Return the output, the gradient of the input, and one number for the gradient of each parameter.
    """
    from mytrainer.tensor_parallel import MLP, ColumnParallelLinear, Region, RowParallelLinear

    from lablib import tensor

    region = Region(dist.group.WORLD)
    x = tensor.sines((tokens, 1, hidden), shared).requires_grad_()
    if kind == "MLP":
        mlp = MLP(hidden, inner, region)
        parameters = [mlp.gate.weight, mlp.up.weight, mlp.down.weight]
        tensor.fill(parameters, [seed, seed + 10, seed + 20])
        y = mlp(x)
    else:
        first, second = ColumnParallelLinear(hidden, inner, region, bias=True), RowParallelLinear(inner, hidden, region, bias=True)
        parameters = [first.weight, first.bias, second.weight, second.bias]
        tensor.fill(parameters, [seed, seed + 10, seed + 20, shared])
        (features,) = region.columns(x, first)
        y = second(features.tanh())
    dist.barrier()  # marks the end of the forward pass in the record
    (y * tensor.sines(y.shape, 1.0)).sum().backward()
    return [y.flatten().tolist(), x.grad.flatten().tolist(), tensor.gradients(parameters)]

# %% tags=["check-setup"]
def whole_of(shape, dim, seeds):
    """Return a full tensor whose parts along `dim` the ranks fill with sines of their seeds."""
    import torch

    from lablib import tensor

    parts, shapes = len(seeds), []
    for number in range(parts):
        shapes.append(list(shape))
        shapes[-1][dim] = shape[dim] * (number + 1) // parts - shape[dim] * number // parts
    filled = [0.5 * tensor.sines(tuple(one), seed) for one, seed in zip(shapes, seeds, strict=True)]
    return torch.cat(filled, dim).requires_grad_()


def gradients_of_parts(whole, dim, parts):
    """Return one number for the gradient of each part of a full tensor."""
    from lablib import tensor

    length = whole.shape[dim]
    starts = [length * number // parts for number in range(parts + 1)]
    return [tensor.projected(whole.grad.narrow(dim, start, end - start).contiguous())
            for start, end in zip(starts, starts[1:], strict=False)]


def layers_of_one_process(kind, hidden, inner, tokens, seeds, shared):
    """Compute the layers with full matrices; return what tp_layers returns on each rank."""
    import torch

    from lablib import tensor

    ranks = len(seeds)
    later, last = [seed + 10 for seed in seeds], [seed + 20 for seed in seeds]
    x = tensor.sines((tokens, 1, hidden), shared).requires_grad_()
    first, second = whole_of((inner, hidden), 0, seeds), whole_of((hidden, inner), 1, last)
    if kind == "MLP":
        other = whole_of((inner, hidden), 0, later)
        y = (torch.sigmoid(x @ first.T) * (x @ first.T) * (x @ other.T)) @ second.T
    else:
        other, bias = whole_of((inner,), 0, later), (0.5 * tensor.sines((hidden,), shared)).requires_grad_()
        y = torch.tanh(x @ first.T + other) @ second.T + bias
    (y * tensor.sines(y.shape, 1.0)).sum().backward()
    columns = [gradients_of_parts(one, dim, ranks) for one, dim in ((first, 0), (other, 0), (second, 1))]
    ends = [] if kind == "MLP" else [tensor.projected(bias.grad)]
    return [[y.flatten().tolist(), x.grad.flatten().tolist(), [*(column[rank] for column in columns), *ends]]
            for rank in range(ranks)]


def split_at_barrier(calls):
    """Return the calls before a barrier, and those after it."""
    ops = [call.op for call in calls]
    return calls[:ops.index("barrier")], calls[ops.index("barrier") + 1:]

# %% check="tensor-parallel" points=6
def require_fewest_collectives(run, size):
    """Require that a rank all-reduces one tensor of this size in each pass, and nothing else."""
    for rank in range(len(run.values)):
        forward, backward = split_at_barrier(run.calls(rank))
        for name, calls in (("forward", forward), ("backward", backward)):
            for call in calls:
                check.that(call.op == "all_reduce", f"In the {name} pass, rank {rank} calls {call.op}. What does the next layer need: "
                           "all features, or only the rank's own?")
            check.that(len(calls) < 2, f"In the {name} pass, rank {rank} calls {len(calls)} all-reduces for one MLP. Which of them add "
                       "terms of the same sum?")
            check.that(sum(call.bytes for call in calls) == size, f"In the {name} pass, rank {rank} all-reduces "
                       f"{sum(call.bytes for call in calls)} bytes; hidden states are {size} bytes.")


with check.parts():
    with check.part(2, "enters and leaves the region with the right gradients"):
        check.ranks(
            tp_region, ranks=3, rel=1e-5,
            cases=[{"x": [0.5, -1.0], "own": check.by_rank([[0.0, 0.25], [1.0, 0.5], [-0.75, 2.0]]), "weights": [1.0, 10.0]}],
            expected=[[[[1.122347, -0.3356719], [1.907169, 18.03008], [0.7864477, 5.965858]], [[1.122347, -0.3356719],
                      [1.907169, 18.03008], [0.1807066, 7.864477]], [[1.122347, -0.3356719], [1.907169, 18.03008],
                      [0.9400148, 4.199743]]]],
            hints={
                "The result is one rank's term.":
                    [[[[0.4621172, -0.6351489], [1.907169, 18.03008], [0.7864477, 5.965858]], [[0.9051483, -0.4621172],
                     [1.907169, 18.03008], [0.1807066, 7.864477]], [[-0.2449187, 0.7615942], [1.907169, 18.03008],
                     [0.9400148, 4.199743]]]],
                "The gradient of x is one rank's term: what did the other ranks compute from x?":
                    [[[[1.122347, -0.3356719], [0.7864477, 5.965858], [0.7864477, 5.965858]], [[1.122347, -0.3356719],
                     [0.1807066, 7.864477], [0.1807066, 7.864477]], [[1.122347, -0.3356719], [0.9400148, 4.199743],
                     [0.9400148, 4.199743]]]],
                "All gradients are too large, by the number of ranks. If y is the sum of three terms, what is the gradient of one term?":
                    [[[[1.122347, -0.3356719], [5.721508, 54.09023], [2.359343, 17.89757]], [[1.122347, -0.3356719],
                     [5.721508, 54.09023], [0.5421199, 23.59343]], [[1.122347, -0.3356719], [5.721508, 54.09023],
                     [2.820045, 12.59923]]]],
                "The rank's own gradient has changed: autograd passes the same tensor to several operations, so add up a copy.":
                    [[[[1.122347, -0.3356719], [1.907169, 18.03008], [1.907169, 18.03008]], [[1.122347, -0.3356719],
                     [1.907169, 18.03008], [1.907169, 18.03008]], [[1.122347, -0.3356719], [1.907169, 18.03008],
                     [1.907169, 18.03008]]]],
                "x itself is the same on all ranks already: what needs to be added up, and in which pass?":
                    [[[[2.526911, -2.740068], [0.8038847, 4.627808], [0.1807066, 0.1621427]], [[2.526911, -2.740068],
                     [0.8038847, 4.627808], [0.02659225, 0.2659225]], [[2.526911, -2.740068], [0.8038847, 4.627808],
                     [0.5965858, 4.199743]]]]})
        ### BEGIN HIDDEN TESTS
        import numpy as np


        def region_here(x, own, weights):
            """Return what tp_region returns on each rank."""
            terms = np.tanh(np.array(x) + np.array(own))
            slopes = np.array(weights) * (1 - terms**2)
            return [[terms.sum(0), slopes.sum(0), slope] for slope in slopes]


        for ranks in (2, 4):
            check.ranks(tp_region, ranks=ranks, rel=1e-4, cases=check.draw(
                1, x=lambda dice: [dice.uniform(-1, 1) for _ in range(5)], own=check.for_each_rank(check.between(-1, 1), shape=[5]),
                weights=lambda dice: [dice.uniform(1, 2) for _ in range(5)]),
                expected=lambda ranks, x, own, weights: region_here(x, own, weights))
        ### END HIDDEN TESTS
    with check.part(2, "computes what one process computes"):
        check.ranks(
            tp_layers, ranks=2, rel=1e-4,
            cases=[{"kind": "MLP", "hidden": 2, "inner": 4, "tokens": 2, "seed": check.by_rank([1, 2]), "shared": 3},
                   {"kind": "biases", "hidden": 2, "inner": 5, "tokens": 2, "seed": check.by_rank([3, 4]), "shared": 3}],
            expected=[[[[0.01189433, -0.04024083, -0.02497528, -0.04927409],
                      [-0.0837635, -0.04351949, -0.06939379, -0.04160754], [0.07760318, 0.09140613, 0.1048443]],
                      [[0.01189433, -0.04024083, -0.02497528, -0.04927409], [-0.0837635, -0.04351949, -0.06939379, -0.04160754],
                      [-0.07783353, -0.01057301, 0.1486339]]], [[[0.9609511, -0.5898117, 0.4342209, 0.09307835],
                      [-0.1392381, -0.08862995, 0.2961013, 0.2277609], [-0.6020548, -0.1771473, 0.2511245, 0.4433256]],
                      [[0.9609511, -0.5898117, 0.4342209, 0.09307835], [-0.1392381, -0.08862995, 0.2961013, 0.2277609],
                      [0.4539137, -0.3085213, 0.1024978, 0.4433256]]]],
            hints={
                "The bias is added more than once.":
                    [[], [[[1.392556, -0.7175822, 0.8658257, -0.03469215], [-0.1392381, -0.08862995, 0.2961013, 0.2277609],
                     [-0.6020548, -0.1771473, 0.2511245, 0.4433256]], [[1.392556, -0.7175822, 0.8658257, -0.03469215],
                     [-0.1392381, -0.08862995, 0.2961013, 0.2277609], [0.4539137, -0.3085213, 0.1024978, 0.4433256]]]],
                "The gate's features differ between ranks. Nothing needs to be added up there.":
                    [[[[0.05879731, -0.109208, -0.06304903, -0.08711697], [-0.1328271, -0.06229409, -0.07784327, -0.04209771],
                     [0.03161151, 0.1445591, 0.2548378]], [[0.05879731, -0.109208, -0.06304903, -0.08711697],
                     [-0.1328271, -0.06229409, -0.07784327, -0.04209771], [-0.1155896, -0.03025412, 0.2358966]]], []],
                "Which of the two matrices does silu belong to?":
                    [[[[0.01485908, -0.04320265, -0.0283979, -0.0497486], [-0.0854796, -0.04024228, -0.06839935, -0.05594679],
                     [0.101455, 0.0609877, 0.1062669]], [[0.01485908, -0.04320265, -0.0283979, -0.0497486],
                     [-0.0854796, -0.04024228, -0.06839935, -0.05594679], [-0.03848327, -0.03829709, 0.1573363]]], []]})
        ### BEGIN HIDDEN TESTS
        for ranks, kind in ((3, "MLP"), (4, "MLP"), (3, "biases")):
            check.ranks(tp_layers, ranks=ranks, rel=1e-3, cases=check.draw(
                1, kind=[kind], hidden=[4, 5, 6], inner=[7, 9, 11], tokens=[2, 3], seed=check.for_each_rank(check.between(0, 100)),
                shared=check.between(0, 100)),
                expected=lambda ranks, kind, hidden, inner, tokens, seed, shared: layers_of_one_process(
                    kind, hidden, inner, tokens, seed, shared))
        ### END HIDDEN TESTS
    with check.part(2, "communicates as little as possible"):
        (run,) = check.ranks(
            tp_layers, ranks=2, rel=1e-4,
            cases=[{"kind": "MLP", "hidden": 2, "inner": 4, "tokens": 2, "seed": check.by_rank([5, 6]), "shared": 7}],
            expected=[[[[-0.04943189, 0.0834163, -0.02602134, 0.1029574], [-0.08737489, -0.08189325, -0.1019656, -0.1240988],
                      [0.1175788, 0.1047471, 0.1039678]], [[-0.04943189, 0.0834163, -0.02602134, 0.1029574],
                      [-0.08737489, -0.08189325, -0.1019656, -0.1240988], [-0.05477242, 0.02412469, 0.1752972]]]])
        require_fewest_collectives(run, 2 * 2 * 4)
        ### BEGIN HIDDEN TESTS
        (run,) = check.ranks(tp_layers, ranks=3, rel=1e-3, cases=check.draw(
            1, kind=["MLP"], hidden=[4], inner=[7, 9, 11], tokens=[3], seed=check.for_each_rank(check.between(0, 100)),
            shared=check.between(0, 100)),
            expected=lambda ranks, kind, hidden, inner, tokens, seed, shared: layers_of_one_process(
                kind, hidden, inner, tokens, seed, shared))
        require_fewest_collectives(run, 4 * 3 * 4)
        ### END HIDDEN TESTS

# %% [raw] mutant="tensor-parallel" hint="The result is one rank's term"
# -        x = x.clone(memory_format=torch.contiguous_format)
# -        dist.all_reduce(x, group=group)
# -        return x
# +        return x.view_as(x)

# %% [raw] mutant="tensor-parallel" hint="what did the other ranks compute from x"
# -        dist.all_reduce(grad, group=ctx.group)

# %% [raw] mutant="tensor-parallel" hint="what is the gradient of one term"
# -        x = x.clone(memory_format=torch.contiguous_format)
# -        dist.all_reduce(x, group=group)
# -        return x
# +        ctx.group = group
# +        x = x.clone(memory_format=torch.contiguous_format)
# +        dist.all_reduce(x, group=group)
# +        return x
# -    def backward(ctx, grad):
# -        return grad, None
# +    def backward(ctx, grad):
# +        grad = grad.clone()
# +        dist.all_reduce(grad, group=ctx.group)
# +        return grad, None

# %% [raw] mutant="tensor-parallel" hint="so add up a copy"
# -        grad = grad.clone(memory_format=torch.contiguous_format)

# %% [raw] mutant="tensor-parallel" hint="in which pass"
# -        return x.view_as(x)
# +        x = x.clone()
# +        dist.all_reduce(x, group=group)
# +        return x

# %% [raw] mutant="tensor-parallel" hint="The bias is added more than once"
# -        y = self.region.leave(F.linear(x, self.weight))
# -        return y if self.bias is None else y + self.bias
# +        return self.region.leave(F.linear(x, self.weight, self.bias))

# %% [raw] mutant="tensor-parallel" hint="Nothing needs to be added up there"
# -        return self.down(F.silu(gate) * up)
# +        return self.down(F.silu(self.region.leave(gate)) * up)

# %% [raw] mutant="tensor-parallel" hint="does silu belong to"
# -        return self.down(F.silu(gate) * up)
# +        return self.down(F.silu(up) * gate)

# %% [raw] mutant="tensor-parallel" hint="add terms of the same sum"
# -        x = self.enter(x)
# -        return [F.linear(x, layer.weight, layer.bias) for layer in layers]
# +        return [F.linear(self.enter(x), layer.weight, layer.bias) for layer in layers]

# %% [raw] mutant="tensor-parallel" hint="bytes; hidden states are"
# -        x = self.enter(x)
# -        return [F.linear(x, layer.weight, layer.bias) for layer in layers]
# +        copies = self.enter(torch.stack([x] * len(layers)))
# +        return [F.linear(x, layer.weight, layer.bias) for x, layer in zip(copies, layers, strict=True)]

# %% [raw] mutant="tensor-parallel" hint="all features, or only the rank's own"
# -        gate, up = self.region.columns(x, self.gate, self.up)
# -        return self.down(F.silu(gate) * up)
# +        gate, up = (Gather.apply(one, self.region) for one in self.region.columns(x, self.gate, self.up))
# +        inner, length = F.silu(gate) * up, self.down.weight.shape[1]
# +        return self.down(Keep.apply(inner, self.region, length))
# +
# +
# +class Gather(torch.autograd.Function):
# +    @staticmethod
# +    def forward(ctx, x, region):
# +        ctx.rank, ctx.size = region.rank, x.shape[-1]
# +        parts = [torch.empty_like(x) for _ in range(region.size)]
# +        dist.all_gather(parts, x.contiguous(), group=region.group)
# +        return torch.cat(parts, -1)
# +
# +    @staticmethod
# +    def backward(ctx, grad):
# +        return grad.narrow(-1, ctx.rank * ctx.size, ctx.size), None
# +
# +
# +class Keep(torch.autograd.Function):
# +    @staticmethod
# +    def forward(ctx, x, region, length):
# +        ctx.start, ctx.shape = region.rank * length, x.shape
# +        return x.narrow(-1, ctx.start, length).contiguous()
# +
# +    @staticmethod
# +    def backward(ctx, grad):
# +        whole = grad.new_zeros(ctx.shape)
# +        whole.narrow(-1, ctx.start, grad.shape[-1]).copy_(grad)
# +        return whole, None, None

# %% [markdown]
# ### Beside PyTorch's
#
# PyTorch has tensor parallelism, too: `parallelize_module` replaces the weights of ordinary linear layers by `DTensor`s,
# which know how they are divided, and inserts collectives where the layout changes. Does it agree with yours?

# %% tags=["explore"]
def beside_pytorch():
    """Return an MLP's outputs and its input's gradients, from parallelize_module and from your MLP."""
    from mytrainer.tensor_parallel import MLP, Region
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = (torch.nn.Linear(8, 24, bias=False) for _ in range(2))
            self.down = torch.nn.Linear(24, 8, bias=False)

        def forward(self, x):
            return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))

    torch.manual_seed(0)
    plain, mine = Plain(), MLP(8, 24, Region(dist.group.WORLD))
    with torch.no_grad():
        for full, own in zip((plain.gate, plain.up, plain.down), (mine.gate, mine.up, mine.down), strict=True):
            own.weight.copy_(full.weight[own.weight.part])
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(plain, mesh, {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()})
    found = []
    for mlp in (plain, mine):
        x = torch.linspace(-1, 1, 3 * 8).view(3, 1, 8).requires_grad_()
        y = mlp(x)
        y.square().sum().backward()
        found.append((y.detach(), x.grad))
    return found


theirs, mine = run_ranks(beside_pytorch, 4)[0]
for name, one, other in zip(("output", "gradient of x"), theirs, mine, strict=True):
    print(f"largest difference, {name}: {result(f'{(one - other).abs().max():.1e}')}")

# %% [markdown]
# Now to the GPUs. Eight H100s of a node share the MLP of Llama 3 405B. How many times as fast as one GPU do you expect
# them to be, and what keeps them from being eight times as fast? Set `guess_speedup`:

# %% answer="guess-speedup"
### BEGIN SOLUTION
guess_speedup = 6.5
### END SOLUTION

# %% tags=["explore"]
def mlp_pass(tokens=8192):
    """Run both passes of the MLP of Llama 3 405B on a GPU; return the seconds."""
    from mytrainer.tensor_parallel import MLP, Region

    with torch.device("cuda"):
        mlp = MLP(16384, 53248, Region(dist.group.WORLD)).bfloat16()
        x = torch.zeros(tokens, 1, 16384, dtype=torch.bfloat16, requires_grad=True)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    marks[0].record()
    mlp(x).sum().backward()
    marks[1].record()
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]) / 1000


times = {}
for size in (1, 2, 4, 8):
    (rank,) = virtualgpu.run(mlp_pass, f"h100:{size}", present=[0])
    times[size] = rank.value
    print(f"t = {size}: {1000 * rank.value:6.1f} ms, {result(f'{times[1] / rank.value:.1f} times as fast')}, "
          f"{rank.peak / 2**30:5.1f} GiB at the peak, {100 * rank.exposed / rank.seconds:4.1f}% exposed communication (modeled)")
check.compare("speedup on 8 GPUs (modeled)", guess_speedup, times[1] / times[8])

# %% [markdown]
# Unlike DDP's, this communication cannot wait until the end: the next layer needs the sum. Nothing overlaps with it yet,
# and that is the third sitting's work. Until then, note what limits $t$: the work per GPU shrinks with $t$, but
# every rank still all-reduces whole hidden states.
