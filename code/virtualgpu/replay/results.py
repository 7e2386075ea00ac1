"""Derive what an operation of a record returns, without running it.

What is checked: the operation is in the closed list (*_rules.py and elementwise.py); its arguments
have the types of torch's schema; operands fit together; results have exactly the shapes and dtypes
that torch would return, and no two of their elements share memory, so none takes less memory than
it must.

What is not: the order of a result's dimensions in memory; the sizes of results that values decide,
such as those of nonzero; and how far operands that no cost depends on fit the others. An operand's
strides are the record's word. They may name one element several times, as those of an expanded
tensor do.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch

from virtualgpu.core.operand import Operand
from virtualgpu.core.plan import needs_values
from virtualgpu.replay import (  # noqa: F401  enter their rules
    layout_rules,
    math_rules,
    network_rules,
    window_rules,
)
from virtualgpu.replay.dtypes import NUMBERS, real
from virtualgpu.replay.elementwise import ELEMENTWISE, elementwise
from virtualgpu.replay.result_rules import (
    RULES,
    Arguments,
    Result,
    Rule,
    expands,
    matching,
)

TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (float, int), "number": NUMBERS, "bool": (bool,), "str": (str,),
    "ScalarType": (torch.dtype,), "Layout": (torch.layout,), "Device": (torch.device,),
    "MemoryFormat": (torch.memory_format,), "Tensor": (Operand, *NUMBERS, type(None))}
GEMMS = ("mm", "bmm", "addmm", "baddbmm")
FOREACH, FUSED = "aten._foreach_", "aten._fused_"
# Operations over lists that are elementwise for each element: _foreach_add and its like.
OF_LISTS = frozenset(name.removeprefix("aten.") for name in ELEMENTWISE) | {
    "norm", "max", "copy", "zero", "clone"}
OPTIMIZERS = frozenset(f"{FUSED}{name}" for name in ("adam", "adamw", "sgd", "adagrad"))
SCALERS = frozenset({"aten._amp_foreach_non_finite_check_and_unscale", "aten._amp_update_scale"})


def rule_for(name: str) -> Rule | None:
    """Return the rule of an operation such as "aten.add_", or None if the list lacks it."""
    for known in (name, name.removesuffix("_")):
        if known in RULES:
            return RULES[known]
        if known in ELEMENTWISE:
            return elementwise
        if known.startswith(FOREACH) and known.removeprefix(FOREACH) in OF_LISTS:
            return _foreach
        if known in OPTIMIZERS:
            return _optimizer
        if known in SCALERS:
            return _scaler
    return None


def results(func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
            operands: Sequence[Operand]) -> list[Result] | None:
    """Return the shapes and dtypes of what an operation returns, or None if values decide them.

    Args:
        func: the operation.
        args: its positional arguments.
        kwargs: its keyword arguments.
        operands: all tensors among its arguments.

    Raises:
        Exception: the arguments do not fit together.
    """
    name = str(func._overloadpacket)
    if not operands and all(one.name != "device" for one in func._schema.arguments):
        raise ValueError("the operation has no tensors")
    given, written = _bound(func, args, kwargs)
    if needs_values(func, operands):
        return None
    found = rule_for(name)(given)
    if found and written:  # some rules only check operands that are written in place
        _written_fits(given.name, found, written)
    return found


def _bound(func: torch._ops.OpOverload, args: Sequence, kwargs: dict
           ) -> tuple[Arguments, list[Operand]]:
    """Return an operation's arguments by name, and the tensors that it writes in place of results.
    """
    schema = func._schema.arguments
    positional = [item for item in schema if not item.kwarg_only]
    if len(args) > len(positional):
        raise ValueError(f"expected at most {len(positional)} argument(s), found {len(args)}")
    values = {item.name: value for item, value in zip(positional, args, strict=False)}
    named = {item.name for item in schema if item.kwarg_only}
    if not kwargs.keys() <= named:
        raise ValueError(f"{sorted(kwargs.keys() - named)}: not an argument by name")
    values |= kwargs
    given, written = SimpleNamespace(), []
    for item in schema:
        if item.name not in values:
            if not item.has_default_value():
                raise ValueError(f"the argument {item.name} is missing")
            # The schema has numbers for dtypes: the rules know their operations' own defaults.
            value = None if "ScalarType" in str(item.real_type) else item.default_value
        else:
            value = values[item.name]
            if not _fits(value, str(item.real_type)):
                raise ValueError(f"{item.name}: expected {item.real_type}")
        is_out = item.alias_info is not None and item.alias_info.is_write
        if is_out and item.kwarg_only:
            written += value if isinstance(value, list) else [value]
        else:
            setattr(given, item.name, value)
    given.name = str(func._overloadpacket).partition(".")[2]
    if schema[0].alias_info is not None and schema[0].alias_info.is_write:  # works in place
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


def _lists(a: Arguments) -> dict[str, list]:
    """Return the lists among the arguments. Raises ValueError unless they are equally long."""
    lists = {name: value for name, value in vars(a).items() if isinstance(value, list)}
    if len({len(value) for value in lists.values()}) != 1 or [] in lists.values():
        raise ValueError("lists of different lengths: " + ", ".join(
            f"{name} {len(value)}" for name, value in lists.items()))
    return lists


def _foreach(a: Arguments) -> list[Result]:
    """Return the results of a _foreach operation, in place or not."""
    name = a.name.removeprefix("_foreach_")
    lists = _lists(a)
    count = len(next(iter(lists.values())))
    return [one for at in range(count) for one in _foreach_element(
        name, a, {key: value[at] for key, value in lists.items()})]


def _foreach_element(name: str, a: Arguments, element: dict[str, object]) -> list[Result]:
    x = element.get("self")  # a number, in _foreach_pow
    if name in ("norm", "max"):
        return [((), getattr(a, "dtype", None) or real(x.dtype))]
    if name in ("zero", "clone"):
        return [(x.shape, x.dtype)]
    if name == "copy":
        expands(element["src"].shape, x.shape)
        return [(x.shape, x.dtype)]
    one = SimpleNamespace(**vars(a) | element | {"name": name})
    if name in ("addcmul", "addcdiv", "lerp"):  # their numbers do not change the dtype
        for number in ("scalars", "value", "weight"):
            if not isinstance(getattr(one, number, None), Operand):
                vars(one).pop(number, None)
    for number in ("scalar", "scalars"):  # the schema's names for the second operand
        if hasattr(one, number):
            one.other = vars(one).pop(number)
    return elementwise(one)


def _optimizer(a: Arguments) -> list[Result]:
    """Check the lists of a fused optimizer, all of whose tensors have their parameter's shape."""
    for name, items in vars(a).items():
        if not isinstance(items, list) or not items:
            continue  # such as the momenta of SGD without momentum
        if len(items) != len(a.self):
            raise ValueError(f"{len(a.self)} parameters, but {name} has {len(items)}")
        for parameter, item in zip(a.self, items, strict=True):
            matching(item.numel() == 1 if name == "state_steps" else
                       item.shape == parameter.shape, parameter=parameter, other=item)
    return []


def _scaler(a: Arguments) -> list[Result]:
    for name in ("found_inf", "inv_scale", "growth_tracker"):
        item = getattr(a, name, None)
        if item is not None:
            matching(item.numel() == 1, operand=item)
    return [(a.self.shape, a.self.dtype)] if isinstance(a.self, Operand) else []
