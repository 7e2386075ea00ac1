"""Which part of a model each rank holds, and what its node then sends over the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Coordinates = tuple[int, int, int]  # replica, stage, and shard of the part that a rank holds


def busiest_node(placement: Sequence[Coordinates], gpus_per_node: int, activation: float,
                 gradient: float) -> float:
    """Return the bytes that the busiest node sends over the network in one step.

    A stage sends activations to the same shard of the next stage, which returns their gradients.
    The ranks with the same stage and shard all-reduce the gradients of their parameters in a ring,
    in the order of their numbers; each sends 2 (d-1)/d of them (Patarasuk & Yuan 2009).

    Args:
        placement: the replica, stage, and shard of each rank.
        gpus_per_node: the number of ranks on each node.
        activation: bytes that a rank sends to the next stage per step.
        gradient: bytes of the gradients of one rank's parameters.
    """
    rank_of = {tuple(one): rank for rank, one in enumerate(placement)}
    replicas = max(replica for replica, _, _ in rank_of) + 1
    sent: Counter[int] = Counter()

    def send(source: int, target: int, size: float) -> None:
        if source // gpus_per_node != target // gpus_per_node:
            sent[source // gpus_per_node] += size

    for (replica, stage, shard), rank in rank_of.items():
        following = rank_of.get((replica, stage + 1, shard))
        if following is not None:
            send(rank, following, activation)
            send(following, rank, activation)
        if replica == 0:
            ring = sorted(rank_of[other, stage, shard] for other in range(replicas))
            for one, other in zip(ring, ring[1:] + ring[:1], strict=True):
                send(one, other, 2 * (replicas - 1) / replicas * gradient)
    return max(sent.values(), default=0.0)


def problem(placement: object, gpus_per_node: int, sizes: Coordinates) -> str | None:
    """Return a description of the first problem with a placement, or None. It may be any object.

    Args:
        placement: what the student's function returned.
        gpus_per_node: the number of ranks on each node.
        sizes: the numbers of replicas, stages, and shards.
    """
    ranks = sizes[0] * sizes[1] * sizes[2]
    if not (isinstance(placement, list) and len(placement) == ranks and all(
            isinstance(one, tuple | list) and len(one) == 3
            and all(type(number) is int for number in one) for one in placement)):
        return (f"{repr(placement)[:200]} is not a list with a replica, stage, and shard for each "
                f"of {ranks} ranks")
    nodes: dict[tuple[int, int], set[int]] = {}
    held: Counter[Coordinates] = Counter(tuple(one) for one in placement)
    for rank, (replica, stage, shard) in enumerate(placement):
        if not all(0 <= number < size for number, size in zip((replica, stage, shard), sizes,
                                                              strict=True)):
            return (f"rank {rank} holds replica {replica}, stage {stage}, shard {shard}, but there "
                    "are {} replicas, {} stages, and {} shards, numbered from 0".format(*sizes))
        if held[replica, stage, shard] > 1:
            return f"several ranks hold replica {replica}, stage {stage}, shard {shard}"
        nodes.setdefault((replica, stage), set()).add(rank // gpus_per_node)
    for (replica, stage), some in nodes.items():
        if len(some) > 1:
            return (f"the tensor-parallel group of replica {replica}, stage {stage} spans nodes "
                    f"{', '.join(map(str, sorted(some)))}")
    return None
