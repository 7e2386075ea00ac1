"""torch.compile and TorchScript are taken as eager; the profiler sees the host."""

from __future__ import annotations

import torch

from virtualgpu.pytorch.mode import CudaGpu

NOTE = ("torch.compile is taken as eager: compiled code fuses elementwise kernels and is faster")


def install(gpu: CudaGpu) -> None:
    """Replace the compilers of torch."""
    def compile(model=None, **_):
        gpu.assumptions.note(NOTE)
        return (lambda function: function) if model is None else model

    def compile_module(self: torch.nn.Module, *_: object, **__: object) -> None:
        compile(self)

    torch.compile, torch.nn.Module.compile = compile, compile_module
    torch.jit.script = lambda function=None, *_, **__: (
        function if function is not None else lambda one: one)
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    _profile_the_host(gpu)


def _profile_the_host(gpu: CudaGpu) -> None:
    """Kineto would look for a GPU's driver."""
    from torch.profiler import ProfilerActivity, profiler

    original = profiler._KinetoProfile.__init__

    def init(self, *, activities=None, **options) -> None:
        wanted = set(activities or (ProfilerActivity.CPU,))
        if ProfilerActivity.CUDA in wanted:
            gpu.assumptions.note("torch.profiler measures this host; --trace has the GPU's kernels")
        original(self, activities=[ProfilerActivity.CPU], **options)

    profiler._KinetoProfile.__init__ = init
