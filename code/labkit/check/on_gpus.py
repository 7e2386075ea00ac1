"""Record a driver on virtual GPUs next to the student's code, and price it on the trusted side.

`record` runs next to the student's code and returns each rank's record (virtualgpu.replay): what it
computed, allocated, and communicated, but no times. `read` takes such records, which a sandbox may
have forged, and computes what they cost.
"""

from __future__ import annotations

import base64
import binascii
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.check.on_ranks import MOST_TEXT, shortened, watched
from labkit.check.sides import LATE, RAISED, RETURNED, GpusRun, SimulatedCluster

if TYPE_CHECKING:
    from labkit.check.masking import KernelMasks
    from virtualgpu.replay import Priced

# What every run on virtual GPUs imports. The fork server does once: 0.15 s of each run.
IMPORTED = ("torch.fx.experimental.symbolic_shapes", "torch.distributed.fsdp._init_utils",
            "torch.distributed.checkpoint.state_dict_saver", "virtualgpu.launch.functions")
# What a few numbers of a large tensor are where the student's code reads them, such as an amax: not
# zero, finite, and positive. Drivers do not initialize their tensors.
TYPICAL = 1.0
MOST_PROCESSES = 8  # ranks simulated at a time
MOST_PACKED = 900_000  # limit for the characters of all packed records that are passed on
MOST_UNPACKED = 24_000_000  # bytes of all records, unpacked: a few hundred MB of Python objects
Price = Callable[[Sequence[str], SimulatedCluster], "list[Priced]"]


class BadRecords(ValueError):
    """The outcome does not hold one valid, consistent record per rank."""


def record(function: Callable, cluster: SimulatedCluster, arguments: Sequence[Any],
           keywords: Mapping[str, Any], seconds: float, masks: KernelMasks | None = None
           ) -> dict[str, Any]:
    """Run a function on virtual GPUs, and return the outcome as plain values.

    Args:
        function: the driver.
        cluster: the virtual GPUs.
        arguments: the driver's positional arguments, as plain values.
        keywords: the driver's keyword arguments, as plain values.
        seconds: time limit in real time, after which the driver is killed.
        masks: the names that the student's code may not use.
    """
    import warmranks

    try:
        warmranks.load(*IMPORTED)
        with open(os.devnull, "w") as nothing:  # a failure is printed there, too
            (recorded,) = warmranks.run_ranks(
                _recorded, 1, function, cluster, tuple(arguments), dict(keywords), masks,
                backend=None, timeout=seconds, stderr=nothing.fileno())
    except warmranks.RanksTimeout as error:
        return {"state": LATE, "text": str(error)[:MOST_TEXT]}
    except (warmranks.RankError, TypeError) as error:
        return {"state": RAISED, "text": shortened(str(error))}
    if isinstance(recorded, str):
        return {"state": RAISED, "text": shortened(recorded)}
    if sum(map(len, recorded)) > MOST_PACKED:
        return {"state": RAISED, "text": "it does too much to be recorded: its records "
                                         f"exceed {MOST_PACKED:,} characters"}
    return {"state": RETURNED, "records": recorded}


def _recorded(function: Callable, cluster: SimulatedCluster, arguments: tuple[Any, ...],
              keywords: dict[str, Any], masks: KernelMasks | None) -> list[str] | str:
    """Return the packed records, or the error of the first rank that failed by itself."""
    import virtualgpu
    from virtualgpu.launch.failures import STOPPED

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)

    def program() -> None:
        import torch.distributed as dist

        dist.init_process_group("nccl")
        if masks:
            watched(masks, function, arguments, keywords)
        else:
            function(*arguments, **keywords)

    results = virtualgpu.run(program, cluster.gpus, cluster.nodes, link=cluster.link,
                             present=cluster.present, typical=TYPICAL, record=True)
    failed = [one for one in results if one.error]
    if failed:
        own = [one for one in failed if not one.error.startswith(STOPPED)]
        first = (own or failed)[0]
        text = first.message or first.error
        if not text.startswith("Traceback"):  # in one line, such as those of virtualgpu
            return f"rank {first.rank}: {text}"
        return f"rank {first.rank} raised {first.error.splitlines()[0]}\n\n{text}"
    if sum(len(one.record.encode()) for one in results) > MOST_UNPACKED:
        return f"it does too much to be recorded: its records exceed {MOST_UNPACKED:,} bytes"
    return [pack(one.record) for one in results]


def pack(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode()


def unpack(packed: Any, most: int = MOST_UNPACKED) -> str:
    """Return the text of a packed record.

    Args:
        packed: untrusted input.
        most: the maximum size of the text, in bytes.

    Raises BadRecords if it is not a packed record, or too large.
    """
    if not isinstance(packed, str) or len(packed) > MOST_PACKED:
        raise BadRecords("a record is not packed text")
    if most <= 0:  # zlib would take it for "no limit"
        raise BadRecords("the records are too long")
    try:
        unzip = zlib.decompressobj()
        content = unzip.decompress(base64.b64decode(packed, validate=True), most)
        if not unzip.eof:
            raise BadRecords("a record is too long, or truncated")
        return content.decode()
    except (binascii.Error, zlib.error, ValueError) as error:
        raise BadRecords(f"a record is not packed text: {error}") from error


def read(outcome: Any, cluster: SimulatedCluster, price: Price | None = None) -> GpusRun:
    """Compute what an outcome costs.

    Args:
        outcome: the result of `record`, or anything else that a sandbox sent.
        cluster: the virtual GPUs.
        price: computes the figures of packed records; None: this process does.

    Raises BadRecords if the outcome is malformed, lacks a rank's record, or contradicts itself.
    """
    if not isinstance(outcome, dict):
        raise BadRecords("the outcome is not a dictionary")
    state, text = outcome.get("state"), outcome.get("text")
    if not (isinstance(state, str) and state in (RETURNED, RAISED, LATE)):
        raise BadRecords("the outcome has no valid state")
    if state != RETURNED and isinstance(text, str):
        return GpusRun(state, text[:MOST_TEXT])
    if state != RETURNED:
        raise BadRecords("the outcome has neither records nor an error")
    records, expected = outcome.get("records"), len(cluster.ranks())
    if not isinstance(records, list) or len(records) != expected or not all(
            isinstance(one, str) for one in records) or sum(map(len, records)) > MOST_PACKED:
        raise BadRecords(f"{expected} records were expected, of up to {MOST_PACKED:,} characters")
    return GpusRun(RETURNED, priced=tuple((price or priced_here)(records, cluster)))


def priced_here(records: Sequence[str], cluster: SimulatedCluster) -> list[Priced]:
    """Return the figures of each rank's packed record. Raises BadRecords."""
    from virtualgpu import replay
    from virtualgpu.core.errors import VirtualGpuError
    from virtualgpu.launch.cluster import parse

    expected = cluster.ranks()
    try:
        recordings, budget = [], MOST_UNPACKED
        for one in records:
            text = unpack(one, budget)
            recordings.append(replay.read_record(text))
            budget -= len(text.encode())
        if [one.rank for one in recordings] != expected:
            raise BadRecords(f"records of ranks {[one.rank for one in recordings]}, not {expected}")
        return replay.price(recordings, parse(cluster.gpus, cluster.nodes, cluster.link).topology())
    except (BadRecords, MemoryError):  # the latter is this side's own
        raise
    except (VirtualGpuError, RecursionError) as error:
        raise BadRecords(str(error)) from error
    except Exception as error:  # no program on virtual GPUs leaves a record that breaks its reader
        raise BadRecords(f"{type(error).__name__}: {error}") from error
