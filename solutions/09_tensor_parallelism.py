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
# This lab splits the layers of a model across the GPUs of a node.

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
check.mask("accelerate", "deepspeed", "lab.mytrainer", "layout_estimator", "minimegatron",
           "torch.distributed.tensor.parallel")

# %% tags=["explore"]
import virtualgpu
from job_monitor import logs
from lab.mytrainer import gain, pieces, worked
from labcore.colors import bad, good, mark, result
from lablib import jobs, tensor_training
from warmranks import record_ranks, run_ranks

jobs.connect()

# %% [markdown]
# This lab builds on the trainer of labs 04 to 06. If you lack one of its files, the next cell installs the course's
# version:

# %% tags=["explore"]
for name in ("collectives", "ddp", "launch", "train", "precision", "checkpointing", "states", "saved"):
    if not pieces.find(name).path.exists():
        print("\n".join(worked.install(pieces.find(name), force=False)))

# %% [markdown]
# ## Layers in parts
#
# ### Exercise 1: tensor parallel

# %% answer="tensor-parallel"
%%writefile mytrainer/tensor_parallel.py
"""Linear layers whose matrices are partitioned over the ranks of a tensor-parallel group."""
### BEGIN SOLUTION
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
        """Return x, whose gradient will be the sum of the ranks' gradients."""
        return Enter.apply(x, self.group)

    def leave(self, x):
        """Return the sum of the ranks' x."""
        return Leave.apply(x, self.group)

    def columns(self, x, *layers):
        """Enter with x [s, b, in], and return the output [s, b, out/t] of each column-parallel layer."""
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


def parameter(full_shape, region, dim=None, parts=None):
    """Return an uninitialized parameter: this rank's part of a tensor that the region's ranks share.

    Args:
        full_shape: the shape of the whole tensor.
        region: the ranks.
        dim: the dimension that is partitioned; None if every rank has a copy.
        parts: into how many parts, of which neighboring ranks have the same; None for one part per rank. It divides
            the number of ranks.

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
    """y_i = x W_i^T + b_i: rank i has the rows W_i of W [out, in]. Region.columns computes it."""

    def __init__(self, inputs, outputs, region, bias=False, parts=None):
        super().__init__()
        self.weight = parameter((outputs, inputs), region, 0, parts)
        self.bias = parameter((outputs,), region, 0, parts) if bias else None


class RowParallelLinear(torch.nn.Module):
    """y = sum_i x_i W_i^T + b: rank i has the columns W_i of W [out, in], and the part x_i of the features."""

    def __init__(self, inputs, outputs, region, bias=False):
        super().__init__()
        self.region = region
        self.weight = parameter((outputs, inputs), region, 1)
        self.bias = parameter((outputs,), region) if bias else None

    def forward(self, x):
        """Map x [s, b, in/t] to [s, b, out], and leave the region."""
        y = self.region.leave(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class MLP(torch.nn.Module):
    """SwiGLU (Shazeer, 2020): down(silu(gate(x)) * up(x)), with 1/t of the inner features on each rank."""

    def __init__(self, hidden, inner, region):
        super().__init__()
        self.region = region
        self.gate = ColumnParallelLinear(hidden, inner, region)
        self.up = ColumnParallelLinear(hidden, inner, region)
        self.down = RowParallelLinear(inner, hidden, region)

    def forward(self, x):
        """Map x [s, b, h] to the same shape."""
        gate, up = self.region.columns(x, self.gate, self.up)
        return self.down(F.silu(gate) * up)
### END SOLUTION

# %% [markdown]
# ### Exercise 2: heads

# %% answer="heads"
%%writefile mytrainer/heads.py
"""Causal self-attention whose heads are partitioned over the ranks."""
### BEGIN SOLUTION
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mytrainer.tensor_parallel import ColumnParallelLinear, RowParallelLinear


def rotate(x, base):
    """Rotate the channels of x [s, b, heads, d] by angles that grow with the position (RoPE; Su et al., 2021).

    Channel i < d/2 and channel i + d/2 are a pair, which position p rotates by p * base ** (-2i/d).
    """
    positions = torch.arange(x.shape[0], device=x.device, dtype=torch.float32)
    half = x.shape[-1] // 2
    speeds = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = (positions[:, None] * speeds)[:, None, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(torch.nn.Module):
    """Grouped-query attention (Ainslie et al., 2023) with rotary positions; rank i has heads/t query heads.

    With fewer key and value heads than ranks, neighboring ranks have copies of the same one.
    """

    def __init__(self, hidden, heads, kv_heads, head_dim, region, base=10000.0, flash=False):
        super().__init__()
        self.region, self.head_dim, self.base, self.flash = region, head_dim, base, flash
        parts = min(kv_heads, region.size)
        self.query = ColumnParallelLinear(hidden, heads * head_dim, region)
        self.key = ColumnParallelLinear(hidden, kv_heads * head_dim, region, parts=parts)
        self.value = ColumnParallelLinear(hidden, kv_heads * head_dim, region, parts=parts)
        self.out = RowParallelLinear(heads * head_dim, hidden, region)
        for layer in (self.key, self.value):
            layer.weight.is_partial = layer.weight.copies > 1

    def forward(self, x):
        """Map x [s, b, h] to the same shape."""
        query, key, value = (one.unflatten(-1, (-1, self.head_dim)) for one in self.region.columns(
            x, self.query, self.key, self.value))
        query, key = rotate(query, self.base), rotate(key, self.base)
        return self.out(self.core(query, key, value))

    def core(self, query, key, value):
        """Return softmax(Q K^T / sqrt(d)) V, [s, b, a/t * d], given Q [s, b, a/t, d], and K and V [s, b, their heads, d]."""
        query, key, value = (one.permute(1, 2, 0, 3) for one in (query, key, value))
        if self.flash:
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            groups, s = key.shape[1], key.shape[2]
            scores = query.unflatten(1, (groups, -1)) @ key[:, :, None].mT / math.sqrt(self.head_dim)
            later = torch.ones(s, s, dtype=torch.bool, device=key.device).triu(1)
            out = (scores.masked_fill(later, -math.inf).softmax(-1) @ value[:, :, None]).flatten(1, 2)
        return out.permute(2, 0, 1, 3).flatten(2)


def finish_gradients(parameters, region):
    """After the last backward pass of a step: sum the gradients of copies that saw only a part each.

    A parameter whose `is_partial` is true has a copy on several ranks, and its gradient on each of them is an addend.
    Afterwards, all copies have the same gradient. One collective is enough for all of them.
    """
    partial = [one for one in parameters if getattr(one, "is_partial", False)]
    if not partial:
        return
    buffers = [one.grad.new_zeros(one.full_shape) for one in partial]
    for one, buffer in zip(partial, buffers, strict=True):
        buffer[one.part] = one.grad
    flat = torch.cat([buffer.flatten() for buffer in buffers])
    dist.all_reduce(flat, group=region.group)
    for one, whole in zip(partial, flat.split([buffer.numel() for buffer in buffers]), strict=True):
        one.grad.copy_(whole.view(one.full_shape)[one.part])
### END SOLUTION

# %% [markdown]
# ### Exercise 3: vocabulary

# %% answer="vocabulary"
%%writefile mytrainer/vocabulary.py
"""Embedding, output layer, and cross-entropy over a vocabulary that is partitioned over the ranks."""
### BEGIN SOLUTION
import torch
import torch.distributed as dist
from mytrainer.tensor_parallel import parameter


class VocabParallelEmbedding(torch.nn.Module):
    """A row for each token; rank i has the rows V i/t to V (i + 1)/t.

    Its weight is also that of an output layer: Region.columns(x, embedding) returns this rank's logits.
    """

    bias = None

    def __init__(self, vocab_size, hidden, region):
        super().__init__()
        self.region = region
        self.weight = parameter((vocab_size, hidden), region, 0)
        self.first = self.weight.part[0].start

    def forward(self, tokens):
        """Map tokens, int64 [s, b], to [s, b, h], and leave the region."""
        rows, elsewhere = local_rows(tokens, self.first, len(self.weight))
        x = torch.nn.functional.embedding(rows, self.weight).masked_fill(elsewhere[..., None], 0)
        return self.region.leave(x)


def local_rows(tokens, first, count):
    rows = tokens - first
    elsewhere = (rows < 0) | (rows >= count)
    return rows.masked_fill(elsewhere, 0), elsewhere


def cross_entropy(logits, labels, first, region):
    """Return the loss of each token, fp32 [s, b], the same on all ranks.

    Args:
        logits: this rank's, [s, b, this rank's tokens]; may be overwritten.
        labels: the next tokens, int64 [s, b].
        first: the token of this rank's first logit.
        region: the ranks.
    """
    return CrossEntropy.apply(logits, labels, first, region)


class CrossEntropy(torch.autograd.Function):
    """log(sum_v exp(z_v)) - z_label: the ranks exchange the largest logit, the sum, and the label's logit."""

    @staticmethod
    def forward(ctx, logits, labels, first, region):
        logits = logits.float()
        largest = logits.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=region.group)
        logits -= largest[..., None]
        rows, elsewhere = local_rows(labels, first, logits.shape[-1])
        target = logits.gather(-1, rows[..., None])[..., 0].masked_fill(elsewhere, 0)
        logits.exp_()
        sums = torch.stack([logits.sum(-1), target])
        dist.all_reduce(sums, group=region.group)
        logits /= sums[0][..., None]
        ctx.save_for_backward(logits, rows, elsewhere)
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx, grad):
        softmax, rows, elsewhere = ctx.saved_tensors
        softmax *= grad[..., None]
        softmax.scatter_add_(-1, rows[..., None], -grad.masked_fill(elsewhere, 0)[..., None])
        return softmax, None, None, None
### END SOLUTION

# %% [markdown]
# ### Exercise 4: randomness

# %% answer="randomness"
%%writefile mytrainer/randomness.py
"""Random numbers that do not depend on how a model is divided among ranks."""
### BEGIN SOLUTION
import hashlib

import torch


