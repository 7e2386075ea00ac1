"""Activations in host memory: copied there after a layer's forward pass, and back before its
backward pass.

The first N layers of the model are offloaded, as with Megatron-LM's --cpu-offloading-num-layers.
Each tensor that autograd saves is copied while the GPU computes, on a stream of its own. A layer's
tensors are freed when the next layer's forward pass has been launched, and copied back during the
backward pass of the layer after it. So at most two offloaded layers have activations on the device,
and a copy costs time only where it takes longer than a layer's pass. Only
--cpu-offloading-num-layers imports this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch.autograd.graph import saved_tensors_hooks

from minimegatron.context import Context
from minimegatron.device.host_copies import Copy, HostCopies

SMALL = 32  # tensors smaller than 1/SMALL of a hidden state stay: statistics of norms and softmax


class LayerActivations:
    """The tensors that autograd saves for one layer and one micro-batch.

    Attributes:
        on_device: the tensors, while they are in the device's memory.
        on_host: their copies.
        arriving: the copies back to the device, finished or in progress.
        after: the activations of the next layer, if it is offloaded, too.
    """

    def __init__(self, copies: HostCopies, layer: torch.nn.Module, least: float) -> None:
        """Args:
            copies: starts the copies.
            layer: its parameters and buffers stay on the device.
            least: bytes; smaller tensors stay, too.
        """
        self.copies, self.least = copies, least
        self.stays = {tensor.untyped_storage()._cdata
                      for tensor in (*layer.parameters(), *layer.buffers())}
        self.on_device: list[torch.Tensor] = []
        self.on_host: list[Copy] = []
        self.arriving: list[Copy] = []
        self.after: LayerActivations | None = None
        self.places: dict[tuple, int] = {}  # a tensor that is saved twice is copied once

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | int:
        storage = tensor.untyped_storage()._cdata
        if tensor.nbytes < self.least or storage in self.stays:
            return tensor.detach()
        key = storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        if key not in self.places:
            self.places[key] = len(self.on_host)
            self.on_device.append(tensor.detach())  # also so that nothing else gets its memory
            self.on_host.append(self.copies.download(self.on_device[-1]))
        return self.places[key]

    def unpack(self, packed: torch.Tensor | int) -> torch.Tensor:
        return self.arriving[packed].tensor if isinstance(packed, int) else packed

    def free(self) -> None:
        """Free the tensors once their copies are done, after the next layer's forward pass."""
        self._wait(self.on_host)
        self.on_device.clear()

    def fetch(self) -> None:
        """Start to copy everything back."""
        self.arriving = [self.copies.upload(copy.tensor) for copy in self.on_host]

    def use(self) -> None:
        """Wait until everything is back, before the layer's backward pass."""
        self._wait(self.arriving)

    def release(self) -> None:
        """Free all memory, after the layer's backward pass."""
        self.arriving.clear()
        self.on_host.clear()

    def _wait(self, started: Sequence[Copy]) -> None:
        if started:
            self.copies.wait(started[-1].arrives)


class ActivationOffload:
    """Runs layers with --cpu-offloading-num-layers."""

    def __init__(self, ctx: Context) -> None:
        self.count, self.copies = ctx.config.cpu_offloading_num_layers, ctx.device.host_copies()

    def __call__(self, layers: Sequence[partial], x: torch.Tensor) -> torch.Tensor:
        """Run hidden states x [s, b, h] through all layers; returns the same shape.

        Each layer is a partial application of its module.
        """
        before = None  # the layer before, if it is offloaded
        for number, layer in enumerate(layers):
            own, hooks = None, nullcontext()
            if number < self.count:
                own = LayerActivations(self.copies, layer.func, x.nbytes / SMALL)
                hooks = saved_tensors_hooks(own.pack, own.unpack)
            with hooks:
                x = layer(x)
            if before is not None:
                before.free()
                before.after = own
            if x.requires_grad:
                x.register_hook(partial(before_backward, own, before))
            before = own
        return x


def before_backward(own: LayerActivations | None, before: LayerActivations | None,
                    grad: torch.Tensor) -> None:
    """Prepare a layer's backward pass, once the gradient of its output is known.

    Args:
        own: the layer's activations, if it is offloaded.
        before: those of the layer before it, whose backward pass is next.
        grad: the gradient.
    """
    if own is not None:
        if own.after is not None:
            own.after.release()
        own.use()
    if before is not None:
        before.fetch()
