# %% answer="shards" style="tuples, clamped ends, and one split of the buffer"
%%writefile mytrainer/shards.py
from itertools import accumulate
from math import prod


class ShardLayout:
    def __init__(self, shapes, ranks):
        self.shapes = tuple(tuple(shape) for shape in shapes)
        self.sizes = tuple(map(prod, self.shapes))
        *self.starts, total = accumulate(self.sizes, initial=0)
        self.shard_size = -(-total // ranks)
        self.size = ranks * self.shard_size
        self.padding = self.size - total

    def owned(self, rank):
        return slice(rank * self.shard_size, rank * self.shard_size + self.shard_size)

    def views(self, buffer):
        pieces = buffer.split([*self.sizes, self.padding])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes)]

    def parts(self, rank):
        def local(position):
            return sorted((0, position - rank * self.shard_size, self.shard_size))[1]

        return [slice(local(start), local(start + size)) for start, size in zip(self.starts, self.sizes)]

# %% answer="shards" style="cumulative sums of a tensor, as_strided, and slices without a start"
%%writefile mytrainer/shards.py
import torch


class ShardLayout:
    def __init__(self, shapes, ranks):
        self.shapes = [torch.Size(shape) for shape in shapes]
        ends = torch.tensor([0, *(shape.numel() for shape in self.shapes)]).cumsum(0).tolist()
        self.starts, self.stops = tuple(ends[:-1]), tuple(ends[1:])
        self.shard_size, rest = divmod(ends[-1], ranks)
        if rest:
            self.shard_size += 1
        self.size = self.shard_size * ranks

    def owned(self, rank):
        return slice(self.shard_size * rank, self.shard_size * (rank + 1))

    def views(self, buffer):
        found = []
        for shape, start in zip(self.shapes, self.starts):
            strides, step = [], buffer.stride(0)
            for width in reversed(shape):
                strides.insert(0, step)
                step *= width
            found.append(buffer.as_strided(shape, strides, buffer.storage_offset() + start * buffer.stride(0)))
        return tuple(found)

    def parts(self, rank):
        found, mine = [], self.owned(rank)
        for start, stop in zip(self.starts, self.stops):
            first, last = max(start, mine.start), min(stop, mine.stop)
            found.append(slice(first - mine.start, last - mine.start) if first < last else slice(0))
        return found

# %% answer="zero" style="a closure for each reduction, and torch.cat"
%%writefile mytrainer/zero.py
import contextlib

import torch
import torch.distributed as dist
from mytrainer.shards import ShardLayout


class Unit:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.layout = ShardLayout([one.shape for one in self.parameters], ranks)
        first = self.parameters[0]
        self.buffer = torch.zeros(self.layout.size, dtype=first.dtype, device=first.device)
        for one, view in zip(self.parameters, self.layout.views(self.buffer)):
            view.copy_(one.detach())
            one.data = view
            one.grad_dtype = torch.float32
        dist.broadcast(self.buffer, src=0)
        self.shard = self.buffer[self.layout.owned(rank)]
        self.pieces = []
        for part in self.layout.parts(rank):
            piece = torch.nn.Parameter(self.shard[part])
            piece.grad_dtype = torch.float32
            self.pieces.append(piece)

    def start_reduce(self):
        gradients = [one.grad.float().flatten() for one in self.parameters]
        padding = self.layout.size - sum(map(torch.numel, gradients))
        whole = torch.cat([*gradients, torch.zeros(padding, device=self.buffer.device)])
        del gradients
        for one in self.parameters:
            one.grad = None
        mine = torch.empty(self.layout.shard_size, device=self.buffer.device)
        work = dist.reduce_scatter_single(mine, whole, async_op=True)

        def wait(keep=whole):
            work.wait()
            return mine / dist.get_world_size()

        return wait

    def finish_reduce(self, started):
        mean = started()
        for piece, part in zip(self.pieces, self.layout.parts(dist.get_rank())):
            piece.grad = mean[part] if piece.grad is None else piece.grad + mean[part]

    def gather(self):
        dist.all_gather_single(self.buffer, self.shard)


