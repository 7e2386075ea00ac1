# %% answer="round-to" style="minimum and maximum instead of clamp"
def spacing(x, mantissa, smallest):
    exponent = torch.where(x == 0, smallest, torch.frexp(x)[1] - 1).clamp_min(smallest)
    return torch.pow(2.0, (exponent - mantissa).float())


def round_to(x, mantissa, smallest, largest):
    step = spacing(x, mantissa, smallest)
    return torch.minimum(torch.maximum(step * (x / step).round(), torch.tensor(-largest)), torch.tensor(largest))

# %% answer="round-stochastically" style="floor and a comparison"
def round_stochastically(x, noise, mantissa, smallest, largest):
    step = spacing(x, mantissa, smallest)
    low = torch.floor(x / step)
    return torch.clip((low + (noise >= 1 - (x / step - low))) * step, -largest, largest)

# %% answer="delayed-scale" style="a deque, a property, and Python floats"
%%writefile mytrainer/delayed.py
"""Delayed scaling, with a deque."""
from collections import deque
from math import isinf


class DelayedScale:
    def __init__(self, largest, length, margin=0):
        self.top = largest / (1 << margin)
        self.history, self.now, self._scale = deque(maxlen=length), 0.0, 1.0

    @property
    def scale(self):
        return self._scale

    def record(self, x):
        self.now = max([self.now, *x.abs().flatten().tolist()])

    def end_autocast(self):
        now, self.now = self.now, 0.0
        if not now:
            return
        self.history.append(now)
        if not isinf(max(self.history)):
            self._scale = self.top / max(self.history)

# %% answer="share-amaxes" style="gather everything, and reduce here"
%%writefile mytrainer/amaxes.py
import torch
import torch.distributed as dist


def share_amaxes(amaxes, group=None):
    own = torch.tensor([amax.item() for amax in amaxes])
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, own, group)
    return torch.stack(everyone).amax(0)

# %% answer="share-amaxes" style="an asynchronous all-reduce"
%%writefile mytrainer/amaxes.py
import torch
from torch.distributed import ReduceOp, all_reduce


def share_amaxes(amaxes, group=None):
    flat = torch.cat([amax.reshape(1) for amax in amaxes])
    all_reduce(flat, group=group, op=ReduceOp.MAX, async_op=True).wait()
    return flat

# %% answer="fp8" style="an amax of zero in an if, and frexp of Python floats"
%%writefile mytrainer/fp8.py
import math

import torch
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def quantize(x, dtype, delayed=None):
    if delayed is not None:
        delayed.record(x.detach())
        scaled, largest = x.detach().float() * delayed.scale, torch.finfo(dtype).max
        inverse = torch.tensor(1 / delayed.scale, device=x.device)
        return scaled.clamp(-largest, largest).to(dtype), inverse
    x = x.detach()
    amax = x.abs().max()
    if amax == 0:
        return x.to(dtype), torch.ones((), device=x.device)
    _, exponent = math.frexp(torch.finfo(dtype).max / amax.item())
    scale = 2.0 ** (exponent - 1)
    return (x * scale).to(dtype), torch.tensor(1 / scale, device=x.device)


class PerTensor:
    def __init__(self, delayed=None):
        self.delayed = delayed or {}

    def pair(self, x, dtype, role):
        eight, inverse = quantize(x, dtype, self.delayed.get(role))
        return (eight, inverse), (eight.transpose(0, 1).contiguous(), inverse)

    def multiply(self, a, b, dtype):
        return torch._scaled_mm(a[0], b[0].t(), a[1], b[1], out_dtype=dtype)


class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, quantized, recipe):
        (of_rows, of_columns), ctx.recipe = recipe.pair(x, E4M3, "input"), recipe
        ctx.sizes = len(of_columns)
        ctx.save_for_backward(*of_columns, *quantized[1])
        return recipe.multiply(of_rows, quantized[0], x.dtype)

    @staticmethod
    def backward(ctx, grad):
        saved, recipe = ctx.saved_tensors, ctx.recipe
        rows, columns = recipe.pair(grad.contiguous(), E5M2, "grad")
        return (recipe.multiply(rows, saved[ctx.sizes:], grad.dtype),
                recipe.multiply(columns, saved[:ctx.sizes], torch.float32), None, None)