def generator(*key):
    """Return a generator whose numbers depend on the key alone: text and integers."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


@torch.no_grad()
def initialize(model, seed, std=0.02):
    """Draw every matrix of a model from a normal distribution, and set its vectors to 1.

    The ranks' parts are parts of the same full tensor, whatever the number of ranks.
    """
    for name, one in model.named_parameters():
        if len(one.full_shape) == 1:
            one.fill_(1.0)
        else:
            one.copy_(torch.empty(one.full_shape).normal_(0, std, generator=generator(seed, name))[one.part])


class Dropout(torch.nn.Module):
    """Dropout of hidden states, with the same mask in every layout.

    Attributes:
        key: what the masks of this micro-batch depend on; begin_micro_batch sets it.
        samples: the numbers of the micro-batch's samples in the whole run.
    """

    def __init__(self, p, region):
        super().__init__()
        self.p, self.region, self.key, self.samples = p, region, (), ()

    def forward(self, x):
        """Zero elements of x [s, b, h] (or [s/t, b, h]) with probability p, and scale up the others."""
        if self.p == 0 or not self.training:
            return x
        count, first = x.shape[0], 0
        whole = count
        if self.region.splits_sequence:
            whole, first = count * self.region.size, count * self.region.rank
        draws = [torch.rand(whole, x.shape[2], generator=generator(*self.key, sample))[first:first + count]
                 for sample in self.samples]
        return x * (torch.stack(draws, 1) >= self.p).to(x.device) / (1 - self.p)


def begin_micro_batch(model, seed, iteration, samples):
    """Give every Dropout of a model the key of its next masks."""
    for name, module in model.named_modules():
        if isinstance(module, Dropout):
            module.key, module.samples = (seed, iteration, name), tuple(samples)
### END SOLUTION

# %% [markdown]
# ## A layer that is all your own
#
# So far, your trainer has trained a GPT-2: layer norms, learned positions, GELU, biases, and an output layer that shares
# the embedding's weight. Open models since Llama ([Touvron et al., 2023](https://arxiv.org/abs/2302.13971)) follow
# another recipe. You have written most of it in this lab: rotary positions, grouped-query attention, SwiGLU, and no
# biases. What is missing is **RMSNorm** ([Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467)), which scales a
# token's features $x$ to a root mean square of about 1, without subtracting a mean:
#
# $$ y_i = \frac{x_i}{\sqrt{\frac{1}{h}\sum_j x_j^2 + \epsilon}}\; w_i. $$
#
# A layer then adds two **residual branches** to the hidden states, each with a norm of its own at its beginning
# (**pre-norm**), and the dropout of exercise 4 at its end:
#
# $$ x' = x + \mathrm{dropout}(\mathrm{attention}(\mathrm{norm}_1(x))), \qquad
#    x'' = x' + \mathrm{dropout}(\mathrm{MLP}(\mathrm{norm}_2(x'))). $$
#
# After the last layer comes one more norm, and then an output layer with a weight of its own, `[V, h]`.

# %% [markdown]
# ### Exercise 5: Llama
#
# Write `RMSNorm`, `Layer`, and `Llama`. No new communication is needed: hidden states enter and leave the region in
# your layers of exercises 1 to 3. For every number of ranks, all losses and gradients must be those of one process.
#
# Your trainer finds parameters by name, so keep the attributes that the docstrings list. The norms' parameters come
# from `parameter`, too; every rank has a copy of them. RMSNorm computes in fp32, whatever the dtype of $x$, because
# squares overflow in fp16 and lose digits in bf16. Its result has the dtype of $x$.

# %% answer="llama"
%%writefile mytrainer/llama.py
"""Llama: the modern transformer (Touvron et al., 2023), made of your own layers."""

import torch
from mytrainer.heads import Attention
from mytrainer.randomness import Dropout
from mytrainer.tensor_parallel import MLP, parameter
from mytrainer.vocabulary import VocabParallelEmbedding, cross_entropy


class RMSNorm(torch.nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich, 2019).

    Attributes:
        weight: a parameter [h], of which every rank has a copy.
    """

    def __init__(self, hidden, region, epsilon=1e-5):
        super().__init__()
        ### BEGIN SOLUTION
        self.epsilon, self.weight = epsilon, parameter((hidden,), region)
        self.weight.is_partial = region.splits_sequence
        ### END SOLUTION

    def forward(self, x):
        """Normalize x [s, b, h] over its features, in fp32."""
        ### BEGIN SOLUTION
        wide = x.float()
        scale = (wide.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return (wide * scale).to(x.dtype) * self.weight
        ### END SOLUTION


class Layer(torch.nn.Module):
    """Attention and an MLP, each in a residual branch that begins with a norm and ends with dropout.

    Attributes:
        attention_norm, mlp_norm: RMSNorm.
        attention: Attention.
        mlp: MLP.
        attention_dropout, mlp_dropout: Dropout.
    """

    def __init__(self, shape, region):
        """Args:
            shape: as for Llama.
            region: the ranks that share the layer.
        """
        super().__init__()
        ### BEGIN SOLUTION
        hidden = shape.hidden_size
        self.attention_norm = RMSNorm(hidden, region, shape.epsilon)
        self.attention = Attention(hidden, shape.heads, shape.kv_heads, shape.head_dim, region, shape.rotary_base,
                                   shape.flash)
        self.mlp_norm = RMSNorm(hidden, region, shape.epsilon)
        self.mlp = MLP(hidden, shape.inner_size, region)
        self.attention_dropout, self.mlp_dropout = Dropout(shape.dropout, region), Dropout(shape.dropout, region)
        ### END SOLUTION

    def forward(self, x):
        """Map x [s, b, h] to the same shape."""
        ### BEGIN SOLUTION
        x = x + self.attention_dropout(self.attention(self.attention_norm(x)))
        return x + self.mlp_dropout(self.mlp(self.mlp_norm(x)))
        ### END SOLUTION


class Llama(torch.nn.Module):
    """An embedding, layers, a norm, and an output layer with a weight of its own.

    Attributes:
        embedding, head: VocabParallelEmbedding.
        layers: torch.nn.ModuleList of Layer.
        norm: RMSNorm.
    """

    def __init__(self, shape, region):
        """Args:
            shape: has vocab_size, hidden_size, layers, heads, kv_heads, head_dim, inner_size, rotary_base, epsilon,
                flash, and dropout, the probability.
            region: the ranks that share the model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.region = region
        self.embedding = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)
        self.layers = torch.nn.ModuleList(Layer(shape, region) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, region, shape.epsilon)
        self.head = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)
        ### END SOLUTION

    def forward(self, tokens, labels):
        """Return the loss of each token, fp32 [s, b], given tokens and labels, int64 [s, b]."""
        ### BEGIN SOLUTION
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        (logits,) = self.region.columns(self.norm(x), self.head)
        return cross_entropy(logits, labels, self.head.first, self.region)
        ### END SOLUTION

# %% tags=["driver"]
def llama_losses(shape, common, own, s, b, steps):
    """Train a small Llama with SGD.

    Return the loss of each step, and two norms of the first step's gradient: of the norms' weights, and of this rank's
    parts of all matrices.
    """
    from mytrainer.llama import Llama

    from lablib import tensor_training

    return tensor_training.losses(Llama, tensor_training.region, shape, common, own, s, b, steps)


def normalized(rows, epsilon):
    """Return the output of RMSNorm for rows [b, h] in fp16."""
    from mytrainer.llama import RMSNorm

    from lablib import tensor_training

    norm = RMSNorm(len(rows[0]), tensor_training.region(dist.group.WORLD), epsilon)
    tensor_training.fill(norm, 0.0)
    return norm.half()(torch.tensor([rows], dtype=torch.float16)).tolist()

# %% tags=["check-setup"]
from lablib import tensor_training


def llama_parameters(shape, ranks):
    """Return the full shape of each of Llama's parameters, its partitioned dimension, and the number of its parts."""
    one = tensor_training.Shape(**shape)
    h, query, key = one.hidden_size, one.heads * one.head_dim, one.kv_heads * one.head_dim
    found = {"embedding.weight": ((one.vocab_size, h), 0, ranks), "head.weight": ((one.vocab_size, h), 0, ranks),
             "norm.weight": ((h,), 0, 1)}
    groups = min(one.kv_heads, ranks)
    for number in range(one.layers):
        layer = {"attention_norm": ((h,), 0, 1), "attention.query": ((query, h), 0, ranks),
                 "attention.key": ((key, h), 0, groups), "attention.value": ((key, h), 0, groups),
                 "attention.out": ((h, query), 1, ranks), "mlp_norm": ((h,), 0, 1), "mlp.gate": ((one.inner_size, h), 0, ranks),
                 "mlp.up": ((one.inner_size, h), 0, ranks), "mlp.down": ((h, one.inner_size), 1, ranks)}
        found |= {f"layers.{number}.{name}.weight": value for name, value in layer.items()}
    return found


def llama_here(ranks, shape, common, own, s, b, steps):
    """Train a whole Llama in this process; return what llama_losses returns on each rank."""
    import math

    import torch
    from torch.nn import functional as F

    one, kinds, weights = tensor_training.Shape(**shape), llama_parameters(shape, ranks), {}

    def part(full, dim, parts, rank):
        number = rank * parts // ranks
        return slice(full[dim] * number // parts, full[dim] * (number + 1) // parts)

    for name, (full, dim, parts) in kinds.items():
        if parts < ranks:
            weights[name] = tensor_training.values(full, common, name)
        else:
            pieces = []
            for rank in range(ranks):
                size, own_part = list(full), part(full, dim, parts, rank)
                size[dim] = own_part.stop - own_part.start
                pieces.append(tensor_training.values(size, own[rank], name))
            weights[name] = torch.cat(pieces, dim)
        weights[name].requires_grad_()

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + one.epsilon).sqrt() * weights[f"{name}.weight"]

    def heads(x, name, turns=True):
        x = F.linear(x, weights[f"{name}.weight"]).unflatten(-1, (-1, one.head_dim))
        half = one.head_dim // 2
        angles = torch.arange(s)[:, None] * one.rotary_base ** (-torch.arange(half) / half)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None, None]
        x = torch.cat([turned.real, turned.imag], -1) if turns else x
        return x.permute(1, 2, 0, 3)

    tokens, labels = tensor_training.batch(one.vocab_size, s, b)
    losses, norms = [], []
    for _ in range(steps):
        x = weights["embedding.weight"][tokens]
        for number in range(one.layers):
            layer = f"layers.{number}"
            y = norm(x, f"{layer}.attention_norm")
            query, key, value = heads(y, f"{layer}.attention.query"), heads(y, f"{layer}.attention.key"), heads(
                y, f"{layer}.attention.value", False)
            y = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            x = x + F.linear(y.permute(2, 0, 1, 3).flatten(2), weights[f"{layer}.attention.out.weight"])
            y = norm(x, f"{layer}.mlp_norm")
            gate, up, down = (weights[f"{layer}.mlp.{name}.weight"] for name in ("gate", "up", "down"))
            x = x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)
        loss = F.cross_entropy(F.linear(norm(x, "norm"), weights["head.weight"]).flatten(0, 1), labels.flatten())
        grads = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        losses.append(loss.item())
        if not norms:
            for rank in range(ranks):
                squares = {1: 0.0, 2: 0.0}
                for name, grad in grads.items():
                    full, dim, parts = kinds[name]
                    own_part = part(full, dim, parts, rank)
                    mine = grad[own_part] if dim == 0 else grad[:, own_part]
                    squares[grad.dim()] += mine.square().sum().item()
                norms.append([math.sqrt(squares[1]), math.sqrt(squares[2])])
        with torch.no_grad():
            for name, weight in weights.items():
                weight -= tensor_training.RATE * grads[name]
    return [[*losses, *row] for row in norms]


# Four query heads that share two key and value heads, 18 inner features, and 21 tokens.
LLAMA = {"common": 1.0, "s": 8, "b": 3, "steps": 3}

# %% check="llama" points=4
def require_collectives(run, shape, s, b, steps):
    """Require one all-reduce of hidden states where a layer's half, or the model, enters or leaves the region."""
    hidden = 4 * s * b * shape.get("hidden_size", 12)
    passes = 2 * shape.get("layers", 1) + 1  # into the region, and out of it
    for rank in range(len(run.values)):
        large = [call for call in run.calls(rank, "all_reduce") if call.bytes >= hidden]
        check.that(len(large) <= 2 * passes * steps, f"Rank {rank} all-reduces hidden states {len(large)} times in {steps} steps. "
                   f"The embedding, the layers, and the output layer need {passes} all-reduces in each direction of each step.")


with check.parts():
    with check.part(3, "trains like one process"):
        runs = check.ranks(
            llama_losses, ranks=2, rel=2e-4,
            cases=[{"shape": {}, "own": check.by_rank([1.0, 2.0]), **LLAMA},
                   {"shape": {"layers": 2, "kv_heads": 1, "vocab_size": 16}, "own": check.by_rank([3.0, 4.0]), **LLAMA}],
            expected=[[[3.319079, 4.530832, 2.690819, 0.6530054, 1.767663],
                       [3.319079, 4.530832, 2.690819, 0.6530054, 2.976043]],
                      [[2.744905, 3.977426, 1.887639, 0.5029252, 2.134988],
                       [2.744905, 3.977426, 1.887639, 0.5029252, 1.98212]]],
            hints={
                "Only the first loss is right. The output layer is column-parallel, so each rank has a part of the gradient of its input: "
                "how do hidden states enter it?":
                    [[[3.319079, 4.330489, 2.579551, 0.2230048, 0.8193185],
                      [3.319079, 4.330489, 2.579551, 0.4729606, 2.473347]],
                     [[2.744905, 3.028596, 2.421345, 0.111345, 1.350109], [2.744905, 3.028596, 2.421345, 0.4317238, 1.757246]]],
                "These are the losses of a norm that divides by the root of the sum of squares, not of their mean.":
                    [[[3.150517, 2.990227, 2.864274, 0.1690575, 0.3533046],
                      [3.150517, 2.990227, 2.864274, 0.1690575, 0.4422798]],
                     [[2.753412, 2.560594, 2.434494, 0.1279447, 0.5250834],
                      [2.753412, 2.560594, 2.434494, 0.1279447, 0.466624]]],
                "Epsilon belongs under the root.":
                    [[[3.313343, 4.544356, 2.706559, 0.6483802, 1.739825],
                      [3.313343, 4.544356, 2.706559, 0.6483802, 2.975219]],
                     [[2.744128, 3.9759, 1.889448, 0.4986187, 2.125102], [2.744128, 3.9759, 1.889448, 0.4986187, 1.971792]]],
                "The MLP's branch has to be added to the hidden states.":
                    [[[3.234241, 3.717925, 2.674599, 0.5620989, 3.26319], [3.234241, 3.717925, 2.674599, 0.5620989, 2.61574]],
                     [[2.829832, 2.527949, 2.876148, 0.512279, 3.893273], [2.829832, 2.527949, 2.876148, 0.512279, 4.222834]]],
                "The MLP's branch begins with the hidden states to which attention has been added.":
                    [[[3.318515, 3.058774, 2.045755, 0.5233192, 2.103138],
                      [3.318515, 3.058774, 2.045755, 0.5233192, 2.571917]],
                     [[2.716476, 3.937058, 1.8638, 0.3911864, 1.826385], [2.716476, 3.937058, 1.8638, 0.3911864, 1.762427]]],
                "One norm is missing, after the last layer.":
                    [[[3.815385, 29.04516, 70.02959, 0.413286, 3.798057], [3.815385, 29.04516, 70.02959, 0.413286, 7.229466]],
                     [[2.969793, 84.33156, 2899.133, 0.3449751, 9.82393], [2.969793, 84.33156, 2899.133, 0.3449751, 9.533062]]],
                "The output layer has a weight of its own, not the embedding's.":
                    [[[3.61319, 2.914144, 2.389591, 0.4151363, 1.979225], [3.61319, 2.914144, 2.389591, 0.4151363, 1.854146]],
                     [[2.958862, 3.899298, 1.952754, 0.5679354, 2.437544],
                      [2.958862, 3.899298, 1.952754, 0.5679354, 2.119459]]],
                "The losses of the first step are right, but the gradients of the norms' weights are multiplied by the number of ranks. "
                "Every rank normalizes all positions here, so it has their whole gradient already.":
                    [[[3.319079, 4.638501, 2.71642, 1.306011, 1.767663], [3.319079, 4.638501, 2.71642, 1.306011, 2.976043]],
                     [[2.744905, 4.05018, 1.987751, 1.00585, 2.134988], [2.744905, 4.05018, 1.987751, 1.00585, 1.98212]]]})
        for run, shape in zip(runs, ({}, {"layers": 2}), strict=True):
            require_collectives(run, shape, 8, 3, 3)
        ### BEGIN HIDDEN TESTS
        for ranks, heads, kv_heads in ((4, 8, [2, 4]), (3, 6, [3, 6]), (2, 4, [1, 2, 4])):
            (case,) = check.draw(1, kv_heads=kv_heads, inner_size=range(9, 30), vocab_size=range(11, 40),
                                 common=check.between(0, 100), own=check.for_each_rank(check.between(0, 100)), s=range(5, 9))
            shape = {"heads": heads, **{name: case.pop(name) for name in ("kv_heads", "inner_size", "vocab_size")}}
            check.ranks(llama_losses, ranks=ranks, rel=1e-3, cases=[{"shape": shape, **case, "b": 2, "steps": 2}], expected=llama_here)
        ### END HIDDEN TESTS
    with check.part(1, "normalizes 16-bit hidden states in fp32"):
        check.ranks(normalized, ranks=1, rel=5e-3,
                    cases=[{"rows": [[400.0, -400.0, 400.0, 400.0], [3.0, 4.0, 0.0, 0.0]], "epsilon": 1e-5}],
                    expected=[[[[[1.09375, -1.299805, 1.066406, 0.7358398], [1.3125, 2.080078, 0.0, 0.0]]]]],
                    hints={"The square of 400 is larger than fp16's largest number, 65,504.":
                        [[[[[0.0, -0.0, 0.0, 0.0], [1.311523, 2.080078, 0.0, 0.0]]]]]})
        ### BEGIN HIDDEN TESTS
        def normalized_here(ranks, rows, epsilon):
            """Return what normalized returns."""
            weight = tensor_training.values([len(rows[0])], 0.0, "weight").tolist()
            roots = [(sum(x * x for x in row) / len(row) + epsilon) ** 0.5 for row in rows]
            return [[[[x / root * w for x, w in zip(row, weight, strict=True)] for row, root in zip(rows, roots, strict=True)]]]


        check.ranks(normalized, ranks=1, rel=5e-3, expected=normalized_here, cases=check.draw(
            2, rows=lambda dice: [[dice.uniform(-900, 900) for _ in range(5)] for _ in range(3)], epsilon=[1e-5]))
        ### END HIDDEN TESTS

