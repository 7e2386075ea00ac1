"""Measure the link between two ranks. From the workspace, one task per rank:

    srun --nodes=1 --ntasks=2 python code/messages.py [FILE]      both on one node
    srun --nodes=2 --ntasks=2 python code/messages.py [FILE]      on two nodes

FILE defines ping_pong(tensor, rounds, clock), which replaces the function of this file.
"""

import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SIZES = [4**n for n in range(1, 13)]  # bytes: 4 B to 16 MiB


def ping_pong(tensor: torch.Tensor, rounds: int, clock: Callable[[], float]) -> float:
    """Return the seconds of a transfer in one direction.

    Args:
        tensor: what to send back and forth.
        rounds: how many round trips to time, after one that is not timed.
        clock: a function that returns the time in seconds.
    """
    begin = 0.0
    for number in range(rounds + 1):
        if number == 1:
            begin = clock()
        if dist.get_rank() == 0:
            dist.send(tensor, dst=1)
            dist.recv(tensor, src=1)
        else:
            dist.recv(tensor, src=0)
            dist.send(tensor, dst=0)
    return (clock() - begin) / (2 * rounds)


def rendezvous() -> int:
    """Join the two ranks at the job's first node, and return this one's rank."""
    hosts = subprocess.run(["scontrol", "show", "hostnames"], capture_output=True, text=True,
                           check=True).stdout.split()
    port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000
    rank = int(os.environ["SLURM_PROCID"])
    dist.init_process_group("gloo", init_method=f"tcp://{hosts[0]}:{port}", rank=rank, world_size=2)
    return rank


if len(sys.argv) > 1:
    ping_pong = runpy.run_path(sys.argv[1])["ping_pong"]
rank = rendezvous()
for size in SIZES:
    # What else runs on the machine only slows transfers down, and seldom all of many short tries.
    tries, rounds = (10, 5) if size < 10**6 else (4, 2)
    for _ in range(tries):
        tensor = torch.zeros(size, dtype=torch.uint8)
        seconds = ping_pong(tensor, rounds, time.perf_counter)
        if rank == 0:
            print(f"message of {size} bytes: {seconds * 1e6:.1f} us", flush=True)
dist.destroy_process_group()
