# %% answer="weight-stash" style="swaps the data of the module's parameters around an ordinary backward pass"
%%writefile mytrainer/weight_stash.py
import torch


class WeightStash:
    def __init__(self, module, update):
        self.module, self.update = module, update
        self.saved = {}

    def forward(self, key, x, data):
        if x is not None:
            x = x.detach().requires_grad_(True)
        out = self.module(x, data)
        self.saved[key] = (x, out, [p.data for p in self.module.parameters()])
        return out.detach()

    def backward(self, key, grad):
        x, out, stashed = self.saved.pop(key)
        parameters = dict(self.module.named_parameters())
        newest = [p.data for p in parameters.values()]
        for p, old in zip(parameters.values(), stashed):
            p.data = old
        out.backward(gradient=grad)
        for (name, p), new in zip(parameters.items(), newest):
            p.data = self.update(name, new, p.grad)
            p.grad = None
        if x is not None:
            return x.grad

# %% answer="synced-stash" style="numbers of the batches, a list of the newest versions, and gradients accumulated by autograd"
%%writefile mytrainer/synced_stash.py
from collections import deque

import torch
from torch.func import functional_call


def delay(stages, interval):
    d = 0
    while d * interval < stages - 1:
        d += 1
    return d


class SyncedStash:
    def __init__(self, module, update, interval, delay):
        self.module, self.update, self.interval, self.delay = module, update, interval, delay
        self.kept = deque([self.copy()])
        self.first = 0
        self.flying = {}
        self.count = 0

    def copy(self):
        return {name: p.detach().requires_grad_() for name, p in self.module.named_parameters()}

    def forward(self, key, x, data):
        number = max(key // self.interval - self.delay, 0)
        weights = self.kept[number - self.first]
        if x is not None:
            x = x.detach().requires_grad_()
        y = functional_call(self.module, weights, (x, data))
        self.flying[key] = x, y
        return y.detach()

    def backward(self, key, grad):
        x, y = self.flying.pop(key)
        y.backward(grad)
        self.count += 1
        if self.count == self.interval:
            self.count = 0
            batch = key // self.interval
            used = self.kept[max(batch - self.delay, 0) - self.first]
            grads = {name: one.grad for name, one in used.items()}
            for one in used.values():
                one.grad = None
            with torch.no_grad():
                for name, p in self.module.named_parameters():
                    p.data = self.update(name, p.detach(), grads.pop(name))
            self.kept.append(self.copy())
            while len(self.kept) > self.delay + 1:
                self.kept.popleft()
                self.first += 1
        return x.grad if x is not None else None

# %% answer="stash-recompute" style="the inputs in a dictionary of their own, and the output detached from a forward pass with gradients"
%%writefile mytrainer/stash_recompute.py
from mytrainer.synced_stash import SyncedStash


class RecomputingStash(SyncedStash):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.inputs = {}

    def forward(self, key, x, data):
        y = SyncedStash.forward(self, key, x, data)
        del self.flying[key]
        self.inputs[key] = x, data
        return y

    def backward(self, key, grad):
        SyncedStash.forward(self, key, *self.inputs.pop(key))
        return SyncedStash.backward(self, key, grad)

# %% answer="weight-stash" style="a module whose parameters are replaced by new ones after each update"
%%writefile mytrainer/weight_stash.py
import torch
from torch import nn


class WeightStash:
    def __init__(self, module, update):
        self.module, self.update, self.waiting = module, update, {}

    def forward(self, key, x, data):
        x = x if x is None else x.clone().requires_grad_()
        y = self.module(x, data)
        self.waiting[key] = x, y, dict(self.module.named_parameters())
        return y.detach()

    def backward(self, key, grad):
        x, y, used = self.waiting.pop(key)
        found = torch.autograd.grad(y, [*used.values(), *([] if x is None else [x])], grad)
        grads, back = dict(zip(used, found)), None if x is None else found[-1]
        del y
        for name, parameter in list(self.module.named_parameters()):
            path, _, last = name.rpartition(".")
            setattr(self.module.get_submodule(path), last, nn.Parameter(self.update(name, parameter.detach(), grads[name])))
        return back

# %% answer="split-backward" style="a mode of torch functions, and queues of functions"
%%writefile mytrainer/split_backward.py
import contextlib

import torch
import torch.nn.functional as F

original = F.linear


class Later(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, jobs):
        ctx.save_for_backward(x)
        ctx.others = weight, bias, jobs
        y = x @ weight.T
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, dy):
        weight, bias, jobs = ctx.others
        inputs = ctx.saved_tensors[0].detach()

        def job():
            add(weight, torch.einsum("no,ni->oi", dy.reshape(-1, dy.shape[-1]), inputs.reshape(-1, inputs.shape[-1])))
            if bias is not None:
                add(bias, dy.reshape(-1, dy.shape[-1]).sum(0))

        jobs.append(job)
        dx = torch.matmul(dy, weight) if ctx.needs_input_grad[0] else None
        return dx, None, None, None


