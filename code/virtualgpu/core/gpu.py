"""A virtual GPU: every operation on a meta tensor advances its clock and uses its memory."""

from __future__ import annotations

import linecache
import os
import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import virtualgpu.core.kernels  # noqa: F401  defines operations
from virtualgpu.core.assumptions import Assumptions
from virtualgpu.core.card import Card
from virtualgpu.core.clock import COMPUTE, Clock
from virtualgpu.core.errors import NoValue, UnknownCost
from virtualgpu.core.operand import moved, tensors
from virtualgpu.core.plan import (
    HOST,
    OperationKind,
    OperationPlan,
    changed_argument,
    changed_tensor,
    kind_of,
    needs_shape_check,
    nested,
    refuse_other_devices,
    result_specs,
    results_in_place,
    signature,
    to_meta,
)
from virtualgpu.core.precisions import refuse, require
from virtualgpu.core.rules import rule_of
from virtualgpu.core.rules.attention import attention_rate
from virtualgpu.core.rules.gemm import depthwise_rate, matmul_seconds
from virtualgpu.core.rules.results import needs_values, new_tensors
from virtualgpu.core.rules.work import KernelWork, is_free, read_and_write
from virtualgpu.core.storages import Storages
from virtualgpu.core.workspaces import Workspaces

CUDA = torch.device("cuda", 0)
DETACH = torch.ops.aten.detach.default
READ_LATENCY = 10e-6  # seconds to copy a few bytes from the GPU to the host
MAX_UNKNOWN = 0.02  # largest share of the time in operations without a cost rule
PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
LAUNCHER = f"{PACKAGE}launch{os.sep}"  # outside it, nothing is the program's
# The final separator matters: torchvision's folder begins with torch's path, too.
LIBRARY_CODE = (PACKAGE, f"{Path(torch.__file__).parent}{os.sep}", "<frozen ")
STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
WRAPPERS = f"{os.sep}typing_extensions.py"  # around functions that torch deprecates


class HostCosts(Protocol):
    """Charges the host for more than launches (eager.py)."""

    def operation(self, name: str, launches: float) -> float: ...

    def view(self) -> None: ...


