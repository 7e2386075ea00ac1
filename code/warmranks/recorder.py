"""A gloo process group that records every call and publishes what its rank waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from warmranks.records import Call
from warmranks.waiting import waiting

BACKEND = "recorded"
MOST_CALLS = 100_000  # per rank


@dataclass
class Begun:
    """A call that has begun, with the fields of `records.Call`."""

    op: str
    group: tuple[int, ...]
    peer: int | None
    bytes: int
    started: float
    finished: float | None = None

    def __str__(self) -> str:
        if self.op in ("send", "recv"):
            who = "any rank" if self.peer is None else f"rank {self.peer}"
            return f"{self.op} {'to' if self.op == 'send' else 'from'} {who}"
        return f"{self.op} with ranks {', '.join(map(str, self.group))}"


class Recorder(TorchDispatchMode):
    """Counts this rank's matmul FLOPs, and records the calls of all its process groups."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0
        self.begun: list[Begun] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **kwargs, out_val=out)
        return out

    def begin(self, op: str, group: Sequence[int], peer: int | None, size: int) -> Begun:
        """Record that a call begins.

        Args:
            op: the name of the collective, or "send" or "recv".
            group: the ranks of the process group.
            peer: the other rank, or the root; None if there is none.
            size: bytes of the tensors that this rank passes in.

        Raises RuntimeError if the rank makes far too many calls, as in an endless loop.
        """
        if len(self.begun) >= MOST_CALLS:
            raise RuntimeError(f"more than {MOST_CALLS:,} calls of torch.distributed on one rank")
        self.begun.append(Begun(op, tuple(group), peer, size, self.flops))
        return self.begun[-1]

    @staticmethod
    def call(begun: Begun) -> Call:
        return Call(**vars(begun))


class RecordedWork(dist.Work):
    """The work handle of a recorded call."""

    def __init__(self, recorder: Recorder, begun: Begun, work: dist.Work) -> None:
        """Args:
            recorder: this rank's recorder.
            begun: the call.
            work: gloo's work handle.
        """
        super().__init__()
        self.recorder, self.begun, self.work = recorder, begun, work

    def wait(self, timeout: Any = None) -> bool:
        with waiting(str(self.begun)):
            done = self.work.wait() if timeout is None else self.work.wait(timeout)
        if self.begun.finished is None:
            self.begun.finished = self.recorder.flops
        return done

    synchronize = wait

    def is_completed(self) -> bool:
        return self.work.is_completed()

    def is_success(self) -> bool:
        return self.work.is_success()

    def exception(self) -> Any:
        return self.work.exception()

    def result(self) -> Any:
        return self.work.result()

    def get_future(self) -> torch.futures.Future:
        return self.work.get_future()

    def _source_rank(self) -> int:
        return self.work._source_rank()


class RecordedGroup(dist.ProcessGroup):
    """A process group that passes every call on to gloo and records it."""

    def __init__(self, recorder: Recorder, inner: dist.ProcessGroup, gloo: dist.ProcessGroupGloo,
                 ranks: list[int]) -> None:
        """Args:
            recorder: this rank's recorder.
            inner: the process group that does the work.
            gloo: the backend of `inner`.
            ranks: the group's ranks, as global ranks.
        """
        super().__init__(inner.rank(), inner.size())
        self.recorder, self.inner, self.ranks = recorder, inner, ranks
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, gloo)

    def getBackendName(self) -> str:
        return BACKEND

    def noted(self, op: str, tensors: Any, call: Callable[[], dist.Work],
              peer: int | None = None) -> RecordedWork:
        """Start a call, and record it.

        Args:
            op: the name of the call.
            tensors: a tensor or nested lists of tensors, whose bytes are recorded.
            call: starts the call on the inner group.
            peer: the other rank, or the root, as a rank within this group.
        """
        begun = self.recorder.begin(op, self.ranks, None if peer is None else self.ranks[peer],
                                    total(tensors))
        return RecordedWork(self.recorder, begun, call())

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> RecordedWork:
        return self.noted("send", tensors, lambda: self.inner.send(tensors, dst, tag), dst)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> RecordedWork:
        return self.noted("recv", tensors, lambda: self.inner.recv(tensors, src, tag), src)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> RecordedWork:
        return self.noted("recv", tensors, lambda: self.inner.recv_anysource(tensors, tag))

    def barrier(self, opts: Any = None) -> RecordedWork:
        return self.noted("barrier", [], lambda: self.inner.barrier(opts=opts) if opts is not None
                          else self.inner.barrier())


def total(tensors: Any) -> int:
    """Return the total size, in bytes, of a tensor or of nested lists of tensors."""
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes
    return sum(map(total, tensors))


def _collective(method: str, op: str, given: int) -> None:
    """Add a method to RecordedGroup that records a collective.

    Args:
        method: the name of the method of torch.distributed.ProcessGroup.
        op: the name of the collective in the record.
        given: the position of the argument with this rank's input.
    """
    def begin(self: RecordedGroup, *arguments: Any, **options: Any) -> RecordedWork:
        opts = options.get("opts", arguments[-1])
        root = getattr(opts, "rootRank", None)
        return self.noted(op, arguments[given],
                          lambda: getattr(self.inner, method)(*arguments, **options), root)

    setattr(RecordedGroup, method, begin)


for _method, _op, _given in (
        ("allreduce", "all_reduce", 0), ("allreduce_coalesced", "all_reduce", 0),
        ("broadcast", "broadcast", 0), ("reduce", "reduce", 0),
        ("allgather", "all_gather", 1), ("allgather_coalesced", "all_gather", 1),
        ("_allgather_base", "all_gather", 1), ("all_gather_single", "all_gather", 1),
        ("allgather_into_tensor_coalesced", "all_gather", 1),
        ("all_gather_single_coalesced", "all_gather", 1),
        ("reduce_scatter", "reduce_scatter", 1), ("_reduce_scatter_base", "reduce_scatter", 1),
        ("reduce_scatter_single", "reduce_scatter", 1),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter", 1),
        ("reduce_scatter_single_coalesced", "reduce_scatter", 1),
        ("gather", "gather", 1), ("scatter", "scatter", 1),
        ("alltoall", "all_to_all", 1), ("alltoall_base", "all_to_all", 1),
        ("all_to_all_single", "all_to_all", 1)):
    _collective(_method, _op, _given)


def register(recorder: Recorder) -> None:
    """Register the backend "recorded", whose process groups write to this recorder."""
    def make(options: Any, _: Any) -> RecordedGroup:
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        with waiting(f"a new process group of ranks {', '.join(map(str, ranks))}"):
            gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size,
                                         options.timeout)
        inner = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
        inner._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        inner._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        return RecordedGroup(recorder, inner, gloo, ranks)

    dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu"])