class Zero1(torch.nn.Module):
    def __init__(self, module, blocks=()):
        super().__init__()
        self.module = module
        left = {id(one): one for one in module.parameters()}
        groups = [[left.pop(id(one)) for one in block.parameters() if id(one) in left] for block in blocks]
        groups.append(list(left.values()))
        self.units = [Unit(group) for group in groups if group]
        self.updated = False

    def parameters(self, recurse=True):
        piece_of = {id(one): piece for unit in self.units for one, piece in zip(unit.parameters, unit.pieces)}
        return (piece_of[id(one)] for one in self.module.parameters())

    def forward(self, *inputs, **keywords):
        if self.updated:
            for unit in self.units:
                unit.gather()
            self.updated = False
        return self.module(*inputs, **keywords)

    def no_sync(self):
        return contextlib.nullcontext()

    def finish(self):
        for unit in self.units:
            unit.finish_reduce(unit.start_reduce())
        self.updated = True

# %% answer="zero" style="vectors of torch.nn.utils, and a division before the sum"
%%writefile mytrainer/zero.py
import contextlib
from collections import ChainMap

import torch
import torch.distributed as dist
from mytrainer.shards import ShardLayout
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Unit:
    def __init__(self, parameters):
        self.parameters = tuple(parameters)
        self.layout = ShardLayout([tuple(one.shape) for one in self.parameters], dist.get_world_size())
        with torch.no_grad():
            vector = parameters_to_vector(self.parameters)
            self.buffer = torch.nn.functional.pad(vector, (0, self.layout.size - len(vector)))
        del vector
        vector_to_parameters(self.buffer, self.parameters)
        dist.broadcast(self.buffer, 0)
        self.shard = self.buffer.chunk(dist.get_world_size())[dist.get_rank()] if self.layout.size else self.buffer
        self.parts = self.layout.parts(dist.get_rank())
        self.pieces = tuple(torch.nn.Parameter(self.shard[part]) for part in self.parts)
        for one in self.parameters + self.pieces:
            one.grad_dtype = torch.float32

    def start_reduce(self):
        flat = self.buffer.new_zeros(self.layout.size, dtype=torch.float32)
        for one, view in zip(self.parameters, self.layout.views(flat)):
            gradient, one.grad = one.grad, None
            view.copy_(gradient)
        flat /= dist.get_world_size()
        own = flat.new_empty(self.layout.shard_size)
        return dist.reduce_scatter_single(own, flat, async_op=True), own, flat

    def finish_reduce(self, started):
        started[0].wait()
        for piece, part in zip(self.pieces, self.parts):
            if piece.grad is None:
                piece.grad = torch.zeros(piece.shape, device=piece.device)
            piece.grad.add_(started[1][part])

    def gather(self):
        dist.all_gather_single(self.buffer, self.shard.clone())


class Zero1(torch.nn.Module):
    def __init__(self, module, blocks=()):
        super().__init__()
        self.module, self.units, taken = module, [], set()
        for part in [*blocks, module]:
            own = [one for one in part.parameters() if one not in taken]
            taken.update(own)
            if own:
                self.units.append(Unit(own))
        self.todo = []

    def parameters(self, recurse=True):
        pieces = ChainMap(*(dict(zip(unit.parameters, unit.pieces)) for unit in self.units))
        yield from map(pieces.__getitem__, self.module.parameters())

    def forward(self, *inputs, **keywords):
        while self.todo:
            self.todo.pop().gather()
        return self.module(*inputs, **keywords)

    @contextlib.contextmanager
    def no_sync(self):
        yield

    def finish(self):
        for unit in self.units:
            unit.finish_reduce(unit.start_reduce())
        self.todo = self.units[::-1]

# %% answer="clipping" style="the two halves of PyTorch's own function"
%%writefile mytrainer/clipping.py
import torch
import torch.distributed as dist
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def clip_grad_norm(parameters, max_norm):
    parameters = list(parameters)
    gradients = [one.grad for one in parameters if one.grad is not None]
    square = get_total_norm(gradients).to(parameters[0].device).square()
    dist.all_reduce(square)
    norm = square.sqrt()
    clip_grads_with_norm_(parameters, max_norm, norm)
    return norm

# %% answer="clipping" style="gathered norms, and a minimum of two tensors"
%%writefile mytrainer/clipping.py
import torch
import torch.distributed as dist


def clip_grad_norm(parameters, max_norm):
    parameters = [*parameters]
    own = torch.zeros(1, device=parameters[0].device)
    for one in parameters:
        if one.grad is not None:
            own = torch.hypot(own, torch.linalg.vector_norm(one.grad))
    norms = own.new_empty(dist.get_world_size())
    dist.all_gather_single(norms, own)
    norm = norms.norm()
    factor = torch.minimum(torch.ones_like(norm), max_norm / (norm + 1e-6))
    for one in parameters:
        if one.grad is not None:
            one.grad *= factor
    return norm

