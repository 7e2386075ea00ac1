"""What the tests run on ranks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import torch
import torch.distributed as dist


def all_reduced(x: float) -> tuple[int, int, float]:
    values = torch.tensor([x * (dist.get_rank() + 1)])
    dist.all_reduce(values)
    return dist.get_rank(), dist.get_world_size(), values.item()


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
    """As a student's program does it."""
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