# %% [raw] mutant="llama" hint="how do hidden states enter it"
# -        (logits,) = self.region.columns(self.norm(x), self.head)
# +        logits = torch.nn.functional.linear(self.norm(x), self.head.weight)

# %% [raw] mutant="llama" hint="root of the sum of squares"
# -        scale = (wide.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
# +        scale = (wide.square().sum(-1, keepdim=True) + self.epsilon).rsqrt()

# %% [raw] mutant="llama" hint="Epsilon belongs under the root"
# -        scale = (wide.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
# +        scale = 1 / (wide.square().mean(-1, keepdim=True).sqrt() + self.epsilon)

# %% [raw] mutant="llama" hint="has to be added to the hidden states"
# -        return x + self.mlp_dropout(self.mlp(self.mlp_norm(x)))
# +        return self.mlp_dropout(self.mlp(self.mlp_norm(x)))

# %% [raw] mutant="llama" hint="begins with the hidden states to which attention"
# -        x = x + self.attention_dropout(self.attention(self.attention_norm(x)))
# -        return x + self.mlp_dropout(self.mlp(self.mlp_norm(x)))
# +        attended = self.attention_dropout(self.attention(self.attention_norm(x)))
# +        return x + attended + self.mlp_dropout(self.mlp(self.mlp_norm(x)))

# %% [raw] mutant="llama" hint="One norm is missing"
# -        (logits,) = self.region.columns(self.norm(x), self.head)
# +        (logits,) = self.region.columns(x + 0 * self.norm.weight, self.head)

# %% [raw] mutant="llama" hint="a weight of its own"
# -        self.head = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)
# +        self.head = self.embedding

# %% [raw] mutant="llama" hint="multiplied by the number of ranks"
# -        self.weight.is_partial = region.splits_sequence
# +        self.weight.is_partial = True

# %% [raw] mutant="llama" hint="larger than fp16"
# -        wide = x.float()
# +        wide = x

# %% [raw] mutant="llama" hint="all-reduces in each direction"
# -        (logits,) = self.region.columns(self.norm(x), self.head)
# +        x = self.region.enter(self.region.leave(self.norm(x)) / self.region.size)
# +        (logits,) = self.region.columns(x, self.head)

# %% [markdown]
# **This is the end of the second sitting.** Every layer of this model is yours. You will train it on two nodes at the end
# of the lab, once gradient clipping works for it, too.

# %% [markdown]
# ## Activations that are not split
#
# Tensor parallelism divides parameters, gradients, and optimizer states by $t$. Does it divide activations, too? Take a
# layer of Llama 7B (Touvron et al., 2023) with 8,192 tokens in bf16. With your meter of lab 06, the next cell measures
# how much each GPU saves for the backward pass:

# %% tags=["explore"]
LLAMA_7B = {"hidden_size": 4096, "heads": 32, "kv_heads": 32, "head_dim": 128, "inner_size": 11008, "flash": True}


