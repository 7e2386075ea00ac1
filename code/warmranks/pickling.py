"""Convert functions and values to bytes and back.

A function that the other process can import is sent by its name. Any other function (defined in a
notebook, in a student's cell, or inside another function) is sent with its code and the globals
that it uses, with dill.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import linecache
import pickle
import types
from collections.abc import Iterator
from typing import Any


class NamePickler(pickle.Pickler):
    """Pickles by name, and refuses what only this process can find: the names in `__main__`."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (types.FunctionType, type)) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in __main__")
        return NotImplemented


def dumps(value: Any) -> bytes:
    """Return `value` as bytes that `loads` restores in another process.

    Raises:
        TypeError: it contains something that cannot leave this process, such as an open file.
    """
    buffer = io.BytesIO()
    try:
        NamePickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
        return buffer.getvalue()
    except (pickle.PicklingError, AttributeError, TypeError):
        pass
    import dill

    before, dill.detect.globalvars = dill.detect.globalvars, globals_of
    try:
        return dill.dumps(value, pickle.HIGHEST_PROTOCOL, byref=False, recurse=True)
    except (pickle.PicklingError, AttributeError, RecursionError, ValueError, TypeError) as error:
        raise TypeError(f"cannot be sent to another process: {error}") from error
    finally:
        dill.detect.globalvars = before


def globals_of(function: Any, recurse: bool = True, builtin: bool = False) -> dict[str, Any]:
    """Return the globals that a function uses, itself or through functions of the same globals.

    It stands in for dill's, which follows functions of other modules (`from torch.distributed
    import isend`) and functions that call each other, until Python's limit for recursion. The
    arguments are those that dill passes.
    """
    names: set[str] = set()
    seen: set[int] = set()
    todo = [function]
    while todo:
        one = todo.pop()
        one = getattr(one, "__func__", one)  # of a method
        if id(one) in seen or not isinstance(one, types.FunctionType):
            continue
        seen.add(id(one))
        if one.__globals__ is not function.__globals__:
            continue
        used = set(names_in(one.__code__))
        names |= used
        todo += [one.__globals__.get(name) for name in used]
        for cell in one.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                todo.append(cell.cell_contents)
    known = vars(builtins) | function.__globals__ if builtin else function.__globals__
    return {name: known[name] for name in sorted(names) if name in known}


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code and the functions inside it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def loads(content: bytes) -> Any:
    """Restore a value from the bytes that `dumps` returned."""
    return pickle.loads(content)


def sources() -> dict[str, Any]:
    """Return the `linecache` entries of code that is in no file, such as a notebook's cells."""
    return {name: entry for name, entry in linecache.cache.items()
            if len(entry) == 4 and entry[1] is None}
