"""A rank's end of the broker: a process group that sends every call, with its tensors, to it.

Ranks reduce what they receive themselves, in the order of the ranks, so that all of them get the
same bits. As with gloo, a send completes when its receive has been posted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup  # torch asks for a backend
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from warmranks.broker import pack, unpack
from warmranks.requests import CHUNK, HEADER

channel: socket.socket | None = None  # this rank's; set before its function is called
_init_process_group = dist.init_process_group
BACKEND = "brokered"
REDUCE: dict[Any, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    dist.ReduceOp.SUM: torch.Tensor.add_, dist.ReduceOp.PRODUCT: torch.Tensor.mul_,
    dist.ReduceOp.MIN: lambda x, y: x.copy_(torch.minimum(x, y)),
    dist.ReduceOp.MAX: lambda x, y: x.copy_(torch.maximum(x, y)),
    dist.ReduceOp.BAND: torch.Tensor.bitwise_and_, dist.ReduceOp.BOR: torch.Tensor.bitwise_or_,
    dist.ReduceOp.BXOR: torch.Tensor.bitwise_xor_}
aten = torch.ops.aten
# torch does not count a GEMM that is added to its first argument.
COUNTS = {**flop_registry, aten.addmm_: flop_registry[aten.addmm],
          aten.baddbmm_: flop_registry[aten.baddbmm]}


class CollectiveMismatch(RuntimeError):
    """The ranks of a group called different collectives, where NCCL and gloo would hang."""


class FlopCounter(TorchDispatchMode):
    """Counts this rank's matmul FLOPs."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        count = COUNTS.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **kwargs, out_val=out)
        return out


