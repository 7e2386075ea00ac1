"""How long do messages take between two ranks? From the workspace, one task for each rank:

    srun --nodes=1 --ntasks=2 python code/messages.py      both on one node
    srun --nodes=2 --ntasks=2 python code/messages.py      on two nodes
"""

import os
import subprocess
import time

import torch
import torch.distributed as dist

SIZES = [4**n for n in range(1, 13)]  # bytes: 4 B to 16 MiB


def meet() -> int:
    """Join the two ranks, which meet at the job's first node. Returns this one's number."""
    hosts = subprocess.run(["scontrol", "show", "hostnames"], capture_output=True, text=True,
                           check=True).stdout.split()
    port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000
    rank = int(os.environ["SLURM_PROCID"])
    dist.init_process_group("gloo", init_method=f"tcp://{hosts[0]}:{port}", rank=rank, world_size=2)
    return rank


def there_and_back(rank: int, message: torch.Tensor) -> float:
    """Seconds of one way: rank 0 sends the message, rank 1 sends it back."""
    dist.barrier()
    begin = time.perf_counter()
    if rank == 0:
        dist.send(message, dst=1)
        dist.recv(message, src=1)
    else:
        dist.recv(message, src=0)
        dist.send(message, dst=0)
    return (time.perf_counter() - begin) / 2


rank = meet()
for size in SIZES:
    message = torch.zeros(size, dtype=torch.uint8)
    # What else happens on the machine can only slow a message down: the quickest counts.
    best = min(there_and_back(rank, message) for _ in range(30 if size < 10**6 else 4))
    if rank == 0:
        print(f"message of {size} bytes: {best * 1e6:.1f} us", flush=True)
dist.destroy_process_group()
