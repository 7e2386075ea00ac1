"""The amaxes that ranks share, so that they scale their tensors alike."""

import torch
import torch.distributed as dist


def share_amaxes(amaxes, group=None):
    """Return the amax of each tensor over all ranks of a group, with a single collective.

    Args:
        amaxes: this rank's, float32 tensors without dimensions; equally many on every rank.
        group: the process group; None is the default group of all ranks.

    Returns a float32 tensor [len(amaxes)], the same on all ranks of the group.
    """
    shared = torch.stack(amaxes)
    dist.all_reduce(shared, dist.ReduceOp.MAX, group)
    return shared
