# %% answer="saved" style="a dictionary of storages, and hooks as lambdas"
%%writefile mytrainer/saved.py
import torch


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, parameters=()):
        self.sizes = {}
        own = {id_of(parameter) for parameter in parameters}

        def pack(tensor):
            if id_of(tensor) not in own:
                self.sizes[id_of(tensor)] = tensor.untyped_storage().nbytes()
            return tensor.detach()

        super().__init__(pack, lambda tensor: tensor)

    @property
    def bytes(self):
        return sum(self.sizes.values())

    def __enter__(self):
        super().__enter__()
        return self


def id_of(tensor):
    return tensor.untyped_storage()._cdata

# %% answer="saved" style="a meter that forgets what the backward pass has released"
%%writefile mytrainer/saved.py
import weakref

from torch.autograd.graph import saved_tensors_hooks


class SavedBytes(saved_tensors_hooks):
    def __init__(self, parameters=()):
        self.packed = []
        self.own = {parameter.untyped_storage()._cdata for parameter in parameters}
        super().__init__(self.pack, lambda tensor: tensor)

    def __enter__(self):
        super().__enter__()
        return self

    def pack(self, tensor):
        copy = tensor.detach()
        self.packed.append(weakref.ref(copy))
        return copy

    @property
    def bytes(self):
        alive = [one for reference in self.packed if (one := reference()) is not None]
        storages = {one.untyped_storage()._cdata: one.untyped_storage() for one in alive}
        return sum(one.nbytes() for key, one in storages.items() if key not in self.own)

# %% answer="recompute" style="inputs in a list, and a gradient of zeros where there is none"
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.save_for_backward(x)
        ctx.run = function
        with torch.no_grad():
            result = function(x)
        return result

    @staticmethod
    def backward(ctx, gradient):
        copy = ctx.saved_tensors[0].detach().clone()
        copy.requires_grad = True
        with torch.set_grad_enabled(True):
            ctx.run(copy).backward(gradient)
        return None, torch.zeros_like(copy) if copy.grad is None else copy.grad

# %% answer="states" style="fork_rng, and an exit stack"
%%writefile mytrainer/states.py
import contextlib

import torch


class States:
    def __init__(self, device_type):
        self.kind = device_type
        self.cpu = torch.get_rng_state()
        self.gpu = torch.cuda.get_rng_state() if device_type == "cuda" else None
        self.on = torch.is_autocast_enabled(device_type)
        self.dtype = torch.get_autocast_dtype(device_type)

    @contextlib.contextmanager
    def replay(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng())
            torch.set_rng_state(self.cpu)
            if self.gpu is not None:
                torch.cuda.set_rng_state(self.gpu)
            stack.enter_context(torch.autocast(self.kind, self.dtype, self.on))
            yield

# %% answer="checkpointing" style="positions of tensors, as Megatron-LM and PyTorch have them"
%%writefile mytrainer/checkpointing.py
import torch

from mytrainer.states import States


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dummy, function, *inputs):
        ctx.function = function
        ctx.places = [place for place, one in enumerate(inputs) if torch.is_tensor(one)]
        ctx.inputs = list(inputs)
        for place in ctx.places:
            ctx.inputs[place] = None
        ctx.save_for_backward(*[inputs[place] for place in ctx.places])
        on_gpu = any(inputs[place].is_cuda for place in ctx.places)
        ctx.states = States("cuda" if on_gpu else "cpu")
        with torch.no_grad():
            return function(*inputs)

    @staticmethod
    def backward(ctx, *gradients):
        inputs = list(ctx.inputs)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            inputs[place] = tensor.detach()
            inputs[place].requires_grad = tensor.requires_grad
        with ctx.states.replay(), torch.enable_grad():
            outputs = ctx.function(*inputs)
        if torch.is_tensor(outputs):
            outputs = (outputs,)
        kept = [at for at, one in enumerate(outputs) if torch.is_tensor(one) and one.requires_grad]
        torch.autograd.backward([outputs[at] for at in kept], [gradients[at] for at in kept])
        found = [one.grad if torch.is_tensor(one) else None for one in inputs]
        return (None, None, *found)


def checkpoint(function, *arguments):
    if torch.is_grad_enabled():
        dummy = torch.zeros(0)
        dummy.requires_grad = True
        return Again.apply(dummy, function, *arguments)
    return function(*arguments)

# %% answer="placement" style="recursion from the left with a cache"
%%writefile mytrainer/placement.py
from functools import lru_cache


def place(times, saved, inputs, budget, selective=None):
    layers = len(times)

    @lru_cache(None)
    def best(layer, held):
        if held > budget:
            return None
        if layer == layers:
            return 0, ()
        options = []
        rest = best(layer + 1, held + saved[layer])
        if rest is not None:
            options.append(rest)
        if selective and held + saved[layer] <= budget:
            core, kept = selective[layer]
            rest = best(layer + 1, held + kept)
            if rest is not None:
                options.append((rest[0] + core, (layer, *rest[1])))
        for stop in range(layer + 1, layers + 1):
            if held + sum(saved[layer:stop]) > budget:
                break
            rest = best(stop, held + inputs[layer])
            if rest is not None:
                options.append((rest[0] + sum(times[layer:stop]), ((layer, stop), *rest[1])))
        return min(options, default=None, key=lambda option: option[0])

    found = best(0, 0)
    if found is None:
        raise ValueError("nothing fits")
    return list(found[1])

