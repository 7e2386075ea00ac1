"""Tensors in one flat buffer, divided into equal shards."""

import math


class ShardLayout:
    """Map tensors to a flat buffer, and its elements to the ranks that own them.

    The tensors follow each other in the buffer. It ends with padding, so that all ranks own equal shards.

    Attributes:
        size: elements of the buffer.
        starts: for each tensor, the element of the buffer where it begins.
        shard_size: elements of a shard.
    """

    def __init__(self, shapes, ranks):
        """Args:
            shapes: the tensors' shapes, in buffer order.
            ranks: how many ranks own a shard.
        """
        self.shapes, self.starts, end = list(shapes), [], 0
        for shape in self.shapes:
            self.starts.append(end)
            end += math.prod(shape)
        self.shard_size = -(-end // ranks)
        self.size = self.shard_size * ranks

    def owned(self, rank):
        """Return the slice of the buffer that is a rank's shard."""
        return slice(rank * self.shard_size, (rank + 1) * self.shard_size)

    def views(self, buffer):
        """Return a view of a buffer [size] for each tensor, in its shape."""
        return [buffer[start:start + math.prod(shape)].view(shape)
                for start, shape in zip(self.starts, self.shapes, strict=True)]

    def parts(self, rank):
        """Return for each tensor the slice of a rank's shard that holds elements of it, perhaps none."""
        owned, parts = self.owned(rank), []
        for start, shape in zip(self.starts, self.shapes, strict=True):
            first, last = max(start, owned.start), min(start + math.prod(shape), owned.stop)
            parts.append(slice(first - owned.start, last - owned.start) if first < last else slice(0, 0))
        return parts