def saved_by_a_layer(make_region, shape, s=8192, b=1):
    """Return the bytes that one Layer saves for the backward pass, in bf16 on a GPU."""
    from mytrainer.llama import Layer
    from mytrainer.saved import SavedBytes

    dist.init_process_group("nccl")
    region = make_region(dist.group.WORLD)
    with torch.device("cuda"):
        layer = Layer(tensor_training.Shape(**shape), region).bfloat16()
    own = s // region.size if region.splits_sequence else s
    x = torch.zeros(own, b, shape["hidden_size"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with SavedBytes(layer.parameters()) as saved:
        kept = layer(x)  # its graph holds what is saved
    return saved.bytes if kept is not None else 0


def saved_on(size, make_region, shape):
    """Return the bytes that a Layer saves on each of `size` virtual H100s that share it."""
    return virtualgpu.run(lambda: saved_by_a_layer(make_region, shape), f"h100:{size}", present=[0])[0].value


alone = saved_on(1, tensor_training.region, LLAMA_7B)
for size in (1, 2, 4, 8):
    each = saved_on(size, tensor_training.region, LLAMA_7B)
    print(f"TP {size}: {each / 2**20:6.0f} MiB per GPU, {result(f'{each / alone:.0%}')} of one GPU's")

# %% [markdown]
# On eight GPUs, you would hope for an eighth. Inside the region, each rank has its own features. Outside, every rank
# normalizes the same hidden states, applies the same dropout masks, and saves the same tensors as all others. That is
# unnecessary: norms, dropout, and residual additions treat every position separately, so each rank could do $s/t$ of the
# positions.
#
# **Sequence parallelism** ([Korthikanti et al., 2022](https://arxiv.org/abs/2205.05198)) splits the hidden states
# outside the region along the sequence: rank $i$ has positions $is/t$ to $(i+1)s/t$. Attention and the MLP still need
# all positions of their input, so something has to happen where hidden states enter and leave:
#
# ![A layer from left to right. With tensor parallelism, each of four ranks holds all positions of the hidden states
# around the norms and dropout, and a quarter of the features inside attention and the MLP. With sequence parallelism,
# each rank holds a quarter of the positions around the norms and dropout.](../images/sequence_parallel_layer.svg)
#
# Two collectives take the place of one. Recall from lab 04 what a ring all-reduce consists of: does sequence parallelism
# send more bytes?
#
# There is also a choice to make. For its weight gradient, a column-parallel layer needs its input again. You can save
# all positions of it, or save only this rank's own, and gather the others a second time. How many bytes does a rank send
# in a forward and a backward pass, relative to plain tensor parallelism? Set `guess_bytes` to a pair: if all positions
# are saved, and if they are gathered again.

# %% answer="guess-bytes"
### BEGIN SOLUTION
guess_bytes = (1.0, 1.25)
### END SOLUTION

# %% [markdown]
# ### Exercise 6: sequence parallelism
#
# Write `SequenceRegion`, a `Region` outside of which x is `[s/t, b, h]`. Your `Llama` then runs in it without any other
# change to its forward pass, because positions are ordered by rank, and $s$ is divisible by $t$.
#
# - Losses, and all gradients after `finish_gradients`, are those of one process. There is a catch: some parameters on a
#   rank now see only this rank's positions. Which are they, and what does that mean for their gradients?
#   `Region.splits_sequence` and `is_partial` are there for them. You will have to go back to the cell of exercise 5,
#   change one line, and run it again.
# - A rank communicates no more than it has to. `columns` enters the region only once, however many layers it gets.
# - `columns` saves this rank's positions of x for the backward pass, and no others. The backward pass gathers them
#   again. On eight virtual H100s, the check allows 2.55 GiB for four layers of Llama 3 8B with 16,384 tokens. (With a
#   plain `Region`, they need 6.4 GiB.)
#
# Dropout needs nothing new if your `Dropout` of exercise 4 asks the region whether it splits the sequence.

# %% answer="sequence"
%%writefile mytrainer/sequence_parallel.py
"""Sequence parallelism (Korthikanti et al., 2022): outside the region, each rank has s/t positions."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mytrainer.tensor_parallel import Region


class SequenceRegion(Region):
    """A Region outside of which rank i has the positions s i/t to s (i + 1)/t: x is [s/t, b, h]."""

    splits_sequence = True

    def enter(self, x):
        """Return all positions, [s, b, h], of hidden states x [s/t, b, h]."""
        ### BEGIN SOLUTION
        return Gather.apply(x, self)
        ### END SOLUTION

    def leave(self, x):
        """Return this rank's positions, [s/t, b, h], of the sum of the ranks' x [s, b, h]."""
        ### BEGIN SOLUTION
        return Scatter.apply(x, self)
        ### END SOLUTION

    def columns(self, x, *layers):
        """Enter with x [s/t, b, in], and return the output [s, b, out/t] of each column-parallel layer.

        The layers have no bias. Only x is saved for the backward pass, beside the weights.
        """
        ### BEGIN SOLUTION
        return Columns.apply(x, self, *(layer.weight for layer in layers))

    def gather(self, x):
        """Return x [n, ...] of all ranks, [t n, ...]."""
        whole = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        dist.all_gather_single(whole, x.contiguous(), group=self.group)
        return whole

    def scatter(self, x):
        """Return this rank's part, [n, ...], of the sum of the ranks' x [t n, ...]."""
        part = x.new_empty(x.shape[0] // self.size, *x.shape[1:])
        dist.reduce_scatter_single(part, x.contiguous(), group=self.group)
        return part


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, region):
        ctx.region = region
        return region.gather(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.region.scatter(grad), None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, region):
        ctx.region = region
        return region.scatter(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.region.gather(grad), None


class Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, region, *weights):
        ctx.region = region
        ctx.save_for_backward(x, *weights)
        whole = region.gather(x)
        return tuple(F.linear(whole, weight) for weight in weights)

    @staticmethod
    def backward(ctx, *grads):
        x, *weights = ctx.saved_tensors
        whole = ctx.region.gather(x)
        x_grad = sum(grad @ weight for grad, weight in zip(grads, weights, strict=True))
        weight_grads = [grad.flatten(0, 1).t() @ whole.flatten(0, 1) for grad in grads]
        return ctx.region.scatter(x_grad), None, *weight_grads
        ### END SOLUTION

# %% tags=["driver"]
def sequence_losses(shape, common, own, s, b, steps):
    """Train a small Llama in a SequenceRegion with SGD; return what llama_losses returns."""
    from mytrainer.llama import Llama
    from mytrainer.sequence_parallel import SequenceRegion

    from lablib import tensor_training

    return tensor_training.losses(Llama, SequenceRegion, shape, common, own, s, b, steps)


def sequence_dropout(shape, common, s, b):
    """Return the losses of three micro-batches in a SequenceRegion with dropout; parameters depend on no rank."""
    from mytrainer.llama import Llama
    from mytrainer.randomness import begin_micro_batch
    from mytrainer.sequence_parallel import SequenceRegion

    from lablib import tensor_training

    return tensor_training.dropped_losses(Llama, begin_micro_batch, SequenceRegion, shape, common, s, b)


def sequence_layers(shape, s, b, count):
    """Run a forward and a backward pass of layers on a GPU, in a SequenceRegion."""
    from mytrainer.sequence_parallel import SequenceRegion

    from lablib import tensor_training

    tensor_training.run_layer(SequenceRegion, shape, s, b, 1, count=count)

# %% check="sequence" points=6
def require_shards(run, shape, s, b, steps):
    """Require the bytes that enter and leave a region: 2 per layer in each direction, and those of the whole model."""
    ranks = len(run.values)
    hidden, times = 4 * s * b * shape.get("hidden_size", 12), 2 * shape.get("layers", 1) + 1
    for rank in range(ranks):
        large = [call for call in run.calls(rank, "all_reduce") if call.bytes >= hidden]
        check.that(not large, f"Rank {rank} all-reduces hidden states {len(large)} times. It needs the sum of its own positions only.")
        scattered, gathered = run.bytes(rank, "reduce_scatter"), run.bytes(rank, "all_gather")
        check.that(scattered <= 2 * times * steps * hidden, f"Rank {rank} reduce-scatters {scattered:,} bytes in {steps} steps. "
                   f"Hidden states enter and leave {times} times each, and {2 * times * steps * hidden:,} bytes are enough.")
        check.that(gathered <= 3 * times * steps * hidden // ranks, f"Rank {rank} passes {gathered:,} bytes to all-gathers in {steps} "
                   f"steps. One for each entry, its backward pass, and each exit's backward pass are {3 * times * steps * hidden // ranks:,}.")


def require_alike(values):
    """Require that all ranks of the second run have the losses of the first one."""
    ((alone,), shared) = values
    for losses in shared:
        for number, (one, two) in enumerate(zip(alone, losses, strict=True), start=1):
            check.that(abs(two / one - 1) < 1e-4, f"With dropout, micro-batch {number} has the loss {one:.5f} on one rank and {two:.5f} on "
                       f"{len(shared)}. Do your Dropout and your region agree on which positions a rank has?")


with check.parts():
    with check.part(3, "trains like one process, and communicates positions once"):
        runs = check.ranks(
            sequence_losses, ranks=2, rel=2e-4,
            cases=[{"shape": {}, "own": check.by_rank([1.0, 2.0]), **LLAMA},
                   {"shape": {"layers": 2, "kv_heads": 1, "vocab_size": 16}, "own": check.by_rank([3.0, 4.0]), **LLAMA}],
            expected=[[[3.319079, 4.530832, 2.690818, 0.6530054, 1.767663],
                       [3.319079, 4.530832, 2.690818, 0.6530054, 2.976043]],
                      [[2.744905, 3.977426, 1.887639, 0.5029252, 2.134988],
                       [2.744905, 3.977426, 1.887639, 0.5029252, 1.98212]]],
            hints={
                "The first loss is right, and so are the gradients of the matrices. But the gradients of the norms' weights come from "
                "this rank's positions only. Who completes them?":
                    [[[3.319079, 4.481151, 2.754079, 0.2740616, 1.767663],
                      [3.319079, 4.481151, 2.754079, 0.4113928, 2.976043]],
                     [[2.744905, 3.943067, 1.847725, 0.2310399, 2.134988], [2.744905, 3.943067, 1.847725, 0.2741722, 1.98212]]],
                "The first loss is right. In the backward pass of an entry, every rank has a part of the gradient of *all* positions.":
                    [[[3.319079, 3.558559, 2.593814, 0.3234902, 1.05485], [3.319079, 3.558559, 2.593814, 0.3234902, 1.658553]],
                     [[2.744905, 3.129818, 2.186418, 0.2598522, 1.564255], [2.744905, 3.129818, 2.186418, 0.2598522, 1.33841]]],
                "The first loss is right. In the backward pass of an exit, every rank needs the gradient of all positions.":
                    [[[3.319079, 3.898299, 2.554214, 0.6408949, 0.7384636],
                      [3.319079, 3.898299, 2.554214, 0.6408949, 2.005141]],
                     [[2.744905, 3.223322, 2.212106, 0.5000614, 1.478178],
                      [2.744905, 3.223322, 2.212106, 0.5000614, 1.381883]]],
                "The output of a region is the sum of the ranks' outputs, not their mean.":
                    [[[3.347866, 4.255576, 2.748563, 0.327009, 1.866074], [3.347866, 4.255576, 2.748563, 0.327009, 2.833609]],
                     [[2.751241, 3.881186, 1.845872, 0.2621171, 2.158786], [2.751241, 3.881186, 1.845872, 0.2621171, 2.01156]]],
                "The ranks' positions are gathered in the wrong order, or along the wrong dimension.":
                    [[[3.393898, 4.564335, 3.604587, 0.6242986, 1.656316],
                      [3.393898, 4.564335, 3.604587, 0.6242986, 2.303788]],
                     [[2.719174, 4.219284, 1.789261, 0.5050154, 2.189147],
                      [2.719174, 4.219284, 1.789261, 0.5050154, 2.000118]]]})
        for run, shape in zip(runs, ({}, {"layers": 2}), strict=True):
            require_shards(run, shape, 8, 3, 3)
        ### BEGIN HIDDEN TESTS
        for ranks, heads, kv_heads in ((4, 8, [2, 4]), (3, 6, [3, 6])):
            (case,) = check.draw(1, kv_heads=kv_heads, inner_size=range(9, 30), vocab_size=range(11, 40),
                                 common=check.between(0, 100), own=check.for_each_rank(check.between(0, 100)))
            shape = {"heads": heads, **{name: case.pop(name) for name in ("kv_heads", "inner_size", "vocab_size")}}
            (run,) = check.ranks(sequence_losses, ranks=ranks, rel=1e-3, expected=llama_here,
                                 cases=[{"shape": shape, **case, "s": 12, "b": 2, "steps": 2}])
            require_shards(run, shape, 12, 2, 2)
        ### END HIDDEN TESTS
    with check.part(1, "drops the same elements as one process"):
        case = {"shape": {"dropout": 0.3, "layers": 2}, "common": 5.0, "s": 8, "b": 2}
        require_alike([run.values for run in check.ranks(sequence_dropout, ranks=[1, 2], cases=[case], expected=None)])
        ### BEGIN HIDDEN TESTS
        case = {"shape": {"dropout": 0.2, "heads": 6, "kv_heads": 3}, "s": 12, "b": 3, **check.draw(1, common=check.between(0, 100))[0]}
        require_alike([run.values for run in check.ranks(sequence_dropout, ranks=[1, 3], cases=[case], expected=None)])
        ### END HIDDEN TESTS
    with check.part(2, "saves this rank's positions only, on eight virtual H100s"):
        cost = check.gpus(sequence_layers, {"shape": tensor_training.LLAMA_8B, "s": 8192, "b": 2, "count": 4}, "h100:8", present=[0],
                          least={"flops": 6 * 4 * 16384 * (4096 * (4096 + 1024) * 2 + 3 * 4096 * 14336) // 8, "dtype": "bf16", "among": 8,
                                 "communicated": 4 * 8 * 2 * 16384 * 4096})
        check.pass_mark(cost.peak_memory, error=cost.memory_error, below=2.55, hint=(
            f"{cost.peak_memory:.1f} GiB. All positions of the hidden states are 0.125 GiB in bf16. Which tensors of this size does "
            "autograd keep for each of the four layers?"))


# %% [raw] mutant="sequence" hint="has a part of the gradient of"
# -    def backward(ctx, grad):
# -        return ctx.region.scatter(grad), None
# +    def backward(ctx, grad):
# +        return grad.chunk(ctx.region.size)[ctx.region.rank], None
# -        return ctx.region.scatter(x_grad), None, *weight_grads
# +        return x_grad.chunk(ctx.region.size)[ctx.region.rank], None, *weight_grads

# %% [raw] mutant="sequence" hint="In the backward pass of an exit"
# -        return ctx.region.gather(grad), None
# +        whole = grad.new_zeros(ctx.region.size, *grad.shape)
# +        whole[ctx.region.rank] = grad
# +        return whole.flatten(0, 1), None

# %% [raw] mutant="sequence" hint="not their mean"
# -        dist.reduce_scatter_single(part, x.contiguous(), group=self.group)
# +        dist.reduce_scatter_single(part, x.contiguous(), group=self.group)
# +        part /= self.size

# %% [raw] mutant="sequence" hint="in the wrong order"
# -        dist.all_gather_single(whole, x.contiguous(), group=self.group)
# -        return whole
# +        dist.all_gather_single(whole, x.contiguous(), group=self.group)
# +        return whole.unflatten(0, (self.size, -1)).transpose(0, 1).flatten(0, 1)

# %% [raw] mutant="sequence" hint="It needs the sum of its own positions only"
# -        part = x.new_empty(x.shape[0] // self.size, *x.shape[1:])
# -        dist.reduce_scatter_single(part, x.contiguous(), group=self.group)
# -        return part
# +        whole = x.clone(memory_format=torch.contiguous_format)
# +        dist.all_reduce(whole, group=self.group)
# +        return whole.chunk(self.size)[self.rank].clone()

# %% [raw] mutant="sequence" hint="bytes are enough"
# -        x_grad = sum(grad @ weight for grad, weight in zip(grads, weights, strict=True))
# +        x_grad = sum(ctx.region.scatter(grad @ weight) for grad, weight in zip(grads, weights, strict=True))
# -        return ctx.region.scatter(x_grad), None, *weight_grads
# +        return x_grad, None, *weight_grads

# %% [raw] mutant="sequence" hint="One for each entry"
# -        whole = region.gather(x)
# -        return tuple(F.linear(whole, weight) for weight in weights)
# +        return tuple(F.linear(region.gather(x), weight) for weight in weights)

# %% [raw] mutant="randomness" hint="agree on which positions"
# -        if self.region.splits_sequence:
# +        if False:

# %% [raw] mutant="randomness" hint="agree on which positions"
# -            whole, first = count * self.region.size, count * self.region.rank
# +            whole = count * self.region.size

# %% [raw] mutant="sequence" hint="keep for each of the four layers"
# -        return Columns.apply(x, self, *(layer.weight for layer in layers))
# +        x = self.enter(x)
# +        return [F.linear(x, layer.weight) for layer in layers]

# %% [raw] mutant="llama" hint="Who completes them"
# -        self.weight.is_partial = region.splits_sequence

# %% [markdown]
# Now count the bytes. A ring all-reduce sends the tensor almost twice, a reduce-scatter or an all-gather once:

# %% tags=["explore"]
def one_pass(kind):
    """Run a forward and a backward pass of one small layer, whose communication follows a barrier."""
    from mytrainer.llama import Layer
    from mytrainer.sequence_parallel import SequenceRegion
    from mytrainer.tensor_parallel import Region

    class Saving(SequenceRegion):
        columns = Region.columns  # autograd saves what enter() returns

    region = {"plain": Region, "all positions saved": Saving, "gathered again": SequenceRegion}[kind](dist.group.WORLD)
    layer = Layer(tensor_training.Shape(), region)
    tensor_training.fill(layer, 1.0)
    x = torch.ones(16 // region.size if region.splits_sequence else 16, 2, 12, requires_grad=True)
    layer(x).sum().backward()


sent = {}
for kind in ("plain", "all positions saved", "gathered again"):
    calls = record_ranks(one_pass, 4, kind)[0].calls
    # An all-gather's bytes are those of a shard.
    sent[kind] = sum({"all_reduce": 2, "reduce_scatter": 1, "all_gather": 4}[call.op] * call.bytes for call in calls)
    ratio = sent[kind] / sent["plain"]
    print(f"{kind:20} {result(f'{ratio:.2f}')} times the bytes of plain tensor parallelism")
for name, guess, kind in zip(("saved", "gathered again"), guess_bytes, list(sent)[1:], strict=True):
    check.compare(f"bytes ({name})", guess, sent[kind] / sent["plain"])

# %% [markdown]
# A ring all-reduce *is* a reduce-scatter and an all-gather, so sequence parallelism itself sends no more bytes. Gathering
# again sends a quarter more, in exchange for the largest replicated tensors that would be left. Megatron-LM gathers
# again, too, and overlaps this all-gather with the GEMM that computes the input's gradient.
#
# Would you have noticed if the norms' gradients had stayed incomplete? Here are 20 steps on four ranks, with and without
# `is_partial`:

# %% tags=["explore"] short={"STEPS = 20": "STEPS = 4"}
STEPS = 20


def with_partial_norms(finished):
    """Train in a SequenceRegion; return the losses, and the norm of the gradients of all norms' weights."""
    from mytrainer.heads import finish_gradients
    from mytrainer.llama import Llama
    from mytrainer.sequence_parallel import SequenceRegion

    region = SequenceRegion(dist.group.WORLD)
    model = Llama(tensor_training.Shape(layers=2, hidden_size=32, heads=8, vocab_size=64), region)
    tensor_training.fill(model, 1.0)
    if not finished:
        for one in model.parameters():
            if one.dim() == 1:
                one.is_partial = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, labels = tensor_training.batch(64, 16, 4)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(tokens, labels).mean()
        loss.backward()
        finish_gradients(model.parameters(), region)
        losses.append(loss.item())
        norms.append(tensor_training.norm_of(model, 1))
        optimizer.step()
    return losses, norms


right, wrong = (run_ranks(with_partial_norms, 4, finished)[0] for finished in (True, False))
for name, ours, theirs in zip(("losses", "gradient norms of the norms"), right, wrong, strict=True):
    difference = max(abs(b / a - 1) for a, b in zip(ours, theirs, strict=True))
    print(f"{name:28} differ by up to {result(f'{difference:.1%}')}")

# %% [markdown]
# Nothing crashes, and the loss hardly changes. But the ranks' copies of the norms drift apart, and a checkpoint with rank
# 0's copies is no longer the model that was trained. Gradient norms are the place to look.

# %% [markdown]
# ## All-reduces behind weight gradients
#
# Data parallelism hides its all-reduces behind the backward pass. Tensor parallelism communicates in the middle of every
# layer, and the next GEMM waits. This is the modeled time of four layers of Llama 3 8B in a plain `Region`, with 16,384
# tokens on eight virtual H100s that NVLink connects:

# %% tags=["explore"] short={"count=4": "count=1"}
def show_exposed(name, make_region, gpus="h100:8", nodes=1, count=4):
    """Print the time of a forward and a backward pass of layers, and its exposed communication."""
    cost = tensor_training.priced(
        lambda: tensor_training.run_layer(make_region, tensor_training.LLAMA_8B, 8192, 2, 1, count=count), gpus, nodes)
    share = cost.exposed_compute / cost.seconds
    print(f"{name:16} {1000 * cost.seconds:6.1f} ms, {result(f'{share:.1%}')} of it exposed communication (modeled)")
    return share


share = show_exposed("plain", tensor_training.region)

# %% [markdown]
# In the forward pass, everything after an all-reduce depends on its result. In the backward pass of column-parallel
# layers, there is something that does not. A linear layer $y = xW^T$ has two gradients,
#
# $$ \frac{\partial L}{\partial x} = \frac{\partial L}{\partial y}\, W \qquad\text{and}\qquad
#    \frac{\partial L}{\partial W} = \Big(\frac{\partial L}{\partial y}\Big)^{\!T} x, $$
#
# and only the first one is all-reduced:
#
# ![Two timelines of the backward pass of column-parallel layers. In the first, the GPU computes the input's gradient and
# the weight gradients, and then waits for the all-reduce. In the second, the all-reduce runs on the network while the GPU
# computes the weight gradients.](../images/tensor_parallel_overlap.svg)
#
# The all-reduces of the forward pass stay exposed. Which fraction of the remaining time is exposed communication, if those
# of the backward pass are hidden completely? Set `guess_exposed` to a number between 0 and 1:

# %% answer="guess-exposed"
### BEGIN SOLUTION
guess_exposed = 0.08
### END SOLUTION

# %% [markdown]
# ### Exercise 7: overlap in the backward pass
#
# Write `OverlapRegion`, whose `columns` overlaps the all-reduce of the input's gradient with the weight gradients.
#
# - For each call of `columns`, the backward pass starts a single all-reduce, as soon as the input's gradient is ready. It
#   does not wait for it before the last weight gradient has been launched.
# - On eight virtual H100s, for three calls with two layers of 8,192 x 28,672 each, less than 4% of the time is exposed
#   communication.
#
# Why do you have to write the backward pass yourself? Autograd computes both gradients of `F.linear` in one node, so
# whatever follows, such as `Enter.backward`, runs after both.

# %% answer="overlap"
%%writefile mytrainer/tp_overlap.py
"""Tensor parallelism whose backward all-reduces run behind the weight gradients."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mytrainer.tensor_parallel import Region


class OverlapRegion(Region):
    """A Region that computes weight gradients while the input's gradient is all-reduced."""

    def columns(self, x, *layers):
        """Enter with x [s, b, in], and return the output [s, b, out/t] of each column-parallel layer, without a bias."""
        ### BEGIN SOLUTION
        return Columns.apply(x, self.group, *(layer.weight for layer in layers))


class Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, *weights):
        ctx.group = group
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, weight) for weight in weights)

    @staticmethod
    def backward(ctx, *grads):
        x, *weights = ctx.saved_tensors
        x_grad = grads[0] @ weights[0]
        for grad, weight in zip(grads[1:], weights[1:], strict=True):
            x_grad += grad @ weight
        work = dist.all_reduce(x_grad, group=ctx.group, async_op=True)
        weight_grads = [grad.flatten(0, 1).t() @ x.flatten(0, 1) for grad in grads]
        work.wait()
        return x_grad, None, *weight_grads
        ### END SOLUTION

