"""Model torch.compile: elementwise operations and reductions of compiled regions are fused.

They are deferred into kernels. An operation joins the kernel that produces what it reads, and a
kernel is launched when another operation, or one of another size, reads its results. It reads every
input once, and allocates and writes the results that still exist then: temporary ones stay in
registers. A variable of the program may keep a result alive that nothing reads anymore; a region's
second call and later ones do not write it. What needs the reduction of a whole tensor to one number
waits for the kernel that reduces it. An operation that computes what an earlier one did costs
nothing, as AOTAutograd removes it (torch/_functorch/compile_utils.py, `fx_graph_cse`). saving.py
decides which results the backward pass keeps, and which it recomputes in its own fused kernels.
"""

from __future__ import annotations

import bisect
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.operand import moved, tensors
from virtualgpu.core.plan import OperationPlan, changed_tensor, nested
from virtualgpu.core.rules.gemm import row_bytes
from virtualgpu.core.rules.work import FULL_ALIGNMENT, KernelWork
from virtualgpu.export.kernel_names import FUSED
from virtualgpu.export.trace import Position, TraceRecorder, position
from virtualgpu.pytorch.saving import Saving
from virtualgpu.pytorch.visible import key_of

NAME = "fused kernels"
NOTE = ("torch.compile: elementwise operations and reductions are fused, and the backward pass "
        "recomputes them; --no-fuse-pointwise models eager mode")
aten = torch.ops.aten
REDUCTIONS = {aten.mean, aten.sum, aten.amax, aten.max, aten.min, aten.var_mean, aten._softmax,
              aten._softmax_backward_data, aten._log_softmax, aten._log_softmax_backward_data,
              aten.nll_loss_forward, aten.nll_loss_backward, aten.native_layer_norm,
              aten.native_layer_norm_backward, aten._fused_rms_norm,
              aten._fused_rms_norm_backward}
INLINED = {aten._to_copy, aten.copy_, aten.clone, aten.masked_fill, aten.masked_fill_, aten.where}
FUSIBLE = REDUCTIONS | INLINED | {aten.native_dropout, aten.native_dropout_backward, aten.cat,
                                  aten.slice_backward, aten.select_backward}
Calls = dict[bool, list[list]]  # of a region, with and without gradients: its results


class FusedKernel:
    """A kernel that is not launched yet.

    Attributes:
        stream: the stream that it runs on.
        elements: size of its iteration space.
        inlined: whether it is elementwise, so that a larger kernel can include it.
        complete: whether it reduces everything to one number, so that what is as large as its input
            and needs this number has to wait for all of it.
        read: bytes that it reads, by storage.
        written: bytes that it writes, by storage.
        operations: what it computes, while a trace is recorded.
    """

    def __init__(self, stream: str, elements: int) -> None:
        self.stream, self.elements, self.inlined, self.complete = stream, elements, True, False
        self.read: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.operations: list[TracedOperation] = []

    def absorb(self, other: FusedKernel) -> None:
        """Merge another kernel into this one."""
        self.elements = max(self.elements, other.elements)
        self.inlined = self.inlined and other.inlined
        self.complete = self.complete or other.complete
        self.read |= other.read
        self.written |= other.written
        self.operations += other.operations


