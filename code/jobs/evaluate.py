"""Fit a linear model on all ranks, and evaluate it now and then. This program hangs: lab 03 asks
why. On every node of a job:

    torchrun --nnodes 2 --nproc_per_node 2 ... code/evaluate.py
"""

import ctypes
import os
import socket

import torch
import torch.distributed as dist

PR_SET_PTRACER = 0x59616D61  # see prctl(2)


def allow_dumps():
    """Let py-spy attach to this process where Linux restricts that to its parents (Yama)."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)


def shard(samples):
    """Return this rank's samples, as (inputs, targets)."""
    x = torch.rand(samples, 4, dtype=torch.float64)
    return x, x.sum(dim=1)


def average(gradient):
    """Average a gradient over all ranks, in place."""
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()


def evaluate(weight, x, y):
    """Return the mean squared error over the validation samples of all ranks."""
    losses = [torch.zeros((), dtype=weight.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, ((x @ weight - y) ** 2).mean())
    return torch.stack(losses).mean().item()


def fit(training, validation, steps, every, goal):
    """Train until the validation loss reaches `goal`; return the validation losses on rank 0."""
    x, y = training
    weight, history = torch.zeros(x.shape[1], dtype=x.dtype), []
    for step in range(1, steps + 1):
        gradient = 2 * x.T @ (x @ weight - y) / len(y)
        average(gradient)
        weight -= 0.1 * gradient
        if step % every == 0 and dist.get_rank() == 0:
            history.append(evaluate(weight, *validation))
            if history[-1] <= goal:
                break
    return history


if __name__ == "__main__":
    allow_dumps()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    print(f"rank {dist.get_rank()}: PID {os.getpid()} on {socket.gethostname()}", flush=True)
    print(fit(shard(64), shard(16), steps=100, every=10, goal=1e-3), flush=True)
    dist.destroy_process_group()
