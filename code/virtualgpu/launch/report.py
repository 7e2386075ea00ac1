"""What a run prints when it is over."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from virtualgpu.core.memory import amount
from virtualgpu.launch.cluster import Cluster
from virtualgpu.launch.result import Rank


def show(cluster: Cluster, ranks: Sequence[Rank]) -> None:
    """Print the figures of the slowest rank, and everything that was assumed."""
    slowest = max(ranks, key=lambda rank: rank.seconds)
    fullest = max(ranks, key=lambda rank: rank.peak)
    kernels = sum(slowest.busy.values())
    say(f"{cluster}: {1e3 * slowest.seconds:.3f} ms of modeled time")
    say(f"kernels and communication {1e3 * kernels:.3f} ms, exposed communication "
        f"{1e3 * slowest.exposed:.3f} ms")
    say(f"peak memory {amount(fullest.peak)} allocated, {amount(fullest.reserved)} reserved, of "
        f"{amount(cluster.card.memory)}")
    if slowest.unknown:
        names = ", ".join(sorted(slowest.unknown))
        say(f"without a cost rule: {slowest.unknown_share:.1%} of the kernels' time ({names})")
    counts: Counter = Counter()
    for rank in ranks:
        for one, count in rank.assumptions.items():
            counts[one] = max(counts[one], count)
    for one, count in counts.items():
        where = f"{one.file}:{one.line}: " if one.file else ""
        times = f" ({count} times)" if count > 1 else ""
        say(f"assumed: {where}{one.text}{times}")


def say(text: str) -> None:
    print(f"virtualrun: {text}", file=sys.stderr, flush=True)
