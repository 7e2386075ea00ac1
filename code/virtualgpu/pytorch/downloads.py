"""Copies from the GPU to the host, which wait for the GPU unless they are asynchronous."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from virtualgpu.pytorch import host_memory
from virtualgpu.pytorch.device import CudaDevice
from virtualgpu.pytorch.visible import META, key_of

COPY = torch.ops.aten.copy_.default


def copy(gpu: CudaDevice, func: torch._ops.OpOverload, args: Sequence, kwargs: dict
         ) -> torch.Tensor:
    """Copy a tensor from the GPU to the host, with its values if they are known.

    Args:
        gpu: the GPU of this process.
        func: aten.copy_ into a tensor on the host, or aten._to_copy to the CPU.
        args: positional arguments of the operation.
        kwargs: keyword arguments of the operation.
    """
    source = args[1] if func is COPY else args[0]
    asynchronous = bool(kwargs.get("non_blocking") or args[2:3] == (True,))
    if gpu.journal is not None:
        # An asynchronous `to("cpu")` pins the memory that it creates, as in PyTorch's _to_copy.
        gpu.journal.to_host(source, asynchronous and (
            func is not COPY or key_of(args[0]) in gpu.pinned))
    gpu.download(source.nbytes)
    if not asynchronous:
        gpu.wait_for_stream()
    known = gpu.values.known(source)
    if func is COPY:
        target = args[0]
        if not target.is_meta and known:
            target.copy_(gpu.values.value(source))
            gpu.values.regain(target)
        elif not target.is_meta:
            gpu.values.lose(target)
        return target
    dtype = kwargs.get("dtype") or source.dtype
    layout = kwargs.get("memory_format") or torch.preserve_format
    if known:
        return gpu.values.value(source).to(dtype, copy=True, memory_format=layout)
    if layout is not torch.preserve_format:
        source = torch.empty(source.shape, device=META, memory_format=layout)
    return host_memory.unknown(gpu, source, dtype, not host_memory.autograd_wants_cpu())
