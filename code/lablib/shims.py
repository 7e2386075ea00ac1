"""Check and patch third-party libraries: the version that a shim was written for, and attributes.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from labcore.errors import LabError


def require(library: str, wanted: str) -> None:
    """Raise LabError unless exactly this version of a library is installed.

    Args:
        library: the library's name.
        wanted: the version.
    """
    installed = version(library)
    if installed.partition("+")[0] != wanted:
        raise LabError(f"{library} {installed} is installed, but the course's shim was written for "
                       f"{wanted}: pip install {library}=={wanted}")


def replace(owner: Any, name: str, new: Any) -> Any:
    """Replace an attribute, and return the original one. Raises LabError if there is none.

    Args:
        owner: the module or class.
        name: the name of the attribute.
        new: its new value.
    """
    if not hasattr(owner, name):
        raise LabError(f"{owner.__name__} has no {name} (any more): the course's shim, which "
                       "replaces it, does not work with this version")
    old = getattr(owner, name)
    setattr(owner, name, new)
    return old
