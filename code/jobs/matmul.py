"""Measure a CPU: time a copy in memory, and matrix multiplications (GEMMs) [n, k] x [k, n] for
growing k.

    srun --cpus-per-task=2 python code/matmul.py [n]
"""

import os
import sys
import time

import torch

INNER = [4, 8, 16, 32, 64, 128, 256, 512]  # k
COPIED = 2**28  # bytes: too many for any cache


def best_of(times: int, work) -> float:
    """Return the seconds of the fastest of several runs, after one that warms up.

    Args:
        times: how many runs count.
        work: what to time.
    """
    seconds = []
    for _ in range(times + 1):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds[1:])


n = int(sys.argv[1]) if len(sys.argv) > 1 else 3072
threads = int(os.environ.get("SLURM_CPUS_PER_TASK", "1"))
torch.set_num_threads(threads)
print(f"{threads} threads", flush=True)

source = torch.zeros(COPIED, dtype=torch.uint8)
target = torch.zeros_like(source)
seconds = best_of(2, lambda: target.copy_(source))
print(f"copy of {COPIED} bytes: {seconds * 1e6:.1f} us", flush=True)

result = torch.zeros(n, n)
for k in INNER:
    a, b = torch.rand(n, k), torch.rand(k, n)
    seconds = best_of(2, lambda a=a, b=b: torch.mm(a, b, out=result))
    print(f"fp32 GEMM [{n}, {k}] x [{k}, {n}]: {seconds * 1e6:.1f} us", flush=True)
