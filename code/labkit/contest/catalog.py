"""Find contests: every module in labkit.contest.contests declares one, named CONTEST."""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from labcore.errors import LabError
from labkit.contest import contests
from labkit.contest.declaration import Contest


def names() -> list[str]:
    """Return the names of all contests, without importing any."""
    return sorted(module.name for module in pkgutil.iter_modules(contests.__path__))


def find(name: str) -> Contest:
    """Return a contest by name. Raises LabError, which suggests the nearest name."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.3) or names()
        raise LabError(f"no contest {name}; available: {', '.join(near)}")
    contest = importlib.import_module(f"{contests.__name__}.{name}").CONTEST
    if contest.name != name:
        raise ValueError(f"contests/{name}.py declares a contest called {contest.name}")
    return contest
