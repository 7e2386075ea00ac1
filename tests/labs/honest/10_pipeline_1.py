# %% answer="stage" style="torch.autograd.grad, gradients added by hand, a named tuple"
%%writefile mytrainer/stage.py
"""One stage."""

from collections import namedtuple

import torch

Pending = namedtuple("Pending", "leaf out")


class Stage:
    def __init__(self, module):
        self.module = module
        self.in_flight = dict()

    def forward(self, key, x, data):
        leaf = None
        if x is not None:
            leaf = x.clone().detach()
            leaf.requires_grad = True
        out = self.module(leaf, data)
        self.in_flight[key] = Pending(leaf, out)
        with torch.no_grad():
            return out.clone()

    def backward(self, key, grad):
        leaf, out = self.in_flight[key]
        del self.in_flight[key]
        parameters = [one for one in self.module.parameters() if one.requires_grad]
        inputs = parameters + ([] if leaf is None else [leaf])
        found = list(torch.autograd.grad(out, inputs, grad_outputs=grad))
        back = found.pop() if leaf is not None else None
        for one, more in zip(parameters, found):
            one.grad = more if one.grad is None else one.grad + more
        return back

# %% answer="stage" style="saves x, y in a list, and torch.autograd.backward"
%%writefile mytrainer/stage.py
import torch


class Stage:
    def __init__(self, module):
        self.module = module
        self.in_flight = {}

    def forward(self, key, x, data):
        held = [x if x is None else torch.empty_like(x).copy_(x).requires_grad_(True)]
        held.append(self.module(held[0], data))
        self.in_flight.update({key: held})
        return held[-1].data

    def backward(self, key, grad):
        held = self.in_flight.pop(key)
        torch.autograd.backward([held[1]], [grad])
        if held[0] is not None:
            return held[0].grad.clone()

# %% answer="loss-weights" style="numpy, as a list of floats"
%%writefile mytrainer/micro_batches.py
def loss_weights(tokens):
    import numpy as np
    counted = np.array(tokens, dtype=float)
    return (counted / counted.sum()).tolist()

# %% answer="gpipe" style="product, and backward passes in order"
%%writefile mytrainer/gpipe.py
from itertools import chain, product


def one_by_one(stages, micro_batches):
    actions = list(chain.from_iterable((f"F{k}", f"B{k}") for k in range(micro_batches)))
    return [actions.copy() for _ in range(stages)]


def gpipe(stages, micro_batches):
    return [[f"{kind}{k}" for kind, k in product("FB", range(micro_batches))] for _ in range(stages)]

# %% answer="bubble" style="a search"
def enough(p, limit):
    m = 1
    while p - 1 > limit * (m + p - 1):
        m += 1
    return m

# %% answer="llama-stage" style="optional ends as None, and a weighted dot product"
%%writefile mytrainer/llama_stage.py
import torch
from mytrainer import llama, vocabulary
from torch import nn


class LlamaStage(nn.Module):
    def __init__(self, shape, region, numbers, is_first, is_last):
        super().__init__()
        self.region = region
        self.embedding = vocabulary.VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region) if is_first else None
        self.layers = nn.ModuleDict()
        for number in numbers:
            self.layers[f"{number}"] = llama.Layer(shape, region)
        self.norm = self.head = None
        if is_last:
            self.norm = llama.RMSNorm(shape.hidden_size, region, shape.epsilon)
            self.head = vocabulary.VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)

    def forward(self, x, data):
        hidden = x if self.embedding is None else self.embedding(data.tokens)
        for name in self.layers:
            hidden = self.layers[name](hidden)
        if self.head is None:
            return hidden
        logits = self.region.columns(self.norm(hidden), self.head)[0]
        loss = vocabulary.cross_entropy(logits, data.labels, self.head.first, self.region)
        mask = data.loss_mask.to(loss.dtype)
        return torch.dot(loss.flatten(), mask.flatten()) / max(1, mask.sum())

# %% answer="pipeline" style="one loop with a method for each verb, and the loss from a list"
%%writefile mytrainer/pipeline.py
import torch
import torch.distributed as dist
from mytrainer.program import parse
from mytrainer.stage import Stage


