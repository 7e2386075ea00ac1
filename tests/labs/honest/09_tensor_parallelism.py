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
        q, k, v = self.region.columns(x, self.query, self.key, self.value)
        s, b, _ = q.shape
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
    if copies == region.size:
        return region.group
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

# %% answer="vocabulary" style="log-sum-exp and logits that are kept, and the softmax recomputed in the backward pass"
%%writefile mytrainer/vocabulary.py
import torch
import torch.distributed as dist
from mytrainer.tensor_parallel import parameter


class VocabParallelEmbedding(torch.nn.Module):
    bias = None

    def __init__(self, vocab_size, hidden, region):
        super().__init__()
        self.region, self.weight = region, parameter((vocab_size, hidden), region, dim=0)
        self.first = self.weight.part[0].start

    def forward(self, tokens):
        rows = tokens - self.first
        mine = (rows >= 0) & (rows < self.weight.size(0))
        return self.region.leave(self.weight[rows.where(mine, 0)] * mine[..., None])


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, first, region):
        z = logits.detach().to(torch.float32, copy=True)
        rows = labels - first
        mine = (rows >= 0) & (rows < z.size(-1))
        rows = rows.where(mine, 0)[..., None]
        label = z.gather(-1, rows)[..., 0].where(mine, 0.0)
        top = z.amax(-1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=region.group)
        total = z.sub_(top[..., None]).exp_().sum(-1)
        both = torch.stack([total, label])
        dist.all_reduce(both, group=region.group)
        kept = both[0].log() + top
        ctx.save_for_backward(logits, kept, rows, mine)
        return kept - both[1]

    @staticmethod
    def backward(ctx, grad):
        logits, kept, rows, mine = ctx.saved_tensors
        z = logits.to(torch.float32, copy=True).sub_(kept[..., None]).exp_().mul_(grad[..., None])
        z.scatter_add_(-1, rows, torch.where(mine, -grad, 0.0)[..., None])
        return z, None, None, None


def cross_entropy(logits, labels, first, region):
    return Loss.apply(logits, labels, first, region)

# %% answer="statistic" style="how far the ranks' weights are apart, on average over all parameters"
def statistic(first):
    one, other = first
    return sum((one[name] - weight).abs().mean().item() for name, weight in other.items()) / len(other)

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

# %% answer="llama" style="PyTorch's rms_norm, loops over sublayers, and logits computed in one expression"
%%writefile mytrainer/llama.py
import torch
import torch.nn.functional as F
from torch import nn

from mytrainer import heads, randomness, tensor_parallel, vocabulary


class RMSNorm(nn.Module):
    def __init__(self, hidden, region, epsilon=1e-5):
        nn.Module.__init__(self)
        self.hidden = hidden
        self.epsilon = epsilon
        weight = tensor_parallel.parameter([hidden], region)
        if region.splits_sequence:
            weight.is_partial = True
        self.weight = weight

    def forward(self, x):
        y = F.rms_norm(x.to(torch.float32), (self.hidden,), eps=self.epsilon)
        return self.weight * y.type_as(x)


class Layer(nn.Module):
    def __init__(self, shape, region):
        super().__init__()
        self.mlp = tensor_parallel.MLP(shape.hidden_size, shape.inner_size, region)
        self.attention = heads.Attention(
            hidden=shape.hidden_size, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim,
            region=region, base=shape.rotary_base, flash=shape.flash)
        for name in ("mlp", "attention"):
            setattr(self, f"{name}_norm", RMSNorm(shape.hidden_size, region, shape.epsilon))
            setattr(self, f"{name}_dropout", randomness.Dropout(shape.dropout, region))

    def forward(self, x):
        for norm, run, drop in ((self.attention_norm, self.attention, self.attention_dropout),
                                (self.mlp_norm, self.mlp, self.mlp_dropout)):
            x = torch.add(drop(run(norm(x))), x)
        return x


