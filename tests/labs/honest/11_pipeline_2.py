# %% answer="one-f-one-b" style="a greedy simulation of one stage"
%%writefile mytrainer/one_f_one_b.py
def one_f_one_b(stages, micro_batches):
    plan = []
    for stage in range(stages):
        actions, f, b = [], 0, 0
        while b < micro_batches:
            if f < micro_batches and f - b < stages - stage:
                actions.append(f"F{f}")
                f += 1
            else:
                actions.append(f"B{b}")
                b += 1
        plan.append(actions)
    return plan

# %% answer="one-f-one-b" style="slices and zip_longest"
%%writefile mytrainer/one_f_one_b.py
from itertools import chain, zip_longest


def one_f_one_b(stages, micro_batches):
    F, B = ([f"{kind}{n}" for n in range(micro_batches)] for kind in "FB")
    return [[*F[:stages - 1 - s], *filter(None, chain.from_iterable(zip_longest(F[stages - 1 - s:], B)))]
            for s in range(stages)]

# %% answer="pipeline-memory" style="a dictionary of live tensors"
%%writefile mytrainer/pipeline_memory.py
def peak_bytes(program, saved, boundary, forward_extra, backward_extra):
    live, peak = {}, 0
    sends = {word.split()[1] for word in program if word.startswith("send")}

    def look(more=0):
        nonlocal peak
        peak = max(peak, sum(live.values()) + more)

    for item in program:
        words = item.split()
        if len(words) > 1:
            if words[0] == "recv":
                live["in", words[1]] = boundary
            elif words[1][0] == "B":
                del live["out", words[1]]
            look()
            continue
        action, (number, _, chunk) = item, item[1:].partition(".")
        chunk = int(chunk or "0")
        if action in sends:
            live["out", action] = boundary
        if action[0] == "F":
            live["saved", action] = saved[chunk]
            look(forward_extra[chunk])
        else:
            look(backward_extra[chunk])
            forward = "F" + action[1:]
            for key in (("saved", forward), ("in", forward), ("out", forward), ("in", action)):
                live.pop(key, None)
    return peak

# %% answer="split" style="bisection over the answer, and then as many parts as fit"
%%writefile mytrainer/split.py
def best_split(times, state, activations, capacity, micro_batches):
    stages, n = len(capacity), len(times)
    if n < stages:
        raise ValueError("fewer parts than stages")
    candidates = sorted({sum(times[a:b]) for a in range(n) for b in range(a + 1, n + 1)})

    def pack(limit):
        split, begin = [], 0
        for stage, room in enumerate(capacity):
            flying, count, left = min(stages - stage, micro_batches), 0, stages - stage - 1
            while begin + count < n - left:
                end = begin + count + 1
                if sum(times[begin:end]) > limit:
                    break
                if sum(state[begin:end]) + flying * sum(activations[begin:end]) > room:
                    break
                count += 1
            if not count:
                return None
            split.append(count)
            begin += count
        return split if begin == n else None

    low, high, best = 0, len(candidates) - 1, None
    while low <= high:
        middle = (low + high) // 2
        found = pack(candidates[middle])
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle - 1
    if best is None:
        raise ValueError("too little memory")
    return best

# %% answer="split" style="recursion with a cache"
%%writefile mytrainer/split.py
from functools import cache
from math import inf


def best_split(times, state, activations, capacity, micro_batches):
    stages = len(capacity)

    @cache
    def best(begin, stage):
        if stage == stages:
            return (0, ()) if begin == len(times) else (inf, ())
        found, time, memory = (inf, ()), 0, 0
        for end in range(begin + 1, len(times) - (stages - stage - 1) + 1):
            time += times[end - 1]
            memory += state[end - 1] + min(stages - stage, micro_batches) * activations[end - 1]
            if memory > capacity[stage]:
                break
            rest, split = best(end, stage + 1)
            found = min(found, (max(time, rest), (end - begin, *split)))
        return found

    slowest, split = best(0, 0)
    if slowest == inf:
        raise ValueError("no split")
    return split