class BlockingLinks:
    def __init__(self, group):
        self.group = group

    def send(self, tensor, stage, kind):
        dist.send(tensor, group_dst=stage, group=self.group)

    def receive(self, tensor, stage, kind):
        dist.recv(tensor, group_src=stage, group=self.group)

    def finish(self):
        pass


class Pipeline:
    def __init__(self, modules, links, buffer, make_stage=Stage):
        self.stages = list(map(make_stage, modules))
        self.links, self.buffer = links, buffer

    def run(self, program, data, weights):
        self.incoming, self.outgoing, losses = {}, {}, []
        for line in program:
            words = line.split(" ")
            if len(words) == 1:
                self.compute(line, data, weights, losses)
                continue
            verb, action, _, peer = words
            getattr(self, verb)(action, int(peer), data)
        self.links.finish()
        return torch.stack(losses).sum() if losses else None

    def send(self, action, peer, data):
        tensor = self.outgoing[action]
        self.links.send(tensor, peer, action[:1])
        del self.outgoing[action], tensor

    def recv(self, action, peer, data):
        room = self.buffer(data[parse(action)[1]])
        self.incoming[action] = (room, self.links.receive(room, peer, action[:1]))

    def compute(self, action, data, weights, losses):
        kind, number, chunk = parse(action)
        stage = self.stages[chunk]
        room = None
        if action in self.incoming:
            room, work = self.incoming.pop(action)
            if work:
                work.wait()
        if kind == "F":
            y = stage.forward(number, room, data[number])
            if y.ndim == 0:
                losses.append(y * weights[number])
            else:
                self.outgoing[action] = y
        elif kind == "B":
            if room is None:
                room = torch.tensor(weights[number], device=losses[0].device, dtype=losses[0].dtype)
            self.outgoing[action] = stage.backward(number, room)
        else:
            stage.weight(number)

# %% answer="program" style="one stage at a time as far as it gets, and all transfers numbered"
%%writefile mytrainer/program.py
from collections import deque


def parse(action):
    number, _, chunk = action[1:].partition(".")
    return action[0], int(number), int(chunk or 0)


def spell(kind, number, chunk):
    return f"{kind}{number}.{chunk}" if chunk else f"{kind}{number}"


