"""Programs whose ranks do not fit together; each returns the error that it got."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net.backend import check_complete

from .programs import become


def error_of(program, *arguments):
    become()
    dist.init_process_group("nccl")
    try:
        program(*arguments)
        check_complete()
    except (VirtualGpuError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def big():
    return torch.empty(10, device="cuda")


def other_collective():
    if dist.get_rank() == 1:
        dist.broadcast(big(), 0)
    else:
        dist.all_reduce(big())


def other_size():
    dist.all_reduce(torch.empty(10 + dist.get_rank(), device="cuda"))


def other_op():
    dist.all_reduce(big(), dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)


def other_message():
    if dist.get_rank() == 0:
        dist.send(big(), 1)
    else:
        dist.recv(torch.empty(7, device="cuda"), 0)


def other_splits():
    rank = dist.get_rank()
    dist.all_to_all_single(big(), big(), [5, 5], [4, 6] if rank else [5, 5])


def on_the_cpu():
    """NCCL takes tensors on the GPU only, whatever the operation; objects travel nevertheless."""
    rank, x, halves = dist.get_rank(), torch.ones(4), list(torch.ones(4).chunk(2))
    calls = {
        "all_reduce": lambda: dist.all_reduce(x), "reduce": lambda: dist.reduce(x, 0),
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_gather": lambda: dist.all_gather(halves, halves[rank]),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(x, halves[rank]),
        "reduce_scatter": lambda: dist.reduce_scatter(halves[rank], halves),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(halves[rank], x),
        "gather": lambda: dist.gather(halves[rank], None if rank else halves),
        "scatter": lambda: dist.scatter(halves[rank], None if rank else halves),
        "all_to_all": lambda: dist.all_to_all(halves, list(halves)),
        "all_to_all_single": lambda: dist.all_to_all_single(x, x),
        "send": lambda: dist.send(x, 1 - rank), "recv": lambda: dist.recv(x, 1 - rank),
        "isend": lambda: dist.isend(x, 1 - rank), "irecv": lambda: dist.irecv(x, 1 - rank)}
    errors = {name: refusal(call) for name, call in calls.items()}
    objects = [None, None]
    dist.all_gather_object(objects, rank)
    dist.all_reduce(big())
    assert objects == [0, 1]
    raise RuntimeError(f"{set(errors.values())} of {len(errors)} operations")


def refusal(call):
    """The error of one operation, or that there was none."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "no error"


def both_receive():
    dist.recv(big(), 1 - dist.get_rank())


def crossed_groups():
    one, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    dist.all_reduce(big(), group=other if dist.get_rank() else one)


def left_alone():
    if dist.get_rank() == 0:
        dist.all_reduce(big())
    # Rank 1 has nothing more to do.


def tried(mistake):
    """The error of one mistake; mistakes do not share a store."""
    return error_of(globals()[mistake])


def solo(program):
    """The error of rank 0 that stands for 4 ranks."""
    os.environ.update(RANK="0", WORLD_SIZE="4", LOCAL_RANK="0")
    become(present=[0], world=4)
    dist.init_process_group("nccl")
    try:
        globals()[program]()
        check_complete()
    except VirtualGpuError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def sends_to_the_next_stage():
    dist.send(big(), 1)


def receives_first():
    dist.recv(big(), 1)


def uneven_gather():
    dist.all_gather([torch.empty(n, device="cuda") for n in (1, 2, 3, 4)],
                    torch.empty(1, device="cuda"))


def uneven_exchange():
    dist.all_to_all_single(big(), big(), [4, 2, 2, 2], [1, 2, 3, 4])


def ring():
    """Symmetric: each sends to the next and receives from the one before."""
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, big(), 1),
                                        dist.P2POp(dist.irecv, big(), 3)]):
        work.wait()
    dist.all_to_all_single(big(), big(), [4, 3, 2, 1], [4, 1, 2, 3])
