"""Bypass the dispatch mode while torch infers shapes with fake tensors, as for DTensor."""

from __future__ import annotations

import contextlib

from torch._subclasses import fake_tensor

from virtualgpu.pytorch.visible import CPU, bypassed, hidden


def install() -> None:
    """Bypass the dispatch mode inside a FakeTensorMode."""
    mode = fake_tensor.FakeTensorMode
    original = mode.__torch_dispatch__

    def dispatch(self, func, types, args=(), kwargs=None):
        device = (kwargs or {}).get("device")
        if device is not None and device.type == "cuda":  # which torch's CPU build cannot guard
            kwargs = {**kwargs, "device": CPU}
        with bypassed, hidden:
            return original(self, func, types, args, kwargs)

    mode.__torch_dispatch__ = dispatch
    fake_tensor.init_gpu_context = lambda device: contextlib.nullcontext()
