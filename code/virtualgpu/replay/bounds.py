"""Lower bounds: a record that claims less work than the task needs is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.replay.pricing import PRECISION, Priced

Least = int | Sequence[int] | None
WORDS = {"flops": "FLOPs in {dtype} or higher precision",
         "bytes": "bytes moved between memory and the chip",
         "live": "bytes of live tensors at the peak", "communicated": "bytes communicated"}


class TooLittle(VirtualGpuError):
    """A record claims less than the task needs; the text has all figures."""


def require(priced: Iterable[Priced], *, flops: Least = None, bytes: Least = None,
            live: Least = None, communicated: Least = None, dtype: str = "fp32") -> None:
    """Refuse records that claim less than a task needs.

    Every bound is one number for all ranks, or one for each record. Derive it from the task, not
    from a run, and leave no slack that a cheat could use.

    Args:
        priced: figures of all ranks.
        flops: FLOPs in `dtype` or in a dtype of higher precision.
        bytes: bytes moved between memory and the chip.
        live: bytes of live tensors at the peak.
        communicated: bytes of collectives' buffers and of sends.
        dtype: the fastest dtype whose FLOPs count, such as "bf16" for a step under bf16 autocast.

    Raises:
        TooLittle: A record claims less.
        ValueError: A bound could refuse nothing, or the dtype is unknown.
    """
    if dtype not in PRECISION:
        raise ValueError(f"dtype {dtype!r}: expected one of {', '.join(PRECISION)}")
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
        for one, need in zip(ranks, each, strict=True):
            found = one.flops_in(dtype) if name == "flops" else getattr(one, name)
            if found < need:
                short.append(f"rank {one.rank}: {found:,} {WORDS[name].format(dtype=dtype)}, "
                             f"at least {need:,.0f} are needed")
    if short:
        raise TooLittle("the record claims less than the task needs: " + "; ".join(short))
