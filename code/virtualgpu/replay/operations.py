"""Operations in a record: names, shapes, strides, and dtypes, but no values.

    {"name": "aten.mm.default", "args": [...], "kwargs": {...}, "fresh": [TENSOR, ...]}

`fresh` are new tensors that the operation returns. An argument is null, a boolean, an integer, or a
string, unchanged, or one of

    {"tensor": [shape, strides, dtype], "host": true or false}
    {"list": [argument, ...]}
    {"dtype": "float32"}, {"memory_format": "contiguous_format"}
    {"float": true}                 any float: no cost depends on its value
    {"other": "device"}             the type of an argument on which no cost depends
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from virtualgpu.core.operand import Operand, moved, tensors
from virtualgpu.core.plan import (
    OperationKind,
    changed_argument,
    kind_of,
    results_in_place,
)
from virtualgpu.core.rules.results import result_rule_of, results, schema_of
from virtualgpu.core.rules.returns import MOST_TENSORS, Result
from virtualgpu.core.rules.work import FREE
from virtualgpu.net.messages import dtype_name
from virtualgpu.replay import fields
from virtualgpu.replay.format import MOST_BYTES, MOST_NAME, BadRecord

DTYPES = {dtype_name(value): value for value in vars(torch).values()
          if isinstance(value, torch.dtype)}
FORMATS = {name: getattr(torch, name) for name in (
    "contiguous_format", "preserve_format", "channels_last", "channels_last_3d")}
UNPRICED = {"device": torch.device("meta"), "layout": torch.strided, "Generator": None,
            "complex": 1j}
DEFINED_BY = {"fsdp": "torch.distributed.fsdp", "virtualgpu": "virtualgpu.core.kernels"}
NAMESPACES = {"aten", *DEFINED_BY}
# Torch decomposes this operation unless the module has defined its meta kernel.
KERNEL_DEFINED_BY = {"aten._fused_rms_norm": "virtualgpu.core.kernels"}
MOST_DIMENSIONS, DEPTH, MOST_INTEGER = 25, 4, 2**63


class Operation(NamedTuple):
    """A validated operation.

    Attributes:
        func: torch's operation.
        args: positional arguments.
        operands: all tensors among its arguments.
        on_host: for each operand, whether it is in the host's memory.
        written: for each operand, whether it is written in place.
        fresh: new tensors that it returns.
        produced: tensors that it returns or writes, for cost rules.
        crossing: bytes that cross PCIe.
    """

    func: torch._ops.OpOverload
    args: list
    operands: list[Operand]
    on_host: list[bool]
    written: list[bool]
    fresh: list[Operand]
    produced: list[Operand]
    crossing: int


def encode_operation(func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
                     operands: Sequence[torch.Tensor], held: Sequence[bool],
                     fresh: Sequence[torch.Tensor]) -> str:
    """Return an operation as JSON.

    Args:
        func: the operation.
        args: its positional arguments.
        kwargs: its keyword arguments.
        operands: the tensors among them, in order.
        held: for each operand, whether it is in the GPU's memory.
        fresh: new tensors that it returns.
    """
    places = iter(held)
    return json.dumps({
        "name": str(func), "args": [_encode(item, places) for item in args],
        "kwargs": {name: _encode(item, places) for name, item in kwargs.items()},
        "fresh": [_spec(item) for item in fresh]})


def _spec(tensor: torch.Tensor) -> list:
    return [list(tensor.shape), list(tensor.stride()), dtype_name(tensor.dtype)]


def _encode(value: object, held: Iterator[bool]) -> object:
    if isinstance(value, torch.Tensor):
        return {"tensor": _spec(value), "host": not next(held)}
    if isinstance(value, (list, tuple)):
        return {"list": [_encode(item, held) for item in value]}
    if isinstance(value, float):
        return {"float": True}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (torch.dtype, torch.memory_format)):
        kind = "dtype" if isinstance(value, torch.dtype) else "memory_format"
        return {kind: str(value).removeprefix("torch.")}
    return {"other": type(value).__name__}


def decode_operation(item: object, where: str) -> Operation:
    """Return a validated operation. Raises BadRecord."""
    item = fields.members(item, {"name", "args", "kwargs", "fresh"}, where)
    func = _resolve(fields.text(item["name"], MOST_NAME, f"{where}, name"), where)
    where = f"{where} ({func})"
    hosts: list[bool] = []
    args = [_decode(one, hosts, f"{where}, argument {at}") for at, one in
            enumerate(fields.items(item["args"], MOST_TENSORS, where))]
    named = fields.mapping(item["kwargs"], where)
    kwargs = {name: _decode(one, hosts, f"{where}, argument {name}")
              for name, one in named.items()}
    operands = tensors((*args, *kwargs.values()))
    if len(operands) != len(hosts):
        raise BadRecord(f"{where}: a tensor in a nested list")
    fresh = [_tensor(one, where) for one in fields.items(item["fresh"], MOST_TENSORS, where)]
    try:
        return _derive(func, args, kwargs, operands, hosts, fresh, where)
    except BadRecord:
        raise
    except Exception as error:  # rules may raise anything for invalid arguments
        raise BadRecord(f"{where}: invalid arguments: {error}") from error


def _derive(func: torch._ops.OpOverload, args: list, kwargs: dict, operands: list[Operand],
            hosts: list[bool], fresh: list[Operand], where: str) -> Operation:
    """Derive the fields that the trusted side can compute itself."""
    changed = changed_argument(func, args, kwargs) if operands else None
    if not operands and all(one.name != "device" for one in schema_of(func)):
        raise ValueError("the operation has no tensors")
    expected = results(func, args, kwargs)
    if changed is None:
        found = [(item.shape, item.dtype) for item in fresh]
        if expected is not None and expected != found:
            raise BadRecord(f"{where}: returns {_description(expected)}, not "
                            f"{_description(found)}")
        for item in fresh:
            if overlaps(item):
                raise BadRecord(f"{where}: returns a tensor of {list(item.shape)} with strides "
                                f"{list(item.strides)}, whose elements share memory")
        produced = fresh
    elif fresh:
        raise BadRecord(f"{where}: works in place, but returns new tensors")
    else:
        produced = results_in_place(args, kwargs, changed)
        for item in produced:
            if any(size > 1 and not step
                   for size, step in zip(item.shape, item.strides, strict=True)):
                raise BadRecord(f"{where}: changes a tensor of {list(item.shape)} with strides "
                                f"{list(item.strides)} in place, whose elements share memory")
    writes = {argument.name: argument.is_written for argument in schema_of(func)}
    written = [writes[name] for name, value in
               (*zip(writes, args, strict=False), *kwargs.items()) for _ in tensors([value])]
    crossing = sum(moved(item) for item, host in zip(operands, hosts, strict=True)
                   if host and item.dim())
    return Operation(func, args, operands, hosts, written, fresh, produced, crossing)


def _description(found: Sequence[Result]) -> str:
    return ", ".join(f"{dtype_name(dtype)} {list(shape)}" for shape, dtype in found[:8]
                     ) or "nothing"


def overlaps(x: Operand) -> bool:
    """Return whether a new tensor has less memory than its elements need, as an expanded one has.
    """
    need = 1
    for stride, size in sorted(zip(x.strides, x.shape, strict=True)):
        if size > 1 and stride < need:
            return bool(x.numel())
        need = max(need, stride * size)
    return False


def unlisted(name: str) -> str:
    """Return why an operation such as "aten.fft_c2r" cannot be recorded."""
    return (f"no operation {name} is in the list of those whose cost can be checked on virtual "
            "GPUs. Write this step with more common operations of PyTorch, or ask your instructor "
            "to report that it is missing")


def _resolve(name: str, where: str) -> torch._ops.OpOverload:
    """Return torch's operation of this name, without running it."""
    namespace, *rest = name.split(".")
    if namespace not in NAMESPACES or len(rest) != 2 or not all(
            part.isascii() and part.isidentifier() for part in rest):
        raise BadRecord(f"{where}: {name!r} is not the name of an operation in "
                        f"{', '.join(sorted(NAMESPACES))}")
    packet_name = f"{namespace}.{rest[0]}"
    if packet_name in FREE:
        raise BadRecord(f"{where}: {name} launches no kernel")
    if result_rule_of(packet_name) is None:
        raise BadRecord(f"{where}: {unlisted(packet_name)}")
    module = DEFINED_BY.get(namespace) or KERNEL_DEFINED_BY.get(packet_name)
    if module is not None:
        importlib.import_module(module)
    packet = getattr(getattr(torch.ops, namespace), rest[0], None)
    if packet is None or rest[1] not in packet.overloads():
        raise BadRecord(f"{where}: this version of torch has no operation {name!r}")
    func = getattr(packet, rest[1])
    if kind_of(func) is not OperationKind.COSTED:
        raise BadRecord(f"{where}: {name} launches no kernel")
    return func