def add(parameter, new):
    if not parameter.requires_grad:
        return
    new = new.to(getattr(parameter, "grad_dtype", None) or parameter.dtype)
    if parameter.grad is None:
        parameter.grad = new
    else:
        parameter.grad += new


@contextlib.contextmanager
def postponed(jobs):
    def linear(input, weight, bias=None):
        return Later.apply(input, weight, bias, jobs)

    F.linear = linear
    try:
        yield
    finally:
        F.linear = original


class SplitStage:
    def __init__(self, module):
        self.module, self.running = module, {}

    def forward(self, key, x, data):
        jobs = []
        x = None if x is None else x.clone().requires_grad_(True)
        with postponed(jobs):
            y = self.module(x, data)
        self.running[key] = [x, y, jobs]
        return y.detach()

    def backward(self, key, grad):
        x, y, jobs = self.running[key]
        self.running[key] = jobs
        with postponed(jobs):
            torch.autograd.backward([y], [grad])
        return getattr(x, "grad", None)

    def weight(self, key):
        jobs = self.running.pop(key)
        while jobs:
            with torch.no_grad():
                jobs.pop()()


# %% answer="zb-h1" style="one simulated clock for all stages: B before F before W, in strings"
%%writefile mytrainer/zero_bubble.py
def greedy(stages, micro_batches, room):
    ends = [{} for _ in range(stages)]
    lists = [[] for _ in range(stages)]
    count = [dict.fromkeys("FBW", 0) for _ in range(stages)]
    now = 0
    while any(one["W"] < micro_batches for one in count):
        started = []
        for s in range(stages):
            c = count[s]
            f, b, w = c["F"], c["B"], c["W"]
            can_b = b < f and (s == stages - 1 or ends[s + 1].get(f"B{b}", 1e9) <= now) and ends[s][f"F{b}"] <= now
            can_f = f < micro_batches and f - w < room and (s == 0 or ends[s - 1].get(f"F{f}", 1e9) <= now)
            # In 1F1B's steady state, a B comes after each F.
            if can_f and can_b and f - b <= min(stages - s - 1, micro_batches):
                can_b = False
            kind = "B" if can_b else "F" if can_f else "W" if w < b else None
            if kind:
                started.append((s, f"{kind}{c[kind]}"))
                c[kind] += 1
        now += 1
        for s, action in started:
            ends[s][action] = now
            lists[s].append(action)
    return lists


def zb_h1(stages, micro_batches):
    return greedy(stages, micro_batches, min(stages, micro_batches))


# %% answer="zb-h2" style="the same with more room"
%%writefile mytrainer/zero_bubble_2.py
def zb_h2(stages, micro_batches):
    ends = [{} for _ in range(stages)]
    lists = [[] for _ in range(stages)]
    count = [dict.fromkeys("FBW", 0) for _ in range(stages)]
    now = 0
    while any(one["W"] < micro_batches for one in count):
        started = []
        for s in range(stages):
            c = count[s]
            f, b, w = c["F"], c["B"], c["W"]
            if b < f and ends[s][f"F{b}"] <= now and (s == stages - 1 or ends[s + 1].get(f"B{b}", 1e9) <= now):
                kind = "B"
            elif f < micro_batches and f - w < 2 * stages - 1 and (s == 0 or ends[s - 1].get(f"F{f}", 1e9) <= now):
                kind = "F"
            elif w < b:
                kind = "W"
            else:
                continue
            started.append((s, f"{kind}{c[kind]}"))
            c[kind] += 1
        now += 1
        for s, action in started:
            ends[s][action] = now
            lists[s].append(action)
    return lists