class Fuser:
    """Builds fused kernels of compiled regions.

    Attributes:
        depth: number of compiled regions that the program is in.
        kernels: the deferred kernels.
        writers: the deferred kernel that writes a storage.
        unwritten: storages that these kernels write and that have no memory yet.
        results: of the current call of a region, each the operation and whether anything read it
            after its kernel was launched.
        before: those of the last call.
        entries: the entry of a live storage in `results`, and its place there.
        numbers: the value number of a storage, by key, and the storage.
        computed: the value numbers of an operation's results, by operation and arguments.
        first: the storage that first held a value, by value number.
        same: the storage that already holds a repeated result, by the result's key.
        again: bytes to read, by storage, to recompute a repeated result that was only in registers.
    """

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu, self.depth = gpu, 0
        self.begins: list[int] = []  # autograd sequence numbers at which regions begin and end
        self.ends: list[int] = []
        self.kernels: list[FusedKernel] = []
        self.writers: dict[int, FusedKernel] = {}
        self.unwritten: dict[int, weakref.ref] = {}
        self.results: list[list] = []
        self.before: list[list] = []
        self.entries: dict[int, tuple[list, int]] = {}
        self.numbers: dict[int, tuple[int, weakref.ref]] = {}
        self.computed: dict[tuple, list[int]] = {}
        self.first: dict[int, weakref.ref] = {}
        self.same: dict[int, torch.UntypedStorage] = {}
        self.again: dict[int, dict[int, int]] = {}
        self.count = itertools.count()
        self.saving = Saving(gpu, self.recomputed, self.used)

    @contextmanager
    def region(self, calls: Calls) -> Iterator[None]:
        """Mark the block as compiled code, whose backward pass is compiled, too.

        Args:
            calls: what earlier calls of the same region noted.
        """
        begin = torch.autograd._get_sequence_nr()
        if not self.depth:
            mode = torch.is_grad_enabled()
            self.before, self.results = calls.get(mode, []), []
            calls[mode] = self.results
        self.depth += 1
        try:
            with nullcontext() if self.depth > 1 else self.saving.region():
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

    def fuses(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict) -> bool:
        """Return whether an operation runs in a fused kernel."""
        if ((torch.Tag.pointwise not in func.tags and func.overloadpacket not in FUSIBLE)
                or not self.inside()):
            return False
        operands = tensors((*args, *kwargs.values()))
        # Inductor generates no code for complex numbers (torch/_inductor/lowering.py).
        return all(self.gpu.holds(item) and not item.is_complex()
                   for item in operands if item.dim())

    def alone(self, args: Sequence, plan: OperationPlan) -> OperationPlan:
        """Return the plan of an operation that is not fused; Inductor pads unaligned GEMMs where
        that is faster (torch/_inductor/fx_passes/pad_mm.py, `shape_padding`)."""
        work = plan.work
        if (work is None or work.gemm is None or work.gemm.aligned == FULL_ALIGNMENT
                or not self.inside()):
            return plan
        copied = [item for item in tensors(args)
                  if item.dim() >= 2 and row_bytes(item) % FULL_ALIGNMENT]
        copies = KernelWork(2 * sum(map(moved, copied)), len(copied))
        seconds = self.gpu.seconds(copies) + self.gpu.seconds(
            work._replace(gemm=work.gemm._replace(aligned=FULL_ALIGNMENT)))
        if seconds >= plan.seconds:
            return plan
        return plan._replace(seconds=seconds, kernels=plan.kernels + len(copied))

    def defer(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict, plan: OperationPlan,
              out: object) -> bool:
        """Leave an operation's results without memory if it can be fused; return whether it can.

        Args:
            func: the operation.
            args: its positional arguments.
            kwargs: its keyword arguments.
            plan: its plan if it ran alone.
            out: its result.
        """
        if not plan.kernels or not self.fuses(func, args, kwargs):
            return False
        for item in nested(out):
            self._leave_unwritten(item)
        return True

    def take(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict, plan: OperationPlan,
             out: object) -> bool:
        """Add an operation to a deferred kernel if it can be fused; else launch what it reads.

        The arguments are those of `defer`. Returns whether it was added.
        """
        fusible = self.fuses(func, args, kwargs)
        operands = tensors((*args, *kwargs.values()))
        produced = tensors([changed_tensor(args, kwargs, plan.changed)]
                           if plan.changed is not None else list(nested(out)))
        if self.depth:
            self.saving.ran(func, operands, produced, fusible, plan.changed is None)
        if plan.changed is not None:
            self._changed(map(key_of, produced))
        keys = list(map(self._key, operands))
        if not fusible:
            if not self.inside():
                self.flush()
            self._compute_again(operands)
            for kernel in self._producers((*keys, *map(key_of, produced))):
                self.launch(kernel, keys)
            self.used(keys)
            self._changed(map(key_of, produced))
            return False
        if self._repeats(func, args, kwargs, plan, operands, produced):
            return True
        self._compute_again(operands)
        elements = max((item.numel() for item in (*operands, *produced)), default=0)
        kernel = self._kernel(keys, elements, func.overloadpacket is aten.cat)
        kernel.inlined = kernel.inlined and (torch.Tag.pointwise in func.tags
                                             or func.overloadpacket in INLINED)
        kernel.complete = kernel.complete or (
            func.overloadpacket in REDUCTIONS and elements > 1 == produced[0].numel())
        self.used(key for key in keys if key not in kernel.written)
        for item in operands:
            key = self._key(item)
            if key not in kernel.written:
                kernel.read.setdefault(key, moved(item))
        for item in produced:
            self._write(kernel, item)
            if self.depth and plan.changed is None:
                entry = [func, False]
                self.entries[key_of(item)] = entry, len(self.results)
                self.results.append(entry)
        if self.gpu.recorder is not None:
            kernel.operations.append(traced(func, (produced or operands)[0].dtype))
        return True

    def used(self, keys: Iterable[int]) -> None:
        """Note that storages are read after their kernel was launched, or will be."""
        for key in keys:
            if key in self.entries:
                self.entries[key][0][1] = True
            # The last call of the region was different, or an earlier operation computed it.
            if key in self.unwritten and key not in self.writers:
                self._allocate(key)

    def recomputed(self, tensor: torch.Tensor, sources: dict[int, int]) -> None:
        """Defer the recomputation of a tensor.

        Args:
            tensor: the result, which has no memory.
            sources: bytes that the kernel reads, by storage.
        """
        kernel = self._kernel(list(sources), tensor.numel(), False)
        kernel.read = sources | kernel.read
        self._leave_unwritten(tensor)
        self._write(kernel, tensor)
        if self.gpu.recorder is not None:
            kernel.operations.append(TracedOperation("recomputed", False, tensor.dtype, position()))

    def _repeats(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
                 plan: OperationPlan, operands: Sequence[torch.Tensor],
                 produced: Sequence[torch.Tensor]) -> bool:
        """Return whether an operation computes what an earlier one did, and number its results.

        The arguments are those of `take`, with the tensors that it reads and its results.
        """
        outputs = list(map(key_of, produced))
        if not operands or plan.changed is not None or not (
                {*map(key_of, operands)}.isdisjoint(outputs)) or (
                torch.Tag.nondeterministic_seeded in func.tags):
            self._changed(outputs)
            return False
        what = (func, *kwargs, *map(self._identity, tree_leaves((args, kwargs))))
        before = self.computed.get(what)
        numbers = self.computed[what] = before or [next(self.count) for _ in produced]
        for item, number, key in zip(produced, numbers, outputs, strict=True):
            self.numbers[key] = number, weakref.ref(item.untyped_storage())
            first = before and self.first[number]()
            if first is not None:
                self.same[key] = first
                continue
            self.first[number] = self.numbers[key][1]
            if before is not None:
                self.again[key] = self._sources(func, operands, item)
        return before is not None

    def _sources(self, func: torch._ops.OpOverload, operands: Sequence[torch.Tensor],
                 result: torch.Tensor) -> dict[int, int]:
        """Return the bytes that a kernel reads to compute a result in its registers, by storage.

        A kernel that reduced has written its result, which a compiled program keeps.
        """
        if torch.Tag.pointwise not in func.tags and func.overloadpacket not in INLINED:
            return {key_of(result): moved(result)}
        read: dict[int, int] = {}
        for item in operands:
            read |= self.again.get(key_of(item), {self._key(item): moved(item)})
        return read

    def _compute_again(self, operands: Sequence[torch.Tensor]) -> None:
        """Defer the recomputation of operands that were only in registers."""
        for item in operands:
            sources = self.again.pop(key_of(item), None)
            if sources is not None:
                self.recomputed(item, sources)

    def _identity(self, argument: object) -> tuple:
        """Return a key that is equal for two arguments only if their values are known to be."""
        if not isinstance(argument, torch.Tensor):
            return type(argument), argument
        key, storage = key_of(argument), argument.untyped_storage()
        number, known = self.numbers.get(key, (None, None))
        if known is None or known() is not storage:
            number = next(self.count)
            self.numbers[key] = number, weakref.ref(storage)
        return (number, argument.dtype, argument.shape, argument.stride(),
                argument.storage_offset())

    def _key(self, tensor: torch.Tensor) -> int:
        """Return the key of the storage that holds a tensor's values."""
        first = self.same.get(key_of(tensor))
        return key_of(tensor) if first is None else first._cdata

    def _changed(self, keys: Iterable[int]) -> None:
        """Note that storages have other values now."""
        for key in keys:
            self.numbers.pop(key, None)
            for repeated in [other for other, first in self.same.items()
                             if key in (other, first._cdata)]:
                del self.same[repeated]

    def _producers(self, keys: Iterable[int]) -> list[FusedKernel]:
        """Return the deferred kernels that write some storages."""
        found = {id(kernel): kernel for key in keys if (kernel := self.writers.get(key))}
        return list(found.values())

    def _kernel(self, keys: Sequence[int], elements: int, grows: bool) -> FusedKernel:
        """Return the kernel that an operation joins; launch those that it cannot join.

        Args:
            keys: the storages that it reads.
            elements: the size that it iterates over.
            grows: whether it can be fused into smaller kernels.
        """
        joined: FusedKernel | None = None
        for kernel in self._producers(keys):
            if kernel.stream != self.gpu.stream or (kernel.complete and elements > 1) or (
                    elements > kernel.elements and not grows and not kernel.inlined):
                self.launch(kernel, keys)
            elif joined is None:
                joined = kernel
            else:
                joined.absorb(kernel)
                self.writers |= dict.fromkeys(kernel.written, joined)
                self.kernels.remove(kernel)
        if joined is None:
            joined = next((kernel for kernel in self.kernels
                           if kernel.elements == elements and kernel.stream == self.gpu.stream
                           and not kernel.complete
                           and not kernel.read.keys().isdisjoint(keys)), None)
        if joined is None:
            joined = FusedKernel(self.gpu.stream, elements)
            self.kernels.append(joined)
        joined.elements = max(joined.elements, elements)
        return joined

    def _write(self, kernel: FusedKernel, tensor: torch.Tensor) -> None:
        key = key_of(tensor)
        kernel.written[key] = moved(tensor)
        self.writers[key] = kernel

    def _leave_unwritten(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.gpu.blocks and key not in self.unwritten:
            self.unwritten[key] = weakref.ref(storage)
            weakref.finalize(storage, self.died, key).atexit = False

    def flush(self) -> None:
        """Launch all deferred kernels."""
        self.numbers.clear()
        self.computed.clear()
        self.first.clear()
        while self.kernels:
            self.launch(self.kernels[0])

    def launch(self, kernel: FusedKernel, read: Sequence[int] = ()) -> None:
        """Launch a kernel; its results get their memory. Without results, it is dropped.

        Args:
            kernel: a deferred one.
            read: storages that the operation reads for which the kernel is launched.
        """
        self.kernels.remove(kernel)
        before, self.gpu.stream = self.gpu.stream, kernel.stream
        try:
            keys = [key for key in list(kernel.written) if self._is_written(key, read)]
            if written := sum(kernel.written[key] for key in keys):
                work = KernelWork(sum(kernel.read.values()) + written)
                seconds = self.gpu.seconds(work)
                self.gpu.launch(NAME, seconds, 1)
                if self.gpu.recorder is not None and kernel.operations:
                    record(self.gpu.recorder, kernel, keys, work, seconds)
        except torch.OutOfMemoryError:
            self.kernels.clear()  # or they would raise it again when the run is measured
            self.writers.clear()
            raise
        finally:
            self.gpu.stream = before

    def _is_written(self, key: int, read: Sequence[int]) -> bool:
        """Return whether a launched kernel writes a result, and allocate it then."""
        self.writers.pop(key, None)
        entry, place = self.entries.get(key, (None, 0))
        if (entry and key not in read and not entry[1]
                and self.before[place:place + 1] == [[entry[0], False]]):
            return False
        self._allocate(key)
        return True

    def _allocate(self, key: int) -> None:
        storage = self.unwritten.pop(key, lambda: None)()
        if storage is not None:
            self.gpu.hold_storage(storage)

    def died(self, key: int) -> None:
        """Drop a result that was freed, so that it is never written."""
        kernel = self.writers.pop(key, None)
        if kernel is not None:
            del kernel.written[key]
        self.unwritten.pop(key, None)
        self.entries.pop(key, None)
        self.saving.died(key)
        self.again.pop(key, None)
        self.same.pop(key, None)  # last, because this may free the first result



class TracedOperation(NamedTuple):
    """What a trace shows of an operation in a fused kernel.

    Attributes:
        name: the operation.
        reduces: whether it is a reduction.
        dtype: dtype of its results.
        by: what launched it.
    """

    name: str
    reduces: bool
    dtype: torch.dtype
    by: Position


def traced(func: torch._ops.OpOverload, dtype: torch.dtype) -> TracedOperation:
    """Return what a trace shows of an operation that has just been fused."""
    return TracedOperation(func._schema.name.partition("::")[2].rstrip("_"),
                           func.overloadpacket in REDUCTIONS, dtype, position())


def record(recorder: TraceRecorder, kernel: FusedKernel, written: Sequence[int], work: KernelWork,
           seconds: float) -> None:
    """Record a fused kernel that has just been launched, under the name that Inductor gives it.

    Args:
        recorder: the trace's.
        kernel: the kernel.
        written: the storages that it writes.
        work: its work.
        seconds: its duration.
    """
    kind = "red" if any(one.reduces for one in kernel.operations) else "poi"
    name = "_".join((FUSED, kind, "fused", *sorted({one.name for one in kernel.operations})))
    first, last = kernel.operations[0], kernel.operations[-1]
    shape = torch.Size([kernel.elements]), (1,), first.dtype, True  # as from plan.signature
    plan = OperationPlan(None, None, name, seconds, 1, False, work)
    recorder.kernel((name, shape), plan, last.by, tuple(kernel.read), tuple(written))


def fuse(gpu: VirtualGpu) -> None:
    """Fuse the kernels of compiled regions from now on. Deferred kernels are launched before the
    program waits for the GPU or communicates."""
    gpu.fuser = Fuser(gpu)
    for name in ("ready", "communicate", "wait", "wait_for_communication", "host_waits",
                 "synchronize"):
        setattr(gpu.clock, name, flushing(gpu.fuser, getattr(gpu.clock, name)))


def flushing(fuser: Fuser, method: Callable) -> Callable:
    def call(*args: object, **kwargs: object):
        fuser.flush()
        return method(*args, **kwargs)
    return call