class VirtualGpu(Storages, TorchDispatchMode):
    """A virtual GPU for one process; active between __enter__ and __exit__."""

    def __init__(self, card: Card, watched: str = "meta") -> None:
        """Create a virtual GPU.

        Args:
            card: the GPU model.
            watched: type of device whose tensors are in its memory; tests use the CPU's.
        """
        super().__init__(card)
        self.clock, self.watched = Clock(), watched
        self.busy: defaultdict[str, float] = defaultdict(float)  # seconds, by operation
        self.computing = 0.0  # seconds in kernels, without communication
        self.unknown: defaultdict[str, int] = defaultdict(int)  # calls without a rule
        self._plans: dict[tuple, OperationPlan] = {}  # by operation and its arguments
        self._kinds: dict[torch._ops.OpOverload, OperationKind] = {}
        self.stream = COMPUTE  # the current stream
        self.workspaces: Workspaces | None = None  # cuBLAS workspaces, where PyTorch allocates them
        self.assumptions = Assumptions()
        self.values: object | None = None  # known values of tensors, under virtualrun
        self.on_host: Collection[int] = frozenset()  # meta storages that are in the host's memory
        self.inferring = False  # whether the last outermost module ran without gradients
        self.output_tokens = 0  # of the sequence that is being decoded (export/passes.py)
        self.eager: HostCosts | None = None  # the host's time per operation in inference

    def runs_inference(self) -> bool:
        """Return whether the program is in inference, in a module's call or after one."""
        return self.inferring and not torch.is_grad_enabled()

    def truth(self) -> AbstractContextManager:
        """Return a context in which Python sees the devices that C++ sees."""
        return nullcontext()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping the next method in its compiler, whose import takes a second."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.execute(func, args, kwargs or {})[0]

    def execute(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
                setting: object = None) -> tuple[object, OperationPlan | None]:
        """Run an operation in modeled time and memory.

        Args:
            func: the operation.
            args: its positional arguments.
            kwargs: its keyword arguments.
            setting: anything else that its cost depends on; must be hashable.

        Returns:
            The result and the plan. The plan is HOST for an operation that does not run on this
            GPU, and None for one that launches no kernel of its own.
        """
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = kind_of(func)
        if kind is OperationKind.COMPOSITE:  # torch decomposes them, except in inference mode
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out, None
        elif kind is OperationKind.VIEW:
            if func is DETACH and self.ledger is not None:
                self.ledger.detached(args[0])
            if self.eager is not None:
                self.eager.view()
            return func(*args, **kwargs), None
        key = (func, *map(signature, args), *kwargs, *map(signature, kwargs.values()))
        if setting is not None:
            key = (*key, setting)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(func, args, kwargs)
        if plan is HOST:
            return func(*args, **kwargs), plan
        if self.ledger is not None:
            self.ledger.operation(plan, args)
        out = func(*args, **kwargs) if self.watched != "meta" else plan.make(args, kwargs)
        if plan.results is not None:
            self.hold_results(func, args, kwargs, plan, out)
        if plan.kernels:
            if plan.unknown:
                self.unknown[plan.name] += 1
            if self.journal is not None:
                self.journal.kernel(key, func, args, kwargs, plan, out)
            if self.start(func, args, kwargs, plan, out):
                return out, plan  # whoever deferred it records it
        if self.recorder is not None:
            self.recorder.operation(key, plan, (args, kwargs), out)
        return out, plan

    def hold_results(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
                     plan: OperationPlan, out: object) -> None:
        """Allocate the new tensors that an operation returns; the arguments are those of `start`.
        """
        for result in (out,) if isinstance(out, torch.Tensor) else nested(out):
            self.hold(result)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is in this GPU's memory."""
        return tensor.device.type == self.watched

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Return the tensor's device as error messages name it: this GPU is cuda:0."""
        return CUDA if self.holds(tensor) else tensor.device

    def _plan(self, func, args: Sequence, kwargs: dict) -> OperationPlan:
        """Return the plan of an operation. Raises NoValue if it needs the values of tensors."""
        operands = tensors((*args, *kwargs.values()))
        target = kwargs.get("device")
        changed = changed_argument(func, args, kwargs) if operands else None
        if changed not in (None, -1):
            target = self.device_of(changed_tensor(args, kwargs, changed))
        on_gpu = any(map(self.holds, operands))
        to_host = target is not None and torch.device(target).type not in (self.watched, "cuda")
        if on_gpu and (needs_values(func, operands) or to_host):
            raise NoValue(f"{program_line()} reads a value of a tensor, but on the virtual "
                          f"{self.card.name} tensors have no values; to read one for the log, use "
                          "ctx.read, which returns None on virtual GPUs")
        if not on_gpu and (target is None or to_host):
            return HOST
        specs = None
        refuse_other_devices(func, args, kwargs, self.device_of)
        refuse(self.card, func, args)
        if needs_shape_check(func, operands, changed):
            func(*args, **kwargs)  # raises torch's error if the shapes do not match
        if changed is None:
            specs = new_tensors(func, args, kwargs)
            if specs is None:
                out = func(*to_meta(args), **to_meta(kwargs))
                specs = result_specs(out)
        name = str(func._overloadpacket)
        if is_free(func):
            return OperationPlan(specs, changed, name, 0.0, 0, False)
        produced = (results_in_place(args, kwargs, changed) if changed is not None else
                    list(nested(specs)))
        crossing = sum(moved(item) for item in operands if item.dim() and not self.holds(item))
        seconds, work = self.cost(func, args, produced, crossing)
        return OperationPlan(specs, changed, name, seconds, work.kernels, rule_of(func) is None,
                             work)

    def cost(self, func: torch._ops.OpOverload, args: Sequence, produced: Sequence[torch.Tensor],
             crossing: int) -> tuple[float, KernelWork]:
        """Return the duration of an operation's kernels, in seconds, and the work they do.

        Args:
            func: the operation.
            args: its positional arguments.
            produced: the tensors that it returns or changes.
            crossing: bytes of its operands that are in the host's memory and cross PCIe.
        """
        work = (rule_of(func) or read_and_write)(args, produced)
        bus = crossing / self.card.pcie
        return max(bus + self.card.efficiency.kernel, self.seconds(work)), work

    def seconds(self, work: KernelWork) -> float:
        """Return the duration of the kernels that do this work, in seconds."""
        card, efficiency = self.card, self.card.efficiency
        bandwidth = card.bandwidth * efficiency.vector
        seconds = (work.bytes - work.apart) / bandwidth
        if work.gemm is not None:
            require(card, work.gemm.dtype)
            seconds = max(seconds, matmul_seconds(card, *work.gemm))
        elif work.flops:
            require(card, work.dtype)
            rate = (depthwise_rate(card) if work.attention is None else
                    attention_rate(card, work.dtype, work.attention))
            seconds = max(seconds, work.flops / rate)
        seconds += work.apart / bandwidth
        return max(seconds + work.kernels * efficiency.kernel, work.kernels * efficiency.pace)

    def start(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict, plan: OperationPlan,
              out: object) -> bool:
        """Launch the kernels of an operation; return whether they were deferred instead.

        Args:
            func: the operation.
            args: its positional arguments.
            kwargs: its keyword arguments.
            plan: the operation's plan, with their cost.
            out: the operation's result.
        """
        if self.workspaces is not None:
            for workspace in self.workspaces.allocate(plan, self.stream):
                self.hold(workspace)
        self.launch(plan.name, plan.seconds, plan.kernels)
        return False

    def launch(self, name: str, seconds: float, kernels: int) -> None:
        """Launch kernels on the current stream.

        Args:
            name: the operation.
            seconds: duration of all kernels together.
            kernels: number of launches.
        """
        launches = kernels * self.card.efficiency.dispatch
        self.clock.work(launches if self.eager is None else self.eager.operation(name, launches))
        self.clock.run(name, seconds, self.stream)
        self.busy[name] += seconds
        self.computing += seconds

    def download(self, size: int) -> None:
        """Launch a copy of `size` bytes from the GPU to the host."""
        self.launch("aten.copy_", size / self.card.pcie + self.card.efficiency.kernel, 1)

    @property
    def exposed(self) -> float:
        """Exposed communication of the compute stream, in seconds (see clock.py)."""
        return self.clock.exposed[COMPUTE]

    def now(self) -> float:
        """Wait until everything launched so far is done, and return the virtual time in seconds."""
        before = self.clock.host
        time = self.clock.synchronize()
        if self.recorder is not None:
            self.recorder.waited(before)
        return time

    def read_value(self) -> None:
        """Make the host wait for a value, as reading one on a real GPU does."""
        self.now()
        self.read_latency()

    def read_latency(self) -> None:
        """Make the host wait for a copy of a few bytes from the GPU."""
        self.clock.work(READ_LATENCY)
        if self.journal is not None:
            self.journal.note("l")

    @property
    def unknown_share(self) -> float:
        """Share of the kernels' time in operations without a cost rule."""
        unknown = sum(self.busy[name] for name in self.unknown)
        return unknown / self.computing if self.computing else 0.0

    def unknown_costs(self) -> str | None:
        """Return a line about the operations without a cost rule, or None if there were none.

        Raises UnknownCost if their share is too large for the modeled times to be believed.
        """
        if not self.unknown:
            return None
        names = ", ".join(f"{name} ({calls} calls)" for name, calls in sorted(self.unknown.items()))
        line = (f"virtual {self.card.name}: operations without a cost rule, costed as elementwise "
                f"ones: {names}; {self.unknown_share:.2%} of the kernels' time")
        if self.unknown_share > MAX_UNKNOWN:
            raise UnknownCost(f"{line}, more than {MAX_UNKNOWN:.0%}: the times are not reliable")
        return line


