"""Derive what an operation returns, without running it: on a virtual GPU, and in a record.

What is checked: the operation is in the closed list, which consists of the rules of this folder;
its arguments have the types of torch's schema; operands fit together. Results have exactly the
shapes and dtypes that torch would return.

What is not: the sizes of results that values decide, such as those of nonzero, and how far operands
that no cost depends on fit the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from virtualgpu.core.operand import (
    AnyTensor,
    Operand,
    broadcast_strides,
    channels_last,
    contiguous,
    dense_strides,
    operand_of,
    tensors,
)
from virtualgpu.core.rules.optimizer import foreach_rule
from virtualgpu.core.rules.pointwise import elementwise, is_elementwise
from virtualgpu.core.rules.returns import NUMBERS, RESULT_RULES, Arguments, Result, ResultRule

TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (float, int), "number": NUMBERS, "bool": (bool,), "str": (str,),
    "ScalarType": (torch.dtype,), "Layout": (torch.layout,), "Device": (torch.device,),
    "MemoryFormat": (torch.memory_format,), "Tensor": (Operand, *NUMBERS, type(None))}
GEMMS = ("mm", "bmm", "addmm", "baddbmm")


@cache
def result_rule_of(name: str) -> ResultRule | None:
    """Return the rule of an operation such as "aten.add_", or None if the list lacks it."""
    for known in (name, name.removesuffix("_")):
        if known in RESULT_RULES:
            return RESULT_RULES[known]
        if is_elementwise(known):
            return elementwise
        if foreach_rule(known) is not None:
            return foreach_rule(known)
    return None


def needs_values(func: torch._ops.OpOverload, operands: Sequence[AnyTensor]) -> bool:
    """Return whether the result, or its shape, depends on the values of its operands."""
    if func._overloadpacket is torch.ops.aten.index:
        # Indexing by integers has a known shape, and indexing by a mask does not.
        return any(item.dtype in (torch.bool, torch.uint8) for item in operands[1:])
    return _reads_values(func)


@cache
def _reads_values(func: torch._ops.OpOverload) -> bool:
    return (torch.Tag.dynamic_output_shape in func.tags
            or torch.Tag.data_dependent_output in func.tags)


def results(func: torch._ops.OpOverload, args: Sequence, kwargs: dict) -> list[Result] | None:
    """Return the shapes and dtypes of what an operation returns, or None if values decide them.

    Args:
        func: the operation.
        args: its positional arguments, with Operands for tensors and lists for sequences.
        kwargs: its keyword arguments.

    Raises:
        Exception: the arguments do not fit together.
    """
    given, written = _bound(func, args, kwargs)
    if needs_values(func, tensors((*args, *kwargs.values()))):
        return None
    found = result_rule_of(str(func._overloadpacket))(given)
    if found and written:  # some rules only check operands that are written in place
        _written_fits(given.name, found, written)
    return found


class Argument(NamedTuple):
    """An argument of an operation's schema.

    Attributes:
        name: its name.
        kind: its type, such as Optional[List[int]].
        by_name: whether it can only be given by name.
        has_default: whether it may be omitted.
        default: its value then.
        is_written: whether the operation writes it.
    """

    name: str
    kind: str
    by_name: bool
    has_default: bool
    default: Any
    is_written: bool


@cache
def schema_of(func: torch._ops.OpOverload) -> list[Argument]:
    """Return the arguments of an operation."""
    return [Argument(
        item.name, str(item.real_type), item.kwarg_only, item.has_default_value(),
        # The schema has numbers for dtypes: the rules know their operations' own defaults.
        None if "ScalarType" in str(item.real_type) or not item.has_default_value()
        else item.default_value,
        item.alias_info is not None and item.alias_info.is_write)
        for item in func._schema.arguments]


def _bound(func: torch._ops.OpOverload, args: Sequence, kwargs: dict
           ) -> tuple[Arguments, list[Operand]]:
    """Return an operation's arguments by name, and the tensors that it writes in place of results.
    """
    schema = schema_of(func)
    positional = [item.name for item in schema if not item.by_name]
    if len(args) > len(positional):
        raise ValueError(f"expected at most {len(positional)} argument(s), found {len(args)}")
    if not kwargs.keys() <= {item.name for item in schema if item.by_name}:
        unknown = sorted(kwargs.keys() - {item.name for item in schema if item.by_name})
        raise ValueError(f"{unknown}: not an argument by name")
    values = dict(zip(positional, args, strict=False)) | kwargs
    given, written = SimpleNamespace(), []
    for item in schema:
        if item.name in values:
            value = values[item.name]
            if not _fits(value, item.kind):
                raise ValueError(f"{item.name}: expected {item.kind}")
        elif item.has_default:
            value = item.default
        else:
            raise ValueError(f"the argument {item.name} is missing")
        if item.is_written and item.by_name:  # `out`
            written += value if isinstance(value, list) else [value]
        else:
            setattr(given, item.name, value)
    given.name = str(func._overloadpacket).partition(".")[2]
    if schema[0].is_written:  # works in place
        given.name = given.name.removesuffix("_")
        first = getattr(given, schema[0].name)
        written = first if isinstance(first, list) else [first]
    return given, written


def _fits(value: object, kind: str) -> bool:
    """Return whether an argument has a type of torch's schema, such as Optional[List[int]]."""
    if kind.startswith("Optional["):
        return value is None or _fits(value, kind[9:-1])
    if kind.startswith("List["):
        return isinstance(value, list) and all(_fits(item, kind[5:-1]) for item in value)
    if kind == "int" and isinstance(value, bool):
        return False
    return isinstance(value, TYPES.get(kind, ()))


