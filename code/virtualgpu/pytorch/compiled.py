"""Run torch.compile and TorchScript eagerly, and limit the profiler to the host."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves

from virtualgpu.pytorch import fusing
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import PLAIN_TYPES, key_of

NOTE = (
    "torch.compile is modeled as eager mode: compiled code fuses elementwise kernels, is faster, "
    "and saves less for the backward pass")
GRAPHED = ("reduce-overhead", "max-autotune")  # modes
NO_GRAPHS = ("torch.compile's CUDA graphs are not modeled: the host launches every kernel")


def compiled(gpu: CudaGpu, call: Callable) -> Callable:
    """Return the function as a compiled region."""
    calls: fusing.Calls = {}

    def run(*args: object, **kwargs: object):
        with gpu.fuser.region(calls):
            out = call(*args, **kwargs)
            gpu.fuser.used(key_of(item) for item in tree_leaves(out)
                           if type(item) in PLAIN_TYPES and item.device.type == "cuda")
            return out
    return run


def install(gpu: CudaGpu) -> None:
    """Replace the compilers of torch."""
    def compile(model=None, *, mode: str | None = None, options: dict | None = None, **_):
        if model is None:
            return lambda function: compile(function, mode=mode, options=options)
        if mode in GRAPHED or (options or {}).get("triton.cudagraphs"):
            gpu.assumptions.note(NO_GRAPHS)
        gpu.assumptions.note(fusing.NOTE if gpu.fuses else NOTE)
        if not gpu.fuses:
            return model
        if gpu.fuser is None:
            fusing.fuse(gpu)
        if not isinstance(model, torch.nn.Module):
            return compiled(gpu, model)
        model.forward = compiled(gpu, model.forward)
        return model

    def compile_module(self: torch.nn.Module, *_: object, **options: object) -> None:
        compile(self, **options)

    torch.compile, torch.nn.Module.compile = compile, compile_module
    torch.jit.script = lambda function=None, *_, **__: (
        function if function is not None else lambda one: one)
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    _profile_the_host(gpu)


def _profile_the_host(gpu: CudaGpu) -> None:
    """Keep Kineto from looking for a GPU driver."""
    from torch.profiler import ProfilerActivity, profiler

    original = profiler._KinetoProfile.__init__

    def init(self, *, activities=None, **options) -> None:
        wanted = set(activities or (ProfilerActivity.CPU,))
        if ProfilerActivity.CUDA in wanted:
            gpu.assumptions.note("torch.profiler measures this host; --trace has the GPU's kernels")
        original(self, activities=[ProfilerActivity.CPU], **options)

    profiler._KinetoProfile.__init__ = init