def _decode(value: object, hosts: list[bool], where: str, depth: int = 0) -> object:
    """Return an argument.

    Args:
        value: the argument in the record.
        hosts: receives, for each tensor, whether it is in the host's memory.
        where: description for error messages.
        depth: number of lists around it.
    """
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return fields.integer(value, -MOST_INTEGER, MOST_INTEGER, where)
    if type(value) is not dict or not value or depth > DEPTH:
        raise BadRecord(f"{where}: not an argument: {fields.short(value)}")
    kind, content = next(iter(value.items()))
    if kind == "tensor":
        fields.members(value, {"tensor", "host"}, where)
        hosts.append(fields.boolean(value["host"], where))
        return _tensor(content, where)
    fields.members(value, {kind}, where)
    if kind == "list":
        return [_decode(one, hosts, where, depth + 1)
                for one in fields.items(content, MOST_TENSORS, where)]
    if kind == "dtype":
        return fields.one_of(content, DTYPES, where)
    if kind == "memory_format":
        return fields.one_of(content, FORMATS, where)
    if kind == "float":
        return 1.0
    if kind == "other":
        return fields.one_of(content, UNPRICED, where)
    raise BadRecord(f"{where}: not an argument: {fields.short(value)}")


def _tensor(item: object, where: str) -> Operand:
    shape, strides, dtype = fields.items(item, 3, where, exactly=True)
    sizes = [fields.integer(one, 0, MOST_BYTES, where)
             for one in fields.items(shape, MOST_DIMENSIONS, where)]
    steps = [fields.integer(one, 0, MOST_BYTES, where)
             for one in fields.items(strides, len(sizes), where, exactly=True)]
    kind = fields.one_of(dtype, DTYPES, where)
    count = 1
    for size in sizes:
        count *= size
    if count * kind.itemsize > MOST_BYTES or span(sizes, steps) * kind.itemsize > MOST_BYTES:
        raise BadRecord(f"{where}: a tensor of {sizes} is larger than any GPU's memory")
    return Operand(tuple(sizes), tuple(steps), kind)


def span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last one of a tensor, inclusive."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