# %% answer="zero2" style="sets of missing gradients, and a list with the reduction in flight"
%%writefile mytrainer/zero2.py
from functools import partial

from mytrainer.zero import Zero1


class Zero2(Zero1):
    def __init__(self, module, blocks=()):
        super().__init__(module, blocks)
        self.flying = []
        for unit in self.units:
            missing = set()
            for one in unit.parameters:
                one.register_post_accumulate_grad_hook(partial(self.arrived, unit, missing))

    def arrived(self, unit, missing, parameter):
        if not missing:  # the first gradient of this unit
            missing.update(map(id, unit.parameters))
        missing.discard(id(parameter))
        if not missing:
            self.land()
            self.flying.append((unit, unit.start_reduce()))
            self.reduced(unit)

    def reduced(self, unit):
        """The gradients of a unit are complete, and nothing needs its parameters any more."""

    def land(self):
        while self.flying:
            unit, started = self.flying.pop()
            unit.finish_reduce(started)

    def finish(self):
        self.land()
        self.updated = True

# %% answer="zero2" style="a generator for each unit, which counts its gradients"
%%writefile mytrainer/zero2.py
from functools import partial

from mytrainer.zero import Zero1


class Zero2(Zero1):
    def __init__(self, module, blocks=()):
        super().__init__(module, blocks)
        self.wait = lambda: None

        def counter(unit):
            while True:
                for _ in unit.parameters:
                    yield
                self.wait()
                self.wait = partial(unit.finish_reduce, unit.start_reduce())

        for unit in self.units:
            events = counter(unit)
            next(events)
            for one in unit.parameters:
                one.register_post_accumulate_grad_hook(lambda _, events=events: next(events))
        self.changed = False

    def forward(self, *inputs, **keywords):
        if self.changed:
            [unit.gather() for unit in self.units]
        self.changed = False
        return self.module(*inputs, **keywords)

    def finish(self):
        self.wait()
        self.wait = lambda: None
        self.changed = True

# %% answer="zero3" style="a dictionary of the blocks in memory, with their all-gathers"
%%writefile mytrainer/zero3.py
from functools import partial

import torch
import torch.distributed as dist

from mytrainer.zero2 import Zero2


class Zero3(Zero2):
    def __init__(self, module, blocks):
        super().__init__(module, blocks)
        self.held, self.within, self.blocks = {}, False, len(blocks)
        self.others = self.units[len(blocks):]
        for unit in self.units:
            unit.shard = unit.shard.clone()
            for piece, part in zip(unit.pieces, unit.layout.parts(dist.get_rank())):
                piece.data = unit.shard[part]
            unit.buffer.untyped_storage().resize_(0)
        for number, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda _, __, number=number: self.need(number))
            block.register_forward_hook(partial(self.after, number))

    def start(self, number):
        """Start to gather a unit that is not in memory."""
        if number not in self.held:
            unit = self.units[number]
            unit.buffer.untyped_storage().resize_(unit.buffer.numel() * unit.buffer.element_size())
            self.held[number] = dist.all_gather_single(unit.buffer, unit.shard, async_op=True)

    def complete(self, number):
        if self.held[number] is not None:
            self.held[number].wait()
            self.held[number] = None

    def drop(self, number):
        if number in self.held:
            self.complete(number)
            del self.held[number]
            self.units[number].buffer.untyped_storage().resize_(0)

    def ahead(self, number):
        """Return the blocks to gather while a block runs."""
        return []

    def need(self, number):
        """A block runs now, forward or backward."""
        ahead = self.ahead(number)
        for other in set(self.held) - {number, *ahead, *range(self.blocks, len(self.units))}:
            self.drop(other)
        self.start(number)
        self.complete(number)
        for other in ahead:
            self.start(other)

    def after(self, number, block, inputs, output):
        last = number == self.blocks - 1 and output.requires_grad
        if self.within and not last:  # otherwise it is recomputed, and its backward pass is next
            self.drop(number)
        if output.requires_grad:
            output.register_hook(lambda gradient: self.need(number))

    def reduced(self, unit):
        self.drop(self.units.index(unit))

    def forward(self, *inputs, **keywords):
        for number in range(self.blocks, len(self.units)):
            self.start(number)
            self.complete(number)
        self.within = True
        try:
            return self.module(*inputs, **keywords)
        finally:
            self.within = False
            if not torch.is_grad_enabled():
                for number in list(self.held):
                    self.drop(number)

    def finish(self):
        super().finish()
        for number in list(self.held):
            self.drop(number)

