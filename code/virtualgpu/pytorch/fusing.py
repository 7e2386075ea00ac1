"""Model torch.compile: consecutive kernels of compiled regions become one kernel.

Consecutive elementwise operations and reductions are deferred, and run as one kernel when another
operation follows. The kernel reads every input once and writes the results that still exist then:
temporary ones stay in registers, and results that the backward pass needs are written.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from virtualgpu.core.clock import COMPUTE, Clock
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.operand import moved, tensors
from virtualgpu.core.plan import OperationPlan, changed_tensor, nested
from virtualgpu.core.rules.work import KernelWork
from virtualgpu.export.kernel_names import FUSED
from virtualgpu.export.trace import Position, TraceRecorder, position
from virtualgpu.pytorch.visible import key_of

NAME = "fused kernels"
NOTE = ("elementwise operations and reductions of compiled regions are fused; memory is that of "
        "eager mode, and nothing is recomputed")
aten = torch.ops.aten
REDUCTIONS = {aten.mean, aten.sum, aten.amax, aten.var_mean, aten._softmax,
              aten._softmax_backward_data, aten._log_softmax, aten._log_softmax_backward_data,
              aten.native_layer_norm, aten.native_layer_norm_backward, aten._fused_rms_norm,
              aten._fused_rms_norm_backward}
FUSIBLE = REDUCTIONS | {aten._to_copy, aten.copy_, aten.clone, aten.native_dropout,
                        aten.native_dropout_backward}


class Fuser:
    """Builds fused kernels of compiled regions."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu, self.depth = gpu, 0
        self.begins: list[int] = []  # autograd sequence numbers at which regions begin and end
        self.ends: list[int] = []
        self.stream, self.elements, self.bytes_read = COMPUTE, 0, 0
        self.read: set[int] = set()  # storages
        self.written: dict[int, int] = {}  # bytes by storage
        self.traced: TracedKernel | None = None  # while a trace is recorded

    @contextmanager
    def region(self) -> Iterator[None]:
        """Mark the block as compiled code, whose backward pass is compiled, too."""
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
        """Return whether a compiled region is running, forward or backward."""
        if self.depth:
            return True
        node = torch._C._current_autograd_node()
        if node is None:
            return False
        number = node._sequence_nr()
        region = bisect.bisect_right(self.begins, number) - 1
        return region >= 0 and number < self.ends[region]

    def take(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict, plan: OperationPlan,
             out: object) -> bool:
        """Defer an operation if it can be fused; return whether it was.

        Args:
            func: the operation.
            args: its positional arguments.
            kwargs: its keyword arguments.
            plan: its plan if it ran alone.
            out: its result.
        """
        if ((torch.Tag.pointwise not in func.tags and func.overloadpacket not in FUSIBLE)
                or not self.inside()):
            return False
        operands = tensors((*args, *kwargs.values()))
        if not all(map(self.gpu.holds, (item for item in operands if item.dim()))):
            return False
        produced = tensors([changed_tensor(args, kwargs, plan.changed)]
                           if plan.changed is not None else list(nested(out)))
        elements = max((item.numel() for item in (*operands, *produced)), default=0)
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
        self.written |= {key_of(item): moved(item) for item in produced}
        if self.gpu.recorder is not None:
            if self.traced is None:
                self.traced = TracedKernel(elements, (produced or operands)[0].dtype)
            self.traced.add(func, operands, produced)
        return True

    def flush(self) -> None:
        """Launch the fused kernel, if there is one."""
        if not (self.read or self.written):
            return
        work = KernelWork(self.bytes_read + sum(self.written.values()))
        self.bytes_read, self.elements = 0, 0
        self.read.clear()
        self.written.clear()
        before, self.gpu.stream = self.gpu.stream, self.stream
        seconds, traced = self.gpu.seconds(work), self.traced
        self.traced = None
        self.gpu.launch(NAME, seconds, 1)
        if self.gpu.recorder is not None and traced is not None:
            traced.record(self.gpu.recorder, work, seconds)
        self.gpu.stream = before

    def died(self, key: int) -> None:
        """Drop a result that was freed, so that it is never written."""
        self.written.pop(key, None)
        self.read.discard(key)


class TracedKernel:
    """What a trace shows of a fused kernel, which is named as Inductor names kernels."""

    def __init__(self, elements: int, dtype: torch.dtype) -> None:
        self.shape = torch.Size([elements]), (1,), dtype, True  # as from plan.signature
        self.operations: set[str] = set()
        self.reduces = False
        self.reads: dict[int, None] = {}  # storages, in order
        self.writes: dict[int, None] = {}
        self.by: Position = (None, 0)

    def add(self, func: torch._ops.OpOverload, operands: Sequence[torch.Tensor],
            produced: Sequence[torch.Tensor]) -> None:
        """Add an operation.

        Args:
            func: the operation.
            operands: the tensors that it reads.
            produced: those that it writes.
        """
        self.operations.add(func._schema.name.partition("::")[2].rstrip("_"))
        self.reduces = self.reduces or func.overloadpacket in REDUCTIONS
        self.reads |= dict.fromkeys(map(key_of, operands))
        self.writes |= dict.fromkeys(map(key_of, produced))
        self.by = position()

    def record(self, recorder: TraceRecorder, work: KernelWork, seconds: float) -> None:
        """Record the kernel, which has just been launched.

        Args:
            recorder: the trace's.
            work: its work.
            seconds: its duration.
        """
        kind = "red" if self.reduces else "poi"
        name = "_".join((FUSED, kind, "fused", *sorted(self.operations)))
        plan = OperationPlan(None, None, name, seconds, 1, False, work)
        recorder.kernel((name, self.shape), plan, self.by, tuple(self.reads), tuple(self.writes))


class FusingClock(Clock):
    """A clock that launches the deferred kernel before it advances."""

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