# %% answer="placement" style="a table by held bytes for each number of layers, and prefix sums"
%%writefile mytrainer/placement.py
from itertools import accumulate


def place(times, saved, inputs, budget, selective=None):
    layers = len(times)
    before = [0, *accumulate(saved)]
    clock = [0, *accumulate(times)]
    tables = [[None] * (budget + 1) for _ in range(layers + 1)]
    tables[0][0] = (0, [])
    for n in range(layers):
        for held in range(budget + 1):
            if tables[n][held] is None:
                continue
            time, plan = tables[n][held]
            options = [(n + 1, held + saved[n], time, plan)]
            if selective is not None and held + saved[n] <= budget:
                options.append((n + 1, held + selective[n][1], time + selective[n][0], [*plan, n]))
            for stop in range(n + 1, layers + 1):
                if held + before[stop] - before[n] > budget:
                    break
                options.append((stop, held + inputs[n], time + clock[stop] - clock[n], [*plan, (n, stop)]))
            for stop, bytes_held, total, new in options:
                if bytes_held <= budget and (tables[stop][bytes_held] is None or total < tables[stop][bytes_held][0]):
                    tables[stop][bytes_held] = total, new
    found = [one for one in tables[layers] if one is not None]
    if not found:
        raise ValueError("no plan fits")
    return min(found, key=lambda one: one[0])[1]

# %% answer="attention" style="a running maximum and sum, as in the paper, and tiles of queries, too"
%%writefile mytrainer/attention.py
import math

import torch


def scores_of(q, k, at, first):
    s = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    rows = torch.arange(at, at + q.shape[1], device=q.device)[:, None]
    columns = torch.arange(first, first + k.shape[1], device=q.device)
    return torch.where(columns <= rows, s, torch.full_like(s, -math.inf))


class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, size):
        ctx.dtype, s = q.dtype, q.shape[1]
        q, k, v = q.float(), k.float(), v.float()
        out, total = torch.empty_like(q), torch.empty(q.shape[:2], dtype=q.dtype, device=q.device)
        for at in range(0, s, size):
            rows = slice(at, min(at + size, s))
            largest = torch.full_like(total[:, rows], -math.inf)
            norm, mean = torch.zeros_like(largest), torch.zeros_like(q[:, rows])
            for first in range(0, rows.stop, size):
                keys = slice(first, min(first + size, s))
                scores = scores_of(q[:, rows], k[:, keys], at, first)
                now = torch.maximum(largest, scores.max(-1).values)
                p, scale = torch.exp(scores - now[..., None]), torch.exp(largest - now)
                norm = norm * scale + p.sum(-1)
                mean = mean * scale[..., None] + p @ v[:, keys]
                largest = now
            out[:, rows], total[:, rows] = mean / norm[..., None], largest + norm.log()
        ctx.size = size
        out = out.to(ctx.dtype)
        ctx.save_for_backward(*(one.to(ctx.dtype) for one in (q, k, v)), out, total)
        return out

    @staticmethod
    def backward(ctx, gradient):
        total = ctx.saved_tensors[-1]
        q, k, v, out, gradient = (one.float() for one in (*ctx.saved_tensors[:-1], gradient))
        s, size = q.shape[1], ctx.size
        dq, dk, dv = (torch.zeros_like(one) for one in (q, k, v))
        delta = (gradient * out).sum(-1)
        for at in range(0, s, size):
            rows = slice(at, min(at + size, s))
            for first in range(0, rows.stop, size):
                keys = slice(first, min(first + size, s))
                p = torch.exp(scores_of(q[:, rows], k[:, keys], at, first) - total[:, rows, None])
                dv[:, keys] += p.transpose(1, 2) @ gradient[:, rows]
                dp = gradient[:, rows] @ v[:, keys].transpose(1, 2)
                ds = p * (dp - delta[:, rows, None]) / math.sqrt(q.shape[-1])
                dq[:, rows] += ds @ k[:, keys]
                dk[:, keys] += ds.transpose(1, 2) @ q[:, rows]
        return dq.to(ctx.dtype), dk.to(ctx.dtype), dv.to(ctx.dtype), None


def attention(query, key, value, block=128):
    return Flash.apply(query, key, value, block)

# %% answer="offload" style="one copy per storage, with a table of devices"
%%writefile mytrainer/offload.py
import torch


class Offload(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, parameters=(), least=2**20):
        kept = [parameter.untyped_storage()._cdata for parameter in parameters]

        def pack(tensor):
            tensor = tensor.detach()
            if tensor.untyped_storage()._cdata in kept or tensor.numel() * tensor.element_size() < least:
                return None, tensor
            copy = torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
            copy.copy_(tensor, non_blocking=True)
            return tensor.device, copy

        def unpack(packed):
            device, tensor = packed
            return tensor if device is None else tensor.to(device, non_blocking=True)

        super().__init__(pack, unpack)
