"""ZeRO stage 1: every rank keeps the optimizer state of its shard, and updates only that."""

import contextlib

import torch
import torch.distributed as dist
from mytrainer.shards import ShardLayout


class Unit:
    """Parameters of one dtype that are communicated together, in one flat buffer.

    Attributes:
        parameters: the module's parameters, now views of the buffer.
        layout: their ShardLayout.
        buffer: all their elements, [layout.size], the same on all ranks.
        shard: this rank's elements of it, [layout.shard_size].
        pieces: for each parameter, this rank's elements of it as a Parameter [n], which the optimizer updates; n
            may be 0.
    """

    def __init__(self, parameters):
        """Move parameters to a buffer. The ranks then all have the values of rank 0."""
        self.parameters = list(parameters)
        self.layout = ShardLayout([parameter.shape for parameter in self.parameters], dist.get_world_size())
        self.buffer = self.parameters[0].detach().new_zeros(self.layout.size)
        for parameter, view in zip(self.parameters, self.layout.views(self.buffer), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        dist.broadcast(self.buffer, src=0)
        self.shard = self.buffer[self.layout.owned(dist.get_rank())]
        self.parts = self.layout.parts(dist.get_rank())
        self.pieces = [torch.nn.Parameter(self.shard[part]) for part in self.parts]
        for tensor in (*self.parameters, *self.pieces):
            tensor.grad_dtype = torch.float32

    def start_reduce(self):
        """Free the parameters' gradients, and start to reduce-scatter them in fp32.

        Returns what finish_reduce needs.
        """
        total = torch.zeros(self.layout.size, device=self.buffer.device)
        for parameter, view in zip(self.parameters, self.layout.views(total), strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
                parameter.grad = None
        mine = total.new_empty(self.layout.shard_size)
        return mine, total, dist.reduce_scatter_single(mine, total, async_op=True)

    def finish_reduce(self, started):
        """Wait for the reduce-scatter, then add the mean gradient to the pieces' gradients."""
        mine, _, work = started
        work.wait()
        mine /= dist.get_world_size()
        for piece, part in zip(self.pieces, self.parts, strict=True):
            piece.grad = mine[part] if piece.grad is None else piece.grad + mine[part]

    def gather(self):
        """Fill the buffer with the shards of all ranks."""
        dist.all_gather_single(self.buffer, self.shard)


class Zero1(torch.nn.Module):
    """Replicate a module on all ranks; each rank updates its shard of every unit.

    Attributes:
        units: each block's parameters, and last, all the others, if there are any.
    """

    def __init__(self, module, blocks=()):
        """Args:
            module: the model. Each of its parameters is trained, and gets a gradient in every backward pass.
            blocks: submodules of it, each of which becomes a unit.
        """
        super().__init__()
        self.module = module
        groups = [list(block.parameters()) for block in blocks]
        inside = {parameter for group in groups for parameter in group}
        groups.append([parameter for parameter in module.parameters() if parameter not in inside])
        self.units = [Unit(group) for group in groups if group]
        self.updated = False

    def parameters(self, recurse=True):
        """Yield the pieces, in the order of the module's parameters."""
        pieces = {parameter: piece for unit in self.units
                  for parameter, piece in zip(unit.parameters, unit.pieces, strict=True)}
        for parameter in self.module.parameters():
            yield pieces[parameter]

    def forward(self, *inputs, **keywords):
        """Run the module; the first micro-batch after an update gathers the new parameters first."""
        if self.updated:
            for unit in self.units:
                unit.gather()
            self.updated = False
        return self.module(*inputs, **keywords)

    def no_sync(self):
        """Return a context that changes nothing: no backward pass of this class communicates."""
        return contextlib.nullcontext()

    def finish(self):
        """After the last backward pass of a step: give every piece the mean of its gradient over the ranks."""
        for unit in self.units:
            unit.finish_reduce(unit.start_reduce())
        self.updated = True
