"""Measure what autograd saves for the backward pass."""

from torch.autograd.graph import saved_tensors_hooks


class SavedBytes(saved_tensors_hooks):
    """Counts the bytes that are saved for the backward pass within a `with` block.

    Attributes:
        bytes: those of all saved storages so far, except the parameters'.
    """

    def __init__(self, parameters=()):
        """Args:
            parameters: tensors whose storages do not count.
        """
        super().__init__(self._pack, lambda tensor: tensor)
        self.bytes = 0
        self.seen = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def __enter__(self):
        super().__enter__()
        return self

    def _pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor.detach()