def consumer(stage, action, stages, chunks=1):
    kind, number, chunk = parse(action)
    part = chunk * stages + stage + {"F": 1, "B": -1}.get(kind, stages * chunks)
    if not 0 <= part < stages * chunks:
        return None
    return part % stages, spell(kind, number, part // stages)


def add_communication(schedule):
    p = len(schedule)
    v = max([parse(a)[2] for row in schedule for a in row] or [0]) + 1
    todo, out = [deque(row) for row in schedule], [[] for _ in schedule]
    needs = {}
    for s, row in enumerate(schedule):
        for a in row:
            kind, k, c = parse(a)
            needs.setdefault((s, a), set())
            if kind == "B":
                needs[s, a].add((s, spell("F", k, c)))
            if kind == "W":
                needs[s, a].add((s, spell("B", k, c)))
            taker = consumer(s, a, p, v)
            if taker:
                needs.setdefault(taker, set()).add((s, a))
    finished, moved = set(), True
    while moved:
        moved = False
        for s in reversed(range(p)):
            while todo[s] and needs[s, todo[s][0]] <= finished:
                a = todo[s].popleft()
                finished.add((s, a))
                out[s].append(a)
                taker = consumer(s, a, p, v)
                if taker:
                    out[s].append(f"send {a} to {taker[0]}")
                    out[taker[0]].append(f"recv {taker[1]} from {s}")
                moved = True
    if any(todo):
        raise ValueError("cannot run")
    return out

# %% answer="program" style="each stage as far as it gets, so that receives come early"
%%writefile mytrainer/program.py
def parse(action):
    number, _, chunk = action[1:].partition(".")
    return action[0], int(number), int(chunk or 0)


def spell(kind, number, chunk):
    return f"{kind}{number}.{chunk}" if chunk else f"{kind}{number}"


def consumer(stage, action, stages, chunks=1):
    kind, number, chunk = parse(action)
    part = chunk * stages + stage + {"F": 1, "B": -1}.get(kind, stages * chunks)
    if not 0 <= part < stages * chunks:
        return None
    return part % stages, spell(kind, number, part // stages)


def add_communication(schedule):
    stages = len(schedule)
    chunks = 1 + max(parse(action)[2] for actions in schedule for action in actions)
    producers = {consumer(stage, action, stages, chunks): (stage, action) for stage, actions in enumerate(schedule) for action in actions}
    programs, at, done = [[] for _ in schedule], [0] * stages, set()

    def can(stage, action):
        kind, number, chunk = parse(action)
        before = {"F": [], "B": [(stage, spell("F", number, chunk))], "W": [(stage, spell("B", number, chunk))]}[kind]
        if (stage, action) in producers:
            before.append(producers[stage, action])
        return all(one in done for one in before)

    progress = True
    while progress:
        progress = False
        for stage, actions in enumerate(schedule):
            while at[stage] < len(actions) and can(stage, actions[at[stage]]):
                action = actions[at[stage]]
                at[stage] += 1
                done.add((stage, action))
                programs[stage].append(action)
                target = consumer(stage, action, stages, chunks)
                if target:
                    programs[stage].append(f"send {action} to {target[0]}")
                    programs[target[0]].append(f"recv {target[1]} from {stage}")
                progress = True
    if any(position < len(actions) for position, actions in zip(at, schedule)):
        raise ValueError("stuck")
    return programs

# %% answer="p2p" style="batch_isend_irecv, and a deque"
%%writefile mytrainer/p2p.py
from collections import deque

import torch.distributed as dist


class Links:
    def __init__(self, groups):
        self.groups = groups
        self.pending = deque()

    def start(self, op, tensor, stage, kind):
        group = self.groups[kind]
        (work,) = dist.batch_isend_irecv([dist.P2POp(op, tensor, dist.get_global_rank(group, stage), group)])
        return work

    def send(self, tensor, stage, kind):
        while self.pending and self.pending[0][1].is_completed():
            self.pending.popleft()
        self.pending.append((tensor, self.start(dist.isend, tensor, stage, kind)))

    def receive(self, tensor, stage, kind):
        return self.start(dist.irecv, tensor, stage, kind)

    def finish(self):
        while self.pending:
            self.pending.popleft()[1].wait()

# %% answer="p2p" style="keeps the work objects only"
%%writefile mytrainer/p2p.py
import torch.distributed as dist


class Links:
    def __init__(self, groups):
        self.groups, self.works = groups, []

    def send(self, tensor, stage, kind):
        for work in list(self.works):
            if work.is_completed():
                self.works.remove(work)
        self.works += [dist.isend(tensor, group=self.groups[kind], group_dst=stage)]

    def receive(self, tensor, stage, kind):
        return dist.irecv(tensor, group=self.groups[kind], group_src=stage)

    def finish(self):
        while self.works:
            self.works.pop(0).wait()

# %% answer="tied" style="copies from the size of the group, and a sum in a clone"
%%writefile mytrainer/tied.py
import torch
import torch.distributed as dist


class TiedEnds:
    def __init__(self, weight, group):
        self.weight, self.group = weight, group
        with torch.no_grad():
            dist.broadcast(weight, src=dist.get_global_rank(group, 0), group=group)
        weight.copies = getattr(weight, "copies", 1) * dist.get_world_size(group)

    def finish(self):
        grad = self.weight.grad
        total = grad.clone()
        dist.all_reduce(total, group=self.group)
        grad.copy_(total)

# %% answer="step-time" style="a simulation of both phases"
def step_time(forward, backward, m):
    def phase(times):
        free = [0] * len(times)
        for _ in range(m):
            now = 0
            for stage, duration in enumerate(times):
                now = free[stage] = max(now, free[stage]) + duration
        return free[-1]

    return phase(forward) + phase(backward[::-1])