class Linear(nn.Linear):
    kept = None
    recipe = PerTensor()

    def forward(self, x, first_micro_batch=True):
        if first_micro_batch or self.kept is None:
            with torch.no_grad():
                self.kept = self.recipe.pair(self.weight, E4M3, "weight")
        *lead, last = x.shape
        y = Multiply.apply(x.reshape(-1, last), self.weight, self.kept, self.recipe)
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(*lead, self.out_features)

# %% answer="fp8" style="a scale read with .item(), and a conditional expression"
%%writefile mytrainer/fp8.py
import math

import torch
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def quantize(x, dtype, delayed=None):
    if delayed is not None:
        delayed.record(x.detach())
        scaled, largest = x.detach().float() * delayed.scale, torch.finfo(dtype).max
        inverse = torch.tensor(1 / delayed.scale, device=x.device)
        return scaled.clamp(-largest, largest).to(dtype), inverse
    with torch.no_grad():
        amax = float(torch.linalg.vector_norm(x, ord=math.inf))
        scale = math.ldexp(1.0, math.frexp(torch.finfo(dtype).max / amax)[1] - 1) if amax > 0 else 1.0
        return x.mul(scale).to(dtype), torch.full((), 1 / scale, dtype=torch.float32, device=x.device)


class PerTensor:
    def __init__(self, delayed=None):
        self.delayed = delayed or {}

    def pair(self, x, dtype, role):
        eight, inverse = quantize(x, dtype, self.delayed.get(role))
        return (eight, inverse), (eight.transpose(0, 1).contiguous(), inverse)

    def multiply(self, a, b, dtype):
        return torch._scaled_mm(a[0], b[0].t(), a[1], b[1], out_dtype=dtype)


class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, quantized, recipe):
        (of_rows, of_columns), ctx.recipe = recipe.pair(x, E4M3, "input"), recipe
        ctx.sizes = len(of_columns)
        ctx.save_for_backward(*of_columns, *quantized[1])
        return recipe.multiply(of_rows, quantized[0], x.dtype)

    @staticmethod
    def backward(ctx, grad):
        saved, recipe = ctx.saved_tensors, ctx.recipe
        rows, columns = recipe.pair(grad.contiguous(), E5M2, "grad")
        return (recipe.multiply(rows, saved[ctx.sizes:], grad.dtype),
                recipe.multiply(columns, saved[:ctx.sizes], torch.float32), None, None)


class Linear(nn.Linear):
    kept = None
    recipe = PerTensor()

    def forward(self, x, first_micro_batch=True):
        if first_micro_batch or self.kept is None:
            with torch.no_grad():
                self.kept = self.recipe.pair(self.weight, E4M3, "weight")
        *lead, last = x.shape
        y = Multiply.apply(x.reshape(-1, last), self.weight, self.kept, self.recipe)
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(*lead, self.out_features)

# %% answer="fp8" style="a tensor in a condition, minimum and maximum, and integers"
%%writefile mytrainer/fp8.py
import math

import torch
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def quantize(x, dtype, delayed=None):
    if delayed is not None:
        delayed.record(x.detach())
        scaled, largest = x.detach().float() * delayed.scale, torch.finfo(dtype).max
        inverse = torch.tensor(1 / delayed.scale, device=x.device)
        return scaled.clamp(-largest, largest).to(dtype), inverse
    x = x.detach()
    amax = max(x.max().item(), -x.min().item())
    if not amax:
        return x.to(dtype), x.new_ones((), dtype=torch.float32)
    exponent = int(torch.frexp(torch.tensor(torch.finfo(dtype).max / amax)).exponent) - 1
    scale = torch.tensor(2.0**exponent, device=x.device)
    return (x * scale.to(x.dtype)).to(dtype), 1 / scale


class PerTensor:
    def __init__(self, delayed=None):
        self.delayed = delayed or {}

    def pair(self, x, dtype, role):
        eight, inverse = quantize(x, dtype, self.delayed.get(role))
        return (eight, inverse), (eight.transpose(0, 1).contiguous(), inverse)

    def multiply(self, a, b, dtype):
        return torch._scaled_mm(a[0], b[0].t(), a[1], b[1], out_dtype=dtype)


