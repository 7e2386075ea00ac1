"""Read sharded tensors in a different layout from the one they were saved in."""

import torch


def reshard(read, old, new, rank):
    """Return a rank's shards of a new layout, given those of an old one.

    Args:
        read: read(rank, unit, start, stop) returns elements [start, stop) of an old rank's shard of a unit.
        old: for each unit of the old layout, the names of its tensors, and their ShardLayout.
        new: the same for the new layout, whose units group the same tensors differently.
        rank: a rank of the new layout.

    Returns for each new unit the rank's shard [shard_size]. Padding is 0.
    """
    places = {name: (number, start) for number, (names, layout) in enumerate(old)
              for name, start in zip(names, layout.starts, strict=True)}
    shards = []
    for names, layout in new:
        shard, first = torch.zeros(layout.shard_size), layout.owned(rank).start
        for name, start, part in zip(names, layout.starts, layout.parts(rank), strict=True):
            unit, old_start = places[name]
            size, at = old[unit][1].shard_size, part.start
            while at < part.stop:
                source, offset = divmod(old_start + first + at - start, size)
                end = min(part.stop, at + size - offset)
                shard[at:end] = read(source, unit, offset, offset + end - at)
                at = end
        shards.append(shard)
    return shards
