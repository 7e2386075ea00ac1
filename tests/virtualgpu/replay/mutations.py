"""Mutated records: real ones in which a few places were changed, by a seed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import torch

from virtualgpu.core import kernels  # noqa: F401  defines operations
from virtualgpu.core.rules.results import result_rule_of
from virtualgpu.replay import BadRecord
from virtualgpu.replay.operations import DTYPES, decode_operation

from . import programs
from .recorded import run, texts

PROGRAMS = (programs.streams, programs.ddp, programs.pipeline, programs.collectives,
            programs.sharded)
MOST_CHANGES = 3
RETURNED = re.compile(r"(\w+) \[([\d, ]*)\](?=.*, not )")
NUMBERS = (-1, 0, 1, 2, 3, 7, 63, 64, 2**20, 2**31 - 1, 2**31, 2**50, 2**62, 2**63, -2**63, 2**64)
OTHERS = (None, True, False, "", "a", "mean", 0.5, 1e300, [], [[]], {}, {"list": []},
          {"float": True}, {"other": "device"}, {"other": "complex"}, {"dtype": "bfloat16"},
          {"memory_format": "channels_last"})


@cache
def listed() -> list[str]:
    """The names of all operations in the closed list."""
    found = []
    for full in torch._C._dispatch_get_all_op_names():
        name = full.replace("::", ".")
        namespace, base, *overload = name.split(".")
        if result_rule_of(f"{namespace}.{base}") is not None:
            found.append(".".join([namespace, base, *(overload or ["default"])]))
    return sorted(found)


@cache
def sound() -> list[list[str]]:
    """Real records, by program: one for each rank."""
    return [texts(run(program)) for program in PROGRAMS]


def mutated(seed: int) -> list[str]:
    """Return the records of a program after one of them has been changed in a few places."""
    random = Random(seed)
    whole = list(random.choice(sound()))
    rank = random.randrange(len(whole))
    record = json.loads(whole[rank])
    for _ in range(random.randint(1, MOST_CHANGES)):
        part = record[random.choice(["operations"] * 6 + ["entries"] * 3 + ["groups", "streams"])]
        if part:
            _change(random, part, record)
    if random.random() < 0.02:
        record[random.choice(list(record))] = _value(random)
    whole[rank] = json.dumps(record)
    return whole


def _change(random: Random, part: list, record: dict) -> None:
    at = random.randrange(len(part))
    kind = random.randrange(8)
    operation = isinstance(part[at], dict) and isinstance(part[at].get("args"), list) and (
        isinstance(part[at].get("fresh"), list))
    if operation and kind < 3:
        _change_operation(random, part[at], record["operations"])
    elif kind == 3:
        part.insert(random.randrange(len(part) + 1), json.loads(json.dumps(part[at])))
    elif kind == 4:
        other = random.randrange(len(part))
        part[at], part[other] = part[other], part[at]
    elif kind == 5 and not operation:
        del part[at]
    else:
        for _ in range(random.randint(1, 3)):
            place = random.choice(list(_places(part[at])) or [None])
            if place is not None:
                _change_place(random, *place)


def _change_operation(random: Random, operation: dict, others: Sequence[dict]) -> None:
    args = operation["args"]
    kind = random.randrange(7)
    if kind == 0:
        operation.update(_typed(random, random.choice(listed())))
    elif kind == 1:
        operation["name"] = random.choice(listed())
    elif kind == 2 and args:
        args.pop(random.randrange(len(args)))
    elif kind == 3:
        args.insert(random.randint(0, len(args)), _value(random))
    elif kind == 4:
        donor = random.choice(others)
        if isinstance(donor, dict) and isinstance(donor.get("args"), list):
            operation["args"] = json.loads(json.dumps(donor["args"]))
    elif kind == 5 and args:
        at = random.randrange(len(args))
        args[at] = {"list": [args[at]] * random.choice([0, 1, 3, 300])}
    else:
        operation["fresh"] = operation["fresh"] * random.choice([0, 2, 100])


def _typed(random: Random, name: str) -> dict[str, Any]:
    """Return an operation whose arguments have the types of its schema, and drawn values."""
    namespace, base, overload = name.split(".")
    func = getattr(getattr(getattr(torch.ops, namespace), base), overload)
    shape = [random.choice([0, 1, 2, 3, 8, 64, 2**20]) for _ in range(random.randrange(5))]
    dtype = random.choice(["float32", "bfloat16", "int64", "bool", *sorted(DTYPES)])
    args, kwargs = [], {}
    for item in func._schema.arguments:
        if item.has_default_value() and random.random() < 0.7:
            if not item.kwarg_only:
                break
            continue
        value = _of_type(random, str(item.real_type), shape, dtype)
        if item.kwarg_only:
            kwargs[item.name] = value
        else:
            args.append(value)
    made = {"name": name, "args": args, "kwargs": kwargs, "fresh": []}
    refusal = ""
    try:
        decode_operation(made, "")
    except BadRecord as error:
        refusal = str(error)
    if "returns" in refusal:  # the right results, so that it is priced
        made["fresh"] = [_contiguous([int(size) for size in sizes.split(", ") if size], kind)
                         for kind, sizes in RETURNED.findall(refusal)]
    return made


def _of_type(random: Random, kind: str, shape: list[int], dtype: str) -> Any:
    if kind.startswith("Optional["):
        return None if random.random() < 0.4 else _of_type(random, kind[9:-1], shape, dtype)
    if kind.startswith("List["):
        return {"list": [_of_type(random, kind[5:-1], shape, dtype)
                         for _ in range(random.choice([0, 1, 1, 2, 2, 3, len(shape)]))]}
    if kind == "Tensor":
        sizes = shape if random.random() < 0.8 else shape[:random.randint(0, len(shape))]
        return {"tensor": _contiguous(sizes, dtype), "host": False}
    return {"bool": random.random() < 0.5, "float": {"float": True}, "number": {"float": True},
            "ScalarType": {"dtype": dtype}, "str": "mean", "Device": {"other": "device"}}.get(
                kind, random.choice([0, 1, 1, 2, 3, -1, 8, 2**40]))


def _contiguous(shape: list[int], dtype: str) -> list:
    return [shape, [math.prod(shape[at + 1:]) for at in range(len(shape))], dtype]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of everything inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(
        value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


def _change_place(random: Random, container: Any, key: Any) -> None:
    value = container[key]
    if isinstance(value, str) and value in DTYPES and random.random() < 0.8:
        container[key] = random.choice(sorted(DTYPES))
    elif isinstance(value, int) and random.random() < 0.4:
        container[key] = value + random.choice([-1, 1, value, -2 * value])
    elif isinstance(value, list) and random.random() < 0.5:
        container[key] = value * random.choice([0, 2, 30]) if random.random() < 0.5 else value[::-1]
    else:
        container[key] = _value(random)


def _value(random: Random) -> Any:
    if random.random() < 0.5:
        return random.choice(NUMBERS)
    if random.random() < 0.4:
        shape = [random.choice([0, 1, 2, 8, 512, 2**20, 2**49]) for _ in range(random.randrange(5))]
        return {"tensor": [shape, [random.choice([0, 1, 8]) for _ in shape],
                           random.choice(sorted(DTYPES))], "host": random.random() < 0.2}
    return json.loads(json.dumps(random.choice(OTHERS)))
