"""Make this process believe that it has CUDA. Once per process, and for good."""

from __future__ import annotations

from virtualgpu.pytorch import (
    autocast,
    checkpoints,
    compiled,
    cuda,
    decomposed,
    factories,
    files,
    pinned,
    private_names,
    shape_tracing,
    streams,
    tensors,
    timers,
    unknown,
)
from virtualgpu.pytorch.mode import CudaGpu


def install(gpu: CudaGpu) -> None:
    """Show `gpu` to every program of this process as cuda:INDEX.

    Raises MissingName where this version of torch lacks something, before anything is changed, and
    RuntimeError where a GPU is installed already.
    """
    if streams.streams:
        raise RuntimeError("a virtual GPU is installed in this process already")
    private_names.check()
    unknown.Unknown.assumptions = gpu.assumptions
    for part in (streams, cuda, autocast, decomposed, factories, tensors, pinned, files,
                 checkpoints, compiled, timers):
        part.install(gpu)
    shape_tracing.install()
    unknown.patch_math()
    unknown.patch_json()
    gpu.__enter__()