# %% tags=["driver"]
def overlapped_gradients(outputs, common, own, s, b, h):
    """Run column-parallel layers with `outputs` features on each rank.

    Return the gradient of the input, and the norms of the weight gradients.
    """
    from mytrainer.tp_overlap import OverlapRegion

    from lablib import tensor_training

    return tensor_training.column_gradients(OverlapRegion, outputs, common, own, s, b, h)


def overlapped_columns(width, features, tokens, times):
    """Run forward and backward passes of pairs of column-parallel layers on a GPU."""
    from mytrainer.tp_overlap import OverlapRegion

    from lablib import tensor_training

    tensor_training.run_columns(OverlapRegion, width, features, tokens, times)

# %% check="overlap" points=4
def require_overlap(run, outputs, s, b, h):
    """Require one all-reduce, which starts after the GEMMs for the input's gradient and ends after all others."""
    flops = sum(2 * s * b * h * features for features in outputs)  # of one kind of GEMM of all layers
    for rank in range(len(run.values)):
        calls = run.calls(rank, "all_reduce")
        check.that(len(calls) == 1, f"Rank {rank} starts {len(calls)} all-reduces for {len(outputs)} layers with the same input. Their "
                   "gradients of the input are addends, too.")
        check.that(calls[0].started <= 2 * flops, f"Rank {rank} starts the all-reduce after {calls[0].started:.0f} FLOPs. The forward pass "
                   f"and the input's gradient have {2 * flops}; what comes after them can overlap.")
        check.that(calls[0].finished is not None and calls[0].finished >= 3 * flops, f"Rank {rank} waits for the all-reduce before all "
                   f"weight gradients have been computed.")


COLUMNS = {"outputs": [3, 2], "common": 1.0, "own": check.by_rank([2.0, 3.0]), "s": 2, "b": 2, "h": 2}
with check.parts():
    with check.part(2, "computes the gradients, and starts and finishes its all-reduce at the right time"):
        (run,) = check.ranks(
            overlapped_gradients, ranks=2, rel=1e-4, cases=[COLUMNS],
            expected=[[[[0.3533087, -0.4051861, -0.3504868, 0.4066537, 0.2001348, -0.2251174, 0.08674692, 0.001950935],
                        [0.8113735, 0.7226088]],
                       [[0.3533087, -0.4051861, -0.3504868, 0.4066537, 0.2001348, -0.2251174, 0.08674692, 0.001950935],
                        [0.7941742, 0.7300359]]]],
            hints={
                "The input's gradient is this rank's addend only. Is it all-reduced before it is used?":
                    [[[[0.1531533, -0.2053637, -0.1306046, 0.260341, 0.04351973, -0.1999231, 0.0921368, 0.08420807],
                       [0.8113735, 0.7226088]],
                      [[0.2001555, -0.1998224, -0.2198822, 0.1463127, 0.156615, -0.02519435, -0.005389884, -0.08225714],
                       [0.7941742, 0.7300359]]]],
                "The input's gradient lacks all layers but the first.":
                    [[[[-0.04084843, -0.4563041, -0.1802654, 0.2543225, 0.3025705, 0.08706229, -0.2590258, -0.3807243],
                       [0.8113735, 0.7226088]],
                      [[-0.04084843, -0.4563041, -0.1802654, 0.2543225, 0.3025705, 0.08706229, -0.2590258, -0.3807243],
                       [0.7941742, 0.7300359]]]],
                "The input's gradient has been all-reduced twice: `columns` enters the region itself.":
                    [[[[0.7066174, -0.8103721, -0.7009737, 0.8133074, 0.4002696, -0.4502349, 0.1734938, 0.003901869],
                       [0.8113735, 0.7226088]],
                      [[0.7066174, -0.8103721, -0.7009737, 0.8133074, 0.4002696, -0.4502349, 0.1734938, 0.003901869],
                       [0.7941742, 0.7300359]]]]})
        require_overlap(run, [3, 2], 2, 2, 2)
        ### BEGIN HIDDEN TESTS
        def gradients_here(ranks, outputs, common, own, s, b, h):
            """Return what overlapped_gradients returns on each rank."""
            import torch

            x = tensor_training.values([s * b, h], common, "x").double()
            total, norms = torch.zeros(s * b, h).double(), []
            for seed in own:
                norms.append([])
                for number, features in enumerate(outputs):
                    weight, grad = (tensor_training.values(shape, seed, f"{name}{number}").double()
                                    for name, shape in (("weight", [features, h]), ("grad", [s * b, features])))
                    total += grad @ weight
                    norms[-1].append((grad.t() @ x).norm().item())
            return [[total.flatten().tolist(), row] for row in norms]


        for ranks in (3, 4):
            (case,) = check.draw(1, outputs=lambda dice: [dice.randint(1, 5) for _ in range(dice.randint(1, 3))],
                                 common=check.between(0, 100), own=check.for_each_rank(check.between(0, 100)),
                                 s=range(1, 4), b=range(1, 4), h=range(1, 5))
            (run,) = check.ranks(overlapped_gradients, ranks=ranks, rel=1e-3, cases=[case], expected=gradients_here)
            require_overlap(run, *(case[name] for name in ("outputs", "s", "b", "h")))
        ### END HIDDEN TESTS
    with check.part(2, "exposes little communication on eight virtual H100s"):
        (run,) = check.ranks(overlapped_gradients, ranks=2, cases=[COLUMNS], expected=None)
        for rank in range(2):
            check.that(all(call.finished is not None for call in run.calls(rank, "all_reduce")), f"Rank {rank} never waits for its "
                       "all-reduce. Whoever uses the input's gradient next reads it too early.")
        cost = check.gpus(overlapped_columns, {"width": 8192, "features": 28672, "tokens": 8192, "times": 3}, "h100:8", present=[0],
                          least={"flops": 3 * 6 * 2 * 8192 * 8192 * 28672 // 8, "dtype": "bf16", "among": 8,
                                 "communicated": 3 * 2 * 8192 * 8192})
        check.pass_mark(cost.exposed, f"The GPU waits for communication in {cost.exposed:.0%} of the time. What does it compute while the "
                        "all-reduce runs?", error=cost.error, below=0.04)

# %% [raw] mutant="overlap" hint="this rank's addend only"
# -        work = dist.all_reduce(x_grad, group=ctx.group, async_op=True)
# -        weight_grads = [grad.flatten(0, 1).t() @ x.flatten(0, 1) for grad in grads]
# -        work.wait()
# +        weight_grads = [grad.flatten(0, 1).t() @ x.flatten(0, 1) for grad in grads]

# %% [raw] mutant="overlap" hint="lacks all layers but the first"
# -        for grad, weight in zip(grads[1:], weights[1:], strict=True):
# -            x_grad += grad @ weight

# %% [raw] mutant="overlap" hint="all-reduced twice"
# -        return Columns.apply(x, self.group, *(layer.weight for layer in layers))
# +        return Columns.apply(self.enter(x), self.group, *(layer.weight for layer in layers))

# %% [raw] mutant="overlap" hint="with the same input"
# -        x_grad = grads[0] @ weights[0]
# -        for grad, weight in zip(grads[1:], weights[1:], strict=True):
# -            x_grad += grad @ weight
# -        work = dist.all_reduce(x_grad, group=ctx.group, async_op=True)
# +        parts = [grad @ weight for grad, weight in zip(grads, weights, strict=True)]
# +        works = [dist.all_reduce(part, group=ctx.group, async_op=True) for part in parts]
# -        work.wait()
# +        for work in works:
# +            work.wait()
# +        x_grad = sum(parts)

# %% [raw] mutant="overlap" hint="what comes after them can overlap"
# -        work = dist.all_reduce(x_grad, group=ctx.group, async_op=True)
# -        weight_grads = [grad.flatten(0, 1).t() @ x.flatten(0, 1) for grad in grads]
# +        weight_grads = [grad.flatten(0, 1).t() @ x.flatten(0, 1) for grad in grads]
# +        work = dist.all_reduce(x_grad, group=ctx.group, async_op=True)

# %% [raw] mutant="overlap" hint="before all"
# -        work = dist.all_reduce(x_grad, group=ctx.group, async_op=True)
# -        weight_grads = [grad.flatten(0, 1).t() @ x.flatten(0, 1) for grad in grads]
# -        work.wait()
# +        work = dist.all_reduce(x_grad, group=ctx.group, async_op=True)
# +        work.wait()
# +        weight_grads = [grad.flatten(0, 1).t() @ x.flatten(0, 1) for grad in grads]

# %% [raw] mutant="overlap" hint="reads it too early"
# -        work.wait()

