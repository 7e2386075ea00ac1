"""Run a function on ranks of torch.distributed, and return the outcome as plain values.

`run` starts the ranks next to the student's code, in the kernel or in the sandbox. `read` turns
what came back, which a sandbox may have forged, into a Run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.check import wire
from labkit.check.each_rank import of_rank

if TYPE_CHECKING:
    from labkit.check.masking import KernelMasks
    from warmranks import CommunicationCall, RankRecord

MOST_TEXT = 8_000
MOST_CALLS = 5_000  # limit for the calls of all ranks together that are passed on
MOST_COUNT = 1e30  # FLOPs or bytes; an int beyond the largest float would break whatever divides it
RETURNED, RAISED, DEADLOCK, LATE = "returned", "raised", "deadlock", "late"
OPS = frozenset((
    "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter",
    "all_to_all", "barrier", "send", "recv"))
Outcome = dict[str, Any]


class Forged(ValueError):
    """The outcome cannot come from `run`."""


@dataclass(frozen=True)
class RanksRun:
    """The outcome of a driver on its ranks, in one case.

    Attributes:
        state: RETURNED, RAISED, DEADLOCK, or LATE (still running at the time limit).
        text: the error for the student, with tracebacks.
        records: return value and communication of each rank; empty unless all ranks returned.
    """

    state: str
    text: str = ""
    records: tuple[RankRecord, ...] = ()

    @property
    def values(self) -> list[Any]:
        """The driver's return value on each rank."""
        return [record.value for record in self.records]

    def calls(self, rank: int, *ops: str) -> list[CommunicationCall]:
        """Return the calls of one rank, in the order in which they began.

        Args:
            rank: the rank that made the calls.
            *ops: the names of the calls to return, such as "send"; without any, all calls.
        """
        return [call for call in self.records[rank].calls if not ops or call.op in ops]

    def bytes(self, rank: int, *ops: str) -> int:
        """Return the total bytes that one rank passed to these calls.

        Args:
            rank: the rank that made the calls.
            *ops: the names of the calls to count, such as "send"; without any, all calls.
        """
        return sum(call.bytes for call in self.calls(rank, *ops))


def run(function: Callable, ranks: int, arguments: Sequence[Any], keywords: Mapping[str, Any],
        seconds: float, masks: KernelMasks | None = None) -> Outcome:
    """Call a function on every rank, and return the outcome as plain values.

    Args:
        function: the driver.
        ranks: the number of ranks.
        arguments: the driver's positional arguments, as plain values.
        keywords: the driver's keyword arguments, as plain values.
        seconds: time limit, after which all ranks are killed.
        masks: the names that the student's code may not use.

    Raises labkit.check.wire.CannotCross for a result that is not a plain value.
    """
    import warmranks

    warmranks.load("minite")  # its _scaled_mm: PyTorch's takes seconds per GEMM on CPUs with AMX
    try:
        records = warmranks.record_ranks(on_own_element, ranks, masks, function,
                                         tuple(arguments), dict(keywords), timeout=seconds)
    except warmranks.RanksDeadlock as error:
        return {"state": DEADLOCK, "text": str(error)[:MOST_TEXT]}
    except warmranks.RanksTimeout as error:
        return {"state": LATE, "text": str(error)[:MOST_TEXT]}
    except (warmranks.RankError, TypeError) as error:
        return {"state": RAISED, "text": shortened(str(error))}
    if sum(len(record.calls) for record in records) > MOST_CALLS:
        raise wire.CannotCross(f"the ranks called torch.distributed more than {MOST_CALLS:,} times")
    return {"state": RETURNED, "values": [wire.copy(record.value) for record in records],
            "flops": [record.flops for record in records],
            "calls": [[list(vars(call).values()) for call in record.calls] for record in records]}


def shortened(text: str) -> str:
    """Return the beginning and the end of an error, at most MOST_TEXT characters."""
    half = MOST_TEXT // 2 - 10
    return text if len(text) <= MOST_TEXT else f"{text[:half]}\n...\n{text[-half:]}"


def on_own_element(masks: KernelMasks | None, function: Callable, arguments: tuple[Any, ...],
                   keywords: dict[str, Any]) -> Any:
    """Call a function on this rank with its own elements of the arguments."""
    arguments, keywords = of_rank((arguments, keywords), int(os.environ["RANK"]))
    if masks:
        return watched(masks, function, arguments, keywords)
    return function(*arguments, **keywords)


def watched(masks: KernelMasks, function: Callable, arguments: tuple[Any, ...],
            keywords: dict[str, Any]) -> Any:
    """Call a function on this rank; raise the sandbox's error if it uses masked names."""
    from labkit.check.sides import Raised

    result = masks.watched(function, lambda: function(*arguments, **keywords))
    if isinstance(result, Raised):
        raise ImportError(result.text)
    return result


def read(outcome: Any, ranks: int) -> RanksRun:
    """Return the Run that an outcome describes. Raises Forged if it describes none.

    Args:
        outcome: the result of `run`, or anything else that a sandbox sent.
        ranks: the number of ranks that were requested.
    """
    if not isinstance(outcome, dict):
        raise Forged("the outcome is not a dictionary")
    state, text = outcome.get("state"), outcome.get("text")
    if not isinstance(state, str):  # an array compares with a string element by element
        raise Forged("the outcome has no valid state")
    if state in (RAISED, DEADLOCK, LATE) and isinstance(text, str):
        return RanksRun(state, text[:MOST_TEXT])
    lists = [outcome.get(name) for name in ("values", "flops", "calls")]
    if state != RETURNED or not all(isinstance(one, list) and len(one) == ranks for one in lists):
        raise Forged("expected one value and one record for each rank")
    return RanksRun(RETURNED, records=tuple(_record(*one, ranks)
                                            for one in zip(*lists, strict=True)))


def _record(value: Any, flops: Any, calls: Any, ranks: int) -> RankRecord:
    from warmranks import RankRecord

    if not (_is_count(flops) and isinstance(calls, list) and len(calls) <= MOST_CALLS):
        raise Forged("a rank's record has the wrong form")
    return RankRecord(value, tuple(_call(one, ranks) for one in calls), float(flops))


def _call(sent: Any, ranks: int) -> CommunicationCall:
    from warmranks import CommunicationCall

    if not (isinstance(sent, list) and len(sent) == 6):
        raise Forged("a call has the wrong form")
    op, group, peer, size, started, finished = sent
    sound = (type(op) is str and op in OPS
             and isinstance(group, list | tuple) and 0 < len(group) <= ranks
             and all(_is_rank(one, ranks) for one in group)
             and (peer is None or _is_rank(peer, ranks)) and type(size) is int and _is_count(size)
             and _is_count(started) and (finished is None or _is_count(finished)))
    if not sound:
        raise Forged("a field of a call has the wrong type")
    return CommunicationCall(op, tuple(group), peer, size, started, finished)


def _is_rank(value: Any, ranks: int) -> bool:
    return type(value) is int and 0 <= value < ranks


def _is_count(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MOST_COUNT
