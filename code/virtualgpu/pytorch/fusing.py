"""Model torch.compile: consecutive kernels of compiled regions become one kernel.

Consecutive elementwise operations and reductions are held back, and run as one kernel as soon as
another operation follows. The kernel reads every input once and writes the results that still exist
by then: temporary ones stay in registers, and what the backward pass needs is written.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from virtualgpu.core.clock import COMPUTE, Clock
from virtualgpu.core.plan import Plan, changed_tensor, nested
from virtualgpu.core.rules import Work, moved, tensors
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import key_of

NAME = "fused kernels"
NOTE = ("elementwise operations and reductions of compiled regions are fused; memory is that of "
        "eager mode, and nothing is recomputed")
aten = torch.ops.aten
ALSO = {aten._to_copy, aten.copy_, aten.clone, aten.mean, aten.sum, aten.amax, aten.var_mean,
        aten._softmax, aten._softmax_backward_data, aten._log_softmax,
        aten._log_softmax_backward_data, aten.native_layer_norm, aten.native_layer_norm_backward,
        aten._fused_rms_norm, aten._fused_rms_norm_backward, aten.native_dropout,
        aten.native_dropout_backward}


class Fuser:
    """The kernel that is being put together, and the regions that it may come from."""

    def __init__(self, gpu: CudaGpu) -> None:
        self.gpu, self.depth = gpu, 0
        self.begins: list[int] = []  # sequence numbers of autograd where regions begin
        self.ends: list[int] = []
        self.stream, self.elements, self.bytes_read = COMPUTE, 0, 0
        self.read: set[int] = set()  # storages
        self.written: dict[int, int] = {}  # bytes by storage

    @contextmanager
    def region(self) -> Iterator[None]:
        """Compiled code runs inside, and its backward pass is compiled, too."""
        begin = torch.autograd._get_sequence_nr()
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            self.flush()
            if not self.depth:
                self.begins.append(begin)
                self.ends.append(torch.autograd._get_sequence_nr())

    def inside(self) -> bool:
        """Whether a compiled region is running, forward or backward."""
        if self.depth:
            return True
        node = torch._C._current_autograd_node()
        if node is None:
            return False
        number = node._sequence_nr()
        at = bisect.bisect_right(self.begins, number) - 1
        return at >= 0 and number < self.ends[at]

    def take(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict, plan: Plan,
             out: object) -> bool:
        """Let an operation wait for others, if it can be fused.

        Args:
            func: the operation.
            args: its positional arguments.
            kwargs: its keyword arguments.
            plan: what it would cost alone.
            out: its result.
        """
        if ((torch.Tag.pointwise not in func.tags and func.overloadpacket not in ALSO)
                or not self.inside()):
            return False
        operands = tensors((*args, *kwargs.values()))
        if not all(map(self.gpu.holds, (item for item in operands if item.dim()))):
            return False
        made = tensors([changed_tensor(args, kwargs, plan.changed)]
                       if plan.changed is not None else list(nested(out)))
        elements = max((item.numel() for item in (*operands, *made)), default=0)
        uses = any(key_of(item) in self.written for item in operands)
        if self.gpu.stream != self.stream or (
                elements != self.elements and not (uses and elements < self.elements)):
            self.flush()
            self.stream, self.elements = self.gpu.stream, elements
        for item in operands:
            key = key_of(item)
            if key not in self.written and key not in self.read:
                self.read.add(key)
                self.bytes_read += moved(item)
        self.written |= {key_of(item): moved(item) for item in made}
        return True

    def flush(self) -> None:
        """Launch the kernel."""
        if not (self.read or self.written):
            return
        work = Work(self.bytes_read + sum(self.written.values()))
        self.bytes_read, self.elements = 0, 0
        self.read.clear()
        self.written.clear()
        before, self.gpu.stream = self.gpu.stream, self.stream
        self.gpu.launch(NAME, self.gpu.seconds(work), 1)
        self.gpu.stream = before

    def died(self, key: int) -> None:
        """A result that nobody needs any more is never written."""
        self.written.pop(key, None)
        self.read.discard(key)


class FusingClock(Clock):
    """A clock before whose every move the waiting kernel is launched."""

    def __init__(self, fuser: Fuser) -> None:
        super().__init__()
        for name in ("run", "ready", "communicate", "wait", "wait_for_communication",
                     "host_waits", "synchronize"):
            setattr(self, name, flushing(fuser, getattr(self, name)))


def flushing(fuser: Fuser, method: Callable) -> Callable:
    def call(*args: object, **kwargs: object):
        fuser.flush()
        return method(*args, **kwargs)
    return call


def install(gpu: CudaGpu) -> None:
    """Fuse kernels of compiled regions from now on; nothing may have run yet."""
    gpu.fuser = Fuser(gpu)
    gpu.clock = FusingClock(gpu.fuser)


def compiled(gpu: CudaGpu, call: Callable) -> Callable:
    """The function as a compiled region."""
    def run(*args: object, **kwargs: object):
        with gpu.fuser.region():
            return call(*args, **kwargs)
    return run