def _written_fits(name: str, found: Sequence[Result], written: Sequence[Operand]) -> None:
    """Raise ValueError unless results have the shapes and the dtypes of what they are written to.
    """
    if len(found) != len(written):
        raise ValueError(f"{len(found)} results are written to {len(written)} tensors")
    for (shape, dtype), target in zip(found, written, strict=True):
        if shape != target.shape:
            raise ValueError("the output tensor and the result have different shapes: "
                             f"{list(target.shape)} and {list(shape)} (operands must broadcast "
                             "to a tensor that is changed in place)")
        if not torch.can_cast(dtype, target.dtype) or (name in GEMMS and dtype != target.dtype):
            raise ValueError(f"a result in {dtype} is written to a tensor in {target.dtype}")


# ---- new tensors on a virtual GPU


class Layout(Enum):
    """How a new tensor lies in memory: contiguous, with its operands' order of dimensions, or, as
    cuDNN's results, in NHWC if one of the operands is."""

    CONTIGUOUS, OPERANDS, IMAGES = range(3)


# Torch's own shape functions for meta tensors are Python code that imports its compiler and takes
# up to 10 ms per call. They remain for all operations that are not in this table.
LAYOUTS: dict[str, Layout] = {
    **dict.fromkeys((
        "aten.mm", "aten.addmm", "aten.bmm", "aten._grouped_mm", "aten.embedding", "aten.gather",
        "aten.nll_loss_forward", "aten.nll_loss_backward", "aten.sum", "aten.amax",
        "aten.linalg_vector_norm", "aten.any", "aten.native_layer_norm",
        "aten.native_layer_norm_backward", "aten._fused_rms_norm", "aten.cat", "aten.stack",
        "aten.empty", "aten.zeros", "aten.ones", "aten.full", "aten.new_empty", "aten.new_zeros",
        "aten.arange", "virtualgpu.rotary", "virtualgpu.swiglu",
        "virtualgpu.cast_transpose"), Layout.CONTIGUOUS),
    **dict.fromkeys((
        "aten.clone", "aten._to_copy", "aten.empty_like", "aten.zeros_like", "aten.ones_like",
        "aten._softmax", "aten._log_softmax", "aten._log_softmax_backward_data",
        "virtualgpu.masked_softmax", "virtualgpu.dropout", "virtualgpu.dropout_backward",
        "virtualgpu.squared_relu", "virtualgpu.squared_relu_backward",
        "virtualgpu.swiglu_backward", "virtualgpu.dropout_add", "virtualgpu.flash_attention",
        "virtualgpu.flash_attention_backward", "virtualgpu.packed_attention",
        "virtualgpu.packed_attention_backward", "virtualgpu.rotate_pairs",
        "virtualgpu.block_attention", "virtualgpu.block_attention_backward"), Layout.OPERANDS),
    "aten.convolution": Layout.IMAGES,
    "aten.convolution_backward": Layout.IMAGES,
}


def new_tensors(func: torch._ops.OpOverload, args: Sequence, kwargs: dict
                ) -> Operand | list[Operand] | None:
    """Return an operation's new result, or None if torch must compute or refuse it.

    Args:
        func: the operation.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        RuntimeError: matrices of different dtypes, which torch does not check on meta tensors.
    """
    name = str(func._overloadpacket)
    layout = LAYOUTS.get(name)
    if layout is None and torch.Tag.pointwise in func.tags and is_elementwise(name):
        layout = Layout.OPERANDS
    if layout is None or kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    plain = [_plain(value) for value in args]
    try:
        found = results(func, plain, {key: _plain(value) for key, value in kwargs.items()})
    except ValueError:
        return None
    operands = [value for value in plain if isinstance(value, Operand)]
    if layout is Layout.IMAGES and found is not None:
        made = [_image(shape, dtype, any(map(channels_last, operands))) for shape, dtype in found]
        wanted = plain[10] if len(func._schema.returns) > 1 else [True]
        every = iter(made)
        placed = [next(every) if one else None for one in wanted]
        return placed[0] if len(placed) == 1 else placed
    if found is None or len(found) != len(func._schema.returns):
        return None
    if len(found) == 1:
        return _made(*found[0], operands if layout is Layout.OPERANDS else [])
    return [_made(shape, dtype, [item for item in operands if item.shape == shape]
                  if layout is Layout.OPERANDS else []) for shape, dtype in found]


def _plain(value: object) -> object:
    """Return an argument with Operands for tensors, and lists for sequences."""
    if isinstance(value, torch.Tensor):
        return operand_of(value)
    return list(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _image(shape: tuple[int, ...], dtype: torch.dtype, is_nhwc: bool) -> Operand:
    """Return a convolution's result."""
    if not is_nhwc or len(shape) != 4:
        return contiguous(shape, dtype)
    _, c, h, w = shape
    return Operand(shape, (h * w * c, 1, w * c, c), dtype)


def _made(shape: tuple[int, ...], dtype: torch.dtype, operands: Sequence[Operand]) -> Operand:
    """Return a dense result whose dimensions have the order that they have in these operands."""
    plain = contiguous(shape, dtype)
    if all(item.strides == plain.strides and item.shape == shape for item in operands):
        return plain
    return Operand(shape, dense_strides(
        shape, [broadcast_strides(item, shape) for item in operands]), dtype)
