"""Forward passes of inference: when each one began, what it computed, and what it left in memory.

A pass begins with a call of an outermost module without gradients, and includes everything until
the next call, such as sampling. inference.py finds generations in the passes.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from virtualgpu.core.card import Card
from virtualgpu.core.clock import COMPUTE
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.plan import OperationPlan
from virtualgpu.export.blocks import PARAMETERS, Allocations
from virtualgpu.export.steps import StepNotes

BOUNDS = BANDWIDTH, COMPUTE_BOUND, SHORT = "bandwidth", "compute", "short"  # of a kernel
INTEGERS = (torch.int64, torch.int32)


class Times(NamedTuple):
    """Seconds of kernels, by what they are bound by, and of exposed communication."""

    bandwidth: float = 0.0
    compute: float = 0.0
    short: float = 0.0
    communication: float = 0.0

    def plus(self, other: Times) -> Times:
        return Times(*(a + b for a, b in zip(self, other, strict=True)))


NO_TIME = Times()


class RunRecord(Protocol):
    """The record of a run that passes refer to (ledger.py)."""

    gpu: VirtualGpu
    blocks: Allocations
    notes: StepNotes
    counted: int

    @property
    def operations(self) -> int: ...


@dataclass
class ForwardPass:
    """One call of an outermost module.

    Attributes:
        module: identity and class name of the module.
        begin, end: the moments when the GPU reached its begin, and its end, in seconds.
        shapes: shapes of the integer tensors among its arguments, then of the others.
        left: bytes that earlier passes allocated and that were still alive at its begin.
        until: when the next pass began, in seconds; the pass's end for the last one.
        tokens: tokens that it looked up in the most-used embedding.
        times: seconds of its kernels and of exposed communication, until the next pass.
        written: bytes of older storages that it wrote in place, by identity.
    """

    module: tuple[int, str]
    begin: float
    shapes: list[tuple[int, ...]]
    left: int
    end: float = 0.0
    until: float = 0.0
    tokens: int = 0
    times: Times = NO_TIME
    written: dict[int, int] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return self._shape()[0]

    @property
    def length(self) -> int:
        """Tokens of each sequence; 0 if the input has no sequences."""
        return self._shape()[1]

    @property
    def seconds(self) -> float:
        return self.until - self.begin

    def _shape(self) -> tuple[int, int]:
        """Return the batch size and the length of the sequences, from the tokens' shape."""
        ids = [shape for shape in self.shapes if 1 <= len(shape) <= 2]
        looked_up = [shape for shape in ids if math.prod(shape) == self.tokens]
        if self.tokens and looked_up:
            *batch, length = looked_up[0]
            return math.prod(batch), length
        for shape in self.shapes:
            if len(shape) == 3 and not self.tokens:  # embeddings or features, [b, s, h]
                return shape[0], shape[1]
        batch = next((shape[0] for shape in self.shapes if shape and shape[0]), 1)
        return batch, self.tokens // batch


