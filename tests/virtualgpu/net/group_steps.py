"""Programs for virtual process groups between real rank processes."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import pairwise

import torch
import torch.distributed as dist

from virtualgpu.core.cards import CARDS
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.net import network
from virtualgpu.net.backend import register
from virtualgpu.net.group import BACKEND
from virtualgpu.net.topology import Topology

V100 = CARDS["v100-sxm2-16gb"]
# The host costs nothing here, so that times are those of kernels and messages.
CARD = replace(V100, efficiency=replace(V100.efficiency, dispatch=0.0))
LATE = (0.0, 3.0, 1.0, 2.0)  # when each rank starts, in virtual seconds


class Case:
    """A fresh card for this rank, and a group of all."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.gpu = VirtualGpu(CARD)
        nodes = ("a", "a", "b", "b")
        register(self.gpu, Topology(nodes, (CARD,) * 4, network.parse("ethernet:10gbit")))
        self.group = dist.new_group(backend=BACKEND)
        self.clock = self.gpu.clock
        self.clock.watcher = []

    def compute(self, seconds: float) -> None:
        self.clock.run("compute", seconds)

    def spans(self) -> list:
        return [(span.name, span.start, span.end) for span in self.clock.watcher]


def meta(size: int) -> torch.Tensor:
    return torch.empty(size, device="meta")


def slowest(case: Case) -> dict:
    """Every rank comes at its own time; a second all-reduce follows at once."""
    case.compute(LATE[case.rank])
    x = meta(10**6)
    dist.all_reduce(x, group=case.group)
    first = case.gpu.now()
    dist.all_reduce(x, group=case.group)
    return {"first": first, "second": case.gpu.now()}


def overlap(case: Case) -> dict:
    """Compute goes on while an all-reduce is under way, and waits for it at the end."""
    case.compute(1.0)
    work = dist.all_reduce(meta(25 * 10**6), group=case.group, async_op=True)
    case.compute(0.01)
    before = case.clock.ready()
    work.wait()
    case.compute(0.5)
    return {"before": before, "after": case.clock.ready(), "spans": case.spans()}


def backlog(case: Case) -> dict:
    """Three all-reduces started at once run one after another, whatever order they are waited
    for."""
    works = [dist.all_reduce(meta(size), group=case.group, async_op=True)
             for size in (10**6, 2 * 10**6, 10**6)]
    works[2].wait()
    last = case.clock.ready()
    works[0].wait()
    works[1].wait()
    return {"ends": [work.end for work in works], "last": last, "ready": case.clock.ready()}


def messages(case: Case) -> dict:
    """Rank 0 sends a large and a small tensor to rank 1 at once, then a late one; real time is
    slow at both ends by turns."""
    x, small, out = meta(10**7), meta(1), {}
    if case.rank == 0:
        works = [dist.isend(tensor, 1, group=case.group) for tensor in (x, small)]
        case.compute(2.0)
        time.sleep(0.2)
        works.append(dist.isend(small, 1, group=case.group))
        for work in works:
            work.wait()
        out["ends"] = [work.end for work in works]
        out["free"] = case.clock.ready()  # sending is not waiting for the receiver
    if case.rank == 1:
        case.compute(0.001)
        works = [dist.irecv(tensor, 0, group=case.group) for tensor in (x, small, small)]
        ready = []
        for work in works:
            work.wait()
            ready.append(case.clock.ready())
        out["ready"] = ready
    return out


def both_ways(case: Case) -> dict:
    """Neighbors send to each other before they receive: no deadlock, and no message waits for
    one the other way."""
    peer = case.rank ^ 1
    case.compute(LATE[case.rank])
    sent = [dist.isend(meta(100), peer, group=case.group) for _ in range(20)]
    got = [dist.irecv(meta(100), peer, group=case.group) for _ in range(20)]
    for work in got + sent:
        work.wait()
    return {"ends": [work.end for work in got], "sent": [work.end for work in sent]}


def forms(case: Case) -> dict:
    """Every kind of collective that the trainer uses, and a barrier."""
    part, whole = meta(1000), meta(4000)
    dist.all_gather_single(whole, part, group=case.group)
    dist.reduce_scatter_single(part, whole, group=case.group)
    dist.broadcast(part, 0, group=case.group)
    dist.barrier(group=case.group)
    case.gpu.now()
    return {"spans": [(name, end - start) for name, start, end in case.spans()]}


def control(case: Case) -> dict:
    """The default group carries values, whatever else there is."""
    values = torch.tensor([case.rank + 1.0])
    dist.all_reduce(values)
    told = [None] * case.ranks
    dist.all_gather_object(told, f"rank {case.rank}")
    return {"sum": values.item(), "told": told, "time": case.gpu.now(),
            "default": dist.get_backend(), "group": dist.get_backend(case.group)}


def soak(case: Case) -> dict:
    """Random work, collectives and messages, the same program on all ranks, at random real
    speeds; and nothing is left in the store."""
    store = dist.distributed_c10d._get_default_store()
    for _ in range(3):
        dist.all_reduce(meta(10), group=case.group)
    draw, keys, times = random.Random(4), [], []
    for step in range(120):
        case.compute(draw.random() * (1 + case.rank))
        if random.random() < 0.05:
            time.sleep(0.01)
        kind = draw.choice(("reduce", "pass", "async"))
        if kind == "reduce":
            dist.all_reduce(meta(draw.randrange(10**6)), group=case.group)
        elif kind == "pass":
            size = draw.randrange(10**6)
            sent = dist.isend(meta(size), (case.rank + 1) % case.ranks, group=case.group)
            dist.irecv(meta(size), (case.rank - 1) % case.ranks, group=case.group).wait()
            sent.wait()
        else:
            work = dist.all_reduce(meta(1000), group=case.group, async_op=True)
            case.compute(draw.random())
            work.wait()
        times.append(case.clock.ready().hex())
        if step in (20, 119):
            dist.barrier()
            keys.append(store.num_keys())
            dist.barrier()
    return {"times": times, "keys": keys,
            "back": any(float.fromhex(later) < float.fromhex(earlier)
                        for earlier, later in pairwise(times))}


def buffers(case: Case) -> dict:
    """Memory that the library takes when a group is first used."""
    taken = [case.gpu.memory.non_pytorch]
    for _ in range(2):
        dist.all_reduce(meta(1), group=case.group)
        taken.append(case.gpu.memory.non_pytorch)
    return {"taken": taken}


def subgroup(case: Case) -> dict:
    """Two of the four meet; the others' clocks do not move."""
    two = dist.new_group([1, 3], backend=BACKEND)
    case.compute(LATE[case.rank])
    if case.rank in (1, 3):
        dist.all_reduce(meta(1), group=two)
        if case.rank == 1:
            dist.send(meta(1), 3, group=two)
        else:
            dist.recv(meta(1), 1, group=two)
    return {"time": case.gpu.now()}


CASES = (slowest, overlap, backlog, messages, both_ways, forms, control, soak, buffers,
         subgroup, soak)


def run() -> list[dict]:
    """Return this rank's results of all CASES, in order."""
    results = []
    for case in CASES:
        results.append(case(Case()))
        dist.barrier()
    return results