# %% answer="zero3" style="states on the units, and full backward pre-hooks"
%%writefile mytrainer/zero3.py
import torch
import torch.distributed as dist

from mytrainer.zero2 import Zero2


class Parameters:
    """The parameters of a unit, which are in memory between load() and free()."""

    def __init__(self, unit):
        self.unit, self.storage = unit, unit.buffer.untyped_storage()
        self.bytes, unit.shard = self.storage.nbytes(), unit.shard.clone()
        for piece, part in zip(unit.pieces, unit.layout.parts(dist.get_rank())):
            piece.data = unit.shard[part]
        unit.free, unit.load = self.free, self.load
        self.free()

    def free(self, *_):
        self.storage.resize_(0)

    def load(self, *_):
        if self.storage.nbytes() < self.bytes:
            self.storage.resize_(self.bytes)
            dist.all_gather_single(self.unit.buffer, self.unit.shard)


class Zero3(Zero2):
    def __init__(self, module, blocks):
        super().__init__(module, blocks)
        self.running = None
        for unit in self.units:
            Parameters(unit)
            reduce = unit.start_reduce
            unit.start_reduce = lambda unit=unit, reduce=reduce: (reduce(), unit.free())[0]
        for block, unit in zip(blocks, self.units):
            block.register_forward_pre_hook(unit.load)
            block.register_full_backward_pre_hook(unit.load)
            block.register_forward_hook(lambda *_, unit=unit: unit.free() if self.running else None)
        self.outside = self.units[len(blocks):]

    def forward(self, *inputs, **keywords):
        for unit in self.outside:
            unit.load()
        self.running = True
        result = self.module(*inputs, **keywords)
        self.running = False
        if not torch.is_grad_enabled():
            for unit in self.outside:
                unit.free()
        return result

    def finish(self):
        super().finish()
        for unit in self.units:
            unit.free()

# %% answer="prefetch" style="one method that says what comes next"
%%writefile mytrainer/prefetch.py
from mytrainer.zero3 import Zero3


class Prefetching(Zero3):
    def ahead(self, number):
        after = number + 1 if self.within else number - 1
        return [after] if 0 <= after < self.blocks else []

    def forward(self, *inputs, **keywords):
        self.start(0)
        return super().forward(*inputs, **keywords)

# %% answer="reshard" style="an index of old places, and divmod"
%%writefile mytrainer/reshard.py
import torch


def reshard(read, old, new, rank):
    home = {name: (number, start, layout.shard_size)
            for number, (names, layout) in enumerate(old) for name, start in zip(names, layout.starts)}

    def fill(shard, name, at, stop, element):
        """Read elements of a tensor, from one on, into elements [at, stop) of a shard."""
        unit, begin, size = home[name]
        while at < stop:
            owner, offset = divmod(begin + element, size)
            count = min(stop - at, size - offset)
            shard[at:at + count] = read(owner, unit, offset, offset + count)
            at, element = at + count, element + count

    shards = []
    for names, layout in new:
        shard = torch.zeros(layout.shard_size)
        for name, start, part in zip(names, layout.starts, layout.parts(rank)):
            if part.start != part.stop:
                fill(shard, name, part.start, part.stop, layout.owned(rank).start + part.start - start)
        shards.append(shard)
    return shards

# %% answer="reshard" style="segments of all old ranks that overlap with the new part, and torch.cat"
%%writefile mytrainer/reshard.py
import torch


def segments(names, layout, ranks):
    """Yield (name, rank, first element of the tensor, start in the shard, stop)."""
    for rank in ranks:
        for name, begin, part in zip(names, layout.starts, layout.parts(rank)):
            start, stop, _ = part.indices(layout.shard_size)
            if start < stop:
                yield name, rank, rank * layout.shard_size + start - begin, start, stop


