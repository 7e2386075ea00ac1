"""Groups in which everybody is alike, and pairs across groups.

A group is a cluster of complete linkage (Sorensen, 1948): every two of its members are over the
threshold. So a chain of students, each a little like the next, does not become one group.
"""

from __future__ import annotations

import numpy as np


def complete_linkage(scores: np.ndarray, least: float) -> list[list[int]]:
    """Return the clusters of two or more, each sorted, by the nearest-neighbor chain (Murtagh,
    1983), which takes quadratic time.

    Args:
        scores: similarities, `[n, n]`, symmetric.
        least: the lowest similarity of two members of a cluster.
    """
    alike = scores.astype(np.float32)
    np.fill_diagonal(alike, -1)
    members = {at: [at] for at in range(len(alike)) if alike[at].max(initial=-1) >= least}
    waiting, chain = set(members), []
    while waiting:
        if not chain:
            chain.append(min(waiting))
        last = chain[-1]
        nearest = int(alike[last].argmax())
        if alike[last, nearest] < least:  # it only gets less: this cluster is complete
            waiting.discard(last)
            chain.clear()
        elif len(chain) > 1 and alike[last, chain[-2]] >= alike[last, nearest]:
            other = chain[-2]
            del chain[-2:]
            alike[last] = alike[:, last] = np.minimum(alike[last], alike[other])
            alike[last, last] = -1
            alike[other] = alike[:, other] = -1
            members[last] += members.pop(other)
            waiting.discard(other)
        else:
            chain.append(nearest)
    return sorted(sorted(cluster) for cluster in members.values() if len(cluster) > 1)


def across(scores: np.ndarray, clusters: list[list[int]], least: float, most: int
           ) -> tuple[list[tuple[int, int]], int]:
    """Return the most similar pairs that share no cluster, and the number of all such pairs.

    Args:
        scores: similarities, `[n, n]`, symmetric.
        clusters: the clusters.
        least: the lowest similarity to report.
        most: the maximum number of pairs to return.
    """
    of = np.arange(len(scores)) + len(clusters)
    for number, cluster in enumerate(clusters):
        of[cluster] = number
    one, other = np.nonzero(np.triu(scores >= least, 1))
    separate = of[one] != of[other]
    one, other = one[separate], other[separate]
    order = np.argsort(-scores[one, other], kind="stable")[:most]
    return [(int(a), int(b)) for a, b in zip(one[order], other[order], strict=True)], len(one)
