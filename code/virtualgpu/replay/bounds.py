"""Lower bounds: a record that claims less work than the task needs is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.replay.pricing import Priced

Least = int | Sequence[int] | None
WORDS = {"flops": "FLOPs", "bytes": "bytes moved between memory and the chip",
         "live": "bytes of live tensors at the peak", "communicated": "bytes communicated"}


class TooLittle(VirtualGpuError):
    """A record claims less than the task needs; the text has all figures."""


def require(priced: Iterable[Priced], *, flops: Least = None, bytes: Least = None,
            live: Least = None, communicated: Least = None) -> None:
    """Refuse records that claim less than a task needs.

    Every bound is one number for all ranks, or one for each record. Derive it from the task, not
    from a run, and leave no slack that a cheat could use.

    Args:
        priced: figures of all ranks.
        flops: floating-point operations.
        bytes: moved between memory and the chip.
        live: bytes of live tensors at the peak.
        communicated: bytes of collectives' buffers and of sends.

    Raises TooLittle, and ValueError for bounds that could refuse nothing.
    """
    ranks, short = list(priced), []
    if not ranks:
        raise ValueError("there is no record that the bounds could hold for")
    for name, least in (("flops", flops), ("bytes", bytes), ("live", live),
                        ("communicated", communicated)):
        if least is None:
            continue
        each = [least] * len(ranks) if isinstance(least, (int, float)) else list(least)
        if len(each) != len(ranks):
            raise ValueError(f"{name}: {len(each)} bounds for {len(ranks)} ranks")
        if not all(0 <= need < math.inf for need in each):
            raise ValueError(f"{name}: a bound must be finite and not negative, found {least}")
        short += [f"rank {one.rank}: {getattr(one, name):,} {WORDS[name]}, at least {need:,.0f} "
                  "are needed" for one, need in zip(ranks, each, strict=True)
                  if getattr(one, name) < need]
    if short:
        raise TooLittle("the record claims less than the task needs: " + "; ".join(short))
