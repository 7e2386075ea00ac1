"""A driver on virtual GPUs, recorded where the student's code runs and priced where it does not.

`record` runs beside the student's code and returns each rank's record (virtualgpu.replay): what
was computed, allocated, and communicated, and no time. `priced` reads records that nobody vouches
for and works out what they cost.
"""

from __future__ import annotations

import base64
import binascii
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.check.on_ranks import LATE, MOST_TEXT, RAISED, RETURNED, shortened, watched

if TYPE_CHECKING:
    from virtualgpu.replay import Priced

MOST_PROCESSES = 8  # ranks that are simulated at a time
MOST_PACKED = 900_000  # characters of all records, packed: what may cross
MOST_UNPACKED = 24_000_000  # bytes of all records, unpacked: a few hundred MB of Python objects


class BadRecords(ValueError):
    """What came is not a record of each rank, or contradicts itself."""


@dataclass(frozen=True)
class Modeled:
    """What a driver did on virtual GPUs.

    Attributes:
        state: RETURNED, RAISED, or LATE.
        text: how it failed, for the student.
        priced: the figures of each simulated rank; empty unless it returned.
    """

    state: str
    text: str = ""
    priced: tuple[Priced, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """Virtual GPUs that a driver runs on.

    Attributes:
        gpus: the GPU model and how many each node has, such as "h100:8".
        nodes: how many nodes.
        link: the network between them; None: the one that is usual with these GPUs.
        present: the ranks that are simulated, of which the others are copies; None: all.
    """

    gpus: str
    nodes: int = 1
    link: str | None = None
    present: tuple[int, ...] | None = None

    def ranks(self) -> list[int]:
        """Return the ranks that are simulated. Raises VirtualGpuError for an unknown GPU."""
        from virtualgpu.launch import cluster

        world = cluster.parse(self.gpus, self.nodes, self.link).world
        return list(range(world) if self.present is None else self.present)


def record(function: Callable, cluster: Cluster, arguments: Sequence[Any],
           keywords: Mapping[str, Any], seconds: float, masked: Sequence[str] = ()
           ) -> dict[str, Any]:
    """Run a function on virtual GPUs, and return the outcome as plain values.

    Args:
        function: the driver.
        cluster: the GPUs.
        arguments: of the driver, plain values.
        keywords: of the driver, too.
        seconds: of real time, after which it is ended.
        masked: names that its code may not use.
    """
    import warmranks

    try:
        with open(os.devnull, "w") as nothing:  # a failure is printed there, too
            (found,) = warmranks.run_ranks(
                _recorded, 1, function, cluster, tuple(arguments), dict(keywords), tuple(masked),
                backend=None, timeout=seconds, stderr=nothing.fileno())
    except warmranks.RanksTimeout as error:
        return {"state": LATE, "text": str(error)[:MOST_TEXT]}
    except (warmranks.RankError, TypeError) as error:
        return {"state": RAISED, "text": shortened(str(error))}
    if isinstance(found, str):
        return {"state": RAISED, "text": shortened(found)}
    if sum(map(len, found)) > MOST_PACKED:
        return {"state": RAISED, "text": "it does too much to be recorded: more than "
                                         f"{MOST_PACKED:,} characters"}
    return {"state": RETURNED, "records": found}


def _recorded(function: Callable, cluster: Cluster, arguments: tuple[Any, ...],
              keywords: dict[str, Any], masked: tuple[str, ...]) -> list[str] | str:
    """Return the packed records, or how a rank failed."""
    import virtualgpu
    from virtualgpu.launch.failures import STOPPED

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)

    def program() -> None:
        import torch.distributed as dist

        dist.init_process_group("nccl")
        if masked:
            watched(masked, function, arguments, keywords)
        else:
            function(*arguments, **keywords)

    found = virtualgpu.run(program, cluster.gpus, cluster.nodes, link=cluster.link,
                           present=cluster.present, record=True)
    failed = [one for one in found if one.error]
    if failed:
        own = [one for one in failed if not one.error.startswith(STOPPED)]
        first = (own or failed)[0]
        text = first.message or first.error
        if not text.startswith("Traceback"):  # in one line, such as those of virtualgpu
            return f"rank {first.rank}: {text}"
        return f"rank {first.rank} raised {first.error.splitlines()[0]}\n\n{text}"
    return [pack(one.record) for one in found]


def pack(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode()


def unpack(packed: Any, most: int = MOST_UNPACKED) -> str:
    """Return the text of a packed record.

    Args:
        packed: from anybody.
        most: bytes that it may have.

    Raises BadRecords where it is something else, or larger.
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


def read(outcome: Any, cluster: Cluster) -> Modeled:
    """Price an outcome.

    Args:
        outcome: what `record` returned, or anything else that a sandbox sent.
        cluster: the GPUs.

    Raises BadRecords where it is no outcome, has no record of each rank, or contradicts itself.
    """
    if not isinstance(outcome, dict):
        raise BadRecords("no dict")
    state, text = outcome.get("state"), outcome.get("text")
    if not (isinstance(state, str) and state in (RETURNED, RAISED, LATE)):
        raise BadRecords("no state")
    if state != RETURNED and isinstance(text, str):
        return Modeled(state, text[:MOST_TEXT])
    if state != RETURNED:
        raise BadRecords("neither records nor an error")
    return Modeled(RETURNED, priced=tuple(_priced(outcome.get("records"), cluster)))


def _priced(records: Any, cluster: Cluster) -> list[Priced]:
    from virtualgpu import replay
    from virtualgpu.core.errors import VirtualGpuError
    from virtualgpu.launch.cluster import parse

    expected = cluster.ranks()
    if not isinstance(records, list) or len(records) != len(expected):
        raise BadRecords(f"{len(expected)} records were expected")
    try:
        made, left = [], MOST_UNPACKED
        for one in records:
            text = unpack(one, left)
            made.append(replay.read(text))
            left -= len(text.encode())
        if [one.rank for one in made] != expected:
            raise BadRecords(f"records of ranks {[one.rank for one in made]}, not {expected}")
        return replay.price(made, parse(cluster.gpus, cluster.nodes, cluster.link).topology())
    except BadRecords:
        raise
    except (VirtualGpuError, RecursionError) as error:
        raise BadRecords(str(error)) from error
    except Exception as error:  # no program on virtual GPUs leaves a record that breaks its reader
        raise BadRecords(f"{type(error).__name__}: {error}") from error
