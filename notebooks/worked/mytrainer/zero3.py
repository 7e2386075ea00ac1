"""ZeRO stage 3: parameters are gathered when a block needs them, and freed after it."""

from functools import partial

from mytrainer.zero2 import Zero2


class Zero3(Zero2):
    """Zero2 in which a rank holds the parameters of a block only while the block runs."""

    def __init__(self, module, blocks):
        """Args:
            module: as for Zero2.
            blocks: those of Zero2, in the order in which the forward pass runs them. Each returns one tensor.
        """
        super().__init__(module, blocks)
        self.blocks, self.others = self.units[:len(blocks)], self.units[len(blocks):]
        self.present, self.backward = set(self.units), False
        for unit in self.units:
            unit.shard = unit.shard.clone()  # it used to be a view of the buffer
            for piece, part in zip(unit.pieces, unit.parts, strict=True):
                piece.data = unit.shard[part]
            self.free(unit)
        for unit, block in zip(self.blocks, blocks, strict=True):
            block.register_forward_pre_hook(lambda *_, unit=unit: self.need(unit))
            block.register_forward_hook(partial(self._ran, unit))

    def forward(self, *inputs, **keywords):
        """Run the module. The parameters outside the blocks stay until their gradients are reduced."""
        self.backward = False
        for unit in self.others:
            self.need(unit)
        return self.module(*inputs, **keywords)

    def need(self, unit):
        """Gather a unit's parameters, unless they are here."""
        if unit not in self.present:
            self.allocate(unit)
            unit.gather()

    def allocate(self, unit):
        self.present.add(unit)
        unit.buffer.untyped_storage().resize_(unit.layout.size * unit.buffer.itemsize)

    def free(self, unit):
        """Free a unit's parameters, but neither its shard nor the views that autograd has saved."""
        self.present.discard(unit)
        unit.buffer.untyped_storage().resize_(0)

    def reduce(self, unit):
        super().reduce(unit)
        self.free(unit)

    def _ran(self, unit, block, inputs, output):
        """After a block's forward pass: free it, unless its backward pass is next."""
        if output.requires_grad:
            output.register_hook(lambda _: self._turn(unit))
        next_is_backward = self.backward or (unit is self.blocks[-1] and output.requires_grad)
        if not next_is_backward:
            self.free(unit)

    def _turn(self, unit):
        self.backward = True
        self.need(unit)
