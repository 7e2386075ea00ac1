"""Collectives, built from point-to-point sends and receives."""

import torch
import torch.distributed as dist


def all_reduce(tensor, group=None):
    """Sum a contiguous tensor over the ranks of a process group, in place, around a ring.

    Args:
        tensor: of any shape, which is the same on all ranks.
        group: the process group; None means all ranks.

    Returns the tensor.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    neighbors = (rank + 1) % ranks, (rank - 1) % ranks
    if group is not None:
        neighbors = [dist.get_global_rank(group, one) for one in neighbors]
    right, left = neighbors
    chunks = tensor.view(-1).tensor_split(ranks)
    for step in range(2 * (ranks - 1)):
        sending = dist.isend(chunks[(rank - step) % ranks], right, group)
        target = chunks[(rank - step - 1) % ranks]
        received = torch.empty_like(target)
        dist.recv(received, left, group)
        sending.wait()
        if step < ranks - 1:
            target += received  # reduce-scatter
        else:
            target.copy_(received)  # all-gather
    return tensor
