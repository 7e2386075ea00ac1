"""The figures of a program that runs inference: generated tokens or forward passes per second."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from virtualgpu.export.passes import (
    ForwardPass,
    Passes,
    Times,
    cached,
    generations,
    growth,
)

HOST = "host"
LEAST_TOKENS = 4  # of a generation whose dynamic KV cache can be measured


def measure(passes: Passes) -> dict | None:
    """Return the figures of the module that ran longest; None if the program ran no inference.

    Args:
        passes: the program's forward passes, stopped.
    """
    if passes.trained or not passes.done:
        return None
    seconds: dict[tuple[int, str], float] = {}
    for one in passes.done:
        seconds[one.module] = seconds.get(one.module, 0.0) + one.end - one.begin
    model = max(seconds, key=seconds.__getitem__)
    own = [one for one in passes.done if one.module == model]
    if not seconds[model]:
        return None
    found = [group for group in generations(own) if len(group) > 1]
    return generated(passes, found) if found else called(own)


def generated(passes: Passes, found: Sequence[list[ForwardPass]]) -> dict:
    """Return the figures of generations, the first of several excluded as a warm-up.

    Args:
        passes: the program's forward passes.
        found: the passes of each generation.
    """
    counted = found[1:] or found
    typical = sorted(counted, key=lambda one: one[-1].end - one[0].begin)[(len(counted) - 1) // 2]
    first, *decoding = typical
    # The last pass lasts until something else begins, so its time is not a token's.
    between = [one.seconds for group in counted for one in (group[1:-1] or group[1:])]
    elapsed = typical[-1].end - first.begin
    steps = decoding[:-1] or decoding
    return {
        "kind": "generation", "model": first.module[1], "count": len(found),
        "batch": first.batch, "prompt_tokens": first.length, "output_tokens": len(typical),
        "seconds": elapsed, "tokens_per_second": first.batch * len(typical) / elapsed,
        "first_token_seconds": statistics.median(one[0].seconds for one in counted),
        "token_seconds": statistics.median(between), "shortest_token_seconds": min(between),
        "longest_token_seconds": max(between),
        "kv_cache": kv_cache(passes, typical), **bounds(steps),
    }


def called(own: Sequence[ForwardPass]) -> dict:
    """Return the figures of forward passes that generate nothing, the first one excluded."""
    later = own[1:] or own
    typical = sorted(later, key=lambda one: one.end - one.begin)[(len(later) - 1) // 2]
    durations = [one.end - one.begin for one in later]
    elapsed = later[-1].end - later[0].begin
    return {
        "kind": "forward passes", "model": typical.module[1], "count": len(own),
        "batch": typical.batch, "length": typical.length, "seconds": statistics.median(durations),
        "shortest_seconds": min(durations), "longest_seconds": max(durations),
        "samples_per_second": sum(one.batch for one in later) / elapsed,
        "tokens_per_second": sum(one.tokens for one in later) / elapsed or None,
        **bounds(later),
    }


def bounds(passes: Sequence[ForwardPass]) -> dict:
    """Return the shares of the passes' time, and the largest one's name.

    The host's share is the time in which the GPU has nothing to run.
    """
    total, elapsed = Times(), sum(one.seconds for one in passes)
    for one in passes:
        total = total.plus(one.times)
    shares = {"memory_bandwidth": total.bandwidth, "compute": total.compute,
              "short_kernels": total.short, "communication": total.communication}
    shares[HOST] = max(0.0, elapsed - sum(shares.values()))
    whole = sum(shares.values()) or 1.0
    shares = {name: seconds / whole for name, seconds in shares.items()}
    return {"bound_by": max(shares, key=shares.__getitem__), "shares": shares}


def kv_cache(passes: Passes, typical: Sequence[ForwardPass]) -> dict | None:
    """Return the bytes of the KV cache of a generation; None if every pass recomputes all tokens.

    The bytes are None if the generation is too short to see a cache grow.

    Args:
        passes: the program's forward passes.
        typical: the generation's.
    """
    if not cached(typical):
        return None
    per_token = growth(typical)
    context = typical[0].length + len(typical) - 1
    before = passes.caches(typical[1:])
    if before < per_token * context:  # such as a counter, beside a dynamic cache
        before = 0
    if not before and len(typical) < LEAST_TOKENS:
        return {"bytes": None, "preallocated": False, "context_tokens": context,
                "bytes_per_token": None}
    return {"bytes": before or round(per_token * context), "preallocated": before > 0,
            "context_tokens": context, "bytes_per_token": None if before else per_token}
