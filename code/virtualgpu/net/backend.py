"""The virtual backend of torch.distributed: it makes process groups, and ends them."""

from __future__ import annotations

import atexit
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.net.board import Board
from virtualgpu.net.errors import Asymmetric
from virtualgpu.net.group import BACKEND, Say, VirtualGroup
from virtualgpu.net.topology import Topology
from virtualgpu.net.wire import Wire

PATIENCE = timedelta(seconds=30)  # real time that the rank with the store waits for the others


class Job(NamedTuple):
    """The arguments of `register`."""

    gpu: VirtualGpu
    topology: Topology
    say: Say | None
    present: Sequence[int] | None


# torch's registry of backends is global, and nothing is ever removed from it.
_job: Job | None = None
_boards: dict[dist.Store, Board] = {}  # keeps the stores alive, so none is mistaken for another
_made: Counter[tuple] = Counter()
_groups: list[VirtualGroup] = []


def register(gpu: VirtualGpu, topology: Topology, say: Say | None = None,
             present: Sequence[int] | None = None) -> None:
    """Register the backend, so that torch.distributed.new_group(backend="virtual") makes groups.

    Args:
        gpu: this rank's GPU.
        topology: of the whole job.
        say: receives the lines that NCCL would print when a group is first used; None for no lines.
        present: the ranks that are processes; the others are symmetric to them. None for all ranks.
    """
    global _job
    _job = Job(gpu, topology, say, present)
    _groups.clear()
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _make, extended_api=True,
                                      devices=["cpu", "cuda", "meta"])


def _make(options, _) -> VirtualGroup:
    gpu, topology, say, present = _job
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    rank = options.group_rank
    board = name = None
    if len(ranks) > 1 and (present is None or len(present) > 1):
        board = _board(options.store, ranks[rank], range(len(topology.nodes))
                       if present is None else present)
        made = options.group_id, tuple(ranks)  # the same on all ranks, even after a restart
        _made[made] += 1
        name = f"{options.group_id}/{'.'.join(map(str, ranks))}/{_made[made]}"
    wire = Wire(rank, ranks, board, name, options.timeout)
    group = VirtualGroup(gpu, topology, ranks, rank, wire, say)
    _groups.append(group)
    return group


def _board(store: dist.Store, rank: int, present: Sequence[int]) -> Board:
    """Return the board in the job's store, of which torch gives every group a view of its own."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if store not in _boards:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        board = Board(dist.PrefixStore(f"virtualgpu/{attempt}", store), rank, present)
        _boards[store] = board
        atexit.register(_leave, board, serves(store, rank))
    return _boards[store]


def serves(store: dist.Store, rank: int) -> bool:
    """Return whether this process serves the job's store, as rank 0 does outside of torchrun."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return isinstance(store, dist.TCPStore) and rank == 0 and not agent


def _leave(board: Board, serving: bool) -> None:
    """End this rank; the one that serves the store waits until the others have ended."""
    with suppress(dist.DistError, RuntimeError):  # the store is gone, or a rank never ends
        board.end()
        if serving:
            board.wait_for_ends(PATIENCE)


def settle() -> None:
    """Wait for the other ranks until the end of everything started here is known."""
    for group in _groups:
        group.settle_all()


def farewell() -> None:
    """Check at the end of a program that every communication was matched.

    Raises:
        Asymmetric: a rank that is not present would have had to do something else.
        Mismatch: the ranks' last collectives differ.
        Hang: a collective that nobody waited for cannot complete.
    """
    settle()
    for group in _groups:
        left = group.wire.unmatched()
        if left:
            raise Asymmetric(left)
    for board in _boards.values():
        with suppress(dist.DistError, RuntimeError):  # the rank that serves the store ended first
            board.end()