def reshard(read, old, new, rank):
    table = {}
    for unit, (names, layout) in enumerate(old):
        if layout.size:
            for name, owner, *place in segments(names, layout, range(layout.size // layout.shard_size)):
                table.setdefault(name, []).append((unit, owner, *place))
    shards = []
    for names, layout in new:
        found, filled = [torch.zeros(0)], 0
        for name, _, first, start, stop in sorted(segments(names, layout, [rank]), key=lambda one: one[3]):
            last = first + stop - start
            for unit, owner, element, begin, end in sorted(table[name], key=lambda one: one[2]):
                low, high = max(first, element), min(last, element + end - begin)
                if low < high:
                    found.append(read(owner, unit, begin + low - element, begin + high - element))
            filled = stop
        shards.append(torch.cat([*found, torch.zeros(layout.shard_size - filled)]))
    return shards

# %% answer="choose" style="a table of bytes, times, and names"
def choose_strategy(ranks, gpu, network, model):
    blocks, others, rounds = model["blocks"], model["others"], model["micro_batches"]
    total = sum(blocks) + others
    block = max(blocks, default=0)
    unit = max(block, others)
    forward = 2 * total * model["tokens"] / gpu["flops"]
    backward = 2 * forward

    def send(count):
        collectives = {2: 1, 4: 1, 6: 2, 8: 2}[count] * (len(blocks) + 1)  # 2 and 4 bytes are one, and DDP's 8 two
        return count * total / network["bandwidth"] + collectives * network["latency"]

    table = {
        "DDP": (22 * total, rounds * forward + (rounds - 1) * backward + max(backward, send(8))),
        "ZeRO-1": (6 * total + 12 * total / ranks, rounds * (forward + backward) + send(6)),
        "ZeRO-2": (2 * total + 16 * total / ranks + 8 * unit, rounds * (forward + max(backward, send(4))) + send(2)),
        "ZeRO-3": (18 * total / ranks + 6 * others + 4 * block + 8 * block,
                   rounds * (max(forward, send(2)) + max(backward, send(6)))),
    }
    fitting = {name: time for name, (held, time) in table.items() if held + model["activations"] <= gpu["memory"]}
    return min(fitting, key=fitting.get, default=None)

# %% answer="prefetch" style="more hooks around those of the base class"
%%writefile mytrainer/prefetch.py
import torch.distributed as dist
from mytrainer.zero3 import Zero3


class Prefetching(Zero3):
    def __init__(self, module, blocks):
        super().__init__(module, blocks)
        self.pending, units = {}, self.units[:len(blocks)]

        def start(number):
            if 0 <= number < len(units) and units[number].buffer.untyped_storage().size() == 0:
                unit = units[number]
                unit.buffer.untyped_storage().resize_(unit.layout.size * unit.buffer.itemsize)
                self.pending[number] = dist.all_gather_single(unit.buffer, unit.shard, async_op=True)

        def wait(number):
            if number in self.pending:
                self.pending.pop(number).wait()

        for number, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_, at=number: wait(at), prepend=True)
            block.register_full_backward_pre_hook(lambda *_, at=number: wait(at), prepend=True)
            block.register_forward_pre_hook(lambda *_, at=number: start(at + 1 if self.running else at - 1))
            block.register_full_backward_pre_hook(lambda *_, at=number: start(at - 1))

# %% answer="choose" style="a running best, and one if for each strategy"
def choose_strategy(ranks, gpu, network, model):
    count, largest = model["others"] + sum(model["blocks"]), max([model["others"], *model["blocks"]])
    room = gpu["memory"] - model["activations"]
    passes = [flops * count * model["tokens"] / gpu["flops"] for flops in (2, 4)]
    wait = network["latency"] + network["latency"] * len(model["blocks"])
    gather, reduce = wait + 2 * count / network["bandwidth"], wait + 4 * count / network["bandwidth"]  # in 16 bits, in fp32
    steps, best = model["micro_batches"], (float("inf"), None)
    if room >= 18 * count:
        best = min(best, (steps * sum(passes) + max(0, 2 * reduce - passes[1]), "DDP"))
    if room >= (6 + 12 / ranks) * count:
        best = min(best, (steps * sum(passes) + reduce + gather, "ZeRO-1"))
    if room >= (2 + 16 / ranks) * count + 8 * largest:
        best = min(best, (steps * (passes[0] + max(passes[1], reduce)) + gather, "ZeRO-2"))
    if room >= 18 / ranks * count + 6 * model["others"] + 12 * max(model["blocks"]):
        best = min(best, (steps * (max(passes[0], gather) + max(passes[1], gather + reduce)), "ZeRO-3"))
    return best[1]