class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, quantized, recipe):
        (of_rows, of_columns), ctx.recipe = recipe.pair(x, E4M3, "input"), recipe
        ctx.sizes = len(of_columns)
        ctx.save_for_backward(*of_columns, *quantized[1])
        return recipe.multiply(of_rows, quantized[0], x.dtype)

    @staticmethod
    def backward(ctx, grad):
        saved, recipe = ctx.saved_tensors, ctx.recipe
        rows, columns = recipe.pair(grad.contiguous(), E5M2, "grad")
        return (recipe.multiply(rows, saved[ctx.sizes:], grad.dtype),
                recipe.multiply(columns, saved[:ctx.sizes], torch.float32), None, None)


class Linear(nn.Linear):
    kept = None
    recipe = PerTensor()

    def forward(self, x, first_micro_batch=True):
        if first_micro_batch or self.kept is None:
            with torch.no_grad():
                self.kept = self.recipe.pair(self.weight, E4M3, "weight")
        *lead, last = x.shape
        y = Multiply.apply(x.reshape(-1, last), self.weight, self.kept, self.recipe)
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(*lead, self.out_features)

# %% answer="fp8" style="any(), and the amax on the CPU"
%%writefile mytrainer/fp8.py
import math

import torch
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def quantize(x, dtype, delayed=None):
    if delayed is not None:
        delayed.record(x.detach())
        scaled, largest = x.detach().float() * delayed.scale, torch.finfo(dtype).max
        inverse = torch.tensor(1 / delayed.scale, device=x.device)
        return scaled.clamp(-largest, largest).to(dtype), inverse
    x, scale = x.detach(), 1.0
    if (x != 0).any():
        amax = x.abs().amax().cpu().double()
        while amax * scale * 2 <= torch.finfo(dtype).max:
            scale *= 2
        while amax * scale > torch.finfo(dtype).max:
            scale /= 2
    return (x * scale).to(dtype), torch.as_tensor(1 / scale, device=x.device, dtype=torch.float32)


class PerTensor:
    def __init__(self, delayed=None):
        self.delayed = delayed or {}

    def pair(self, x, dtype, role):
        eight, inverse = quantize(x, dtype, self.delayed.get(role))
        return (eight, inverse), (eight.transpose(0, 1).contiguous(), inverse)

    def multiply(self, a, b, dtype):
        return torch._scaled_mm(a[0], b[0].t(), a[1], b[1], out_dtype=dtype)


class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, quantized, recipe):
        (of_rows, of_columns), ctx.recipe = recipe.pair(x, E4M3, "input"), recipe
        ctx.sizes = len(of_columns)
        ctx.save_for_backward(*of_columns, *quantized[1])
        return recipe.multiply(of_rows, quantized[0], x.dtype)

    @staticmethod
    def backward(ctx, grad):
        saved, recipe = ctx.saved_tensors, ctx.recipe
        rows, columns = recipe.pair(grad.contiguous(), E5M2, "grad")
        return (recipe.multiply(rows, saved[ctx.sizes:], grad.dtype),
                recipe.multiply(columns, saved[:ctx.sizes], torch.float32), None, None)


class Linear(nn.Linear):
    kept = None
    recipe = PerTensor()

    def forward(self, x, first_micro_batch=True):
        if first_micro_batch or self.kept is None:
            with torch.no_grad():
                self.kept = self.recipe.pair(self.weight, E4M3, "weight")
        *lead, last = x.shape
        y = Multiply.apply(x.reshape(-1, last), self.weight, self.kept, self.recipe)
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(*lead, self.out_features)

# %% answer="nvfp4" style="blocks in a loop"
def nvfp4(x):
    t = x.abs().max() / 2688
    columns = []
    for block in x.split(16, dim=1):
        b = round_to(block.abs().max(dim=1, keepdim=True).values / 6 / t, 3, -6, 448.0)
        unit = b * t
        columns.append(torch.where(unit > 0, round_to(block / unit, 1, 0, 6.0) * unit, torch.zeros_like(block)))
    return torch.hstack(columns)

# %% answer="calibrate" style="a context manager of hooks, and partial"
def calibrate(model, batches, percentile=100.0):
    from collections import defaultdict
    from contextlib import ExitStack
    from functools import partial

    seen = defaultdict(list)
    with ExitStack() as stack, torch.inference_mode():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                stack.callback(module.register_forward_pre_hook(
                    partial(lambda key, _, inputs: seen[key].append(inputs[0].abs().reshape(-1)), name)).remove)
        for batch in batches:
            model(batch)
    return {name: 448 / torch.cat(parts).quantile(percentile / 100).item() for name, parts in seen.items()}
