"""What a shim needs: the library's version it was written for, and the names that it replaces."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from labcore.errors import LabError


def require(library: str, wanted: str) -> None:
    """Raises LabError unless `library` is installed in exactly the version `wanted`."""
    found = version(library)
    if found.partition("+")[0] != wanted:
        raise LabError(f"{library} {found} is installed, and the course's shim was written for "
                       f"{wanted}: pip install {library}=={wanted}")


def replace(owner: Any, name: str, new: Any) -> Any:
    """Put `new` at `owner.name`; returns what was there. Raises LabError where nothing was."""
    if not hasattr(owner, name):
        raise LabError(f"{owner.__name__} has no {name} (any more): the course's shim, which "
                       "replaces it, does not fit this version")
    old = getattr(owner, name)
    setattr(owner, name, new)
    return old