# %% answer="contest" style="a clock that advances from event to event, and stages that may wait for a better action"
%%writefile contest/pipelines.py
import itertools


def schedule(case):
    tries = [advance(case, *options) for options in itertools.product((1, 2, 99), (False, True))]
    return min(tries)[1]


def advance(case, slope, wait):
    p, m = case["stages"], case["micro_batches"]
    cost = {"F": case["forward"], "B": case["backward"], "W": case["weight"]}
    end, busy, rows = {}, [0.0] * p, [[] for _ in range(p)]
    count = [{"F": 0, "B": 0, "W": 0} for _ in range(p)]
    now, left = 0.0, 3 * m * p

    def arrival(kind, s):
        k = count[s][kind]
        if k == m:
            return float("inf")
        if kind == "F":
            c = count[s]
            if (k - c["W"] + 1) * case["activation"][s] > case["memory"][s] + 1e-6 or k - c["B"] > slope * (p - 1 - s):
                return float("inf")
            return 0.0 if s == 0 else end.get(("F", s - 1, k), float("inf")) + case["link"]
        if kind == "W":
            return end.get(("B", s, k), float("inf"))
        return end.get(("F", s, k), float("inf")) if s == p - 1 else end.get(("B", s + 1, k), float("inf")) + case["link"]

    while left:
        following = [float("inf")]
        for s in range(p):
            if busy[s] > now + 1e-9:
                following.append(busy[s])
                continue
            at = {kind: arrival(kind, s) for kind in "BFW"}
            ready = [kind for kind in "BFW" if at[kind] <= now + 1e-9]
            soon = min(at["B"], at["F"])
            if ready == ["W"] and wait and soon < now + cost["W"][s] * 0.75:
                ready = []
            if not ready:
                following += [t for t in at.values() if t > now + 1e-9]
                continue
            kind = ready[0]
            k = count[s][kind]
            count[s][kind] += 1
            end[kind, s, k] = busy[s] = now + cost[kind][s]
            rows[s].append(f"{kind}{k}")
            left -= 1
            following.append(busy[s])
        now = min(following)
    return max(busy), [" ".join(row) for row in rows]


# %% answer="deferred-wgrad" style="closures in a list that only exists during B, the older name of the all-gather, and one GEMM"
%%writefile mytrainer/deferred_wgrad.py
import torch
import torch.distributed as dist

from mytrainer.split_backward import SplitStage

now = []


class Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, region, layers, x):
        ctx.region, ctx.layers = region, layers
        ctx.save_for_backward(x)
        joined = everything(region, x) @ torch.cat([one.weight for one in layers]).T
        return joined.split([len(one.weight) for one in layers], -1)

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        region, layers, x = ctx.region, ctx.layers, x.detach()
        grad = torch.cat(grads, -1)
        total = grad @ torch.cat([one.weight for one in layers])
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dist.reduce_scatter_tensor(dx, total.contiguous(), group=region.group)

        def job():
            flat = everything(region, x).reshape(-1, x.shape[-1])
            found = grad.reshape(-1, grad.shape[-1]).T @ flat
            for one, part in zip(layers, found.split([len(one.weight) for one in layers])):
                one.weight.backward(part)

        now[-1].append(job)
        return None, None, dx


def everything(region, x):
    whole = torch.empty((region.size * x.size(0), *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(whole, x.contiguous(), group=region.group)
    return whole


def deferred_columns(region, x, *layers):
    return list(Columns.apply(region, layers, x))


class DeferringStage(SplitStage):
    def __init__(self, module):
        super().__init__(module)
        self.jobs = {}

    def backward(self, key, grad):
        self.jobs[key] = []
        now.append(self.jobs[key])
        result = super().backward(key, grad)
        now.pop()
        return result

    def weight(self, key):
        with torch.no_grad():
            for job in self.jobs.pop(key):
                job()
        super().weight(key)
