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
        """Return x, from which each rank goes on to compute features of its own.

        x is the same on all ranks, and so is its gradient, which is complete.
        """
        return Enter.apply(x, self.group)

    def leave(self, x):
        """Return the sum of the ranks' x, each of which is a term."""
        return Leave.apply(x, self.group)

    def columns(self, x, *layers):
        """Enter with x [s, b, in], and return the output [s, b, out/t] of each column-parallel layer, in a list or tuple."""
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
        self.weight = parameter((outputs, inputs), region, 0, parts)
        self.bias = parameter((outputs,), region, 0, parts) if bias else None


class RowParallelLinear(torch.nn.Module):
    """y = sum_i x_i W_i^T + b: rank i has the columns W_i of W [out, in], and the part x_i of the features.

    Attributes:
        weight: a parameter() [out, in/t].
        bias: a parameter() [out], of which every rank has a copy, or None.
    """

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
    """SwiGLU (Shazeer, 2020): down(silu(gate(x)) * up(x)), with 1/t of the inner features on each rank.

    Attributes:
        gate, up, down: the linear layers.
    """

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
