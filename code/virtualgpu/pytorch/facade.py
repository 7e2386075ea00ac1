"""Make a virtual GPU look like CUDA to this process, once and permanently."""

from __future__ import annotations

import torch

from virtualgpu.pytorch import (
    autocast,
    checkpoints,
    compiled,
    consumers,
    cuda,
    cuda_builds,
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
    """Install `gpu` as cuda:INDEX for the rest of the process.

    Raises:
        MissingName: this version of torch lacks a private name; nothing has been changed.
        RuntimeError: a virtual GPU is already installed.
    """
    if streams.streams:
        raise RuntimeError("a virtual GPU is already installed in this process")
    private_names.check()
    before = dict(vars(torch.cuda))
    unknown.Unknown.assumptions = gpu.assumptions
    for part in (streams, cuda, cuda_builds, autocast, decomposed, factories, tensors, pinned,
                 files, checkpoints, compiled, timers, consumers):
        part.install(gpu)
    cuda_builds.propagate(before)
    shape_tracing.install()
    unknown.patch_math()
    unknown.patch_json()
    gpu.__enter__()