class Messenger:
    """This rank's connection to the broker. Its methods may be called from any thread."""

    def __init__(self, channel: socket.socket, counter: FlopCounter) -> None:
        """Args:
            channel: a stream socket, to which nobody else has access.
            counter: this rank's FLOPs, which every message states.
        """
        self.channel, self.counter = channel, counter
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._works: dict[int, Work] = {}
        self._count = 0
        self._reader: threading.Thread | None = None

    def call(self, work: Work, fields: dict[str, Any], parts: Sequence[bytes]) -> None:
        """Start a call, whose completion `wait` brings."""
        with self._writing:
            work.number, self._count = self._count, self._count + 1
            self._works[work.number] = work
            self._write({"do": "call", "number": work.number, **fields}, parts)

    def wait(self, work: Work) -> None:
        """Return when the call is complete."""
        with self._writing:
            self._write({"do": "wait", "number": work.number})
        if self._reader is not None:
            work.arrived.wait()
        while not work.arrived.is_set():
            with self._reading:
                if not work.arrived.is_set():
                    self._read()

    def poll(self) -> None:
        """Handle the messages that have arrived."""
        while self._reader is None and self._reading.acquire(blocking=False):
            try:
                self.channel.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    if self.channel.recv(1, socket.MSG_PEEK):
                        self.channel.setblocking(True)
                        self._read()
                        continue
                return
            finally:
                self.channel.setblocking(True)
                self._reading.release()

    def read_in_background(self) -> None:
        """Complete calls from now on without a wait, as a future needs it."""
        if self._reader is None:
            self._reader = threading.Thread(target=self._read_on, daemon=True)
            self._reader.start()

    def finish(self) -> None:
        """State the FLOPs at the end."""
        with self._writing:
            self._write({"do": "flops"})

    def _read_on(self) -> None:
        with self._reading, contextlib.suppress(OSError, EOFError):
            while True:
                self._read()

    def _write(self, fields: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
        message = pack({**fields, "flops": self.counter.flops}, parts)
        self.channel.sendall(HEADER.pack(len(message)) + message)

    def _read(self) -> None:
        fields, parts = unpack(receive_message(self.channel))
        self._works.pop(fields["number"]).complete(fields, parts)


def receive_message(channel: socket.socket) -> bytes:
    """Return the next message. Raises EOFError if the other end is closed."""
    (length,) = HEADER.unpack(_exactly(channel, HEADER.size))
    return _exactly(channel, length)


def _exactly(channel: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        part = channel.recv(min(CHUNK, count - len(content)))
        if not part:
            raise EOFError("the broker has ended")
        content += part
    return bytes(content)


class Work(dist.Work):
    """The work handle of a call."""

    number: int

    def __init__(self, messenger: Messenger, tensors: list[torch.Tensor],
                 finish: Callable[[list[bytes]], None]) -> None:
        """Args:
            messenger: sends the call.
            tensors: what the call fills, for the future's value.
            finish: stores what the broker sends.
        """
        super().__init__()
        self.messenger, self.tensors, self.finish = messenger, tensors, finish
        self.arrived = threading.Event()
        self.error: str | None = None
        self.kind: type[RuntimeError] = RuntimeError
        self.source = -1
        self._future: torch.futures.Future | None = None

    def complete(self, fields: dict[str, Any], parts: list[bytes]) -> None:
        """Take the broker's message."""
        self.error, self.source = fields.get("error"), fields.get("source", -1)
        self.kind = CollectiveMismatch if fields.get("mismatch") else RuntimeError
        if self.error is None:
            try:
                self.finish(parts)
            except Exception as error:  # in wait, where the call's own line is on the stack
                self.error = f"{type(error).__name__}: {error}"
        self.arrived.set()
        if self._future is not None:
            self._set(self._future)

    def wait(self, timeout: Any = None) -> bool:
        self.messenger.wait(self)
        if self.error is not None:
            raise self.kind(self.error)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        self.messenger.poll()
        return self.arrived.is_set()

    def is_success(self) -> bool:
        return self.is_completed() and self.error is None

    def exception(self) -> Any:
        return None if self.error is None else self.kind(self.error)

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def get_future(self) -> torch.futures.Future:
        if self._future is None:
            self._future = torch.futures.Future()
            self.messenger.read_in_background()
            if self.arrived.is_set() and not self._future.done():
                self._set(self._future)
        return self._future

    def _set(self, future: torch.futures.Future) -> None:
        if future.done():
            return
        if self.error is None:
            future.set_result(self.tensors)
        else:
            future.set_exception(self.kind(self.error))

    def _source_rank(self) -> int:
        return self.source


class BrokeredGroup(dist.ProcessGroup):
    """A process group whose calls go through the broker."""

    def __init__(self, messenger: Messenger, ranks: list[int], rank: int, key: str) -> None:
        """Args:
            messenger: this rank's.
            ranks: the group's ranks, as global ranks.
            rank: this rank's index among them.
            key: the group's name among those of the same ranks.
        """
        super().__init__(rank, len(ranks))
        self.messenger, self.ranks, self.key = messenger, ranks, key
        fake = FakeProcessGroup._create_internal(rank, len(ranks))
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, fake)

    def getBackendName(self) -> str:
        return BACKEND

    def begin(self, op: str, parts: Sequence[torch.Tensor], fills: Sequence[torch.Tensor],
              finish: Callable[[list[bytes]], None], peer: int | None = None, tag: int = 0
              ) -> Work:
        """Start a call.

        Args:
            op: the name of the collective, or "send" or "recv".
            parts: the tensors to pass in.
            finish: stores what the broker sends.
            peer: the other rank, or the root, as an index in this group.
            tag: that of a send or receive.
        """
        for tensor in (*parts, *fills):
            require_dense(tensor)
        work = Work(self.messenger, list(fills), finish)
        content = [bytes_of(part) for part in parts]
        room = 0 if parts else sum(tensor.nbytes for tensor in fills)
        self.messenger.call(work, {
            "op": op, "group": self.ranks, "peer": None if peer is None else self.ranks[peer],
            "key": self.key, "tag": tag, "room": room}, content)
        return work

    # --- from one rank to another

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> dist.Work:
        return _Sent(self.begin("send", tensors, [], lambda parts: None, dst, tag), tensors)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        return self.begin("recv", [], tensors, lambda parts: fill(tensors, parts), src, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        return self.begin("recv", [], tensors, lambda parts: fill(tensors, parts), None, tag)

    # --- reductions

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self._reduced("all_reduce", tensors, tensors, opts or dist.AllreduceOptions())

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        root = opts.rootRank
        return self._reduced("reduce", tensors, tensors if root == self.rank() else [], opts, root)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]],
                       opts: Any = None) -> Work:
        (output,), (parts,) = outputs, inputs
        return self._reduced("reduce_scatter", parts, [output],
                             opts or dist.ReduceScatterOptions())

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None
                             ) -> Work:
        return self.reduce_scatter([output], [self._chunks(whole, output)], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: list[torch.Tensor],
                                        wholes: list[torch.Tensor], opts: Any = None) -> Work:
        return _Together([self._reduce_scatter_base(output, whole, opts)
                          for output, whole in zip(outputs, wholes, strict=True)])

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _reduced(self, op: str, parts: Sequence[torch.Tensor], fills: Sequence[torch.Tensor],
                 opts: Any, root: int | None = None) -> Work:
        combine = REDUCE.get(getattr(opts.reduceOp, "op", opts.reduceOp))
        if combine is None:
            raise ValueError(f"Cannot use {opts.reduceOp} with Gloo")

        def finish(received: list[bytes]) -> None:
            for place, tensor in enumerate(fills):
                first, *others = (tensor_of(content, tensor)
                                  for content in received[place::max(1, len(fills))])
                for other in others:
                    combine(first, other)
                store(tensor, first)

        return self.begin(op, parts, fills, finish, root)

    # --- copies

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        mine = opts.rootRank == self.rank()
        return self.begin("broadcast", tensors if mine else [], [] if mine else tensors,
                          (lambda parts: None) if mine else (lambda parts: fill(tensors, parts)),
                          opts.rootRank)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor],
                  opts: Any = None) -> Work:
        (fills,) = outputs
        return self.begin("all_gather", inputs, fills, lambda parts: fill(fills, parts))

    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor],
                            opts: Any = None) -> Work:
        columns = zip(*outputs, strict=True)
        return _Together([self.allgather([list(column)], [one])
                          for column, one in zip(columns, inputs, strict=True)])

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        return self.allgather([self._chunks(output, given)], [given])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: list[torch.Tensor],
                                        inputs: list[torch.Tensor], opts: Any = None) -> Work:
        return _Together([self._allgather_base(output, given)
                          for output, given in zip(outputs, inputs, strict=True)])

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
               ) -> Work:
        fills = outputs[0] if outputs else []
        return self.begin("gather", inputs, fills, lambda parts: fill(fills, parts), opts.rootRank)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
                ) -> Work:
        parts = inputs[0] if inputs else []
        return self.begin("scatter", parts, [] if not inputs else outputs,
                          lambda received: fill(outputs, received), opts.rootRank)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
                 ) -> Work:
        return self.begin("all_to_all", inputs, outputs, lambda parts: fill(outputs, parts))

    def alltoall_base(self, output: torch.Tensor, given: torch.Tensor, output_sizes: list[int],
                      input_sizes: list[int], opts: Any = None) -> Work:
        count = len(self.ranks)
        return self.alltoall(
            list(output.split(output_sizes or [output.shape[0] // count] * count)),
            list(given.split(input_sizes or [given.shape[0] // count] * count)))

    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> Work:
        return self.begin("barrier", [], [], lambda parts: None)

    def _chunks(self, whole: torch.Tensor, part: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of a tensor that holds one for each rank."""
        require_dense(whole)
        count = len(self.ranks)
        if whole.numel() != count * part.numel():
            raise ValueError(f"a tensor of {whole.numel()} elements does not hold one of "
                             f"{part.numel()} for each of {count} ranks")
        return list(whole.view(-1).chunk(count)) if whole.numel() else [whole] * count


class _Together(dist.Work):
    """The work handle of several calls."""

    def __init__(self, works: list[Work]) -> None:
        super().__init__()
        self.works = works

    def wait(self, timeout: Any = None) -> bool:
        for work in self.works:
            work.wait(timeout)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def get_future(self) -> torch.futures.Future:
        return torch.futures.collect_all([work.get_future() for work in self.works])


class _Sent(_Together):
    """The work handle of a send. It keeps its tensors, as torch's does, while the caller has it."""

    def __init__(self, work: Work, tensors: list[torch.Tensor]) -> None:
        super().__init__([work])
        self.tensors = tensors


# --- tensors as bytes


def require_dense(tensor: torch.Tensor) -> None:
    """Raise ValueError, as torch does, for a tensor that is not one piece of the host's memory."""
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError("Tensors must be contiguous")
    if tensor.device.type != "cpu":
        raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")


def bytes_of(tensor: torch.Tensor) -> bytes:
    # Of a copy, because NumPy pins a storage's size, and sharded training frees it by resizing.
    return tensor.detach().reshape(-1).clone().view(torch.uint8).numpy().tobytes()


def tensor_of(content: bytes, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the shape and dtype of another one. Raises RuntimeError for other sizes.
    """
    if len(content) != like.nbytes:
        raise RuntimeError(f"{len(content)} bytes arrived for a tensor of {like.nbytes}")
    if not content:
        return torch.empty_like(like)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(like.dtype).view(
        like.shape)


def store(tensor: torch.Tensor, value: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.detach().copy_(value)


def fill(tensors: Sequence[torch.Tensor], parts: Sequence[bytes]) -> None:
    """Store what arrived in the tensors, part by part."""
    if len(tensors) == 1 and len(parts) != 1:
        parts = [b"".join(parts)]
    for tensor, part in zip(tensors, parts, strict=True):
        store(tensor, tensor_of(part, tensor))


def init_brokered(backend: str | None = None, init_method: str | None = None,
                  timeout: Any = None, world_size: int = -1, rank: int = -1, **_: Any) -> None:
    """Create the default process group, as `init_process_group` does on a machine without GPUs.

    Raises RuntimeError for NCCL, and ValueError for another backend and for a rank or world size
    that is not this rank's: nobody would meet it.
    """
    if backend not in (None, "gloo", "cpu:gloo", BACKEND):
        if backend is not None and "nccl" in backend:
            raise RuntimeError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
        raise ValueError(f"backend={backend!r}: these ranks communicate with gloo")
    own = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    given = tuple(right if number == -1 else number
                  for number, right in zip((rank, world_size), own, strict=True))
    if given != own:
        raise ValueError(f"rank={given[0]}, world_size={given[1]}: this is rank {own[0]} of "
                         f"{own[1]}, and the ranks would wait for each other forever")
    _init_process_group(BACKEND, store=dist.HashStore(), rank=own[0], world_size=own[1])


@contextlib.contextmanager
def group_of_this_rank() -> Iterator[None]:
    """Create the default process group, and count this rank's FLOPs inside the block.

    All groups that the program creates go through the broker, too, even if it destroys the default
    process group and calls `init_process_group` itself.
    """
    counter, made = FlopCounter(), Counter()
    messenger = Messenger(channel, counter)

    def make(options: Any, _: Any) -> BrokeredGroup:
        members = list(options.global_ranks_in_group) or list(range(options.group_size))
        made[tuple(members)] += 1
        return BrokeredGroup(messenger, members, options.group_rank,
                             str(made[tuple(members)]))

    dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu"])
    dist.init_process_group = distributed_c10d.init_process_group = init_brokered
    init_brokered()
    with counter:
        yield
    messenger.finish()