# %% [raw] mutant="overlap" hint="What does it compute while"
# -        work = dist.all_reduce(x_grad, group=ctx.group, async_op=True)
# -        weight_grads = [grad.flatten(0, 1).t() @ x.flatten(0, 1) for grad in grads]
# -        work.wait()
# +        dist.all_reduce(x_grad, group=ctx.group)
# +        weight_grads = [grad.flatten(0, 1).t() @ x.flatten(0, 1) for grad in grads]

# %% tags=["explore"]
show_exposed("plain", tensor_training.region)
check.compare("exposed fraction", guess_exposed, show_exposed("overlapping", tensor_training.overlap_region))

# %% [markdown]
# Is a little more left than you predicted? Of the two calls of `columns` in a layer, attention's has the smaller weight
# gradients, but both all-reduce the same number of bytes.
#
# Whether weight gradients last long enough depends on the network, too. In each direction, NVLink moves 450 GB/s per GPU,
# and a 400 Gbit/s adapter between nodes moves 50 GB/s. Eight GPUs can be on one node, or on several. Set `clusters` to a
# dictionary: each key is a pair of the GPUs per node, such as `"h100:2"`, and the number of nodes, with eight GPUs in
# total; each value is the exposed fraction that you expect with `OverlapRegion`. Include one node of eight GPUs and at
# least two other layouts.

# %% answer="clusters"
### BEGIN SOLUTION
clusters = {("h100:8", 1): 0.11, ("h100:4", 2): 0.23, ("h100:1", 8): 0.58}
### END SOLUTION

# %% tags=["explore"]
for (gpus, nodes), guess in clusters.items():
    print(f"{nodes} x {gpus}; you predicted {guess:.0%} when overlapping")
    for name, make in (("    plain", tensor_training.region), ("    overlapping", tensor_training.overlap_region)):
        show_exposed(name, make, gpus, nodes)

# %% [markdown]
# What does your table say about the size of a tensor-parallel group? Write down a rule, and compare it with the first
# takeaway in section 3.2 of [Narayanan et al., 2021](https://arxiv.org/abs/2104.04473).
#
# Your trainer uses `OverlapRegion` with `--async-tensor-model-parallel-allreduce`. The all-reduces of the forward pass
# are harder: a GEMM can only overlap with *its own* communication if both are decomposed into chunks, so that one chunk
# is on the network while the next one is computed ([Wang et al., 2023](https://doi.org/10.1145/3567955.3567959)).
# Megatron-LM's `--tp-comm-overlap` uses an implementation of this idea in Transformer Engine.

# %% [markdown]
# ## One norm of a model in parts
#
# Your model now has three kinds of gradients. Most matrices are in parts, and each part is on one rank. The norms'
# weights are on all $t$ ranks. And with fewer key and value heads than ranks, a part of their matrices is on several
# ranks, but not on all. Clipping needs the norm of the *model's* gradient, in which every element counts once.
#
# Your `clip_grad_norm` of lab 08 assumes that no element is on two ranks, so it would count the norms' weights $t$ times.
# A training log hides this mistake well: the loss is plausible, the gradient norm is a little too large, and clipping is
# a little too strong.

# %% [markdown]
# ### Exercise 8: clip once per element
#
# Write `clip_grad_norm` in `grad_norm.py`. It takes the place of PyTorch's function in your loop when several ranks
# share a model. `copies`, which your `parameter` of exercise 1 sets, is all you need to know about a parameter.
#
# As in lab 08, the norm stays a tensor, nothing synchronizes with the GPU, and each rank communicates one number. Only
# the region's ranks take part. Those outside are other data-parallel replicas, which have the same gradients after DDP's
# all-reduce.

# %% answer="grad-norm"
%%writefile mytrainer/grad_norm.py
"""Clip the gradients of a model in parts, some of which are on several ranks."""

import torch
import torch.distributed as dist


