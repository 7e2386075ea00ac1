"""Messages between ranks: a clock, a description of the call, and values if they are known."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

is_meta = torch._C.TensorBase.is_meta.__get__  # even if Python sees another device


class RankMessage(NamedTuple):
    """One rank's part in a collective, or one point-to-point send.

    Attributes:
        call: the collective, with the arguments that all ranks must agree on.
        time: when this rank is ready, or when a sent tensor arrives, in virtual seconds.
        line: file and line of the call.
        settled: number of this group's collectives whose messages the rank has read.
        splits: elements for and from each rank, if they may differ.
        kinds: dtype and number of elements of each tensor in `values`.
        values: contents of the tensors, or None if they are not known.
    """

    call: str
    time: float
    line: str
    settled: int = 0
    splits: Sequence[Sequence[int]] = ()
    kinds: Sequence[tuple[str, int]] = ()
    values: bytes | None = None

    def pack(self) -> bytes:
        head = json.dumps([*self[:-1], self.values is not None])
        return head.encode() + b"\n" + (self.values or b"")

    @classmethod
    def unpack(cls, packed: bytes) -> RankMessage:
        head, _, values = packed.partition(b"\n")
        *fields, known = json.loads(head)
        return cls(*fields, values if known else None)

    def tensors(self) -> list[torch.Tensor] | None:
        """Return the values as flat CPU tensors, or None if they are not known."""
        if self.values is None:
            return None
        tensors, offset, buffer = [], 0, bytearray(self.values)
        with without_modes():
            for name, count in self.kinds:
                dtype = getattr(torch, name)
                size = count * dtype.itemsize
                part = torch.empty(0, dtype=torch.uint8, device="cpu") if not size else (
                    torch.frombuffer(buffer, dtype=torch.uint8, count=size, offset=offset).clone())
                tensors.append(part.view(dtype))
                offset += size
        return tensors


def without_modes() -> ExitStack:
    """Return a context in which torch works on CPU tensors without our dispatch modes."""
    stack = ExitStack()
    stack.enter_context(torch._C.DisableTorchFunction())
    stack.enter_context(_disable_current_modes())
    return stack


def kinds(tensors: Sequence[torch.Tensor]) -> list[tuple[str, int]]:
    """Return the dtype and the number of elements of each tensor."""
    return [(dtype_name(item.dtype), item.numel()) for item in tensors]


def total(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes of all tensors together."""
    return sum(tensor.nbytes for tensor in tensors)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def contents(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the contents of CPU tensors, one after another."""
    parts = []
    with without_modes():
        for item in tensors:
            whole = item.detach().contiguous()
            parts.append(ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.nbytes else b"")
    return b"".join(parts)


def describe(tensors: Sequence[torch.Tensor]) -> str:
    """Describe tensors as collectives compare them: by number of elements and dtype, not shape."""
    return ", ".join(f"{count} {name}" for name, count in kinds(tensors)) or "nothing"
