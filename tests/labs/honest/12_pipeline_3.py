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
