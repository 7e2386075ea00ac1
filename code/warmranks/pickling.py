"""Convert functions and values to bytes and back.

A function that the other process can import is sent by its name. Any other function (defined in a
notebook, in a student's cell, or inside another function) is sent with its code and the globals
that it uses, with dill.
"""

from __future__ import annotations

import io
import linecache
import pickle
import types
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

    try:
        return dill.dumps(value, pickle.HIGHEST_PROTOCOL, byref=False, recurse=True)
    except (pickle.PicklingError, AttributeError, RecursionError, ValueError, TypeError) as error:
        raise TypeError(f"cannot be sent to another process: {error}") from error


def loads(content: bytes) -> Any:
    """Restore a value from the bytes that `dumps` returned."""
    return pickle.loads(content)


def sources() -> dict[str, Any]:
    """Return the `linecache` entries of code that is in no file, such as a notebook's cells."""
    return {name: entry for name, entry in linecache.cache.items()
            if len(entry) == 4 and entry[1] is None}
