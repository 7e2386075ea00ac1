"""Tools for shims: require the version of the library that a shim was written for, and replace
attributes of it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from labcore.errors import LabError


def require(library: str, wanted: str) -> None:
    """Raise LabError unless exactly this version of a library is installed.

    Args:
        library: its name.
        wanted: the version.
    """
    found = version(library)
    if found.partition("+")[0] != wanted:
        raise LabError(f"{library} {found} is installed, and the course's shim was written for "
                       f"{wanted}: pip install {library}=={wanted}")


def replace(owner: Any, name: str, new: Any) -> Any:
    """Replace an attribute, and return the original one. Raises LabError if there is none.

    Args:
        owner: the module or class.
        name: of the attribute.
        new: what replaces it.
    """
    if not hasattr(owner, name):
        raise LabError(f"{owner.__name__} has no {name} (any more): the course's shim, which "
                       "replaces it, does not fit this version")
    old = getattr(owner, name)
    setattr(owner, name, new)
    return old
