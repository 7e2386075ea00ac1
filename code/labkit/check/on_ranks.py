"""Run a function on ranks of torch.distributed, and return what a broker saw of them.

The broker (warmranks.broker) runs on the trusted side: in the kernel, or outside the sandbox. It
hands each rank its own arguments when the rank starts, moves all messages between ranks, and
records them. `start` runs the ranks next to the student's code, and passes their messages on.
`read` turns what came back, which a sandbox may have forged, into a RanksRun: return values are
what ranks say, and calls are what the broker saw.
"""

from __future__ import annotations

import base64
import binascii
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.check import wire
from labkit.check.cases import of_rank
from labkit.check.sides import DEADLOCK, LATE, RAISED, RETURNED, Raised, RanksRun
from warmranks.broker import Broker, Event, Exchange, Reply
from warmranks.records import RankRecord

if TYPE_CHECKING:
    from labkit.check.masking import KernelMasks

# What ranks import. The fork server does once. minite has a _scaled_mm, as PyTorch's takes seconds
# per GEMM on CPUs with AMX; a backward pass imports the last one.
IMPORTED = ("minite", "labkit.check.masking", "labcore.errors", "torch.profiler._cupti_monitor")
MOST_TEXT = 8_000
MOST_CALLS = 5_000  # of all ranks together
MOST_PENDING = 64_000_000  # bytes that ranks have sent and nobody has received
VALUE, PROBLEM = b"v", b"p"  # how the bytes that a rank returns begin
Outcome = dict[str, Any]


class Forged(ValueError):
    """The outcome cannot come from `run`."""


class CaseBroker(Broker):
    """A broker that hands each rank its own arguments when the run begins."""

    def __init__(self, ranks: int, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Args:
            ranks: the number of ranks.
            arguments: the driver's positional arguments, as plain values and EachRank.
            keywords: its keyword arguments.

        Raises labkit.check.wire.CannotCross.
        """
        super().__init__(ranks, MOST_CALLS, MOST_PENDING)
        given = tuple(arguments), dict(keywords)
        self.given = [wire.dumps(of_rank(given, rank)) for rank in range(ranks)]

    def exchange(self, events: Sequence[Event]) -> tuple[list[Reply], dict[int, str]]:
        replies, waits = super().exchange(events)
        given, self.given = self.given, []
        return [*enumerate(given), *replies], waits


def run(function: Callable, ranks: int, arguments: Sequence[Any], keywords: Mapping[str, Any],
        seconds: float, masks: KernelMasks | None = None) -> RanksRun:
    """Call a function on every rank of this process's own.

    Args:
        function: the driver.
        arguments: the driver's positional arguments, as plain values and EachRank.
        keywords: the driver's keyword arguments.
        seconds: time limit, after which all ranks are killed.
        masks: the names that the student's code may not use.

    Raises labkit.check.wire.CannotCross for a result that is not a plain value.
    """
    from warmranks import pickling

    broker = CaseBroker(ranks, arguments, keywords)
    try:
        task = pickling.dumps((function, masks, pickling.sources()))
    except TypeError as error:
        return RanksRun(RAISED, shortened(f"TypeError: {error}"))
    return read(start(task, ranks, seconds, broker.exchange), broker)


def start(task: bytes, ranks: int, seconds: float, exchange: Exchange, is_isolated: bool = False
          ) -> Outcome:
    """Run a driver on ranks, and return the outcome as JSON.

    Args:
        task: the driver, the masks, and its source code, pickled; only ranks unpickle it.
        seconds: time limit, after which all ranks are killed.
        exchange: passes on what ranks send; see `Broker.exchange`.
        is_isolated: whether ranks can reach nothing but the broker.
    """
    import warmranks

    warmranks.load(*IMPORTED)
    try:
        with warmranks.shown_once() as stderr:
            values = warmranks.run_brokered(exchange, on_rank, ranks, task, is_isolated,
                                            timeout=seconds, is_raw=True, stderr=stderr)
    except warmranks.RanksDeadlock as error:
        return {"state": DEADLOCK, "text": str(error)[:MOST_TEXT]}
    except warmranks.RanksTimeout as error:
        return {"state": LATE, "text": str(error)[:MOST_TEXT]}
    except warmranks.RankError as error:
        return {"state": RAISED, "text": shortened(str(error))}
    return {"state": RETURNED, "values": [base64.b64encode(value).decode() for value in values]}


def on_rank(task: bytes, is_isolated: bool) -> bytes:
    """Call the driver of a task on this rank, with the arguments that the broker sends.

    An isolated rank enters the workspace only here: the processes that started it import nothing
    that a student has written.
    """
    import linecache

    from labcore import workspace
    from warmranks import pickling, ranked

    arguments, keywords = wire.loads(ranked.receive_message(ranked.channel))
    if is_isolated:
        from warmranks.isolation import isolate

        isolate()
        os.chdir(workspace.home())
        sys.path.insert(0, "")  # the student's own modules, as in the kernel
    function, masks, sources = pickling.loads(task)
    linecache.cache.update(sources)
    with ranked.group_of_this_rank():
        if masks:
            value = watched(masks, function, arguments, keywords)
        else:
            value = function(*arguments, **keywords)
    try:
        return VALUE + wire.dumps(value)
    except wire.CannotCross as error:
        return PROBLEM + str(error).encode()


def shortened(text: str) -> str:
    """Return the beginning and the end of an error, at most MOST_TEXT characters."""
    half = MOST_TEXT // 2 - 10
    return text if len(text) <= MOST_TEXT else f"{text[:half]}\n...\n{text[-half:]}"


def watched(masks: KernelMasks, function: Callable, arguments: tuple[Any, ...],
            keywords: dict[str, Any]) -> Any:
    """Call a function on this rank; raise the sandbox's error if it uses masked names."""
    result = masks.watched(function, lambda: function(*arguments, **keywords))
    if isinstance(result, Raised):
        raise ImportError(result.text)
    return result


def read(outcome: Any, broker: Broker) -> RanksRun:
    """Return the run that an outcome describes.

    Args:
        outcome: the result of `start`, or anything else that a sandbox sent.
        broker: the broker of the run.

    Raises Forged if it describes none, and labkit.check.wire.CannotCross for a result that is not
    a plain value.
    """
    if not isinstance(outcome, dict):
        raise Forged("the outcome is not a dictionary")
    state, text, values = (outcome.get(name) for name in ("state", "text", "values"))
    if state in (RAISED, DEADLOCK, LATE) and isinstance(text, str):
        return RanksRun(state, text[:MOST_TEXT])
    if state != RETURNED or not (isinstance(values, list) and len(values) == len(broker.ranks)
                                 and all(isinstance(value, str) for value in values)):
        raise Forged("expected one value for each rank")
    return RanksRun(RETURNED, records=tuple(
        RankRecord(_value(value), broker.record(rank), broker.ranks[rank].flops)
        for rank, value in enumerate(values)))


def _value(text: str) -> Any:
    """Return what a rank returned. Raises Forged and labkit.check.wire.CannotCross."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Forged("a value is no base64") from error
    if content[:1] == PROBLEM:
        raise wire.CannotCross(content[1:].decode(errors="replace")[:MOST_TEXT])
    if content[:1] != VALUE:
        raise Forged("a value has no kind")
    return wire.loads(content[1:])
