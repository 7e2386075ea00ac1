"""One matrix on both ends of a pipeline: the embedding of the first stage, and the output layer of the last."""

import torch.distributed as dist


class TiedEnds:
    """The two copies of a matrix.

    Attributes:
        weight: this end's parameter. Its `copies`, 1 if it has none, counts the ranks with the same part.
        group: the process group of both ends; number 0 is the first stage.
    """

    def __init__(self, weight, group):
        """Give both ends the values of the first stage's parameter, and set its `copies` to the number that exist now."""
        self.weight, self.group = weight, group
        dist.broadcast(weight.data, group_src=0, group=group)
        weight.copies = 2 * getattr(weight, "copies", 1)

    def finish(self):
        """Complete the gradient of the matrix after the backward passes of a step."""
        dist.all_reduce(self.weight.grad, group=self.group)
