"""Functions that the tests run on ranks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import warnings
import weakref

import torch
import torch.distributed as dist


def all_reduced(x: float) -> tuple[int, int, float]:
    values = torch.tensor([x * (dist.get_rank() + 1)])
    dist.all_reduce(values)
    return dist.get_rank(), dist.get_world_size(), values.item()


def joins_again(*arguments: str, **keywords: int) -> tuple[int, int, float]:
    """Leave the process group, join with other arguments, and all-reduce."""
    dist.destroy_process_group()
    dist.init_process_group(*arguments, **keywords)
    return all_reduced(1.0)


def raises(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError(f"no rank {rank}")
    dist.barrier()


def ends(rank: int, code: int) -> None:
    if dist.get_rank() == rank:
        os._exit(code)
    dist.barrier()


def deadlocks() -> str:
    """Ranks 0 and 1 wait for each other; rank 2 is done."""
    if dist.get_rank() < 2:
        dist.recv(torch.empty(1), 1 - dist.get_rank())
    return "done"


def changes_everything() -> None:
    """Leave traces that the next run must not find."""
    os.environ["LEFT_BEHIND"] = "1"
    os.chdir("/")
    random.seed(1)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    sys.path.append("/left/behind")
    os.umask(0o777)


def surroundings() -> dict:
    umask = os.umask(0)
    return {"env": os.environ.get("LEFT_BEHIND"), "mine": os.environ.get("OF_ONE_RUN"),
            "cwd": os.getcwd(), "seed": torch.initial_seed(), "draw": random.random(),
            "dtype": str(torch.tensor(1.0).dtype), "path": "/left/behind" in sys.path,
            "umask": umask, "threads": torch.get_num_threads(),
            "rank": os.environ["RANK"], "world": os.environ["WORLD_SIZE"]}


def speaks() -> None:
    print(f"out {dist.get_rank()}")
    print(f"err {dist.get_rank()}", file=sys.stderr)
    subprocess.run(["echo", f"program {dist.get_rank()}"], check=True)


def meets_by_itself() -> int:
    """Call it as a student's program does."""
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    dist.barrier()
    return dist.get_world_size()


def large() -> torch.Tensor:
    return torch.full((1 << 21,), float(dist.get_rank()))


def unsendable() -> object:
    return (one for one in range(3))


def echo(code: object = None) -> None:
    """A program: repeats its arguments and its input."""
    print(sys.argv[1:], os.environ.get("RANK"), sys.stdin.read())
    print("to stderr", file=sys.stderr)
    sys.exit(code)


def returns(code: int) -> int:
    """A program that returns its exit code, as an entry point does."""
    return code


def patient() -> None:
    """A program whose rank 1 fails; the others wait for SIGTERM."""
    if os.environ["RANK"] == "1":
        sys.exit(3)
    time.sleep(1000)


def around_the_ring(length: int) -> list[float]:
    """Add all ranks' tensors by sending them around."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.full((length,), rank + 1.0)
    total, passed = mine.clone(), mine
    for _ in range(world - 1):
        sent, passed = dist.isend(passed, (rank + 1) % world), torch.empty(length)
        dist.recv(passed, (rank - 1) % world)
        sent.wait()
        total += passed
    return total.tolist()


def skips_a_collective(rank: int) -> None:
    if dist.get_rank() != rank:
        dist.all_reduce(torch.ones(3))


def waits_for_a_slow_rank(seconds: float) -> int:
    if dist.get_rank() == 0:
        time.sleep(seconds)
    dist.barrier()
    return dist.get_rank()


def waits_for_a_busy_rank(seconds: float) -> int:
    if dist.get_rank() == 0:
        until = time.process_time() + seconds
        while time.process_time() < until:
            torch.ones(100, 100) @ torch.ones(100, 100)
    dist.barrier()
    return dist.get_rank()


def overlaps(size: int) -> None:
    """Multiply two matrices before, during, and after an all-reduce, each time in another way."""
    matrix, total = torch.ones(size, size), torch.zeros(size, size)
    matrix @ matrix
    work = dist.all_reduce(torch.ones(5), async_op=True)
    total.addmm_(matrix, matrix)
    work.wait()
    total[None].baddbmm_(matrix[None], matrix[None])


def calls_everything() -> None:
    """Call each kind of collective once, with two float32 elements for each rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine, whole = torch.ones(2), torch.ones(2 * world)
    pieces = list(torch.ones(world, 2))
    dist.all_reduce(mine)
    dist.broadcast(mine, 1)
    dist.reduce(mine, 1)
    dist.all_gather(pieces, mine)
    dist.all_gather_single(whole, mine)
    dist.reduce_scatter(mine, pieces)
    dist.reduce_scatter_single(mine, whole)
    dist.gather(mine, pieces if rank == 1 else None, 1)
    dist.scatter(mine, pieces if rank == 1 else None, 1)
    dist.all_to_all_single(whole.clone(), whole)
    dist.barrier()
    pair = dist.new_group([1, 2])
    if rank in (1, 2):
        dist.all_reduce(mine, group=pair)
        if rank == 1:
            dist.send(mine, 2)
        else:
            dist.recv(mine)


def data_parallel(size: int) -> float:
    """Run one backward pass of torch's DistributedDataParallel in several buckets."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(size, size, bias=False) for _ in range(6)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), bucket_cap_mb=4 * size * size / 2**20)
    for _ in range(2):  # buckets are rebuilt after the first pass
        model(torch.full((4, size), dist.get_rank() + 1.0)).sum().backward()
    return model.module[0].weight.grad.norm().item()


def warns_and_prints():
    """Give the warning that a student's `dist.broadcast(parameter, src=0)` causes, and print."""
    layer = torch.nn.Linear(2, 1)
    for parameter in layer.parameters():
        dist.broadcast(parameter, src=0)
    warnings.warn(f"the sum is {layer(torch.ones(2)).sum().backward()}", stacklevel=1)
    print("rank", dist.get_rank(), file=sys.stderr)


def keeps_what_it_sends(_) -> list[bool]:
    """Return on rank 0 whether a tensor exists while its send's work does, and afterwards."""
    if dist.get_rank() == 1:
        dist.recv(torch.empty(4), 0)
        return []
    tensor = torch.ones(4)
    reference = weakref.ref(tensor)
    work = dist.isend(tensor, 1)
    del tensor
    found = [reference() is not None]
    work.wait()
    del work
    return [*found, reference() is not None]
