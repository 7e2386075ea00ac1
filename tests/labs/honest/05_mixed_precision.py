# %% answer="histogram" style="bucket edges, and a search"
%%writefile mytrainer/histogram.py
import torch


def log2_histogram(tensor, lowest=-40, highest=16):
    with torch.no_grad():
        size = tensor.double().abs().reshape(-1)
        edges = 2.0 ** torch.arange(lowest + 1, highest + 1, dtype=torch.float64, device=size.device)
        which = torch.bucketize(size, edges, right=True)
        counts = torch.zeros(highest - lowest + 1, dtype=torch.long, device=size.device)
        counts.index_add_(0, which, torch.where(size > 0, 1, 0))
        return torch.sum(size == 0), counts


# %% answer="precision" style="dictionaries, and foreach"
%%writefile mytrainer/precision.py
import torch


class MixedPrecision:
    def __init__(self, parameters, make_optimizer):
        self.model = [p for p in parameters]
        self.master_of = {}
        for p in self.model:
            if p.dtype is torch.float32:
                self.master_of[p] = p
            else:
                p.grad_dtype = torch.float32
                self.master_of[p] = torch.nn.Parameter(p.detach().clone().to(torch.float32))
        self.inner = make_optimizer([self.master_of[p] for p in self.model])

    @property
    def param_groups(self):
        return self.inner.param_groups

    def zero_grad(self):
        for p, master in self.master_of.items():
            p.grad = master.grad = None

    @torch.no_grad()
    def step(self):
        halves = [p for p in self.model if self.master_of[p] is not p]
        for p in halves:
            self.master_of[p].grad, p.grad = p.grad, None
        self.inner.step()
        if halves:
            torch._foreach_copy_([p.data for p in halves], [self.master_of[p].data for p in halves])
        for p in halves:
            p.grad, self.master_of[p].grad = self.master_of[p].grad, None


# %% answer="unscale" style="one flag per gradient, and a maximum over the ranks"
%%writefile mytrainer/unscale.py
import torch
import torch.distributed as dist


