"""The collectives of a virtual process group.

Names and arguments are those of torch.distributed.ProcessGroup. Each method names the inputs and
the outputs, and how to combine values that all ranks know. collectives.py computes the times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from virtualgpu.net import collectives
from virtualgpu.net.communicator import unequal_splits
from virtualgpu.net.errors import Asymmetric, CollectiveMismatch
from virtualgpu.net.messages import RankMessage, total
from virtualgpu.net.values import Combine, op_name, reduction
from virtualgpu.net.work import BarrierWork, Work

C10D = dist.distributed_c10d.__file__
Tensors = list[torch.Tensor]
SUM = dist.ReduceOp.SUM


def op_of(opts: object) -> dist.ReduceOp:
    """Return the reduction that torch's options name; a sum by default."""
    return SUM if opts is None else opts.reduceOp


class Collectives:
    """The collectives of VirtualGroup."""

    def cost(self, name: str, given: Sequence[torch.Tensor], taken: Sequence[torch.Tensor]
             ) -> Callable[[Sequence[RankMessage]], float]:
        """Return a function from all ranks' messages to the collective's duration in seconds.

        Args:
            name: the collective.
            given: input tensors, which may be freed before the messages arrive.
            taken: output tensors.
        """
        mine, width = (total(given), total(taken)), given[0].element_size() if given else 0
        volume = collectives.BufferSizes(*mine, *(self.size() * size for size in mine), max(mine))

        def seconds(messages: Sequence[RankMessage]) -> float:
            uneven = [width * sum(side) for message in messages for side in message.splits]
            return collectives.seconds(name, self.path, volume if not uneven else
                                       volume._replace(most=max(uneven)))
        return seconds

    def allreduce(self, tensors: Tensors, opts=None) -> Work:
        op = op_of(opts)
        fold = reduction(op)
        return self.begin(
            "all_reduce", tensors, tensors,
            lambda by_rank, _: [fold(column) for column in zip(*by_rank, strict=True)],
            detail=op_name(op))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts=None) -> Work:
        op, root = op_of(opts), 0 if opts is None else opts.rootRank
        fold = reduction(op)
        is_root = self.rank() == root
        return self.begin(
            "reduce", tensors, tensors if is_root else [],
            lambda by_rank, _: ([fold(column) for column in zip(*by_rank, strict=True)] if is_root
                                else []),
            detail=f"{op_name(op)} to {self.ranks[root]}", result=tensors)

    def broadcast(self, tensors: Tensors, opts=None) -> Work:
        root = 0 if opts is None else opts.rootRank
        source = self.messenger.stands_for[root]
        return self.begin(
            "broadcast", tensors, tensors,
            lambda by_rank, _: by_rank[source], contributors=[source],
            detail=f"from {self.ranks[root]}")

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts=None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts=None) -> Work:
        for output, input in zip(outputs, inputs, strict=True):
            self.check_sizes("all_gather", output, input)
        return self.begin(
            "all_gather", inputs, outputs,
            lambda by_rank, _: [torch.cat(column) for column in zip(*by_rank, strict=True)])

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts=None) -> Work:
        (pieces,), (mine,) = outputs, inputs
        if pieces[self.rank()].numel() != mine.numel():
            raise CollectiveMismatch(
                f"{self.here()}: all_gather of {mine.numel()} elements, but this rank's tensor in "
                f"the output list has {pieces[self.rank()].numel()}")
        self.check_equal_sizes("all_gather", [piece.numel() for piece in pieces])
        return self.begin(
            "all_gather", inputs, pieces,
            lambda by_rank, _: [tensors[0] for tensors in by_rank], shapes=pieces, result=outputs)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts=None) -> Work:
        flat = [piece for pieces in outputs for piece in pieces]
        count = len(inputs)
        return self.begin(
            "all_gather", inputs, flat,
            lambda by_rank, _: [tensors[index] for index in range(count) for tensors in by_rank],
            result=outputs)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts=None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts=None
                                        ) -> Work:
        for output, input in zip(outputs, inputs, strict=True):
            self.check_sizes("reduce_scatter", input, output)
        op, me = op_of(opts), self.rank()
        fold = reduction(op)
        return self.begin(
            "reduce_scatter", inputs, outputs,
            lambda by_rank, _: [fold([whole.chunk(len(by_rank))[me] for whole in column])
                                for column in zip(*by_rank, strict=True)], detail=op_name(op))

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts=None) -> Work:
        op, me, (pieces,) = op_of(opts), self.rank(), inputs
        fold = reduction(op)
        self.check_equal_sizes("reduce_scatter", [piece.numel() for piece in pieces])
        return self.begin(
            "reduce_scatter", pieces, outputs,
            lambda by_rank, _: [fold([tensors[me] for tensors in by_rank])], detail=op_name(op))

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts=None) -> Work:
        root = 0 if opts is None else opts.rootRank
        taken = outputs[0] if self.rank() == root else []
        return self.begin(
            "gather", inputs, taken,
            lambda by_rank, _: [tensors[0] for tensors in by_rank] if taken else [],
            detail=f"to {self.ranks[root]}", result=outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts=None) -> Work:
        root, me = 0 if opts is None else opts.rootRank, self.rank()
        return self.begin(
            "scatter", inputs[0] if me == root else [], outputs,
            lambda by_rank, _: [by_rank[root][me]], contributors=[root], shapes=outputs,
            detail=f"from {self.ranks[root]}")

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor,
                          out_splits: Sequence[int] | None = None,
                          in_splits: Sequence[int] | None = None, opts=None) -> Work:
        """Exchange parts of the first dimension.

        Args:
            output: received parts, by rank.
            input: parts to send, by rank.
            out_splits: rows from each rank; equal numbers if None.
            in_splits: rows for each rank; equal numbers if None.
            opts: not used.
        """
        sent, taken = (
            self.elements(tensor, splits)
            for tensor, splits in ((input, in_splits), (output, out_splits)))

        def combine(by_rank: list[Tensors], messages: Sequence[RankMessage]) -> Tensors:
            return [torch.cat([
                whole.split(list(message.splits[0]))[self._part_for_me(rank)]
                for rank, ((whole,), message) in enumerate(zip(by_rank, messages, strict=True))])]

        return self._all_to_all(sent, taken, [input], [output], combine)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts=None) -> Work:
        sent, taken = ([tensor.numel() for tensor in tensors] for tensors in (inputs, outputs))
        return self._all_to_all(
            sent, taken, inputs, outputs,
            lambda by_rank, _: [tensors[self._part_for_me(rank)]
                                for rank, tensors in enumerate(by_rank)])

    def _part_for_me(self, rank: int) -> int:
        """Return the index of the part of a rank's input that is for this rank.

        A rank that is not present sends what its representative sends to the rank at the same
        distance.
        """
        return (self.messenger.stands_for[rank] + self.rank() - rank) % self.size()

    def _all_to_all(self, sent: list[int], taken: list[int], given: Tensors, outputs: Tensors,
                    combine: Combine) -> Work:
        """Start an all-to-all.

        Args:
            sent: elements for each rank.
            taken: elements from each rank.
            given: input tensors.
            combine: computes the outputs' values.
        """
        if self.messenger.symmetric:
            self._check_symmetric(sent, taken)
        return self.begin("all_to_all", given, outputs, combine, splits=[sent, taken],
                          shapes=given[:0])

    def _check_symmetric(self, sent: list[int], taken: list[int]) -> None:
        """Raise Asymmetric unless all ranks can do the same, relative to their own rank."""
        me, size = self.rank(), self.size()
        if any(sent[(me + by) % size] != taken[(me - by) % size] for by in range(size)):
            raise Asymmetric(
                f"{self.here()}: all_to_all sends {sent} elements and receives {taken}; ranks that "
                "are not present cannot mirror this one: run all ranks")

    def check_splits(self, messages: Sequence[RankMessage]) -> None:
        """Raise CollectiveMismatch unless every rank sends as many elements as this one expects."""
        if self.messenger.symmetric:
            return
        me = self.rank()
        mine = messages[me]
        other = unequal_splits([message.splits for message in messages], me)
        if other is not None:
            message = messages[other]
            raise CollectiveMismatch(
                f"all_to_all: rank {self.ranks[other]} sends {message.splits[0][me]} elements "
                f"to rank {self.ranks[me]} ({message.line}), which expects "
                f"{mine.splits[1][other]} ({mine.line})")

    def barrier(self, opts=None) -> Work:
        return self.begin("barrier", [], [], lambda *_: [], kind=BarrierWork)

    # torch's other names for them.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def elements(self, tensor: torch.Tensor, splits: Sequence[int] | None) -> list[int]:
        """Return the elements of each part of a tensor that is split along its first dimension."""
        rows, size = (tensor.shape[0] if tensor.dim() else 1), self.size()
        if not splits:
            if rows % size:
                raise CollectiveMismatch(f"{self.here()}: all_to_all of {rows} rows without split "
                                         f"sizes, between {size} ranks; nearest: "
                                         f"{rows // size * size or size} rows")
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows:
            raise CollectiveMismatch(f"{self.here()}: all_to_all of {rows} rows with split sizes "
                                     f"{list(splits)}, between {size} ranks")
        width = tensor.numel() // rows if rows else 0
        return [rows * width for rows in splits]

    def check_sizes(self, name: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Raise CollectiveMismatch unless `whole` has one `part` for each rank."""
        if whole.numel() != part.numel() * self.size() or whole.dtype != part.dtype:
            raise CollectiveMismatch(
                f"{self.here()}: {name} with {part.numel()} elements of {part.dtype} per rank and "
                f"{whole.numel()} of {whole.dtype} in all, between {self.size()} ranks")

    def check_equal_sizes(self, name: str, sizes: Sequence[int]) -> None:
        """Raise Asymmetric if ranks that are not present would need different sizes."""
        if self.messenger.symmetric and len(set(sizes)) > 1:
            raise Asymmetric(f"{self.here()}: {name} with parts of {list(sizes)} elements; ranks "
                             "that are not present cannot mirror this one: run all ranks")

def in_object_collective() -> bool:
    """Return whether the caller is a collective of objects, such as all_gather_object."""
    frame = sys._getframe(1)
    while frame is not None:
        if "_object" in frame.f_code.co_name and frame.f_code.co_filename == C10D:
            return True
        frame = frame.f_back
    return False
