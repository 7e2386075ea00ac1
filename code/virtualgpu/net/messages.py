"""What ranks tell each other: a clock, a description of the call, and, where known, values."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

is_meta = torch._C.TensorBase.is_meta.__get__  # also where Python is told otherwise


class Message(NamedTuple):
    """One rank's part in a collective, or one point-to-point send.

    Attributes:
        what: the call and those of its arguments that all ranks must agree on.
        time: when this rank is ready, or when a sent tensor arrives, in virtual seconds.
        place: file and line of the call.
        settled: how many of the group's collectives this rank has finished reading.
        splits: elements for and from each rank, where they may differ.
        kinds: dtype and number of elements of each tensor in `values`.
        values: contents of the tensors, or None where nobody computed them.
    """

    what: str
    time: float
    place: str
    settled: int = 0
    splits: Sequence[Sequence[int]] = ()
    kinds: Sequence[tuple[str, int]] = ()
    values: bytes | None = None

    def pack(self) -> bytes:
        head = json.dumps([*self[:-1], self.values is not None])
        return head.encode() + b"\n" + (self.values or b"")

    @classmethod
    def unpack(cls, packed: bytes) -> Message:
        head, _, values = packed.partition(b"\n")
        *fields, known = json.loads(head)
        return cls(*fields, values if known else None)

    def tensors(self) -> list[torch.Tensor] | None:
        """The values as flat CPU tensors; None where they are unknown."""
        if self.values is None:
            return None
        found, at, buffer = [], 0, bytearray(self.values)
        with undisturbed():
            for name, count in self.kinds:
                dtype = getattr(torch, name)
                size = count * dtype.itemsize
                part = torch.empty(0, dtype=torch.uint8, device="cpu") if not size else (
                    torch.frombuffer(buffer, dtype=torch.uint8, count=size, offset=at).clone())
                found.append(part.view(dtype))
                at += size
        return found


def undisturbed() -> ExitStack:
    """A context in which torch works on CPU tensors and nobody watches."""
    stack = ExitStack()
    stack.enter_context(torch._C.DisableTorchFunction())
    stack.enter_context(_disable_current_modes())
    return stack


def kinds(tensors: Sequence[torch.Tensor]) -> list[tuple[str, int]]:
    return [(dtype_name(item.dtype), item.numel()) for item in tensors]


def total(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of the tensors together."""
    return sum(tensor.nbytes for tensor in tensors)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def contents(tensors: Sequence[torch.Tensor]) -> bytes:
    """The bytes of CPU tensors, one after another."""
    parts = []
    with undisturbed():
        for item in tensors:
            whole = item.detach().contiguous()
            parts.append(ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.nbytes else b"")
    return b"".join(parts)


def describe(tensors: Sequence[torch.Tensor]) -> str:
    """Sizes and dtypes as collectives compare them: shapes may differ, numbers of elements not."""
    return ", ".join(f"{count} {name}" for name, count in kinds(tensors)) or "nothing"
