"""The collectives of a virtual process group.

Names and arguments are those of torch.distributed.ProcessGroup. Each method names the inputs and
the outputs, and how to combine values that all ranks know. collectives.py computes the times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from virtualgpu.net import collectives
from virtualgpu.net.errors import Asymmetric, Mismatch
from virtualgpu.net.messages import Message, total
from virtualgpu.net.values import Combine, op_name, reduction
from virtualgpu.net.work import BarrierWork, Work

Tensors = list[torch.Tensor]
SUM = dist.ReduceOp.SUM


def op_of(opts: object) -> dist.ReduceOp:
    """Return the reduction that torch's options name; a sum by default."""
    return SUM if opts is None else opts.reduceOp


class Collectives:
    """Collectives, for VirtualGroup."""

    def cost(self, name: str, given: Sequence[torch.Tensor], taken: Sequence[torch.Tensor]
             ) -> Callable[[Sequence[Message]], float]:
        """Return a function from all ranks' messages to the collective's duration in seconds.

        Args:
            name: the collective.
            given: input tensors, which may be freed before the messages arrive.
            taken: output tensors.
        """
        mine, width = (total(given), total(taken)), given[0].element_size() if given else 0
        volume = collectives.Volume(*mine, *(self.size() * size for size in mine), max(mine))

        def seconds(messages: Sequence[Message]) -> float:
            uneven = [width * sum(side) for message in messages for side in message.splits]
            return collectives.seconds(name, self.path, volume if not uneven else
                                       volume._replace(most=max(uneven)))
        return seconds

    def allreduce(self, tensors: Tensors, opts=None) -> Work:
        op = op_of(opts)
        fold = reduction(op)
        return self.begin(
            "all_reduce", tensors, tensors,
            lambda said, _: [fold(column) for column in zip(*said, strict=True)],
            detail=op_name(op))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts=None) -> Work:
        op, root = op_of(opts), 0 if opts is None else opts.rootRank
        fold = reduction(op)
        mine = self.rank() == root
        return self.begin(
            "reduce", tensors, tensors if mine else [],
            lambda said, _: [fold(column) for column in zip(*said, strict=True)] if mine else [],
            detail=f"{op_name(op)} to {self.ranks[root]}", result=tensors)

    def broadcast(self, tensors: Tensors, opts=None) -> Work:
        root = 0 if opts is None else opts.rootRank
        source = self.wire.stands_for[root]
        return self.begin(
            "broadcast", tensors, tensors,
            lambda said, _: said[source], contributors=[source], detail=f"from {self.ranks[root]}")

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts=None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts=None) -> Work:
        for output, input in zip(outputs, inputs, strict=True):
            self.fits("all_gather", output, input)
        return self.begin(
            "all_gather", inputs, outputs,
            lambda said, _: [torch.cat(column) for column in zip(*said, strict=True)])

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts=None) -> Work:
        (pieces,), (mine,) = outputs, inputs
        if pieces[self.rank()].numel() != mine.numel():
            raise Mismatch(f"{self.here()}: all_gather of {mine.numel()} elements, and this rank's "
                           f"place in the list has {pieces[self.rank()].numel()}")
        self.alike("all_gather", [piece.numel() for piece in pieces])
        return self.begin(
            "all_gather", inputs, pieces,
            lambda said, _: [one[0] for one in said], shapes=pieces, result=outputs)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts=None) -> Work:
        flat = [piece for pieces in outputs for piece in pieces]
        return self.begin(
            "all_gather", inputs, flat,
            lambda said, _: [one[at] for at in range(len(inputs)) for one in said], result=outputs)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts=None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts=None
                                        ) -> Work:
        for output, input in zip(outputs, inputs, strict=True):
            self.fits("reduce_scatter", input, output)
        op, me = op_of(opts), self.rank()
        fold = reduction(op)
        return self.begin(
            "reduce_scatter", inputs, outputs,
            lambda said, _: [fold([whole.chunk(len(said))[me] for whole in column])
                             for column in zip(*said, strict=True)], detail=op_name(op))

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts=None) -> Work:
        op, me, (pieces,) = op_of(opts), self.rank(), inputs
        fold = reduction(op)
        self.alike("reduce_scatter", [piece.numel() for piece in pieces])
        return self.begin(
            "reduce_scatter", pieces, outputs,
            lambda said, _: [fold([one[me] for one in said])], detail=op_name(op))

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts=None) -> Work:
        root = 0 if opts is None else opts.rootRank
        taken = outputs[0] if self.rank() == root else []
        return self.begin(
            "gather", inputs, taken,
            lambda said, _: [one[0] for one in said] if taken else [],
            detail=f"to {self.ranks[root]}", result=outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts=None) -> Work:
        root, me = 0 if opts is None else opts.rootRank, self.rank()
        return self.begin(
            "scatter", inputs[0] if me == root else [], outputs,
            lambda said, _: [said[root][me]], contributors=[root], shapes=outputs,
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

        def combine(said: list[Tensors], messages: Sequence[Message]) -> Tensors:
            return [torch.cat([
                whole.split(list(message.splits[0]))[self._mine(rank)]
                for rank, ((whole,), message) in enumerate(zip(said, messages, strict=True))])]

        return self._all_to_all(sent, taken, [input], [output], combine)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts=None) -> Work:
        sent, taken = ([tensor.numel() for tensor in tensors] for tensors in (inputs, outputs))
        return self._all_to_all(
            sent, taken, inputs, outputs,
            lambda said, _: [one[self._mine(rank)] for rank, one in enumerate(said)])

    def _mine(self, rank: int) -> int:
        """Return the part of a rank's input that is for this rank.

        A rank that is not present sends what its representative sends to the rank at the same
        distance.
        """
        return (self.wire.stands_for[rank] + self.rank() - rank) % self.size()

    def _all_to_all(self, sent: list[int], taken: list[int], given: Tensors, outputs: Tensors,
                    combine: Combine) -> Work:
        """Start an all-to-all.

        Args:
            sent: elements for each rank.
            taken: elements from each rank.
            given: input tensors.
            outputs: output tensors.
            combine: computes the outputs' values.
        """
        if self.wire.symmetric:
            self._rotates(sent, taken)
        return self.begin("all_to_all", given, outputs, combine, splits=[sent, taken],
                          shapes=given[:0])

    def _rotates(self, sent: list[int], taken: list[int]) -> None:
        """Raise Asymmetric unless each rank can do the same, relative to its own number."""
        me, size = self.rank(), self.size()
        if any(sent[(me + by) % size] != taken[(me - by) % size] for by in range(size)):
            raise Asymmetric(
                f"{self.here()}: all_to_all sends {sent} elements and receives {taken}; ranks that "
                "are not present would have to do something else: run all ranks")

    def check_splits(self, messages: Sequence[Message]) -> None:
        """Raise Mismatch unless every rank sends as many elements as this one expects."""
        if self.wire.symmetric:
            return
        me = self.rank()
        mine = messages[me]
        for other, message in enumerate(messages):
            if message.splits[0][me] != mine.splits[1][other]:
                raise Mismatch(
                    f"all_to_all: rank {self.ranks[other]} sends {message.splits[0][me]} elements "
                    f"to rank {self.ranks[me]} ({message.place}), which expects "
                    f"{mine.splits[1][other]} ({mine.place})")

    def barrier(self, opts=None) -> Work:
        return self.begin("barrier", [], [], lambda *_: [], kind=BarrierWork)

    # Other names of these in torch.
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
                raise Mismatch(f"{self.here()}: all_to_all of {rows} rows without split sizes, "
                               f"between {size} ranks")
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows:
            raise Mismatch(f"{self.here()}: all_to_all of {rows} rows with split sizes "
                           f"{list(splits)}, between {size} ranks")
        width = tensor.numel() // rows if rows else 0
        return [rows * width for rows in splits]

    def fits(self, name: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Raise Mismatch unless `whole` has one `part` for each rank."""
        if whole.numel() != part.numel() * self.size() or whole.dtype != part.dtype:
            raise Mismatch(
                f"{self.here()}: {name} with {part.numel()} elements of {part.dtype} per rank and "
                f"{whole.numel()} of {whole.dtype} in all, between {self.size()} ranks")

    def alike(self, name: str, sizes: Sequence[int]) -> None:
        """Raise Asymmetric if ranks that are not present would have other sizes."""
        if self.wire.symmetric and len(set(sizes)) > 1:
            raise Asymmetric(f"{self.here()}: {name} with parts of {list(sizes)} elements; ranks "
                             "that are not present would have to do something else: run all ranks")