# %% answer="split" style="dynamic programming from the end, and an array as the result"
%%writefile mytrainer/split.py
import numpy as np


def best_split(times, state, activations, capacity, micro_batches):
    n, p = len(times), len(capacity)
    t, s, a = (np.concatenate([[0], np.cumsum(x)]) for x in (times, state, activations))
    slowest, first = np.full((p + 1, n + 1), np.inf), np.zeros((p, n + 1), dtype=int)
    slowest[p, n] = 0
    for k in reversed(range(p)):
        for i in range(n):
            ends = np.arange(i + 1, n + 1)
            fits = s[ends] - s[i] + min(p - k, micro_batches) * (a[ends] - a[i]) <= capacity[k]
            cost = np.where(fits, np.maximum(t[ends] - t[i], slowest[k + 1, ends]), np.inf)
            slowest[k, i], first[k, i] = cost.min(), cost.argmin() + 1
    if slowest[0, 0] == np.inf:
        raise ValueError("nothing fits")
    split, i = np.zeros(p, dtype=int), 0
    for k in range(p):
        split[k] = first[k, i]
        i += split[k]
    return split

# %% answer="interleaved" style="an order of all passes, as pairs"
%%writefile mytrainer/interleaved.py
def interleaved(stages, micro_batches, chunks):
    group = stages * chunks

    def word(kind, step):
        block, inside = divmod(step, group)
        chunk, offset = divmod(inside, stages)
        return f"{kind}{block * stages + offset}.{chunk if kind == 'F' else chunks - 1 - chunk}"

    total, plan = micro_batches * chunks, []
    for stage in range(stages):
        warm = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)
        words = [word("F", step) for step in range(warm)]
        for step in range(total):
            if warm + step < total:
                words.append(word("F", warm + step))
            words.append(word("B", step))
        plan.append(words)
    return plan

# %% answer="interleaved" style="as few passes ahead as an ideal network allows"
%%writefile mytrainer/interleaved.py
def interleaved(stages, micro_batches, chunks):
    turns = [(first + k, c) for first in range(0, micro_batches, stages) for c in range(chunks) for k in range(stages)]
    plan = []
    for stage in range(stages):
        ahead, actions = stages * chunks - stage - 1, []
        for step in range(len(turns) + ahead):
            if step < len(turns):
                k, c = turns[step]
                actions.append(f"F{k}.{c}" if c else f"F{k}")
            if step >= ahead:
                k, c = turns[step - ahead]
                c = chunks - 1 - c
                actions.append(f"B{k}.{c}" if c else f"B{k}")
        plan.append(actions)
    return plan

# %% answer="break-even" style="the longest path, and the secant method with bisection"
%%writefile mytrainer/break_even.py
from functools import cache


def step_time(schedule, forward, backward, link):
    stages = len(schedule)
    place = {}
    for stage, actions in enumerate(schedule):
        for position, action in enumerate(actions):
            number, _, chunk = action[1:].partition(".")
            place[action[0], int(number), int(chunk or 0) * stages + stage] = stage, position
    names = {where: what for what, where in place.items()}
    parts = 1 + max(part for _, _, part in place)
    chunks = parts // stages
    ends = {}

    def ready(what):
        kind, number, part = what
        stage, position = place[what]
        before = [] if position == 0 else [(names[stage, position - 1], 0)]
        source = part - 1 if kind == "F" else part + 1
        if 0 <= source < parts:
            before.append(((kind, number, source), link if stages > 1 else 0))
        return before

    waiting = list(place)
    while waiting:
        later = []
        for what in waiting:
            before = ready(what)
            if all(one in ends for one, _ in before):
                length = (forward if what[0] == "F" else backward) / chunks
                ends[what] = length + max((ends[one] + more for one, more in before), default=0)
            else:
                later.append(what)
        waiting = later
    return max(ends.values())