def unscale(parameters, scale):
    everything = list(parameters)
    gradients = [p.grad for p in everything if p.grad is not None]
    for g in gradients:
        g.mul_(1.0 / scale)
    flags = [torch.isfinite(g).all().logical_not().float() for g in gradients]
    flag = torch.stack(flags).max() if flags else torch.tensor(0.0, device=everything[0].device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return flag.item() != 0


# %% answer="unscale" style="PyTorch's fused kernel of the GradScaler"
%%writefile mytrainer/unscale.py
import torch
import torch.distributed as dist


def unscale(parameters, scale):
    parameters = list(parameters)
    found = torch.zeros(1, device=parameters[0].device)
    grads = [p.grad for p in parameters if p.grad is not None]
    inverse = torch.full((1,), 1.0 / scale, device=found.device)
    if grads:
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
    dist.all_reduce(found)
    return bool(found)


# %% answer="scaler" style="a budget of overflows, and early returns"
%%writefile mytrainer/scaler.py
from mytrainer.unscale import unscale


class LossScaler:
    def __init__(self, initial=2.0**32, minimum=1.0, window=1000, hysteresis=2):
        self.scale = initial
        self.minimum, self.window, self.hysteresis = minimum, window, hysteresis
        self.in_a_row = self.overflows = 0

    def unscale(self, parameters):
        return unscale(parameters, self.scale)

    def update(self, overflow):
        if not overflow:
            self.in_a_row = self.in_a_row + 1
            if self.in_a_row >= self.window:
                self.in_a_row = self.overflows = 0
                self.scale = 2 * self.scale
            return
        self.in_a_row, self.overflows = 0, self.overflows + 1
        if self.overflows >= self.hysteresis:
            self.scale = max(self.minimum, 0.5 * self.scale)


# %% answer="scaler" style="a scale on the device, changed in place"
%%writefile mytrainer/scaler.py
import torch

from mytrainer.unscale import unscale


class LossScaler:
    def __init__(self, initial=2.0**32, minimum=1.0, window=1000, hysteresis=2):
        self.scale = torch.tensor(float(initial))
        self.minimum, self.window, self.hysteresis = minimum, window, hysteresis
        self.streak, self.left = 0, hysteresis

    def unscale(self, parameters):
        return unscale(parameters, self.scale)

    def update(self, overflow):
        self.streak = 0 if overflow else self.streak + 1
        self.left -= overflow
        if overflow and self.left < 1:
            self.scale.mul_(0.5).clamp_(min=self.minimum)
        if self.streak == self.window:
            self.scale.mul_(2)
            self.streak, self.left = 0, self.hysteresis


# %% answer="loop" style="an early continue, and the samples that were skipped"
%%writefile mytrainer/new/train.py
import contextlib
import math

import torch
import torch.distributed as dist


def train(model, optimizer, batches, learning_rate, log, args, scaler=None, clip=None):
    skipped_samples = 0
    for step in range(args.train_iters):
        consumed = step * args.global_batch_size
        rate = learning_rate(consumed - skipped_samples)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        parts = batches(consumed)
        factor = scaler.scale if scaler else 1.0
        total = 0
        with model.no_sync():
            for part in parts[:-1]:
                loss = model(part)
                (loss * (factor / len(parts))).backward()
                total = total + loss.detach() / len(parts)
        loss = model(parts[-1])
        (loss * (factor / len(parts))).backward()
        total = total + loss.detach() / len(parts)
        model.finish()
        dist.all_reduce(total)
        total = total / dist.get_world_size()
        overflow = scaler.unscale(model.parameters()) if scaler else False
        if scaler:
            scaler.update(overflow)
        if overflow:
            skipped_samples += args.global_batch_size
            log(step + 1, total, torch.tensor(math.inf), True)
            continue
        largest = args.clip_grad or float("inf")
        norm = (torch.nn.utils.clip_grad_norm_ if clip is None else clip)(model.parameters(), largest)
        optimizer.step()
        log(step + 1, total, norm, False)


# %% answer="autocast" style="one dictionary, and tree_map"
%%writefile mytrainer/autocast.py
import torch


class Autocast(torch.overrides.TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        gemms = "addmm baddbmm bmm linear matmul"
        ranges = "cosh cross_entropy cumprod cumsum exp expm1 mse_loss pow prod softmax sum"
        self.target = dict.fromkeys(gemms.split(), dtype) | dict.fromkeys(ranges.split(), torch.float32)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        target = self.target.get(function.__name__)
        narrow = (torch.float16, torch.bfloat16, torch.float32)

        def cast(x):
            return x.to(target) if isinstance(x, torch.Tensor) and x.dtype in narrow else x

        if target is None:
            return function(*args, **(kwargs or {}))
        args, kwargs = torch.utils._pytree.tree_map(cast, (args, kwargs or {}))
        return function(*args, **kwargs)


# %% answer="rounding" style="floating-point arithmetic, one optimizer per parameter made in a dictionary"
%%writefile mytrainer/rounding.py
import torch


def stochastic(x, dice):
    down = (x.view(torch.int32) & -65536).view(torch.float32)
    up = (down.view(torch.int32) + 65536).view(torch.float32)
    share = ((x - down) / (up - down)).abs()
    return torch.where(torch.rand(x.shape, generator=dice, device=x.device) < share, up, down).bfloat16()


class StochasticRounding:
    def __init__(self, parameters, make_optimizer):
        self.inner = {}
        for p in parameters:
            p.grad_dtype = torch.float32
            wide = torch.zeros(p.shape, dtype=torch.float32, device=p.device)
            self.inner[p] = wide, make_optimizer([wide])
            wide.data = torch.empty(0, device=p.device)
        self.dice = torch.Generator(device=p.device)
        self.dice.manual_seed(7)

    @property
    def param_groups(self):
        return sum((optimizer.param_groups for _, optimizer in self.inner.values()), [])

    def zero_grad(self):
        for p in self.inner:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, (wide, optimizer) in self.inner.items():
            if p.grad is not None:
                wide.data = p.data.to(torch.float32)
                wide.grad = p.grad
                optimizer.step()
                p.copy_(stochastic(wide, self.dice))
                wide.grad = None
                wide.data = torch.empty(0, device=p.device)
