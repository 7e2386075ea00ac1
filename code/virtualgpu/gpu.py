"""A virtual GPU: every operation on a meta tensor moves its clock and fills its memory."""

from __future__ import annotations

import traceback
import weakref
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from virtualgpu.card import Card
from virtualgpu.clock import Clock
from virtualgpu.errors import NoValue, UnknownCost
from virtualgpu.matmul import matmul_seconds
from virtualgpu.memory import Allocator, OutOfMemory
from virtualgpu.rules import Product, Rule, Work, is_free, read_and_write, rule_of

READ_LATENCY = 10e-6  # from the card to the host, of a few bytes
VALUES = ("aten._local_scalar_dense", "aten.is_nonzero", "aten.equal", "aten.nonzero")
MOST_UNKNOWN = 0.02  # of the time may be spent in operations without a rule
OWN = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


class VirtualGpu(TorchDispatchMode):
    """A card for one process; active between __enter__ and __exit__.

    watched: the type of device whose tensors lie in its memory (tests look at the CPU's).
    """

    def __init__(self, card: Card, watched: str = "meta") -> None:
        super().__init__()
        self.card, self.clock, self.watched = card, Clock(), watched
        self.memory = Allocator(card.memory, card.context)
        self.busy: defaultdict[str, float] = defaultdict(float)  # seconds by operation
        self.unknown: defaultdict[str, int] = defaultdict(int)  # calls without a rule
        self._products: dict[Product, float] = {}  # seconds
        self._sizes: dict[int, int] = {}  # of the storages that live, by identity
        self._rules: dict[torch._ops.OpOverload, tuple[bool, Rule | None]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = self._rules.get(func)
        if known is None:
            self._refuse_values(func, args)
            known = self._rules[func] = is_free(func), rule_of(func)
        out = func(*args, **kwargs) if kwargs else func(*args)
        if type(out) is torch.Tensor or isinstance(out, torch.Tensor):
            results: Sequence = (out,)
        elif isinstance(out, (tuple, list)):
            results = [item for item in out if isinstance(item, torch.Tensor)]
        else:
            results = ()
        mine = results[0] if results else next(
            (item for item in args if isinstance(item, torch.Tensor)), None)
        if mine is None or mine.device.type != self.watched:
            return out
        free, rule = known
        if not func.is_view:
            for result in results:
                self._hold(result)
        if not free:
            if rule is None:
                self.unknown[str(func._overloadpacket)] += 1
                rule = read_and_write
            self.run(str(func._overloadpacket), rule(args, results))
        return out

    def _refuse_values(self, func, args) -> None:
        if str(func._overloadpacket) in VALUES and any(
                isinstance(item, torch.Tensor) and item.is_meta for item in args):
            raise NoValue(f"{place()} reads a value of a tensor, and on the virtual "
                          f"{self.card.name} tensors have none; a trainer that only needs it for "
                          "the log reads it with ctx.read, which gives None there")

    def run(self, name: str, work: Work) -> None:
        """Launch kernels on the compute stream."""
        card, best = self.card, self.card.efficiency
        seconds = work.bytes / (card.bandwidth * best.vector)
        if work.product is not None:
            arithmetic = self._products.get(work.product)
            if arithmetic is None:
                self._require(work.product.dtype)
                arithmetic = matmul_seconds(card, *work.product)
                self._products[work.product] = arithmetic
            seconds = max(seconds, arithmetic)
        elif work.flops:
            self._require(work.dtype)
            seconds = max(seconds, work.flops / (card.tflops[work.dtype] * 1e12 * best.attention))
        seconds += work.kernels * best.kernel
        self.clock.work(work.kernels * best.dispatch)
        self.clock.run(name, seconds)
        self.busy[name] += seconds

    def _require(self, dtype: str) -> None:
        if dtype not in self.card.tflops:
            raise NoValue(f"the virtual {self.card.name} has no {dtype} arithmetic; it has "
                          f"{', '.join(self.card.tflops)}")

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
        weakref.finalize(storage, self._release, key).atexit = False

    def _release(self, key: int) -> None:
        self.memory.release(self._sizes.pop(key))

    def now(self) -> float:
        """Seconds of virtual time, when everything launched so far is done."""
        return self.clock.synchronize()

    def read(self) -> None:
        """The host waits for a value of the card's, and gets none."""
        self.clock.synchronize()
        self.clock.work(READ_LATENCY)

    def unknown_costs(self) -> str | None:
        """What had no cost rule, with its share of the busy time; None where all had one.

        Raises UnknownCost when the share is too big to believe the times.
        """
        if not self.unknown:
            return None
        whole = sum(self.busy.values())
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
