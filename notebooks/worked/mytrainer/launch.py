"""Join the other ranks of a job, and choose this rank's part of the data."""

import os

import torch
import torch.distributed as dist


def connect():
    """Join the other ranks, and return this rank's device."""
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    else:
        device, backend = torch.device("cpu"), "gloo"
    dist.init_process_group(backend)
    return device


def own_samples(consumed, batch, rank, ranks):
    """Return the indices of this rank's samples in the next step, as a list.

    Args:
        consumed: samples of all steps before.
        batch: samples per step, of all ranks together.
        rank: this rank.
        ranks: the number of ranks.
    """
    return list(range(consumed + rank, consumed + batch, ranks))