class Passes:
    """Records the forward passes of a program that runs inference.

    Attributes:
        done: the passes that have ended.
        trained: whether the program has run a backward pass, and so is no inference.
    """

    def __init__(self, ledger: RunRecord) -> None:
        self.ledger, self.gpu = ledger, ledger.gpu
        self.done: list[ForwardPass] = []
        self.trained = False
        self.inside = False  # a pass
        self.live: dict[int, int] = {}  # bytes of blocks allocated in passes
        self.bytes = 0  # their sum
        self._fresh: set[int] = set()  # allocated in the current pass
        self._first = 0  # the current pass's first operation
        self._exposed = 0.0
        self._before: dict[tuple[int, str], tuple[ForwardPass, int]] = {}  # by module
        self._kinds: dict[int, tuple[str, float]] = {}  # by the plan's identity

    def begin(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self._close()
        if self.trained:  # only the position in a sequence is of use
            self.done.clear()
        tensors = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
        tensors.sort(key=lambda item: item.dtype not in INTEGERS)
        self.done.append(ForwardPass((id(module), type(module).__name__), self._now(),
                                     [tuple(item.shape) for item in tensors], self.bytes))
        self.inside = True
        self._fresh.clear()
        self._first, self._exposed = self.ledger.operations, self.gpu.clock.exposed[COMPUTE]

    def end(self) -> None:
        self.inside = False
        last = self.done[-1]
        last.end = last.until = self._now()
        last.tokens = max((plan.work.tokens for plan in self._plans() if plan.work is not None),
                          default=0)
        self.gpu.output_tokens = self._position()
        before = self._before.get(last.module)
        if before is not None and before[0].written == last.written:
            last.written = before[0].written  # one dictionary for all passes with one cache
        self._before[last.module] = last, self.gpu.output_tokens

    def stop(self) -> None:
        if self.done:
            self._close(final=True)

    def allocated(self, key: int, held: int) -> None:
        if self.inside:
            self.live[key] = held
            self.bytes += held
            self._fresh.add(key)

    def released(self, key: int) -> None:
        self.bytes -= self.live.pop(key, 0)
        self._fresh.discard(key)

    def wrote(self, plan: OperationPlan, args: Sequence) -> None:
        """Record an operation in a pass that writes a tensor older than this pass."""
        if isinstance(plan.changed, int) and 0 <= plan.changed < len(args):
            target = args[plan.changed]
            if isinstance(target, torch.Tensor):
                key = target.untyped_storage()._cdata
                block = self.ledger.blocks.live.get(key)
                if block is not None and key not in self._fresh:
                    self.done[-1].written[key] = block.size

    def caches(self, passes: Sequence[ForwardPass]) -> int:
        """Return the bytes of the storages that every one of these passes wrote in place."""
        if not passes:
            return 0
        common = set.intersection(*(set(one.written) for one in passes))
        live = self.ledger.blocks.live
        return sum(size for key, size in passes[-1].written.items() if key in common
                   and getattr(live.get(key), "label", None) != PARAMETERS)

    def _position(self) -> int:
        """Return how many tokens of a sequence the module's passes since the last prompt have
        produced; 0 if the last pass looked up no tokens."""
        last = self.done[-1]
        before = self._before.get(last.module)
        if before is not None and (continues(before[0], last) or (
                before[1] > 1 and last.length == before[0].length)):  # a cropped context
            return before[1] + 1
        return 1 if last.tokens else 0

    def _now(self) -> float:
        """Return when the GPU is done with everything so far; deferred kernels stay deferred."""
        clock = self.gpu.clock
        return max(clock.host, clock.streams[COMPUTE])

    def _plans(self) -> list[OperationPlan]:
        first = self._first - self.ledger.counted - self.ledger.notes.forgotten
        return self.ledger.notes.plans[max(0, first):]

    def _close(self, final: bool = False) -> None:
        """Add up the operations since the last pass began."""
        if not self.done:
            return
        last = self.done[-1]
        if not final:
            last.until = self._now()
        seconds = dict.fromkeys(BOUNDS, 0.0)
        for plan in self._plans():
            known = self._kinds.get(id(plan))
            if known is None:
                known = self._kinds[id(plan)] = bound(self.gpu.card, plan), plan.seconds
            seconds[known[0]] += known[1]
        exposed = self.gpu.clock.exposed[COMPUTE] - self._exposed
        last.times = Times(**seconds, communication=exposed)


def bound(card: Card, plan: OperationPlan) -> str:
    """Return what bounds an operation, one of BOUNDS; a SHORT kernel takes as long as an empty one.
    """
    work, efficiency = plan.work, card.efficiency
    if work is None:
        return SHORT
    least = work.kernels * efficiency.kernel
    moving = work.bytes / (card.bandwidth * efficiency.vector)
    if plan.seconds - least > moving * 1.001 and plan.seconds > 2 * least:
        return COMPUTE_BOUND
    return BANDWIDTH if moving > least else SHORT


def continues(before: ForwardPass, one: ForwardPass) -> bool:
    """Return whether a pass decodes the next token of the sequences of the pass before it."""
    if one.module != before.module or one.batch != before.batch or not one.length:
        return False
    return one.length == 1 or one.length == before.length + 1


def generations(passes: Sequence[ForwardPass]) -> Iterator[list[ForwardPass]]:
    """Yield the passes of each generation: the prompt's, then one per further token.

    Without a KV cache, each pass has one token more than the one before, or as many if the program
    has cropped the context to the longest one that the model takes.
    """
    current: list[ForwardPass] = []
    for one in passes:
        if current and _belongs(current, one):
            current.append(one)
            continue
        if current:
            yield current
        current = [one]
    if current:
        yield current


def _belongs(current: Sequence[ForwardPass], one: ForwardPass) -> bool:
    before = current[-1]
    recomputes = len(current) > 1 and not cached(current)
    if recomputes and one.module == before.module and one.batch == before.batch:
        return one.length in (before.length, before.length + 1)
    return continues(before, one)


def cached(passes: Sequence[ForwardPass]) -> bool:
    """Return whether a generation has a KV cache, so that each pass has one new token."""
    return all(one.length == 1 for one in passes[1:])


def growth(passes: Sequence[ForwardPass]) -> float:
    """Return the bytes per token by which the tensors that passes leave behind grow."""
    left = [one.left for one in passes[2:]]
    if len(left) < 2:
        return 0.0
    steps = [after - before for before, after in itertools.pairwise(left)]
    middle = statistics.median(steps)
    average = (left[-1] - left[0]) / len(steps)
    return max(0.0, average if middle == 0 or abs(average - middle) < abs(middle) else middle)