def break_even(plain, chunked, forward, backward):
    def gap(x):
        return step_time(chunked, forward, backward, x) - step_time(plain, forward, backward, x)

    a, b = 0, 1e-3 * (forward + backward)
    while gap(b) < 0:
        a, b = b, 1.5 * b
    for _ in range(40):
        c = 0.5 * (a + b)
        if gap(c) >= 0:
            b = c
        else:
            a = c
    return b

# %% answer="grid" style="an array of ranks"
%%writefile mytrainer/grid.py
import torch
import torch.distributed as dist


class Grid:
    def __init__(self, tensor, pipeline):
        world = dist.get_world_size()
        if world % (tensor * pipeline) != 0:
            raise ValueError(f"{world} ranks, {tensor} x {pipeline}")
        ranks = torch.arange(world).view(pipeline, -1, tensor)  # [stage, replica, tensor]
        me = dist.get_rank()
        self.stages = pipeline
        self.stage, self.replica, _ = (int(x) for x in (ranks == me).nonzero()[0])

        def pick(rows):
            mine = None
            for row in rows.tolist():
                group = dist.new_group(ranks=row)
                mine = group if me in row else mine
            return mine

        self.tensor = pick(ranks.reshape(-1, tensor))
        self.data = pick(ranks.transpose(1, 2).reshape(-1, ranks.shape[1]))
        self.model = pick(ranks.transpose(0, 1).reshape(ranks.shape[1], -1))
        lines = ranks.flatten(1).T
        self.links = {}
        for kind in ("F", "B"):
            self.links[kind] = pick(lines)
        self.ends = pick(lines[:, [0, -1]]) if pipeline > 1 else None

# %% answer="grid" style="only the groups of this rank, synchronized locally"
%%writefile mytrainer/grid.py
import torch.distributed as dist


class Grid:
    def __init__(self, tensor, pipeline):
        rank, world = dist.get_rank(), dist.get_world_size()
        width = world // pipeline
        if pipeline * width != world or width % tensor:
            raise ValueError(f"{world} ranks are no grid of {tensor} x {pipeline}")
        self.stages, (self.stage, place) = pipeline, divmod(rank, width)
        self.replica, first = divmod(place, tensor)
        stage = range(self.stage * width, (self.stage + 1) * width)
        line = [place + width * k for k in range(pipeline)]
        copy = [self.replica * tensor + i + width * k for k in range(pipeline) for i in range(tensor)]

        def group(ranks):
            return dist.new_group(list(ranks), use_local_synchronization=True)

        self.tensor = group(stage[self.replica * tensor:(self.replica + 1) * tensor])
        self.data = group(stage[first::tensor])
        self.model = group(copy)
        self.links = {kind: group(line) for kind in "FB"}
        self.ends = group([line[0], line[-1]]) if pipeline > 1 and rank in (line[0], line[-1]) else None

# %% answer="grid" style="sets of ranks, in one loop"
%%writefile mytrainer/grid.py
import torch.distributed as dist


class Grid:
    def __init__(self, tensor, pipeline):
        world, rank = dist.get_world_size(), dist.get_rank()
        data, rest = divmod(world, tensor * pipeline)
        if rest:
            raise ValueError("the ranks do not form a grid")
        axes = [(r % tensor, r // tensor % data, r // tensor // data) for r in range(world)]
        self.stage, self.stages, self.replica = axes[rank][2], pipeline, axes[rank][1]
        self.ends, self.links = None, {}
        keys = {"tensor": (1, 2), "data": (0, 2), "model": (1,), "F": (0, 1), "B": (0, 1), "ends": (0, 1)}
        for name, same in keys.items():
            families = {}
            for r in range(world):
                if name != "ends" or (pipeline > 1 and axes[r][2] in (0, pipeline - 1)):
                    families.setdefault(tuple(axes[r][a] for a in same), []).append(r)
            for family in families.values():
                group = dist.new_group(family)
                if rank in family:
                    if name in ("F", "B"):
                        self.links[name] = group
                    else:
                        setattr(self, name, group)
