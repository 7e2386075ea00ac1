"""Functional collectives, as DTensor and FSDP2 use them, on virtual process groups.

They return new tensors, which are in the GPU's memory from the start of the collective and complete
after `wait_tensor`. Torch's meta kernels of these operations do not use process groups, so the
dispatch mode calls this module instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import _resolve_process_group

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line
from virtualgpu.core.operand import tensors
from virtualgpu.net.group import VirtualGroup
from virtualgpu.net.work import Work
from virtualgpu.pytorch.device import space_of
from virtualgpu.pytorch.mode import CudaGpu, Handler
from virtualgpu.pytorch.visible import Space, key_of

Tensor = torch.Tensor
pending: dict[int, Work] = {}  # by storage, until the program waits


def handlers() -> dict[str, Handler]:
    """Return the entries for CudaGpu.handlers."""
    return {"_c10d_functional": handle, "_dtensor": handle}


def handle(gpu: CudaGpu, func: torch._ops.OpOverload, args: Sequence, kwargs: dict) -> object:
    """Run one functional collective."""
    name = func._schema.name.partition("::")[2]
    given = tensors((*args, *kwargs.values()))
    if name == "wait_tensor":
        return wait_tensor(args[0])
    if given and all(space_of(gpu, item) is not Space.GPU for item in given):
        return func(*args, **kwargs)
    if name == "_wrap_tensor_autograd":  # its meta kernel would return a different tensor
        return AsyncCollectiveTensor(args[0])
    collective = COLLECTIVES.get(name.removesuffix("_"))
    if collective is None:
        raise NoValue(f"{program_line()}: {func.name()} is not modeled on virtual GPUs")
    return collective(OpCall(gpu, name, kwargs.get("out")), *args)


def wait_tensor(tensor: Tensor) -> Tensor:
    work = pending.pop(key_of(tensor), None)
    if work is not None:
        work.wait()
    return tensor


class OpCall:
    """One functional collective of a program."""

    def __init__(self, gpu: CudaGpu, name: str, out: Tensor | None) -> None:
        """Describe a call.

        Args:
            gpu: this process's GPU.
            name: name of the operation; one that ends in _ works in place.
            out: the output tensor that the program passed, or None.
        """
        self.gpu, self.out, self.in_place = gpu, out, name.endswith("_")

    def new(self, like: Tensor, *shape: int) -> Tensor:
        """Allocate a result. Raises torch.OutOfMemoryError."""
        if self.out is not None:
            return self.out
        made = torch.empty(shape or like.shape, dtype=like.dtype, device="meta")
        self.gpu.hold(made)
        return made

    def target(self, tensor: Tensor) -> Tensor:
        """Return the tensor for a collective that torch.distributed offers only in place."""
        if self.in_place:
            return tensor
        made = self.new(tensor)
        values = self.gpu.values
        values.put(made, values.value(tensor) if values.known(tensor) else None)
        return made


def started(made: Tensor, work: Work) -> Tensor:
    """Store the work of a result for wait_tensor while the result lives."""
    storage = made.untyped_storage()
    key = storage._cdata
    work.outputs = None  # which would keep the result alive
    pending[key] = work
    weakref.finalize(storage, pending.pop, key, None).atexit = False
    return made


def group_of(name: object) -> VirtualGroup:
    return name if isinstance(name, dist.ProcessGroup) else _resolve_process_group(name)


def options(kind: Callable, op: str) -> object:
    """Return torch.distributed's options for a reduction, by its name."""
    result = kind()
    result.reduceOp = getattr(dist.ReduceOp, op.upper())
    return result


def all_reduce(call: OpCall, x: Tensor, op: str, group: object) -> Tensor:
    return all_reduce_coalesced(call, [x], op, group)[0]


def all_reduce_coalesced(call: OpCall, xs: list[Tensor], op: str, group: object) -> list[Tensor]:
    made = [call.target(x) for x in xs]
    work = group_of(group).allreduce(made, options(dist.AllreduceOptions, op))
    return [started(item, work) for item in made]


def all_gather(call: OpCall, x: Tensor, size: int, group: object) -> Tensor:
    return all_gather_coalesced(call, [x], size, group)[0]


def all_gather_coalesced(call: OpCall, xs: list[Tensor], size: int, group: object) -> list[Tensor]:
    made = [call.new(x, (x.shape[0] if x.dim() else 1) * size, *x.shape[1:]) for x in xs]
    work = group_of(group).all_gather_single_coalesced(made, xs)
    return [started(item, work) for item in made]


def reduce_scatter(call: OpCall, x: Tensor, op: str, size: int, group: object) -> Tensor:
    return reduce_scatter_coalesced(call, [x], op, size, group)[0]


def reduce_scatter_coalesced(call: OpCall, xs: list[Tensor], op: str, size: int, group: object
                             ) -> list[Tensor]:
    made = [call.new(x, x.shape[0] // size, *x.shape[1:]) for x in xs]
    work = group_of(group).reduce_scatter_single_coalesced(
        made, xs, options(dist.ReduceScatterOptions, op))
    return [started(item, work) for item in made]


def all_to_all(call: OpCall, x: Tensor, out_splits: list[int], in_splits: list[int], group: object
               ) -> Tensor:
    made = call.new(x, sum(out_splits), *x.shape[1:])
    return started(made, group_of(group).all_to_all_single(made, x, out_splits, in_splits))


def broadcast(call: OpCall, x: Tensor, source: int, group: object) -> Tensor:
    made, how = call.target(x), dist.BroadcastOptions()
    how.rootRank = source
    return started(made, group_of(group).broadcast([made], how))


def shard_dim_alltoall(call: OpCall, x: Tensor, gather_dim: int, shard_dim: int, group: object
                       ) -> Tensor:
    """Change the sharded dimension of a DTensor.

    As in torch, the pieces are copied together, exchanged by one all-to-all, and copied into place.
    """
    size = group_of(group).size()
    with call.gpu:
        sent = torch.stack(x.chunk(size, shard_dim))
        made = call.new(sent)
        group_of(group).all_to_all_single(made, sent).wait()
        return torch.cat(made.unbind(0), gather_dim)


COLLECTIVES: dict[str, Callable] = {
    "all_reduce": all_reduce, "all_reduce_coalesced": all_reduce_coalesced,
    "all_gather_into_tensor": all_gather, "all_gather_single": all_gather,
    "all_gather_into_tensor_out": all_gather,
    "all_gather_into_tensor_coalesced": all_gather_coalesced,
    "all_gather_single_coalesced": all_gather_coalesced,
    "reduce_scatter_tensor": reduce_scatter, "reduce_scatter_single": reduce_scatter,
    "reduce_scatter_tensor_out": reduce_scatter,
    "reduce_scatter_tensor_coalesced": reduce_scatter_coalesced,
    "reduce_scatter_single_coalesced": reduce_scatter_coalesced,
    "all_to_all_single": all_to_all, "broadcast": broadcast,
    "shard_dim_alltoall": shard_dim_alltoall,
}
