"""A virtual GPU: every operation on a meta tensor moves its clock and fills its memory."""

from __future__ import annotations

import traceback
import weakref
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from virtualgpu.core import shapes
from virtualgpu.core.card import Card
from virtualgpu.core.clock import Clock
from virtualgpu.core.errors import NoValue, UnknownCost
from virtualgpu.core.matmul import matmul_seconds
from virtualgpu.core.memory import Allocator, OutOfMemory
from virtualgpu.core.plan import (
    HOST,
    Plan,
    changed_argument,
    changed_tensor,
    empty,
    mark,
    misfits,
    needs_values,
    shares,
    to_meta,
)
from virtualgpu.core.rules import Work, is_free, moved, read_and_write, rule_of, tensors

if TYPE_CHECKING:
    from virtualgpu.export.trace import Recorder

READ_LATENCY = 10e-6  # from the card to the host, of a few bytes
MOST_UNKNOWN = 0.02  # of the time may be spent in operations without a rule
OWN = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))


class VirtualGpu(TorchDispatchMode):
    """A card for one process; active between __enter__ and __exit__.

    watched: the type of device whose tensors lie in its memory (tests look at the CPU's).
    """

    def __init__(self, card: Card, watched: str = "meta") -> None:
        super().__init__()
        self.card, self.clock, self.watched = card, Clock(), watched
        self.memory = Allocator(card.memory, card.context)
        self.busy: defaultdict[str, float] = defaultdict(float)  # seconds by operation
        self.computing = 0.0  # of that, in kernels of this card alone
        self.exposed = 0.0  # seconds that the compute stream waited for collectives
        self.unknown: defaultdict[str, int] = defaultdict(int)  # calls without a rule
        self._sizes: dict[int, int] = {}  # of the storages that live, by identity
        self._plans: dict[tuple, Plan] = {}  # by operation and its arguments' shapes
        self._shares: dict[torch._ops.OpOverload, bool] = {}  # what plan.shares said
        self.recorder: Recorder | None = None  # while a trace is made

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch wraps the method below in its compiler otherwise, whose import takes a second."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        known = self._shares.get(func)
        if known is None:
            known = self._shares[func] = shares(func)
        if known:
            return func(*args, **kwargs)
        key = (func, *map(mark, args), *kwargs, *map(mark, kwargs.values()))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(func, args, kwargs)
        if plan is HOST:
            return func(*args, **kwargs)
        out = func(*args, **kwargs) if self.watched != "meta" else plan.make(args, kwargs)
        if plan.results is not None:
            for result in out if isinstance(out, (tuple, list)) else (out,):
                if result is not None:
                    self._hold(result)
        if plan.kernels:
            if plan.unknown:
                self.unknown[plan.name] += 1
            self._launch(plan.name, plan.seconds, plan.kernels)
        if self.recorder is not None:
            self.recorder.operation(key, plan)
        return out

    def _plan(self, func, args: Sequence, kwargs: dict) -> Plan:
        """What this operation on arguments of these shapes does to the card."""
        operands = tensors((*args, *kwargs.values()))
        target = kwargs.get("device")
        changed = changed_argument(func, args, kwargs) if operands else None
        if changed not in (None, -1):
            target = changed_tensor(args, kwargs, changed).device
        mine = any(item.device.type == self.watched for item in operands)
        if mine and (needs_values(func, operands) or (
                target is not None and torch.device(target).type != self.watched)):
            raise NoValue(f"{place()} reads a value of a tensor, and on the virtual "
                          f"{self.card.name} tensors have none; a trainer that only needs it for "
                          "the log reads it with ctx.read, which gives None there")
        if not mine and (target is None or torch.device(target).type != self.watched):
            return HOST
        specs = None
        if misfits(func, args, operands, changed):
            func(*args, **kwargs)  # which says what is wrong with them, if anything is
        if changed is None:
            specs = shapes.results(func, args, kwargs)
            if specs is None:
                out = func(*to_meta(args), **to_meta(kwargs))
                specs = [shapes.of(item) for item in out] if isinstance(out, (tuple, list)) else (
                    shapes.of(out))
        name = str(func._overloadpacket)
        if is_free(func):
            return Plan(specs, changed, name, 0.0, 0, False)
        rule = rule_of(func)
        produced = ([changed_tensor(args, kwargs, changed)] if changed is not None else
                    [empty(spec) for spec in (specs if isinstance(specs, list) else [specs])])
        work = (rule or read_and_write)(args, tensors(produced))
        # What lies in the host's memory passes the bus.
        crossing = sum(moved(item) for item in operands
                       if item.dim() and item.device.type != self.watched) / self.card.pcie
        seconds = max(crossing + self.card.efficiency.kernel, self.seconds(work))
        return Plan(specs, changed, name, seconds, work.kernels, rule is None, work)

    def seconds(self, work: Work) -> float:
        """How long its kernels take."""
        card, best = self.card, self.card.efficiency
        seconds = work.bytes / (card.bandwidth * best.vector)
        if work.product is not None:
            self._require(work.product.dtype)
            seconds = max(seconds, matmul_seconds(card, *work.product))
        elif work.flops:
            self._require(work.dtype)
            seconds = max(seconds, work.flops / (card.tflops[work.dtype] * 1e12 * best.attention))
        return max(seconds + work.kernels * best.kernel, work.kernels * best.pace)

    def _launch(self, name: str, seconds: float, kernels: int) -> None:
        self.clock.work(kernels * self.card.efficiency.dispatch)
        self.clock.run(name, seconds)
        self.busy[name] += seconds
        self.computing += seconds

    def _require(self, dtype: str) -> None:
        if dtype not in self.card.tflops:
            raise NoValue(f"the virtual {self.card.name} has no {dtype} arithmetic; it has "
                          f"{', '.join(self.card.tflops)}")

    def wait_for_collective(self, end: float) -> None:
        self.exposed += max(0.0, end - self.clock.ready())
        self.clock.wait(end)

    def take(self, size: int) -> None:
        """Memory that is not torch's. Raises torch.OutOfMemoryError."""
        try:
            self.memory.take(size)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(f"{error} [virtual {self.card.name}]") from None

    def _hold(self, tensor: torch.Tensor) -> None:
        """Account for the tensor's memory until its storage dies. Raises torch.OutOfMemoryError."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        size = storage.nbytes()
        try:
            self.memory.allocate(size)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(f"{error} [virtual {self.card.name}]") from None
        self._sizes[key] = size
        if self.recorder is not None:
            self.recorder.memory(key, size)
        weakref.finalize(storage, self._release, key).atexit = False

    def _release(self, key: int) -> None:
        size = self._sizes.pop(key)
        self.memory.release(size)
        if self.recorder is not None:
            self.recorder.memory(key, -size)

    def now(self) -> float:
        """Seconds of virtual time, when everything launched so far is done."""
        before = self.clock.host
        time = self.clock.synchronize()
        if self.recorder is not None:
            self.recorder.waited(before)
        return time

    def read(self) -> None:
        """The host waits for a value of the card's, and gets none."""
        self.now()
        self.clock.work(READ_LATENCY)

    def unknown_costs(self) -> str | None:
        """What had no cost rule, with its share of the busy time; None where all had one.

        Raises UnknownCost when the share is too big to believe the times.
        """
        if not self.unknown:
            return None
        whole = self.computing
        share = sum(self.busy[name] for name in self.unknown) / whole if whole else 0.0
        names = ", ".join(f"{name} ({calls} calls)" for name, calls in sorted(self.unknown.items()))
        said = (f"virtual {self.card.name}: operations without a cost rule, taken for elementwise "
                f"ones: {names}; {share:.2%} of the kernels' time")
        if share > MOST_UNKNOWN:
            raise UnknownCost(f"{said}, more than {MOST_UNKNOWN:.0%}: the times cannot be believed")
        return said


def place() -> str:
    """File, line and text of the innermost frame that is neither torch's nor ours."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(OWN):
            return f"{frame.filename}, line {frame.lineno} ({frame.line})"
    return "the program"
