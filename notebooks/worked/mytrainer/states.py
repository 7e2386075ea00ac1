"""Remember the state that a forward pass depends on, and set it again."""

import contextlib

import torch


class States:
    """The random number generators and autocast, as they are when it is created."""

    def __init__(self, device_type):
        """Args:
            device_type: "cpu" or "cuda", where the forward pass runs.
        """
        self.device_type = device_type
        self.generators = self._read()
        self.autocast = (torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type))

    @contextlib.contextmanager
    def replay(self):
        """Set the remembered state within a `with` block."""
        before, (enabled, dtype) = self._read(), self.autocast
        self._write(self.generators)
        try:
            with torch.autocast(self.device_type, dtype=dtype, enabled=enabled):
                yield
        finally:
            self._write(before)

    def _read(self):
        return torch.get_rng_state(), torch.cuda.get_rng_state() if self.device_type == "cuda" else None

    def _write(self, generators):
        on_cpu, on_gpu = generators
        torch.set_rng_state(on_cpu)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)
