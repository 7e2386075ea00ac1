"""The account of a run on one virtual GPU: every operation, allocation, and collective is noted.

Costs about a microsecond per operation. Raw notes are folded into one small record per step; what
they mean is worked out in steps.py (time and FLOPs) and blocks.py (memory).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from virtualgpu.core.clock import COMPUTE
from virtualgpu.core.plan import Plan
from virtualgpu.export.blocks import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    RECOMPUTE,
    UPDATE,
    Block,
    Blocks,
    Now,
)
from virtualgpu.export.owners import Owners, storages
from virtualgpu.export.steps import MARK, OPTIMIZER_STEP, Notes, Step, fold
from virtualgpu.export.work import Works

if TYPE_CHECKING:
    from virtualgpu.core.gpu import VirtualGpu
    from virtualgpu.export.files import Traced

in_backward = torch._C._current_graph_task_id
current_node = torch._C._current_autograd_node
keeps_forward_gradients = torch._C._is_fwd_grad_enabled  # off inside a Function's forward
# Kernels that name their operands: parameters, gradients, and three lists of optimizer state.
FUSED_UPDATES = {"aten._fused_adam_", "aten._fused_adamw_"}
REDUCING = {"all_reduce", "reduce", "reduce_scatter"}
FIRST_LOOK = 16  # allocations until modules are looked through; then twice as many, and so on
MOST_OPERATIONS = 400_000  # that are remembered while no step ends


class Ledger:
    """Accounts for one virtual GPU between `start` and `stop`."""

    current: Ledger | None = None  # of this process

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu, self.blocks, self.works = gpu, Blocks(gpu.memory), Works()
        self.streams = gpu.clock.streams
        self.phase, self.outside, self.interval = FORWARD, FORWARD, 0
        self.steps: list[Step] = []
        self.notes = Notes(gpu.clock.ready(), gpu.computing, self._exposed())
        self.look = FIRST_LOOK
        self.counted = 0  # operations of finished steps
        self.first: weakref.ref[torch.optim.Optimizer] | None = None
        self.traced: Traced | None = None  # where traces are asked for
        self.owners = Owners(self.label, self._before, self._after)

    @property
    def operations(self) -> int:
        """Number of operations counted so far."""
        return self.counted + self.notes.forgotten + len(self.notes.plans)

    def start(self) -> None:
        for key, block in self.gpu.blocks.items():
            self.allocated(key, block.requested, block.size)
        self.gpu.ledger = self
        self.owners.start()
        Ledger.current = self

    def stop(self) -> None:
        """Label what is alive now and stop counting; the program's objects must still exist."""
        if self.gpu.ledger is self:
            self.owners.look()
            self.owners.stop()
            self.gpu.ledger = None
        if Ledger.current is self:
            Ledger.current = None

    def now(self, steps: Sequence[Step]) -> Now:
        """This moment; `steps` are the program's, however they were found."""
        count = self.blocks.count
        if self.steps or not steps:
            return Now(self.interval, len(self.steps), count)
        part = sum(step.operations for step in steps) / len(steps) / max(1, self.operations)
        return Now(self.interval, 0, count, part * count)

    # Called by the GPU.

    def operation(self, plan: Plan, args: Sequence) -> None:
        """It is about to run on these positional arguments."""
        if plan.name in FUSED_UPDATES:
            self._fused_update(*args[:5])
        if in_backward() == -1:
            phase = self.outside
        elif torch.is_grad_enabled() or not keeps_forward_gradients():
            phase = RECOMPUTE
        else:
            phase = BACKWARD
        if phase != self.phase:
            self.phase = phase
            self.interval += 1
        notes = self.notes
        notes.plans.append(plan)
        notes.phases.append(phase)
        notes.times.append(self.streams[COMPUTE])
        notes.busy.append(self.gpu.computing)
        if len(notes.plans) > MOST_OPERATIONS:
            notes.forget(MOST_OPERATIONS // 2)

    def allocated(self, key: int, _size: int, held: int) -> None:
        block = self.blocks.allocated(key, held, self.phase, self.interval, len(self.steps))
        if self.blocks.history is not None:
            block.begin = self.gpu.clock.ready()
        if self.phase == BACKWARD:
            self._of_parameter(block)
        if block.number == self.look:  # a program without an optimizer has parameters, too
            self.look *= 2
            self.owners.look()

    def released(self, key: int, _held: int) -> None:
        block = self.blocks.released(key, self.interval, len(self.steps))
        if block is not None and self.blocks.history is not None:
            block.end = self.gpu.clock.ready()

    def resized(self, key: int, size: int, _before: int, held: int) -> None:
        """A storage has grown or shrunk in place, as FSDP's do; what it holds stays the same."""
        old = self.blocks.released(key, self.interval, len(self.steps))
        self.allocated(key, size, held)
        if old is not None:
            if self.blocks.history is not None:
                old.end = self.gpu.clock.ready()
            self.blocks.live[key].label = old.label

    def detached(self, tensor: torch.Tensor) -> None:
        """Autograd detaches a gradient when it hands it to a parameter that has none yet."""
        node = current_node()
        if node is None or not isinstance(getattr(node, "variable", None), torch.nn.Parameter):
            return
        for key in storages(tensor):
            self.label(key, GRADIENTS)
        for key in storages(node.variable):
            self.label(key, PARAMETERS)

    def communicated(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """A collective begins. What is reduced in a backward pass and was there before it holds
        gradients: it is a bucket of DDP's.

        Args:
            name: of the collective.
            tensors: what goes in.
        """
        if name in REDUCING and in_backward() != -1:
            for tensor in tensors:
                for key in storages(tensor):
                    block = self.blocks.live.get(key)
                    if block is not None and block.phase == FORWARD:
                        self.label(key, GRADIENTS)

    def _fused_update(self, weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor],
                      *states: Sequence[torch.Tensor]) -> None:
        """Label what an update reads. An optimizer that is not one of torch's has no hooks; weights
        that no module owns and that need no gradient are its master weights."""
        if self.outside != UPDATE:
            self.owners.look()
        for weight in weights:
            for key in storages(weight):
                self.label(key, PARAMETERS if weight.requires_grad else OPTIMIZER)
        for category, group in ((GRADIENTS, gradients), *((OPTIMIZER, state) for state in states)):
            for tensor in group:
                for key in storages(tensor):
                    self.label(key, category)

    # What the hooks find.

    def _of_parameter(self, block: Block) -> None:
        """Label a gradient that autograd copies before it hands it over."""
        node = current_node()
        if isinstance(getattr(node, "variable", None), torch.nn.Parameter):
            block.label = GRADIENTS

    def label(self, key: int, category: str) -> None:
        """Say what a storage holds, unless that is known.

        Args:
            key: identity of the storage.
            category: one of blocks.CATEGORIES.
        """
        block = self.blocks.live.get(key)
        if block is not None and block.label is None:
            block.label = category

    def _before(self, _optimizer: torch.optim.Optimizer) -> None:
        self.outside = UPDATE

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        self.outside = FORWARD
        first = self.first and self.first()
        if first is None:
            self.first, first = weakref.ref(optimizer), optimizer
        if optimizer is first:
            self._boundary(f"{OPTIMIZER_STEP} ({type(optimizer).__name__})")

    def mark(self) -> None:
        """The program says that a step is over."""
        self.owners.look()
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
        self.notes = Notes(time, self.gpu.computing, exposed)

    def _exposed(self) -> dict[str, float]:
        """Seconds of exposed communication so far, by the stream that waited."""
        return dict(self.gpu.clock.exposed)


def mark_step() -> None:
    """Say that a step of the program is over, for the report of `virtualrun`; elsewhere nothing
    happens. Only needed where the report cannot find the steps by itself."""
    if Ledger.current is not None:
        Ledger.current.mark()
