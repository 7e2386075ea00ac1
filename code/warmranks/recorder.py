"""Record every call of a gloo process group, and publish what its rank waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from warmranks.records import CommunicationCall
from warmranks.waiting import waiting

BACKEND = "recorded"
MAX_CALLS = 100_000  # per rank


@dataclass
class OpenCall:
    """A call that may not have finished, with the fields of `records.CommunicationCall`."""

    op: str
    group: tuple[int, ...]
    peer: int | None
    bytes: int
    started: float
    finished: float | None = None

    def __str__(self) -> str:
        if self.op in ("send", "recv"):
            peer = "any rank" if self.peer is None else f"rank {self.peer}"
            return f"{self.op} {'to' if self.op == 'send' else 'from'} {peer}"
        return f"{self.op} with ranks {', '.join(map(str, self.group))}"


class CallRecorder(TorchDispatchMode):
    """Counts this rank's matmul FLOPs, and records the calls of all its process groups."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0
        self.calls: list[OpenCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **kwargs, out_val=out)
        return out

    def begin(self, op: str, group: Sequence[int], peer: int | None, size: int) -> OpenCall:
        """Record that a call begins.

        Args:
            op: the name of the collective, or "send" or "recv".
            group: the ranks of the process group.
            peer: the other rank, or the root; None if there is none.
            size: bytes of the tensors that this rank passes in.

        Raises:
            RuntimeError: the rank makes far too many calls, as in an endless loop.
        """
        if len(self.calls) >= MAX_CALLS:
            raise RuntimeError(f"more than {MAX_CALLS:,} calls of torch.distributed on one rank")
        self.calls.append(OpenCall(op, tuple(group), peer, size, self.flops))
        return self.calls[-1]

    @staticmethod
    def to_record(call: OpenCall) -> CommunicationCall:
        return CommunicationCall(**vars(call))


class RecordedHandle(dist.Work):
    """The work handle of a recorded call."""

    def __init__(self, recorder: CallRecorder, call: OpenCall, work: dist.Work) -> None:
        """Args:
            recorder: this rank's recorder.
            call: the call.
            work: gloo's work handle.
        """
        super().__init__()
        self.recorder, self.call, self.work = recorder, call, work

    def wait(self, timeout: Any = None) -> bool:
        with waiting(str(self.call)):
            done = self.work.wait() if timeout is None else self.work.wait(timeout)
        if self.call.finished is None:
            self.call.finished = self.recorder.flops
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

    def __init__(self, recorder: CallRecorder, inner: dist.ProcessGroup,
                 gloo: dist.ProcessGroupGloo, ranks: list[int]) -> None:
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

    def record(self, op: str, tensors: Any, start: Callable[[], dist.Work],
               peer: int | None = None) -> RecordedHandle:
        """Start a call, and record it.

        Args:
            op: the name of the call.
            tensors: a tensor or nested lists of tensors, whose bytes are recorded.
            start: starts the call on the inner group.
            peer: the other rank, or the root, as a rank within this group.
        """
        call = self.recorder.begin(op, self.ranks, None if peer is None else self.ranks[peer],
                                   total_bytes(tensors))
        return RecordedHandle(self.recorder, call, start())

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> RecordedHandle:
        return self.record("send", tensors, lambda: self.inner.send(tensors, dst, tag), dst)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> RecordedHandle:
        return self.record("recv", tensors, lambda: self.inner.recv(tensors, src, tag), src)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> RecordedHandle:
        return self.record("recv", tensors, lambda: self.inner.recv_anysource(tensors, tag))

    def barrier(self, opts: Any = None) -> RecordedHandle:
        return self.record("barrier", [], lambda: self.inner.barrier(opts=opts)
                           if opts is not None else self.inner.barrier())


def total_bytes(tensors: Any) -> int:
    """Return the total size, in bytes, of a tensor or of nested lists of tensors."""
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes
    return sum(map(total_bytes, tensors))


def _collective(method: str, op: str, position: int) -> None:
    """Add a method to RecordedGroup that records a collective.

    Args:
        method: the name of the method of torch.distributed.ProcessGroup.
        op: the name of the collective in the record.
        position: the position of the argument that is this rank's input.
    """
    def begin(self: RecordedGroup, *arguments: Any, **options: Any) -> RecordedHandle:
        opts = options.get("opts", arguments[-1])
        root = getattr(opts, "rootRank", None)
        return self.record(op, arguments[position],
                           lambda: getattr(self.inner, method)(*arguments, **options), root)

    setattr(RecordedGroup, method, begin)


for _method, _op, _position in (
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
    _collective(_method, _op, _position)


def register(recorder: CallRecorder) -> None:
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
