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


# %% answer="contest" style="the formulas of the lab, where they fit"
%%writefile contest/pipelines.py
def delayed(stages, count, room, first):
    """ZB-like lists; stage s begins with first[s] forwards, and never has more than room[s] in flight."""
    lists = []
    for s in range(stages):
        row, f, b, w = [], 0, 0, 0
        while w < count:
            want_f = f < count and f - w < room[s] and (f < first[s] or f - b < max(1, first[s]))
            if want_f:
                row.append(f"F{f}")
                f += 1
            elif b < f and (f - b >= first[s] or f == count or f - w >= room[s]):
                if b > w and f - w >= room[s] and f - b < first[s]:
                    row.append(f"W{w}")
                    w += 1
                else:
                    row.append(f"B{b}")
                    b += 1
            else:
                row.append(f"W{w}")
                w += 1
        lists.append(" ".join(row))
    return lists


def schedule(case):
    stages, count = case["stages"], case["micro_batches"]
    room = [min(count, int(cap / size + 1e-6)) for cap, size in zip(case["memory"], case["activation"])]
    long = all(mine >= min(count, 2 * stages - 1) for mine in room)
    first = [min(count, 2 * (stages - s) - 1 if long else stages - s, room[s]) for s in range(stages)]
    return delayed(stages, count, room, first)