def clip_grad_norm(parameters, max_norm, region):
    """Scale the gradients in place so that the norm of the whole model's gradient is at most max_norm.

    Args:
        parameters: an iterator over this rank's parameters; .grad is in fp32, or None. At least one has a gradient.
        max_norm: may be infinite.
        region: the ranks that share the model.

    Returns the norm before clipping, a tensor of one element, the same on all ranks of the region.
    """
    ### BEGIN SOLUTION
    parameters = [one for one in parameters if one.grad is not None]
    square = sum(one.grad.float().square().sum() / one.copies for one in parameters)
    dist.all_reduce(square, group=region.group)
    norm = square.sqrt()
    torch._foreach_mul_([one.grad for one in parameters], (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
    ### END SOLUTION

# %% tags=["driver"]
def clipped_parts(gradients, copies, max_norm, size):
    """Clip gradients in regions of `size` neighboring ranks; return the norm, and the gradients after it.

    Args:
        gradients: this rank's, one list of numbers per parameter, or None.
        copies: of each parameter.
        max_norm: the largest norm.
        size: ranks of a region.
    """
    from mytrainer.grad_norm import clip_grad_norm

    from lablib import tensor_training

    groups = [dist.new_group(list(range(first, first + size))) for first in range(0, dist.get_world_size(), size)]
    region = tensor_training.region(groups[dist.get_rank() // size])
    parameters = []
    for gradient, count in zip(gradients, copies, strict=True):
        one = torch.nn.Parameter(torch.zeros(len(gradient or [])))
        one.copies, one.grad = count, None if gradient is None else torch.tensor(gradient)
        parameters.append(one)
    norm = clip_grad_norm(iter(parameters), float(max_norm), region)
    return [float(norm), [None if one.grad is None else one.grad.tolist() for one in parameters]]


def clip_on_gpu(elements, times):
    """Clip the gradients of 64 parameters on a GPU; every other one is on all ranks."""
    from mytrainer.grad_norm import clip_grad_norm

    from lablib import tensor_training

    region, parameters = tensor_training.region(dist.group.WORLD), []
    for number in range(64):
        one = torch.nn.Parameter(torch.zeros(elements, device="cuda"))
        one.copies, one.grad = region.size if number % 2 else 1, torch.ones_like(one)
        parameters.append(one)
    for _ in range(times):
        clip_grad_norm(parameters, 1.0, region)

# %% check="grad-norm" points=4
def require_one_number(run, size):
    for rank in range(len(run.values)):
        check.that(run.bytes(rank) <= 8, f"Rank {rank} communicates {run.bytes(rank):,} bytes. One number is enough, however many "
                   "parameters there are.")
        for call in run.calls(rank):
            check.that(len(call.group) == size, f"Rank {rank} communicates with {len(call.group)} ranks, and {size} share the model. "
                       "The others are another replica, and have the same gradients.")


# A part of a matrix on each rank, a norm on all ranks, a key head on two ranks each, and a parameter without a gradient.
PARTS = [[[4.0, 0.0], [4.0], [8.0], None], [[4.0, 4.0], [4.0], [8.0], None], [[0.0, 0.0], [4.0], [6.0], None],
         [[4.0, 4.0], [4.0], [6.0], None]]
# Two replicas of a model in two parts.
REPLICAS = [[[3.0], [12.0]], [[4.0], [12.0]]] * 2
for run in check.ranks(
        clipped_parts, ranks=4, rel=1e-5,
        cases=[{"gradients": check.by_rank(PARTS), "copies": [1, 4, 2, 1], "max_norm": limit, "size": 4} for limit in (7.0, 30.0)],
        expected=[[[14.0, [[2.0, 0.0], [2.0], [4.0], None]],
                   [14.0, [[2.0, 2.0], [2.0], [4.0], None]],
                   [14.0, [[0.0, 0.0], [2.0], [3.0], None]],
                   [14.0, [[2.0, 2.0], [2.0], [3.0], None]]],
                  [[14.0, [[4.0, 0.0], [4.0], [8.0], None]],
                   [14.0, [[4.0, 4.0], [4.0], [8.0], None]],
                   [14.0, [[0.0, 0.0], [4.0], [6.0], None]],
                   [14.0, [[4.0, 4.0], [4.0], [6.0], None]]]],
        hints={
            "A gradient that several ranks have counts once. These ranks are not always all of the region.":
                [[[18.54724, [[1.509659, 0.0], [1.509659], [3.019317], None]],
                  [18.54724, [[1.509659, 1.509659], [1.509659], [3.019317], None]],
                  [18.54724, [[0.0, 0.0], [1.509659], [2.264488], None]],
                  [18.54724, [[1.509659, 1.509659], [1.509659], [2.264488], None]]],
                 [[18.54724, [[4.0, 0.0], [4.0], [8.0], None]],
                  [18.54724, [[4.0, 4.0], [4.0], [8.0], None]],
                  [18.54724, [[0.0, 0.0], [4.0], [6.0], None]],
                  [18.54724, [[4.0, 4.0], [4.0], [6.0], None]]]],
            "A norm that all ranks have counts once, but so does a key head that two ranks have.":
                [[[17.20465, [[1.627467, 0.0], [1.627467], [3.254933], None]],
                  [17.20465, [[1.627467, 1.627467], [1.627467], [3.254933], None]],
                  [17.20465, [[0.0, 0.0], [1.627467], [2.4412], None]],
                  [17.20465, [[1.627467, 1.627467], [1.627467], [2.4412], None]]],
                 [[17.20465, [[4.0, 0.0], [4.0], [8.0], None]],
                  [17.20465, [[4.0, 4.0], [4.0], [8.0], None]],
                  [17.20465, [[0.0, 0.0], [4.0], [6.0], None]],
                  [17.20465, [[4.0, 4.0], [4.0], [6.0], None]]]],
            "Each rank clips by the norm of its own parts.":
                [[[9.797959, [[2.857738, 0.0], [2.857738], [5.715476], None]],
                  [10.583, [[2.645751, 2.645751], [2.645751], [5.291502], None]],
                  [7.211102, [[0.0, 0.0], [3.882901], [5.824351], None]],
                  [9.165152, [[3.05505, 3.05505], [3.05505], [4.582575], None]]],
                 [[9.797959, [[4.0, 0.0], [4.0], [8.0], None]],
                  [10.583, [[4.0, 4.0], [4.0], [8.0], None]],
                  [7.211102, [[0.0, 0.0], [4.0], [6.0], None]],
                  [9.165152, [[4.0, 4.0], [4.0], [6.0], None]]]],
            "Norms do not add up. What does?":
                [[[27.4962, [[1.018322, 0.0], [1.018322], [2.036645], None]],
                  [27.4962, [[1.018322, 1.018322], [1.018322], [2.036645], None]],
                  [27.4962, [[0.0, 0.0], [1.018322], [1.527484], None]],
                  [27.4962, [[1.018322, 1.018322], [1.018322], [1.527484], None]]],
                 [[27.4962, [[4.0, 0.0], [4.0], [8.0], None]],
                  [27.4962, [[4.0, 4.0], [4.0], [8.0], None]],
                  [27.4962, [[0.0, 0.0], [4.0], [6.0], None]],
                  [27.4962, [[4.0, 4.0], [4.0], [6.0], None]]]],
            "The gradients themselves have been divided by the number of copies.":
                [[[14.0, [[2.0, 0.0], [0.5], [2.0], None]],
                  [14.0, [[2.0, 2.0], [0.5], [2.0], None]],
                  [14.0, [[0.0, 0.0], [0.5], [1.5], None]],
                  [14.0, [[2.0, 2.0], [0.5], [1.5], None]]],
                 [[14.0, [[4.0, 0.0], [1.0], [4.0], None]],
                  [14.0, [[4.0, 4.0], [1.0], [4.0], None]],
                  [14.0, [[0.0, 0.0], [1.0], [3.0], None]],
                  [14.0, [[4.0, 4.0], [1.0], [3.0], None]]]],
            "Don't scale gradients up when the norm is below the limit.":
                [[],
                 [[14.0, [[8.571428, 0.0], [8.571428], [17.14286], None]],
                  [14.0, [[8.571428, 8.571428], [8.571428], [17.14286], None]],
                  [14.0, [[0.0, 0.0], [8.571428], [12.85714], None]],
                  [14.0, [[8.571428, 8.571428], [8.571428], [12.85714], None]]]],
            "The norm is right, and the gradients are unchanged.":
                [[[14.0, [[4.0, 0.0], [4.0], [8.0], None]],
                  [14.0, [[4.0, 4.0], [4.0], [8.0], None]],
                  [14.0, [[0.0, 0.0], [4.0], [6.0], None]],
                  [14.0, [[4.0, 4.0], [4.0], [6.0], None]]],
                 []]}):
    require_one_number(run, 4)
for run in check.ranks(clipped_parts, ranks=4, rel=1e-5, expected=[[[13.0, [[1.5], [6.0]]],
                                                                    [13.0, [[2.0], [6.0]]],
                                                                    [13.0, [[1.5], [6.0]]],
                                                                    [13.0, [[2.0], [6.0]]]]],
                       cases=[{"gradients": check.by_rank(REPLICAS), "copies": [1, 2], "max_norm": 6.5, "size": 2}],
                       hints={"This is the norm over all four ranks. The two ranks outside the region have another replica.":
                           [[[18.38478, [[1.06066], [4.24264]]],
                             [18.38478, [[1.414213], [4.24264]]],
                             [18.38478, [[1.06066], [4.24264]]],
                             [18.38478, [[1.414213], [4.24264]]]]]}):
    require_one_number(run, 2)
cost = check.gpus(clip_on_gpu, {"elements": 2**20, "times": 2}, "h100:8", present=[0], least={"bytes": 2 * 64 * 4 * 2**20})
check.that(cost.reads == 0, f"Two calls synchronize with the GPU {cost.reads} times. Keep the norm a tensor, and clamp the "
           "factor instead of asking whether to clip.")
### BEGIN HIDDEN TESTS
import math


def clipped_here(ranks, gradients, copies, max_norm, size):
    """Return what clipped_parts returns on each rank."""
    rows = []
    for rank in range(ranks):
        first = rank - rank % size
        square = sum(x * x / count for other in range(first, first + size)
                     for gradient, count in zip(gradients[other], copies, strict=True) for x in gradient or [])
        norm = math.sqrt(square)
        factor = min(1.0, max_norm / (norm + 1e-6))
        rows.append([norm, [gradient and [factor * x for x in gradient] for gradient in gradients[rank]]])
    return rows


def drawn_parts(dice, ranks=6):
    """Draw the gradients of six ranks in regions of three, with copies on all three of them or on one only."""
    shared = [dice.uniform(-3, 3) for _ in range(4)]
    return [[[dice.uniform(-3, 3) for _ in range(5)], shared] for _ in range(ranks)]


for case in check.draw(2, gradients=drawn_parts, max_norm=[0.7, math.inf]):
    (run,) = check.ranks(clipped_parts, ranks=6, rel=1e-4, expected=clipped_here, cases=[
        {"gradients": check.by_rank(case["gradients"]), "copies": [1, 3], "max_norm": case["max_norm"], "size": 3}])
    require_one_number(run, 3)
### END HIDDEN TESTS

# %% [raw] mutant="grad-norm" hint="not always all of the region"
# -    square = sum(one.grad.float().square().sum() / one.copies for one in parameters)
# +    square = sum(one.grad.float().square().sum() for one in parameters)

# %% [raw] mutant="grad-norm" hint="so does a key head"
# -    square = sum(one.grad.float().square().sum() / one.copies for one in parameters)
# +    square = sum(one.grad.float().square().sum() / (region.size if one.copies == region.size else 1) for one in parameters)

# %% [raw] mutant="grad-norm" hint="norm of its own parts"
# -    square = sum(one.grad.float().square().sum() / one.copies for one in parameters)
# -    dist.all_reduce(square, group=region.group)
# +    square = sum(one.grad.float().square().sum() for one in parameters)

# %% [raw] mutant="grad-norm" hint="Norms do not add up"
# -    dist.all_reduce(square, group=region.group)
# -    norm = square.sqrt()
# +    norm = square.sqrt()
# +    dist.all_reduce(norm, group=region.group)

# %% [raw] mutant="grad-norm" hint="have been divided by the number of copies"
# -    square = sum(one.grad.float().square().sum() / one.copies for one in parameters)
# +    square = sum(one.grad.float().square().sum() / one.copies for one in parameters)
# +    for one in parameters:
# +        one.grad /= one.copies

# %% [raw] mutant="grad-norm" hint="scale gradients up"
# -    torch._foreach_mul_([one.grad for one in parameters], (max_norm / (norm + 1e-6)).clamp(max=1.0))
# +    torch._foreach_mul_([one.grad for one in parameters], max_norm / (norm + 1e-6))

# %% [raw] mutant="grad-norm" hint="gradients are unchanged"
# -    torch._foreach_mul_([one.grad for one in parameters], (max_norm / (norm + 1e-6)).clamp(max=1.0))

# %% [raw] mutant="grad-norm" hint="another replica"
# -    dist.all_reduce(square, group=region.group)
# +    dist.all_reduce(square)

# %% [raw] mutant="grad-norm" hint="One number is enough"
# -    square = sum(one.grad.float().square().sum() / one.copies for one in parameters)
# -    dist.all_reduce(square, group=region.group)
# +    squares = torch.stack([one.grad.float().square().sum() / one.copies for one in parameters])
# +    dist.all_reduce(squares, group=region.group)
# +    square = squares.sum()

# %% [raw] mutant="grad-norm" hint="Two calls synchronize with the GPU"
# -    torch._foreach_mul_([one.grad for one in parameters], (max_norm / (norm + 1e-6)).clamp(max=1.0))
# +    if norm > max_norm:
# +        torch._foreach_mul_([one.grad for one in parameters], max_norm / (norm + 1e-6))

# %% [markdown]
# ## The memory of a layer, predicted
#
# Lab 06 counted $34sbh + 5as^2b$ bytes for GPT-2's layer in 16 bits. [Korthikanti et al.,
# 2022](https://arxiv.org/abs/2205.05198) count the same layer with parallelism. Tensor parallelism divides what is
# inside the region, sequence parallelism divides the rest, and **selective recomputation** discards the core of
# attention, whose scores take the most memory for little compute:
#
# | | bytes per layer |
# |---|---|
# | tensor parallelism | $sbh\,\big(10 + \frac{24}{t} + \frac{5as}{ht}\big)$ |
# | and sequence parallelism | $\frac{sbh}{t}\,\big(34 + \frac{5as}{h}\big)$ |
# | and selective recomputation | $\frac{34\,sbh}{t}$ |
#
# None of these formulas describes your layer. It has other norms, another MLP, fewer key and value heads, rotary
# positions, and no dropout masks. So count it yourself, as in lab 06: what does the backward pass of each operation need,
# and which of these tensors share a storage?
#
# Begin with two numbers. What does a layer of Llama 3 8B ([Llama Team, 2024](https://arxiv.org/abs/2407.21783): 4,096
# hidden features, 32 heads of 128 features, 8 key and value heads, 14,336 inner features) save per GPU with 8,192 tokens
# in bf16 and FlashAttention on eight GPUs? Set `guess_saved` to a pair, in MiB: without and with sequence parallelism.

# %% answer="guess-saved"
### BEGIN SOLUTION
guess_saved = (648, 200)
### END SOLUTION

# %% tags=["explore"]
for name, make, guess in zip(("TP 8", "TP 8 and SP"), (tensor_training.region, tensor_training.sequence_region), guess_saved,
                             strict=True):
    check.compare(f"MiB ({name})", guess, saved_on(8, make, tensor_training.LLAMA_8B) / 2**20)

# %% [markdown]
# If you are far off, list what is saved, and explain every line. Here is a small layer with two samples of 32 tokens, in
# fp32, on a single rank. It has 8 heads of 16 features, 2 key and value heads, and 96 inner features:

# %% tags=["explore"]
def list_saved():
    """Return the shape, the dtype, and the bytes of each tensor that a small layer saves, in fp32."""
    from mytrainer.llama import Layer

    from lablib.saved import SavedTensors

    layer = Layer(tensor_training.Shape(hidden_size=64, heads=8, head_dim=16, inner_size=96), tensor_training.region(dist.group.WORLD))
    tensor_training.fill(layer, 1.0)
    with SavedTensors(layer.parameters()) as saved:
        kept = layer(torch.ones(32, 2, 64, requires_grad=True))  # its graph holds what is saved
    return [("x".join(map(str, one.shape)), str(one.dtype), one.nbytes) for one in saved.tensors()] if kept is not None else []


for shape, dtype, size in run_ranks(list_saved, 1)[0]:
    print(f"{shape:>12} {dtype} {size:>8,} bytes")

# %% [markdown]
# ### Exercise 9: count what your layer saves
#
# Write `saved_bytes` in `layer_memory.py`: the bytes that one `Layer` of yours saves for the backward pass of a
# micro-batch of at least two samples, without dropout. The check runs *your* layer on virtual H100s, in several shapes,
# and compares. Your prediction has to be within 1%, so small tensors count, too.
#
# - `recompute_core`: whether `Attention.core` runs in an activation checkpoint, such as yours of lab 06. What has to be
#   saved then?
# - `shape.flash`: with FlashAttention, the core saves its inputs, its output, and one fp32 number per position and head.
#   Without, `@` may have to copy an operand so that all heads of a group find their key. Its copy is then saved.
# - `width`: bytes per element of parameters and activations. Part of what RMSNorm saves is in fp32 in any case. If x is
#   in fp32, `x.float()` returns x itself, and copies nothing.

# %% answer="layer-memory"
%%writefile mytrainer/layer_memory.py
"""Predict the activation memory of a Layer under tensor and sequence parallelism (Korthikanti et al., 2022)."""


def saved_bytes(shape, s, b, region_size, sequence_parallel, recompute_core, width):
    """Return the bytes that one Layer of llama.py saves on a rank for the backward pass of a micro-batch.

    Args:
        shape: that of the model, as for Llama; its dropout is 0.
        s: the sequence length, divisible by region_size.
        b: the number of samples, at least 2.
        region_size: the number of ranks that share the layer; divides the number of heads.
        sequence_parallel: whether each rank has s/t positions outside the region.
        recompute_core: whether the core of attention is recomputed in the backward pass.
        width: bytes per element of activations: 2 or 4.
    """
    ### BEGIN SOLUTION
    tokens = s * b
    outside = tokens // region_size if sequence_parallel else tokens
    query = width * tokens * shape.heads // region_size * shape.head_dim
    key = width * tokens * max(1, shape.kv_heads // region_size) * shape.head_dim
    # The input in fp32, its scale per position, the normalized input, and the norm's output.
    norms = 2 * outside * (4 * shape.hidden_size + 4 + 2 * width * shape.hidden_size)
    rotations = 2 * width * s * shape.head_dim  # cosines and sines, for queries and keys
    if recompute_core:
        core = query + 2 * key
    elif shape.flash:
        core = query + 2 * key + 4 * tokens * shape.heads // region_size
    else:  # keys and values are repeated for each query head; the causal mask has a byte per element
        core = 3 * query + width * tokens * s * shape.heads // region_size + s * s
    out = query  # the core's output, which is the output layer's input
    mlp = 4 * width * tokens * shape.inner_size // region_size
    return norms + rotations + core + out + mlp
    ### END SOLUTION

# %% tags=["driver"]
def predicted_bytes(shape, s, b, region_size, sequence_parallel, recompute_core, width):
    """Return the prediction for one layer."""
    from mytrainer.layer_memory import saved_bytes

    from lablib import tensor_training

    return float(saved_bytes(tensor_training.Shape(**shape), s, b, region_size, sequence_parallel, recompute_core, width))


def layer_forward(shape, s, b, sequence_parallel, recompute_core, width, times):
    """Run the forward pass of a layer several times on a GPU, each on the output of the one before."""
    from lablib import tensor_training

    make = tensor_training.sequence_region if sequence_parallel else tensor_training.region
    tensor_training.run_layer(make, shape, s, b, times, backward=False, recompute_core=recompute_core,
                              dtype=torch.float32 if width == 4 else torch.bfloat16)

# %% check="layer-memory" points=5
def saved_by_runs(shape, s, b, region_size, **how):
    """Return the bytes that each further run of a layer keeps in memory, by the record of the student's layer."""
    one = tensor_training.Shape(**shape)
    gemms = one.hidden_size * (2 * one.heads * one.head_dim + 3 * one.inner_size) // region_size
    live = [check.gpus(layer_forward, {"shape": shape, "s": s, "b": b, "times": times, **how}, f"h100:{region_size}", present=[0],
                       least={"flops": 2 * times * s * b * gemms, "dtype": "bf16"}).ranks[0].live for times in (2, 4)]
    return (live[1] - live[0]) / 2


def require_prediction(case, predicted, advice=""):
    saved = saved_by_runs(**case)
    check.that(abs(predicted / saved - 1) <= 0.01, f"{case}: you predict {predicted / 2**20:,.1f} MiB, and each run of your layer saves "
               f"{saved / 2**20:,.1f} MiB. {advice}")


SIZES = {"hidden_size": 1024, "head_dim": 128, "inner_size": 2816}
CASES = [{"shape": {**SIZES, "heads": 8, "kv_heads": 4}, "s": 1024, "b": 2, "region_size": 2, "sequence_parallel": False,
          "recompute_core": False, "width": 4},
         {"shape": {**SIZES, "heads": 16, "kv_heads": 2, "flash": True}, "s": 4096, "b": 2, "region_size": 8, "sequence_parallel": True,
          "recompute_core": False, "width": 2},
         {"shape": {**SIZES, "heads": 8, "kv_heads": 8}, "s": 2048, "b": 3, "region_size": 4, "sequence_parallel": False,
          "recompute_core": True, "width": 2}]
predictions = [run.values[0] for run in check.ranks(predicted_bytes, ranks=1, cases=CASES, expected=None)]
WRONG = {
    "Every rank saves all positions of the hidden states outside the region, unless the sequence is split.": [123740160.0, 54599680.0, 73412608.0],
    "Sequence parallelism divides what is saved outside the region, the inputs of column-parallel layers included.": [148914176.0, 172097536.0, 148946944.0],
    "With fewer key and value heads than ranks, a rank still has one of each.": [148914176.0, 51453952.0, 148946944.0],
    "A checkpoint saves the inputs of what it recomputes.": [148914176.0, 54599680.0, 139509760.0],
    "Whatever the dtype of the activations, RMSNorm saves a tensor in fp32.": [148897792.0, 50397184.0, 123731968.0],
    "Compare the shapes of the operands that attention's GEMMs save with those of your keys and values.": [144719872.0, 54599680.0, 148946944.0],
    "The softmax saves its output, and so does the GEMM that follows. Is it the same storage?": [182468608.0, 54599680.0, 148946944.0],
    "The output layer of attention needs its input, too.": [144719872.0, 50405376.0, 145801216.0]}
advice = next((text for text, values in WRONG.items() if predictions == values),
              "List what your layer saves, as in the cell above, and explain every tensor.")
for case, predicted in zip(CASES, predictions, strict=True):
    require_prediction(case, predicted, advice)
### BEGIN HIDDEN TESTS
for case in check.draw(2, heads=[8, 16], kv_heads=[1, 4, 8], inner_size=range(1024, 4096, 64), s=[1024, 2048], b=[2, 4], region_size=[4, 8],
                       sequence_parallel=[True, False], kind=["scores", "recomputed", "flash"], width=[2]):
    kind, sizes = case.pop("kind"), {name: case.pop(name) for name in ("heads", "kv_heads", "inner_size")}
    case |= {"recompute_core": kind == "recomputed", "shape": {**SIZES, **sizes, "flash": kind == "flash"}}
    (run,) = check.ranks(predicted_bytes, ranks=1, cases=[case], expected=None)
    require_prediction(case, run.values[0])
### END HIDDEN TESTS

# %% [raw] mutant="layer-memory" hint="unless the sequence is split"
# -    outside = tokens // region_size if sequence_parallel else tokens
# +    outside = tokens // region_size

# %% [raw] mutant="layer-memory" hint="the inputs of column-parallel layers included"
# -    outside = tokens // region_size if sequence_parallel else tokens
# +    outside = tokens

# %% [raw] mutant="layer-memory" hint="a rank still has one of each"
# -    key = width * tokens * max(1, shape.kv_heads // region_size) * shape.head_dim
# +    key = width * tokens * shape.kv_heads * shape.head_dim // region_size

# %% [raw] mutant="layer-memory" hint="inputs of what it recomputes"
# -        core = query + 2 * key
# -    elif shape.flash:
# +        core = 0
# +    elif shape.flash:

# %% [raw] mutant="layer-memory" hint="RMSNorm saves a tensor in fp32"
# -    norms = 2 * outside * (4 * shape.hidden_size + 4 + 2 * width * shape.hidden_size)
# +    norms = 2 * outside * 3 * width * shape.hidden_size

# %% [raw] mutant="layer-memory" hint="Compare the shapes of the operands"
# -        core = 3 * query + width * tokens * s * shape.heads // region_size + s * s
# +        core = query + 2 * key + width * tokens * s * shape.heads // region_size + s * s

# %% [raw] mutant="layer-memory" hint="Is it the same storage"
# -        core = 3 * query + width * tokens * s * shape.heads // region_size + s * s
# +        core = 3 * query + 2 * width * tokens * s * shape.heads // region_size + s * s

# %% [raw] mutant="layer-memory" hint="needs its input, too"
# -    out = query  # the core's output, which is the output layer's input
# +    out = 0

# %% [raw] mutant="layer-memory" hint="you predict"
# -    rotations = 2 * width * s * shape.head_dim  # cosines and sines, for queries and keys
# +    rotations = 0

# %% [markdown]
# According to the table above, sequence parallelism divides everything by $t$. Which tensors of your layer keep their
# size? And how much do the norms save? A fused kernel, such as Transformer Engine's, saves the 16-bit input and one
# number per position, and recomputes the rest.

# %% [markdown]
# ## Train it on two nodes
#
# All nine files are ready. `code/my_trainer.sh` starts two ranks on each of two nodes. With
# `--tensor-model-parallel-size 2`, the two ranks of a node share your Llama, and your DDP of lab 04 averages the gradients
# of the two nodes: TP 2 x DP 2. The parameters begin with the values that `pretrain_gpt.py` gives them, so the losses can
# be compared. (With `--own-init`, your `initialize` sets them.) If your `train.py` has no argument `clip`, the next cell
# replaces it with the course's, and keeps yours as `train.mine.py`:

# %% tags=["explore"]
if "clip=" not in pieces.find("train").path.read_text():
    print("\n".join(worked.install(pieces.find("new/train"), force=True)))

# %% tags=["explore"] short={"--train-iters 20": "--train-iters 3"}
FLAGS = ("--device cpu --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
         "--swiglu --normalization RMSNorm --position-embedding-type rope --group-query-attention --num-query-groups 1 "
         "--untie-embeddings-and-output-weights --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 "
         "--micro-batch-size 2 --global-batch-size 8 --train-iters 20 --lr 1e-3 --min-lr 1e-5 --lr-warmup-fraction 0.2 "
         "--lr-decay-style cosine --clip-grad 1.0 --log-interval 1 --eval-iters 0 --split 949,50,1 "
         "--data-path data/bpe-4096/text_document --vocab-file data/bpe-4096/vocab.json --merge-file data/bpe-4096/merges.txt")
!sbatch --output=megatron/logs/mine_tp.txt code/my_trainer.sh {FLAGS} --tensor-model-parallel-size 2
!OMP_NUM_THREADS=1 python megatron/Megatron-LM/pretrain_gpt.py {FLAGS} > megatron/logs/reference_llama.txt

# %% tags=["explore"]
jobs.wait()
!grep -hE "^training|error:" megatron/logs/mine_tp.txt

# %% tags=["explore"] short={"sbatch": "sbatch --nodes=1"}
!sbatch --output=megatron/logs/mine_sp.txt code/my_trainer.sh {FLAGS} --tensor-model-parallel-size 2 --sequence-parallel

# %% tags=["explore"]
jobs.wait()
reference = logs.read("megatron/logs/reference_llama.txt")
for name in ("mine_tp", "mine_sp"):
    mine = logs.read(f"megatron/logs/{name}.txt")
    assert mine.iterations, f"Your job has failed. megatron/logs/{name}.txt says why."
    norms = max(abs(yours.grad_norm / theirs.grad_norm - 1)
                for theirs, yours in zip(reference.iterations, mine.iterations, strict=True))
    losses = logs.loss_difference(reference, mine)
    print(f"{name}: losses differ by at most {result(f'{losses:.1e}')}, gradient norms by {result(f'{norms:.1e}')}, relatively")
    assert losses < 1e-4, "One of your files trains in another way than the reference. `lab mytrainer` tests each of them."

# %% [markdown]
# The reference has a transformer of its own, and a single rank. Yours has four ranks on two nodes, and both ranks of a
# node have a copy of the only key and value head.
#
# ## Llama 3 8B on eight GPUs
#
# One H100 cannot train Llama 3 8B: 18 bytes for each of 8 billion parameters are 145 GB. Eight of them share it now, with
# sequences of 8,192 tokens and a micro-batch of 1. By how many GiB will sequence parallelism lower the peak? The next
# cell asks your `saved_bytes` about all 32 layers, and then runs your trainer:

# %% tags=["explore"] short={"LAYERS = 32": "LAYERS = 2"}
LAYERS = 32
LLAMA_8B = (f"--preset llama3-8b --num-layers {LAYERS} --make-vocab-size-divisible-by 16032 --use-flash-attn "
            "--micro-batch-size 1 --bf16 --tensor-model-parallel-size 8 ")


def predict_layers():
    """Return what all layers save, in bytes, without and with sequence parallelism."""
    from mytrainer.layer_memory import saved_bytes

    shape = tensor_training.Shape(**tensor_training.LLAMA_8B)
    return [LAYERS * saved_bytes(shape, 8192, 1, 8, splits, False, 2) for splits in (False, True)]


without, with_sequence = run_ranks(predict_layers, 1)[0]
print(f"your layers save {without / 2**30:.1f} GiB, and {with_sequence / 2**30:.1f} GiB with sequence parallelism: "
      f"{(without - with_sequence) / 2**30:.1f} GiB less")
peaks = {}
for name, flags in {"TP 8": "", "TP 8, overlapping": "--async-tensor-model-parallel-allreduce",
                    "TP 8 and SP": "--sequence-parallel"}.items():
    gained = gain.measure("h100:8", flags=LLAMA_8B + flags, steps=2)
    peaks[name] = gained.peak
    print(f"{name:18} {result(f'{gained.peak / 2**30:5.1f} GiB')} at the peak, {1000 * gained.seconds:5.0f} ms per step, "
          f"{1000 * gained.exposed:3.0f} ms of it exposed communication, MFU {gained.mfu:.0%} (modeled)")
print(f"measured: {(peaks['TP 8'] - peaks['TP 8 and SP']) / 2**30:.1f} GiB less")

# %% [markdown]
# Sequence parallelism makes the step faster, although it exposes more communication. Where does the time go? This is one
# layer, by kind of kernel:

# %% tags=["explore"]
KINDS = {"GEMMs": ("mm",), "attention": ("attention",), "communication": ("all_", "reduce_scatter")}
for name, make in {"TP 8": tensor_training.region, "TP 8 and SP": tensor_training.sequence_region}.items():
    cost = tensor_training.priced(
        lambda make=make: tensor_training.run_layer(make, tensor_training.LLAMA_8B, 8192, 1, 1), "h100:8")
    shares = dict.fromkeys((*KINDS, "element-wise and others"), 0.0)
    for op, seconds in cost.busy.items():
        kind = next((kind for kind, words in KINDS.items() if any(word in op for word in words)), "element-wise and others")
        shares[kind] += 1000 * seconds
    print(f"{name:12}", ", ".join(f"{kind} {milliseconds:.2f} ms" for kind, milliseconds in shares.items()), "(modeled)")

# %% [markdown]
# The norms and additions outside the region are element-wise kernels that read and write whole tensors. Sequence
# parallelism divides their work by eight as well. The rest of these kernels, such as the rotations and SwiGLU, would be
# faster if they were fused, which is one reason that the MFU is far below the 38% to 43% that the Llama Team (2024, table
# 4) reports for its 405B model.
#
# `lab mytrainer` tests your new files on two ranks, and draws the map of your trainer. Its model is yours now:

# %% tags=["explore"] short={"!lab mytrainer": "!true"}
!lab mytrainer

# %% [markdown]
# **This is the end of the third sitting.**
#
# ## Discuss
#
# 1. **More ranks than key heads.** Llama 3 8B has 8 key and value heads. What does $t = 16$ cost in memory and in
#    communication? What else gets worse?
# 2. **Two ways to divide.** ZeRO-3 divides parameters over data-parallel ranks, and tensor parallelism divides them over
#    ranks that share a batch. Both fit Llama 3 8B on eight GPUs. Compare what each communicates per step, as a function
#    of the number of tokens.
# 3. **A checkpoint for another $t$.** You saved with $t = 8$, and want to resume with $t = 4$. What do `part` and `copies`
#    have to do with `reshard` of lab 08?
# 4. **A million tokens.** Inside the region, every rank still has all positions. Which of its tensors grow with $s$ no
#    matter how small you make everything else, and what limits $t$?

# %% [markdown]
# ## Cleanup
#
# Keep `mytrainer/`: the next labs add to it.

# %% tags=["explore"]
!rm -f megatron/logs/mine_tp.txt megatron/logs/mine_sp.txt megatron/logs/reference_llama.txt
!ls mytrainer

# %% [markdown]
# ## What you have built
#
# Nine files: a Llama whose layers, heads, and vocabulary are shared by the GPUs of a node; random numbers that do not
# depend on how many GPUs there are; sequence parallelism; an overlapped backward pass; clipping that counts each element
# once; and a prediction of the activation memory. Tensor parallelism should not leave a node. To train a model that
# eight GPUs cannot hold, lab 10 assigns its layers to different nodes.
#
# ## Read next
#
# - [Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053), *Megatron-LM*: the operators $f$ and $g$, and the
#   vocabulary-parallel loss.
# - [Korthikanti et al., 2022](https://arxiv.org/abs/2205.05198), *Reducing activation recomputation in large transformer
#   models*: sequence parallelism, selective recomputation, and the count that you repeated for your layer.
# - [Narayanan et al., 2021](https://arxiv.org/abs/2104.04473), *Efficient large-scale language model training on GPU
#   clusters*: how tensor, pipeline, and data parallelism fit together.
# - [Wang et al., 2023](https://doi.org/10.1145/3567955.3567959), *Overlap communication with dependent computation via
#   decomposition*: what to do when the next GEMM needs the result.
# - [Llama Team, 2024](https://arxiv.org/abs/2407.21783), *The Llama 3 herd of models*: section 3.3 is the parallelism of
#   a model with 405 billion parameters.
# - [Megatron-LM's
#   `tensor_parallel/layers.py`](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/tensor_parallel/layers.py):
#   `LinearWithGradAccumulationAndAsyncCommunication` is your exercises 6 and 7 in one function.
