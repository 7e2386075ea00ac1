# %% answer="tensor-parallel" style="one autograd function for both ends, and one GEMM for all column-parallel layers"
%%writefile mytrainer/tensor_parallel.py
import torch
import torch.distributed as dist


class Ends(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, region, entering):
        ctx.region, ctx.entering = region, entering
        return x.clone() if entering else region.total(x)

    @staticmethod
    def backward(ctx, grad):
        return (ctx.region.total(grad) if ctx.entering else grad.clone()), None, None


class Region:
    splits_sequence = False

    def __init__(self, group):
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def total(self, x):
        x = torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x)
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x

    def enter(self, x):
        return Ends.apply(x, self, True)

    def leave(self, x):
        return Ends.apply(x, self, False)

    def columns(self, x, *layers):
        sizes = [layer.weight.shape[0] for layer in layers]
        y = self.enter(x) @ torch.cat([layer.weight for layer in layers]).mT
        found = list(y.split(sizes, -1))
        for place, layer in enumerate(layers):
            if layer.bias is not None:
                found[place] = found[place] + layer.bias
        return found


def parameter(full_shape, region, dim=None, parts=None):
    part, count = [slice(None)] * len(full_shape), 1 if dim is None else parts or region.size
    if dim is not None:
        number, length = region.rank * count // region.size, full_shape[dim]
        part[dim] = slice(length * number // count, length * (number + 1) // count)
    shape = [len(range(*one.indices(length))) for one, length in zip(part, full_shape, strict=True)]
    made = torch.nn.Parameter(torch.empty(shape))
    made.full_shape, made.part, made.copies = tuple(full_shape), tuple(part), region.size // count
    return made


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, inputs, outputs, region, bias=False, parts=None):
        super().__init__()
        self.weight = parameter([outputs, inputs], region, dim=0, parts=parts)
        self.register_parameter("bias", None)
        if bias:
            self.bias = parameter([outputs], region, dim=0, parts=parts)


class RowParallelLinear(torch.nn.Module):
    def __init__(self, inputs, outputs, region, bias=False):
        super().__init__()
        self.region = region
        self.weight = parameter([outputs, inputs], region, dim=1)
        self.register_parameter("bias", None)
        if bias:
            self.bias = parameter([outputs], region)

    def forward(self, x):
        y = self.region.leave(torch.einsum("sbi,oi->sbo", x, self.weight))
        if self.bias is not None:
            y = y + self.bias
        return y


class MLP(torch.nn.Module):
    def __init__(self, hidden, inner, region):
        super().__init__()
        self.region = region
        self.up, self.gate = (ColumnParallelLinear(hidden, inner, region) for _ in range(2))
        self.down = RowParallelLinear(inner, hidden, region)

    def forward(self, x):
        up, gate = self.region.columns(x, self.up, self.gate)
        return self.down(up * gate * torch.sigmoid(gate))

# %% answer="heads" style="complex numbers, repeated key heads, and an all-reduce in each group of copies"
%%writefile mytrainer/heads.py
import torch
import torch.distributed as dist
import torch.nn.functional as F
from mytrainer.tensor_parallel import ColumnParallelLinear, RowParallelLinear


def rotate(x, base):
    half = x.size(-1) // 2
    steps = torch.arange(len(x), device=x.device).double()
    angles = torch.outer(steps, torch.exp(-torch.arange(half, device=x.device).double() / half * torch.tensor(base).log()))
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    numbers = torch.complex(x[..., :half].float(), x[..., half:].float()) * turns.view(len(x), 1, 1, half)
    return torch.cat((numbers.real, numbers.imag), dim=-1).to(x.dtype)


class Attention(torch.nn.Module):
    def __init__(self, hidden, heads, kv_heads, head_dim, region, base=10000.0, flash=False):
        super().__init__()
        self.region, self.head_dim, self.base, self.flash = region, head_dim, base, flash
        self.query = ColumnParallelLinear(hidden, heads * head_dim, region)
        parts = region.size if kv_heads >= region.size else kv_heads
        for name in ("key", "value"):
            layer = ColumnParallelLinear(hidden, kv_heads * head_dim, region, parts=parts)
            if parts < region.size:
                layer.weight.is_partial = True
            setattr(self, name, layer)
        self.out = RowParallelLinear(heads * head_dim, hidden, region)

    def forward(self, x):
        s, b, _ = x.shape
        q, k, v = self.region.columns(x, self.query, self.key, self.value)
        q, k, v = q.reshape(s, b, -1, self.head_dim), k.reshape(s, b, -1, self.head_dim), v.reshape(s, b, -1, self.head_dim)
        return self.out(self.core(rotate(q, self.base), rotate(k, self.base), v))

    def core(self, query, key, value):
        query, key, value = (one.permute(1, 2, 0, 3) for one in (query, key, value))
        if self.flash:
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            each = query.size(1) // key.size(1)
            key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
            scores = torch.einsum("bhsd,bhtd->bhst", query * self.head_dim**-0.5, key)
            future = torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype, device=scores.device).triu(1)
            out = torch.softmax((scores + future).float(), -1).to(value.dtype) @ value
        return out.permute(2, 0, 1, 3).flatten(2)


