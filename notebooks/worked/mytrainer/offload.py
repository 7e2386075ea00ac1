"""Keep what autograd saves in the host's memory."""

import torch
from torch.autograd.graph import saved_tensors_hooks


class Offload(saved_tensors_hooks):
    """Copies saved tensors to the host, and back in the backward pass."""

    def __init__(self, parameters=(), least=2**20):
        """Args:
            parameters: tensors that stay on the device.
            least: bytes; smaller tensors stay, too.
        """
        super().__init__(self._pack, self._unpack)
        self.least = least
        self.stay = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def _pack(self, tensor):
        if tensor.nbytes < self.least or tensor.untyped_storage().data_ptr() in self.stay:
            return tensor.detach()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return tensor.device, host.copy_(tensor.detach(), non_blocking=True)

    def _unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        device, host = packed
        return host.to(device, non_blocking=True)
