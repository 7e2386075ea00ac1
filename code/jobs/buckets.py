"""Time the average of many small gradients, in buckets of several sizes. One task per rank:

    srun --nodes=2 --ntasks-per-node=2 python code/buckets.py FILE

FILE defines average_in_buckets(parameters, bucket_mb), as in lab 04.
"""

import os
import runpy
import subprocess
import sys
import time

import torch
import torch.distributed as dist

GRADIENTS, ELEMENTS = 200, 1024  # 4 KiB each
BUCKETS_KIB = (4, 16, 64, 256, 1024)
TRIES = 3  # other work on the machine only slows a try down

average_in_buckets = runpy.run_path(sys.argv[1])["average_in_buckets"]
hosts = subprocess.run(["scontrol", "show", "hostnames"], capture_output=True, text=True,
                       check=True).stdout.split()
port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000
rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", init_method=f"tcp://{hosts[0]}:{port}", rank=rank, world_size=ranks)
torch.set_num_threads(1)

parameters = [torch.nn.Parameter(torch.zeros(ELEMENTS)) for _ in range(GRADIENTS)]
for parameter in parameters:
    parameter.grad = torch.ones(ELEMENTS)
average_in_buckets(parameters, 1.0)  # sets up the connections
for kib in BUCKETS_KIB:
    times = []
    for _ in range(TRIES):
        dist.barrier()
        begin = time.perf_counter()
        average_in_buckets(parameters, kib / 1024)
        times.append(time.perf_counter() - begin)
    if rank == 0:
        print(f"buckets of {kib:4} KiB: {1000 * min(times):7.1f} ms on {ranks} ranks", flush=True)
dist.destroy_process_group()
