"""Run torch.compile and TorchScript eagerly, and limit the profiler to the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._pytree import tree_leaves

from virtualgpu.core.accuracy import describe_compiled
from virtualgpu.core.eager import GRAPH_LAUNCH, EagerHost
from virtualgpu.pytorch import fusing
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import PLAIN_TYPES, key_of

NOTE = (
    "torch.compile is modeled as eager mode: compiled code fuses elementwise kernels, is faster, "
    "and saves less for the backward pass")
GRAPHED = ("reduce-overhead", "max-autotune")  # modes
NO_GRAPHS = ("torch.compile's CUDA graphs are not modeled outside of inference: the host launches "
             "every kernel")


def compiled(gpu: CudaGpu, call: Callable, graphed: bool) -> Callable:
    """Return the function as a compiled region.

    Args:
        gpu: this process's GPU.
        call: the function.
        graphed: whether its kernels are launched as one CUDA graph.
    """
    calls: fusing.Calls = {}

    @functools.wraps(call)
    def run(*args: object, **kwargs: object):
        if gpu.fuser is None:
            with host(gpu, graphed):
                return call(*args, **kwargs)
        with gpu.fuser.region(calls), host(gpu, graphed):
            out = call(*args, **kwargs)
            gpu.fuser.used(key_of(item) for item in tree_leaves(out)
                           if type(item) in PLAIN_TYPES and item.device.type == "cuda")
            return out
    return run


@contextmanager
def host(gpu: CudaGpu, graphed: bool) -> Iterator[None]:
    """Charge the host for the launches of a compiled region only, or for a CUDA graph's."""
    eager = gpu.eager
    if not isinstance(eager, EagerHost):
        yield
        return
    if graphed and torch.is_grad_enabled():
        gpu.assumptions.note(NO_GRAPHS)
        graphed = False
    if graphed and not eager.graphed:
        gpu.clock.work(GRAPH_LAUNCH)
    eager.compiled += 1
    eager.graphed += graphed
    try:
        yield
    finally:
        eager.compiled -= 1
        eager.graphed -= graphed


def install(gpu: CudaGpu) -> None:
    """Replace the compilers of torch."""
    def compile(model=None, *, mode: str | None = None, options: dict | None = None, **_):
        if model is None:
            return lambda function: compile(function, mode=mode, options=options)
        graphed = bool(mode in GRAPHED or (options or {}).get("triton.cudagraphs"))
        if graphed and gpu.eager is None:
            gpu.assumptions.note(NO_GRAPHS)
        gpu.assumptions.note(f"{fusing.NOTE}; {describe_compiled(gpu.card)}" if gpu.fuses else NOTE)
        if not gpu.fuses and gpu.eager is None:
            return model
        if gpu.fuses and gpu.fuser is None:
            fusing.fuse(gpu)
        if not isinstance(model, torch.nn.Module):
            return compiled(gpu, model, graphed)
        model.forward = compiled(gpu, model.forward, graphed)
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
