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

# %% answer="layer-memory" style="a list of tensors, for a layer whose norms call PyTorch's rms_norm"
%%writefile mytrainer/layer_memory.py
def saved_bytes(shape, s, b, region_size, sequence_parallel, recompute_core, width):
    positions = s * b
    outside = positions / region_size if sequence_parallel else positions
    heads = shape.heads / region_size
    groups = max(shape.kv_heads / region_size, 1)
    d = shape.head_dim
    tensors = []
    for _ in ("attention", "mlp"):
        tensors += [4 * outside * shape.hidden_size, 4 * outside]  # rms_norm: its input and a number per position
        tensors += 2 * [width * outside * shape.hidden_size]
    tensors += 4 * [width * s * d / 2]  # cosines and sines
    tensors += 2 * [width * positions * heads * d]  # queries, and what out gets
    if recompute_core or shape.flash:
        tensors += 2 * [width * positions * groups * d]
        if not recompute_core:
            tensors.append(4 * positions * heads)
    else:
        tensors += 2 * [width * positions * heads * d] + [width * heads * b * s * s, s * s]
    tensors += 4 * [width * positions * shape.inner_size / region_size]
    return sum(tensors)
