"""Observe a program's memory, kernels, and step time, on a real GPU and on a virtual one alike."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch

from virtualgpu.export.ledger import Ledger

KINDS = ("allocated", "peak", "reserved", "peak reserved")


class Launch(NamedTuple):
    """An operation that launched kernels.

    Attributes:
        op: canonical name, such as "aten.mm".
        kernels: short names of its kernels; on a virtual GPU, one "?" per kernel.
        shapes: shapes of its first operands.
    """

    op: str
    kernels: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class Probe:
    """Records memory, in bytes, at the points that a program marks."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, tuple[int, ...]]] = []
        self.title = ""

    def mark(self, name: str) -> None:
        cuda = torch.cuda
        self.marks.append((f"{self.title}{name}", (
            cuda.memory_allocated(), cuda.max_memory_allocated(), cuda.memory_reserved(),
            cuda.max_memory_reserved())))


class Silent(Probe):
    """Ignores all marks."""

    def mark(self, name: str) -> None:
        pass


def is_virtual() -> bool:
    """Return whether this process runs on a virtual GPU."""
    return Ledger.current is not None


def observe(build: Callable[[], Callable[[Probe], None]], steps: int = 7) -> dict:
    """Run a program, and return its memory, the launches of one step, and the seconds per step.

    Args:
        build: one of programs.PROGRAMS.
        steps: number of timed steps.
    """
    probe, silent = Probe(), Silent()
    probe.mark("before anything")
    step = build()
    probe.mark("after it was built")
    for title in ("first step, ", "second step, "):
        probe.title = title
        torch.cuda.reset_peak_memory_stats()
        step(probe)
    launches = launched(lambda: step(silent))
    step(silent)
    seconds = []
    for _ in range(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(silent)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return {"marks": probe.marks, "launches": launches, "seconds": median(seconds)}


def launched(run: Callable[[], None]) -> list[Launch]:
    """Return the operations that launch kernels while `run` runs, in order."""
    return _modeled(run) if is_virtual() else _profiled(run)


def _modeled(run: Callable[[], None]) -> list[Launch]:
    gpu, found = Ledger.current.gpu, []
    start, launch = gpu.start, gpu.launch
    # Operand shapes of the running operations, the innermost last.
    inside: list[tuple[tuple[int, ...], ...]] = [()]

    def started(func, args, kwargs, plan, out) -> None:
        inside.append(tuple(tuple(item.shape) for item in args[:3]
                            if isinstance(item, torch.Tensor)))
        start(func, args, kwargs, plan, out)
        inside.pop()

    def launched(name: str, seconds: float, kernels: int) -> None:
        found.append(Launch(canonical(name), ("?",) * kernels, inside[-1]))
        launch(name, seconds, kernels)

    gpu.start, gpu.launch = started, launched
    try:
        run()
    finally:
        del gpu.start, gpu.launch
    return found


def _profiled(run: Callable[[], None]) -> list[Launch]:
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as profiler:
        run()
        torch.cuda.synchronize()
    found = []
    events = [one for one in profiler.events()
              if one.device_type == DeviceType.CPU and one.kernels and "::" in one.name]
    for event in sorted(events, key=lambda one: one.time_range.start):
        shapes = tuple(tuple(shape) for shape in (event.input_shapes or ())[:3]
                       if all(isinstance(size, int) for size in shape))
        found.append(Launch(canonical(event.name.replace("::", ".")),
                            tuple(short(kernel.name) for kernel in event.kernels), shapes))
    return found


def short(kernel: str) -> str:
    """Return a kernel's name without return type, namespaces, template arguments, and parameters.

    Names that consist of options, such as cuBLAS's, are cut to their first words.
    """
    name = kernel.removeprefix("void ").split("(anonymous namespace)::")[-1]
    name = re.split(r"[<(]", name)[0].split("::")[-1].strip() or kernel[:40]
    return "_".join(name.split("_")[:6])[:60]


# Operations that CUDA runs with the same kernels share one canonical name.
SAME = {
    "aten._to_copy": "aten.copy_", "aten.clone": "aten.copy_", "aten.zeros": "aten.fill_",
    "aten.zero_": "aten.fill_", "aten.ones": "aten.fill_", "aten.full": "aten.fill_",
    "aten.zeros_like": "aten.fill_", "aten.ones_like": "aten.fill_",
    "aten.full_like": "aten.fill_", "aten.new_zeros": "aten.fill_", "aten.new_ones": "aten.fill_",
    "aten.new_full": "aten.fill_", "aten.scalar_tensor": "aten.fill_", "aten.stack": "aten.cat",
    "aten.embedding": "aten.index_select", "aten.rsub": "aten.sub",
    "aten._local_scalar_dense": "aten.copy_", "aten.slice_backward": "aten.fill_",
    "aten._cudnn_attention_forward": "aten._scaled_dot_product_cudnn_attention",
    "aten._cudnn_attention_backward": "aten._scaled_dot_product_cudnn_attention_backward",
    "aten._efficient_attention_forward": "aten._scaled_dot_product_efficient_attention",
    "aten._efficient_attention_backward": "aten._scaled_dot_product_efficient_attention_backward",
    "aten._flash_attention_forward": "aten._scaled_dot_product_flash_attention",
    "aten._flash_attention_backward": "aten._scaled_dot_product_flash_attention_backward",
    "aten.gather": "aten.index_select",  # the kernel of index_select, and so of embedding
    "aten.cudnn_convolution": "aten.convolution", "aten.clamp_min": "aten.relu",
    "aten.cudnn_batch_norm": "aten.native_batch_norm", "aten.masked_fill": "aten.masked_fill_",
    "aten.cudnn_batch_norm_backward": "aten.native_batch_norm_backward",
    "fsdp.chunk_cat": "aten._chunk_cat", "aten.select_backward": "aten.fill_",
}


def canonical(name: str) -> str:
    """Return the name used for comparison; an in-place variant has that of the plain operation."""
    name = SAME.get(name, name)
    stem = name.removesuffix("_") if not name.endswith("__") else name
    return "aten." + stem.split(".")[-1] if "." in stem else stem