GROUPS = {}


def copies_of(region, copies):
    if copies not in GROUPS:
        ranks = dist.get_process_group_ranks(region.group)
        for start in range(0, len(ranks), copies):
            made = dist.new_group(ranks[start:start + copies])
            if start <= region.rank < start + copies:
                GROUPS[copies] = made
    return GROUPS[copies]


def finish_gradients(parameters, region):
    by_copies = {}
    for one in parameters:
        if getattr(one, "is_partial", False):
            by_copies.setdefault(one.copies, []).append(one.grad)
    for copies, grads in by_copies.items():
        flat = torch.nn.utils.parameters_to_vector(grads)
        dist.all_reduce(flat, group=copies_of(region, copies))
        torch.nn.utils.vector_to_parameters(flat, grads)

# %% answer="vocabulary" style="log-sum-exp that is kept, three collectives, and the softmax in the backward pass"
%%writefile mytrainer/vocabulary.py
import torch
import torch.distributed as dist
from mytrainer.tensor_parallel import parameter


class VocabParallelEmbedding(torch.nn.Module):
    bias = None

    def __init__(self, vocab_size, hidden, region):
        super().__init__()
        self.region, self.weight = region, parameter((vocab_size, hidden), region, dim=0)
        self.first = vocab_size * region.rank // region.size

    def forward(self, tokens):
        mine = (tokens >= self.first) & (tokens < self.first + self.weight.size(0))
        rows = torch.where(mine, tokens - self.first, 0)
        return self.region.leave(self.weight[rows] * mine.unsqueeze(-1))


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, first, region):
        z = logits.detach().float()
        top = z.max(-1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=region.group)
        z.sub_(top.unsqueeze(-1))
        mine = (labels >= first) & (labels < first + z.size(-1))
        place = torch.where(mine, labels - first, 0).unsqueeze(-1)
        label = torch.where(mine, z.gather(-1, place).squeeze(-1), 0.0)
        z.exp_()
        total = z.sum(-1)
        dist.all_reduce(total, group=region.group)
        dist.all_reduce(label, group=region.group)
        ctx.save_for_backward(z, total, place, mine)
        return total.log() - label

    @staticmethod
    def backward(ctx, grad):
        z, total, place, mine = ctx.saved_tensors
        z.mul_((grad / total).unsqueeze(-1))
        z.scatter_add_(-1, place, torch.where(mine, -grad, 0.0).unsqueeze(-1))
        return z, None, None, None


def cross_entropy(logits, labels, first, region):
    return Loss.apply(logits, labels, first, region)

# %% answer="randomness" style="SHA-256, parts that are narrowed, and masks of the whole sequence"
%%writefile mytrainer/randomness.py
import hashlib
import json

import torch


def generator(*key):
    number = int(hashlib.sha256(json.dumps(key).encode()).hexdigest()[:15], 16)
    made = torch.Generator()
    made.manual_seed(number)
    return made


def initialize(model, seed, std=0.02):
    for name, one in model.named_parameters():
        if one.ndim == 1:
            torch.nn.init.ones_(one)
            continue
        whole = std * torch.randn(one.full_shape, generator=generator("weight", name, seed))
        one.data.copy_(whole[one.part])


class Dropout(torch.nn.Module):
    def __init__(self, p, region):
        super().__init__()
        self.p, self.region = p, region
        self.key = self.samples = ()

    def forward(self, x):
        if not self.training or not self.p:
            return x
        s, _, h = x.shape
        length = s * self.region.size if self.region.splits_sequence else s
        mask = x.new_zeros((length, len(self.samples), h))
        for place, sample in enumerate(self.samples):
            kept = torch.full((length, h), 1 - self.p).bernoulli(generator=generator("mask", *self.key, sample))
            mask[:, place] = kept
        if self.region.splits_sequence:
            mask = mask.chunk(self.region.size)[self.region.rank]
        return x * mask.div_(1 - self.p)


def begin_micro_batch(model, seed, iteration, samples):
    for number, module in enumerate(model.modules()):
        if isinstance(module, Dropout):
            module.key = (number, seed, iteration)
            module.samples = list(samples)