class Llama(nn.Module):
    def __init__(self, shape, region):
        super().__init__()
        make = lambda: vocabulary.VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)
        self.norm = RMSNorm(shape.hidden_size, region, shape.epsilon)
        self.head = make()
        self.layers = nn.ModuleList()
        for _ in range(shape.layers):
            self.layers.append(Layer(shape, region))
        self.embedding = make()

    def forward(self, tokens, labels):
        hidden = nn.Sequential(self.embedding, *self.layers, self.norm)(tokens)
        region = self.embedding.region
        return vocabulary.cross_entropy(region.columns(hidden, self.head)[0], labels, self.head.first, region)

# %% answer="sequence" style="one autograd function for both collectives, lists of tensors, and the older names"
%%writefile mytrainer/sequence_parallel.py
import torch
import torch.distributed as dist
from torch.autograd import Function

from mytrainer.tensor_parallel import Region


def gathered(x, group):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts)


def summed(x, group):
    ranks = dist.get_world_size(group)
    result = torch.empty((x.size(0) // ranks, *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(result, x.contiguous(), group=group)
    return result


class Move(Function):
    @staticmethod
    def forward(ctx, x, there, back, group):
        ctx.back, ctx.group = back, group
        return there(x, group)

    @staticmethod
    def backward(ctx, grad):
        return ctx.back(grad, ctx.group), None, None, None


class Project(Function):
    @staticmethod
    def forward(ctx, group, x, *weights):
        ctx.group = group
        ctx.save_for_backward(x, *weights)
        everything = gathered(x, group)
        return tuple(everything @ w.t() for w in weights)

    @staticmethod
    def backward(ctx, *grads):
        x, *weights = ctx.saved_tensors
        gradient, results = None, []
        everything = gathered(x, ctx.group).reshape(-1, x.size(-1))
        for g, w in zip(grads, weights):
            part = g @ w
            gradient = part if gradient is None else gradient.add_(part)
            results.append(g.reshape(-1, g.size(-1)).t().mm(everything))
        return (None, summed(gradient, ctx.group), *results)


class SequenceRegion(Region):
    splits_sequence = True

    def enter(self, x):
        return Move.apply(x, gathered, summed, self.group)

    def leave(self, x):
        return Move.apply(x, summed, gathered, self.group)

    def columns(self, x, *layers):
        return list(Project.apply(self.group, x, *[layer.weight for layer in layers]))

# %% answer="overlap" style="one GEMM for all layers, and the wait in a list of handles"
%%writefile mytrainer/tp_overlap.py
import torch
import torch.distributed as dist

from mytrainer.tensor_parallel import Region


class Overlapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, region, x, *weights):
        ctx.region = region
        ctx.save_for_backward(x, *weights)
        return tuple(torch.matmul(x, weight.T) for weight in weights)

    @staticmethod
    def backward(ctx, *grads):
        x, *weights = ctx.saved_tensors
        sizes = [len(weight) for weight in weights]
        joined = torch.cat(grads, -1)
        dx = torch.matmul(joined, torch.cat(weights))
        handles = [dist.all_reduce(dx, op=dist.ReduceOp.SUM, group=ctx.region.group, async_op=True)]
        dw = (joined.reshape(-1, joined.shape[-1]).T @ x.reshape(-1, x.shape[-1])).split(sizes)
        for handle in handles:
            handle.wait()
        return None, dx, *dw


class OverlapRegion(Region):
    def columns(self, x, *layers):
        return Overlapped.apply(self, x, *(layer.weight for layer in layers))

# %% answer="grad-norm" style="foreach norms, weighted, and an out-of-place product"
%%writefile mytrainer/grad_norm.py
import torch
import torch.distributed as dist


def clip_grad_norm(parameters, max_norm, region):
    grads, shares = [], []
    for parameter in parameters:
        if parameter.grad is not None:
            grads.append(parameter.grad)
            shares.append(parameter.copies ** -0.5)
    norms = torch._foreach_mul(torch._foreach_norm(grads), shares)
    total = torch.linalg.vector_norm(torch.stack(norms)) ** 2
    dist.all_reduce(total, group=region.group)
    total = total ** 0.5
    factor = torch.clamp(max_norm / (total + 1e-6), max=1)
    for grad in grads:
        grad.copy_(grad * factor)
    return total
