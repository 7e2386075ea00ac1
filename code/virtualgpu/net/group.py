"""A process group whose messages carry times instead of tensors.

Ranks tell each other when their current streams have reached a collective (messenger.py), and each
computes from that when it ends (communicator.py). A stream waits for a collective only when the
program does. Small tensors carry their values along if these are
known (values.py). Tensors on the CPU are control traffic, such as that of object collectives: they
carry values and cost no virtual time.

Every message names the collective, with sizes and the line of the program. So ranks whose calls do
not match raise an error that names both lines, and ranks in a deadlock raise one that lists what
each rank waits for (job_store.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
import torch.distributed as dist

from virtualgpu.core.gpu import VirtualGpu, caller
from virtualgpu.net import collectives, nccl, values
from virtualgpu.net.communicator import BACKEND, Communicator
from virtualgpu.net.errors import CollectiveMismatch, mismatch_message
from virtualgpu.net.messages import RankMessage, describe, is_meta, kinds, total
from virtualgpu.net.messenger import Messenger
from virtualgpu.net.nccl_backend import ProcessGroupNCCL
from virtualgpu.net.operations import Collectives, in_object_collective
from virtualgpu.net.p2p import PointToPoint
from virtualgpu.net.topology import Topology
from virtualgpu.net.work import Work

PrintLine = Callable[[str], None]


class Collective(NamedTuple):
    """A collective that this rank has started.

    Attributes:
        work: the program's handle.
        name: the collective's name.
        seconds: computes its duration from all ranks' messages; None for control traffic.
        receive: waits for all ranks' messages, and returns them.
        finish: stores the outputs' values.
    """

    work: Work
    name: str
    seconds: Callable[[Sequence[RankMessage]], float] | None
    receive: Callable[[], list[RankMessage]]
    finish: Callable[[list[RankMessage]], None]


class VirtualGroup(Collectives, PointToPoint, dist.ProcessGroup):
    """A process group of the virtual backend."""

    def __init__(self, gpu: VirtualGpu, topology: Topology, ranks: list[int], rank: int,
                 messenger: Messenger | None = None,
                 print_line: PrintLine | None = None) -> None:
        """Create the group.

        Args:
            gpu: this rank's GPU.
            topology: the job's GPUs and links.
            ranks: the group's ranks in the job.
            rank: this rank's index among them.
            messenger: connection to the other ranks; None if this rank represents all of them.
            print_line: receives the lines that NCCL would print about the communicator; None for
                no lines.
        """
        super().__init__(rank, len(ranks))
        self.gpu, self.topology, self.ranks = gpu, topology, ranks
        self.messenger = messenger or Messenger(rank, ranks)
        self.communicator = Communicator(gpu, topology, ranks, rank)
        self.path, self.stream = self.communicator.path, self.communicator.stream
        self.print_line = print_line
        self.pending: deque[Collective] = deque()  # oldest first
        self.serves_cpu = self.serves_gpu = True  # NCCL alone and Gloo serve only one of them
        self.pending_receives: list[Work] = []  # messages not read yet
        self.batch: list[Work] | None = None  # between _start_coalescing and _end_coalescing
        self._register_devices()

    def _register_devices(self) -> None:
        """Register a backend for each type of device, which torch requires but never calls."""
        from torch._C._distributed_c10d import FakeProcessGroup

        fake = FakeProcessGroup._create_internal(self.rank(), len(self.ranks))
        self.nccl = ProcessGroupNCCL(group_rank=self.rank(), size=len(self.ranks))
        for kind in ("cpu", "cuda"):
            self._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.CUSTOM, fake)

    def _get_backend(self, device: torch.device) -> object:
        """Return the backend that the program finds for a type of device."""
        if device.type == "cuda" and self.serves_gpu:
            return self.nccl
        return super()._get_backend(device)

    def monitored_barrier(self, timeout: object = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; one that never arrives is named as in any collective."""
        self.barrier().wait()

    @property
    def known(self) -> values.Known | None:
        """The known values of the GPU's tensors, if any are."""
        return self.gpu.values

    def truth(self) -> AbstractContextManager:
        """Return a context in which Python sees the devices that C++ sees: meta, not CUDA."""
        return self.gpu.truth()

    @staticmethod
    def here() -> str:
        """Return the program's current line."""
        file, line, _ = caller()
        return f"{file}:{line}" if line else file

    def launch(self) -> float:
        """Charge the host for a launch, print NCCL's lines before the first one, and return when
        this rank is ready."""
        if self.communicator.launch() and self.print_line is not None:
            channels = nccl.channels_of(self.gpu.card, self.path)
            lines = nccl.lines(self.topology, self.ranks, self.rank(), channels)
            self.print_line("\n".join(lines))
        return self.gpu.clock.ready(self.gpu.stream)

    def is_control(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether tensors are in the host's memory, which makes them control traffic.

        Raises:
            CollectiveMismatch: only some of them are.
            RuntimeError: the group has no backend for tensors there.
        """
        on_gpu = [is_meta(tensor) and tensor.untyped_storage()._cdata not in self.gpu.on_host
                  for tensor in tensors]
        if any(on_gpu) and not all(on_gpu):
            raise CollectiveMismatch(
                f"{self.here()}: a collective of tensors on the GPU and on the CPU")
        control = bool(on_gpu) and not on_gpu[0]
        if control and not self.serves_cpu and not in_object_collective():
            raise RuntimeError("No backend type associated with device type cpu")
        if on_gpu and not control and not self.serves_gpu:
            raise RuntimeError("Gloo is not modeled on GPU tensors; use cpu:gloo,cuda:nccl")
        return control

    def begin(self, name: str, given: Sequence[torch.Tensor], taken: list[torch.Tensor],
              combine: values.Combine, *, contributors: Sequence[int] | None = None,
              detail: str = "", shapes: Sequence[torch.Tensor] | None = None,
              splits: Sequence[Sequence[int]] = (), result: object = None,
              kind: type[Work] = Work) -> Work:
        """Start a collective: send the other ranks the time at which this one is ready.

        Args:
            name: the collective, a key of collectives.COSTS.
            given: input tensors.
            taken: output tensors.
            combine: computes the values of `taken` from all ranks' `given` and messages.
            contributors: indices of the ranks whose inputs count; None for all ranks.
            detail: arguments that all ranks must agree on.
            shapes: tensors whose sizes all ranks must agree on; None for `given`.
            splits: elements for and from each rank, if they may differ.
            result: what the work returns; None for `taken`.
            kind: class of the work.
        """
        control = self.is_control([*given, *taken])
        work = kind(self, taken if result is None else result)
        if not control:
            self.note(work, name, self.stream, given or taken, self.launch(), taken)
        sizes = describe(given if shapes is None else shapes)
        call = " ".join(filter(None, (name, detail, "of", sizes, "on the CPU" if control else "")))
        everyone = range(self.size()) if contributors is None else contributors
        message = self._message(call, splits, given if self.rank() in everyone else None)

        def finish(messages: list[RankMessage]) -> None:
            if self.messenger.symmetric and message.values and not control:
                self.assume(name)
            values.store(self.known, taken, values.combined(messages, everyone, combine))

        if self.gpu.journal is not None and not control:
            self.gpu.journal.collective(self, work, name, call, given, taken, splits)
        seconds = None if control else self.cost(name, given, taken)
        receive = self.messenger.exchange(self.communicator.started, message)
        self.communicator.started += 1
        self.pending.append(Collective(work, name, seconds, receive, finish))
        return self.batched(work)

    def _message(self, call: str, splits: Sequence[Sequence[int]],
                 given: Sequence[torch.Tensor] | None) -> RankMessage:
        """Return this rank's message about a collective, with its inputs' values if known.

        Args:
            call: the collective, with the arguments that all ranks must agree on.
            splits: elements for and from each rank, if they may differ.
            given: input tensors; None if this rank's do not count.
        """
        message = RankMessage(call, self.gpu.clock.ready(self.gpu.stream), self.here(),
                              splits=splits)
        return message if given is None else message._replace(
            kinds=kinds(given), values=values.known_contents(self.known, given))

    def batched(self, work: Work) -> Work:
        """Add a work to the current batch, if there is one, and return it."""
        if self.batch is not None:
            self.batch.append(work)
        return work

    def assume(self, name: str) -> None:
        """Record the assumption that absent ranks have the values of their representatives."""
        self.gpu.assumptions.note(f"in {name}, ranks that are not present have the values of the "
                                  "rank that stands for them", *caller()[:2])

    def note(self, work: Work, name: str, stream: str, given: Sequence[torch.Tensor], ready: float,
             taken: list[torch.Tensor] | None = None) -> None:
        """Add a collective or a transfer to the ledger and the trace, if there are any.

        Args:
            work: the program's handle.
            name: the collective or transfer.
            stream: the stream that it runs on.
            given: input tensors.
            ready: when this rank is ready, in virtual seconds.
            taken: output tensors; None for the inputs.
        """
        if self.gpu.ledger is not None:
            self.gpu.ledger.communicated(name, given)
        if self.gpu.recorder is not None:
            work.note = self.gpu.recorder.message(
                name, stream, self.ranks, list(given if taken is None else taken),
                sum(map(torch.numel, given)), ready,
                channels=nccl.channels_of(self.gpu.card, self.path),
                tree=name == "all_reduce" and self._by_tree(given), given=given)

    def _by_tree(self, tensors: Sequence[torch.Tensor]) -> bool:
        return collectives.algorithm(self.path, total(tensors)) == collectives.TREE

    def settle(self, work: Work) -> None:
        """Wait for the messages that determine when `work` ends, and those of earlier works."""
        while work.end is None:
            first = self.pending.popleft()
            messages = first.receive()
            self._check(messages)
            if messages[0].splits:
                self.check_splits(messages)
            if first.seconds is None:
                first.work.end = 0.0
            else:
                self.end(first.work, self.communicator.run_collective(
                    first.name, [message.time for message in messages], first.seconds(messages)))
            first.finish(messages)

    def _check(self, messages: Sequence[RankMessage]) -> None:
        """Raise CollectiveMismatch if the ranks do not call the same collective."""
        first = messages[0]
        for other, message in enumerate(messages):
            if message is not first and message.call != first.call:
                raise CollectiveMismatch(mismatch_message(
                    f"rank {self.ranks[0]} calls {first.call} ({first.line})",
                    f"rank {self.ranks[other]} calls {message.call} ({message.line})"))

    def end(self, work: Work, end: float) -> None:
        """Set the time at which a collective or a transfer ends."""
        work.end = end
        if work.note is not None:
            work.note.end = end
        if self.gpu.journal is not None:
            work.end = self.gpu.journal.settled(work, end)

    def settle_all(self) -> None:
        """Settle everything that was started here."""
        if self.pending:
            self.settle(self.pending[-1].work)
        for work in tuple(self.pending_receives):
            work.settle()

    def getBackendName(self):
        return BACKEND
