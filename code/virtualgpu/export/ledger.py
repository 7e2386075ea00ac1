"""The ledger of a run on one virtual GPU: it records every operation, allocation, and collective.

It costs about a microsecond per operation. Raw notes are folded into one small record per step;
steps.py (time and FLOPs) and blocks.py (memory) interpret them.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence

import torch

from virtualgpu.core.clock import COMPUTE
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.plan import OperationPlan
from virtualgpu.export.blocks import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    RECOMPUTE,
    UPDATE,
    Allocation,
    Allocations,
    LedgerTime,
)
from virtualgpu.export.module_calls import ModuleCalls
from virtualgpu.export.owners import Owners, storages
from virtualgpu.export.passes import Passes
from virtualgpu.export.steps import MARK, OPTIMIZER_STEP, ProgramStep, StepNotes, fold
from virtualgpu.export.work import WorkCounter

in_backward = torch._C._current_graph_task_id
current_node = torch._C._current_autograd_node
keeps_forward_gradients = torch._C._is_fwd_grad_enabled  # off inside a Function's forward
# Kernels that take parameters, gradients, and three lists of optimizer state.
FUSED_UPDATES = {"aten._fused_adam_", "aten._fused_adamw_"}
REDUCING = {"all_reduce", "reduce", "reduce_scatter"}
FIRST_SCAN = 16  # allocations before the first scan of modules; the count doubles each time
MAX_OPERATIONS = 400_000  # remembered while no step ends


class Ledger:
    """Accounts for one virtual GPU between `start` and `stop`."""

    current: Ledger | None = None  # this process's

    def __init__(self, gpu: VirtualGpu, limit: int | None = None) -> None:
        """Args:
            gpu: this process's virtual GPU.
            limit: the program ends after this number of steps; None: it runs to its own end.
        """
        self.limit = limit
        self.gpu, self.blocks, self.works = gpu, Allocations(gpu.memory), WorkCounter()
        self.streams = gpu.clock.streams
        self.phase, self.outer_phase, self.interval = FORWARD, FORWARD, 0
        self.steps: list[ProgramStep] = []
        self.notes = StepNotes(gpu.clock.ready(), gpu.computing, self._exposed())
        self.next_scan = FIRST_SCAN
        self.counted = 0  # operations of finished steps
        self.first: weakref.ref[torch.optim.Optimizer] | None = None
        self.owners = Owners(self.label, self._before, self._after)
        self.passes = Passes(self)
        self.calls = ModuleCalls(gpu, self.passes)

    @property
    def operations(self) -> int:
        """Number of operations counted so far."""
        return self.counted + self.notes.forgotten + len(self.notes.plans)

    def start(self) -> None:
        for key, block in self.gpu.blocks.items():
            self.allocated(key, block.requested, block.size)
        self.gpu.ledger = self
        self.owners.start()
        self.calls.start()
        Ledger.current = self

    def stop(self) -> None:
        """Label live allocations and stop recording; the program's objects must still exist."""
        if self.gpu.ledger is self:
            self.owners.scan()
            self.owners.stop()
            self.calls.stop()
            self.passes.stop()
            self.gpu.ledger = None
        if Ledger.current is self:
            Ledger.current = None

    def now(self, steps: Sequence[ProgramStep]) -> LedgerTime:
        """Return the current moment; `steps` are the program's, however they were detected."""
        count = self.blocks.count
        if self.steps or not steps:
            return LedgerTime(self.interval, len(self.steps), count)
        share = sum(step.operations for step in steps) / len(steps) / max(1, self.operations)
        return LedgerTime(self.interval, 0, count, share * count)

    def operation(self, plan: OperationPlan, args: Sequence) -> None:
        """Record an operation that is about to run on these positional arguments."""
        if plan.name in FUSED_UPDATES:
            self._fused_update(*args[:5])
        if in_backward() == -1:
            phase = self.outer_phase
        elif torch.is_grad_enabled() or not keeps_forward_gradients():
            phase = RECOMPUTE
        else:
            phase = BACKWARD
        if phase != self.phase:
            self.phase = phase
            self.interval += 1
            self.passes.trained |= phase == BACKWARD
        if self.passes.inside:
            self.passes.wrote(plan, args)
        notes = self.notes
        if plan.work is not None and plan.work.tokens:
            notes.lookups.append((len(notes.plans), table_of(args[0])))
        notes.plans.append(plan)
        notes.phases.append(phase)
        notes.times.append(self.streams[COMPUTE])
        notes.busy.append(self.gpu.computing)
        if len(notes.plans) > MAX_OPERATIONS:
            notes.forget(MAX_OPERATIONS // 2)

    def allocated(self, key: int, _size: int, held: int) -> None:
        block = self.blocks.allocated(key, held, self.phase, self.interval, len(self.steps))
        self.passes.allocated(key, held)
        if self.blocks.history is not None:
            block.begin = self.gpu.clock.reached()
        if self.phase == BACKWARD:
            self._label_gradient(block)
        if block.number == self.next_scan:  # a program without an optimizer has parameters, too
            self.next_scan *= 2
            self.owners.scan()

    def released(self, key: int, _held: int) -> None:
        self.passes.released(key)
        block = self.blocks.released(key, self.interval, len(self.steps))
        if block is not None and self.blocks.history is not None:
            block.end = self.gpu.clock.reached()

    def resized(self, key: int, size: int, _before: int, held: int) -> None:
        """Record a storage that was resized in place, as FSDP's are; its category stays."""
        old = self.blocks.released(key, self.interval, len(self.steps))
        self.passes.released(key)
        self.allocated(key, size, held)
        if old is not None:
            if self.blocks.history is not None:
                old.end = self.gpu.clock.reached()
            self.blocks.live[key].label = old.label

    def detached(self, tensor: torch.Tensor) -> None:
        """Label the gradient that autograd detaches to assign it to a parameter without one."""
        node = current_node()
        if node is None or not isinstance(getattr(node, "variable", None), torch.nn.Parameter):
            return
        for key in storages(tensor):
            self.label(key, GRADIENTS)
        for key in storages(node.variable):
            self.label(key, PARAMETERS)

    def communicated(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Label a tensor that is reduced in a backward pass but older than it: it is a DDP bucket.

        Args:
            name: the collective.
            tensors: its inputs.
        """
        if name in REDUCING and in_backward() != -1:
            for tensor in tensors:
                for key in storages(tensor):
                    block = self.blocks.live.get(key)
                    if block is not None and block.phase == FORWARD:
                        self.label(key, GRADIENTS)

    def _fused_update(self, weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor],
                      *states: Sequence[torch.Tensor]) -> None:
        """Label the operands of a fused update, since only torch's own optimizers have hooks.

        Weights that no module owns and that need no gradient are master weights.
        """
        if self.outer_phase != UPDATE:
            self.owners.scan()
        for weight in weights:
            for key in storages(weight):
                self.label(key, PARAMETERS if weight.requires_grad else OPTIMIZER)
        for category, group in ((GRADIENTS, gradients), *((OPTIMIZER, state) for state in states)):
            for tensor in group:
                for key in storages(tensor):
                    self.label(key, category)

    def _label_gradient(self, block: Allocation) -> None:
        """Label a gradient that autograd copies before assigning it to its parameter."""
        node = current_node()
        if isinstance(getattr(node, "variable", None), torch.nn.Parameter):
            block.label = GRADIENTS

    def label(self, key: int, category: str) -> None:
        """Set the category of a storage, unless it has one.

        Args:
            key: identity of the storage.
            category: one of blocks.CATEGORIES.
        """
        block = self.blocks.live.get(key)
        if block is not None and block.label is None:
            block.label = category

    def _before(self, _optimizer: torch.optim.Optimizer) -> None:
        self.outer_phase = UPDATE

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        self.outer_phase = FORWARD
        first = self.first and self.first()
        if first is None:
            self.first, first = weakref.ref(optimizer), optimizer
        if optimizer is first:
            self._boundary(f"{OPTIMIZER_STEP} ({type(optimizer).__name__})")

    def mark(self) -> None:
        """End a step that the program marked (mark_step)."""
        self.owners.scan()
        self._boundary(MARK)

    def _boundary(self, kind: str) -> None:
        clock = self.gpu.clock
        time = max(clock.ready(), *clock.streams.values())  # ready() launches fused kernels
        self.counted = self.operations
        step = fold(self.notes, self.works, kind, time, self.gpu.computing)
        exposed = self._exposed()
        step.exposed = Counter({stream: seconds - self.notes.exposed.get(stream, 0.0)
                                for stream, seconds in exposed.items()})
        self.steps.append(step)
        self.notes = StepNotes(time, self.gpu.computing, exposed)
        if self.limit is not None and self.limit == sum(one.kind == kind for one in self.steps):
            raise SystemExit(0)  # after as many steps as the user asked for

    def _exposed(self) -> dict[str, float]:
        """Return the seconds of exposed communication so far, by the stream that waited."""
        return dict(self.gpu.clock.exposed)


def table_of(weight: torch.Tensor) -> tuple[int, int]:
    """Return the identity of an embedding's weight, or of the parameter that it was cast from.

    FSDP1's weights are views of one parameter, and differ by their offset.
    """
    node = weight.grad_fn
    while node is not None and not hasattr(node, "variable"):
        node = next((other for other, _ in node.next_functions if other is not None), None)
    table = weight.untyped_storage()._cdata if node is None else id(node.variable)
    return table, weight.storage_offset()


def mark_step() -> None:
    """Mark the end of a step for the report of `virtualrun`; do nothing elsewhere.

    Only needed if the report cannot detect the steps.
    """
    if Ledger.current is not None:
        Ledger.current.mark()
