"""Asynchronous sends and receives between the stages of a pipeline."""

import torch.distributed as dist


class Links:
    """Sends and receives that start at once, so that a stage can go on computing.

    Attributes:
        groups: {"F": the process group of hidden states, "B": that of their gradients}, of the same ranks.
    """

    def __init__(self, groups):
        self.groups, self.sent = groups, []

    def send(self, tensor, stage, kind):
        """Start to send to a stage; the tensor stays in memory until it is sent, and not past the next send after that."""
        self.sent = [one for one in self.sent if not one[0].is_completed()]
        self.sent.append((dist.isend(tensor, group_dst=stage, group=self.groups[kind]), tensor))

    def receive(self, tensor, stage, kind):
        """Start to receive from a stage, and return an object whose `wait()` waits for the tensor."""
        return dist.irecv(tensor, group_src=stage, group=self.groups[kind])

    def finish(self):
        """Wait for all sends."""
        for work, _ in self.sent:
            work.wait()
        self.sent = []