def caller() -> tuple[str, int, str]:
    """Return the file, line number, and text of the program's innermost line.

    The line number is 0 if no program runs, as in a finalizer.
    """
    frame, launched = sys._getframe(1), False
    while frame is not None and is_library(frame.f_code.co_filename):
        launched |= frame.f_code.co_filename.startswith(LAUNCHER)
        frame = frame.f_back
    if frame is None or (launched and not in_launcher(frame)):
        return "the program", 0, ""
    file = frame.f_code.co_filename
    return file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip()


def in_launcher(frame: FrameType) -> bool:
    """Return whether the launcher of programs is among the callers of a frame."""
    caller: FrameType | None = frame
    while caller is not None and not caller.f_code.co_filename.startswith(LAUNCHER):
        caller = caller.f_back
    return caller is not None


def is_library(file: str) -> bool:
    """Return whether a file belongs to this package, to torch, or to Python itself."""
    return file.startswith(LIBRARY_CODE) or file.endswith(WRAPPERS) or (
        file.startswith(STANDARD_LIBRARY) and "-packages" + os.sep not in file)


def program_line() -> str:
    """Return the program's current line for an error message."""
    file, line, text = caller()
    if not line:
        return file
    return f"{file}, line {line} ({text})" if text else f"{file}, line {line}"
