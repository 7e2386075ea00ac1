"""The virtual backend of torch.distributed: creates process groups, and ends them."""

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
from virtualgpu.net.communicator import BACKEND
from virtualgpu.net.errors import Asymmetric
from virtualgpu.net.group import PrintLine, VirtualGroup
from virtualgpu.net.job_store import JobStore
from virtualgpu.net.messenger import Messenger
from virtualgpu.net.topology import Topology

SHUTDOWN_TIMEOUT = timedelta(seconds=30)  # real time that the store's host waits for the others


class Registration(NamedTuple):
    """This process's place in the job: the arguments of `register`."""

    gpu: VirtualGpu
    topology: Topology
    print_line: PrintLine | None
    present: Sequence[int] | None


# torch's registry of backends is global, and nothing is ever removed from it.
_job: Registration | None = None
_stores: dict[dist.Store, JobStore] = {}  # keeps stores alive, so that no identity is reused
_group_counts: Counter[tuple] = Counter()
_groups: list[VirtualGroup] = []


def register(gpu: VirtualGpu, topology: Topology, print_line: PrintLine | None = None,
             present: Sequence[int] | None = None) -> None:
    """Register the backend, so that torch.distributed.new_group(backend="virtual") makes groups.

    Args:
        gpu: this rank's GPU.
        topology: the GPUs and links of the whole job.
        print_line: receives the lines that NCCL would print when a group is first used; None for
            no lines.
        present: the ranks that are processes; the others are symmetric to them. None for all ranks.
    """
    global _job
    _job = Registration(gpu, topology, print_line, present)
    _groups.clear()
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _make, extended_api=True,
                                      devices=["cpu", "cuda", "meta"])


def _make(options, _) -> VirtualGroup:
    gpu, topology, print_line, present = _job
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    rank = options.group_rank
    job_store = name = None
    if len(ranks) > 1 and (present is None or len(present) > 1):
        job_store = _job_store(options.store, ranks[rank], range(len(topology.nodes))
                               if present is None else present)
        key = options.group_id, tuple(ranks)  # the same on all ranks, even after a restart
        _group_counts[key] += 1
        name = f"{options.group_id}/{'.'.join(map(str, ranks))}/{_group_counts[key]}"
    messenger = Messenger(rank, ranks, job_store, name, options.timeout)
    group = VirtualGroup(gpu, topology, ranks, rank, messenger, print_line)
    group.nccl.options._timeout = options.timeout
    _groups.append(group)
    return group


def _job_store(store: dist.Store, rank: int, present: Sequence[int]) -> JobStore:
    """Return this rank's connection to the job's store, which all of its groups share."""
    while isinstance(store, dist.PrefixStore):  # torch gives each group its own prefix
        store = store.underlying_store
    if store not in _stores:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        job_store = JobStore(dist.PrefixStore(f"virtualgpu/{attempt}", store), rank, present)
        _stores[store] = job_store
        atexit.register(_leave, job_store, serves(store, rank))
    return _stores[store]


def serves(store: dist.Store, rank: int) -> bool:
    """Return whether this process serves the job's store, as rank 0 does outside of torchrun."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return isinstance(store, dist.TCPStore) and rank == 0 and not agent


def _leave(job_store: JobStore, serving: bool) -> None:
    """End this rank; the one that serves the store waits until the others have ended."""
    with suppress(dist.DistError, RuntimeError):  # the store is gone, or a rank never ends
        job_store.end()
        if serving:
            job_store.wait_for_ends(SHUTDOWN_TIMEOUT)


def settle_groups() -> None:
    """Wait for the other ranks until everything started here has a known end."""
    for group in _groups:
        group.settle_all()


def check_complete() -> None:
    """Check at the end of a program that every communication was matched.

    Raises:
        Asymmetric: a rank that is not present cannot mirror what its representative did.
        CollectiveMismatch: the ranks' last collectives differ.
        Hang: a collective that nobody waited for cannot complete.
    """
    settle_groups()
    for group in _groups:
        problem = group.messenger.unmatched()
        if problem:
            raise Asymmetric(problem)
    for job_store in _stores.values():
        with suppress(dist.DistError, RuntimeError):  # the rank that serves the store ended first
            job_store.end()
