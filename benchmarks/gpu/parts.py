"""Find the parts, which are the modules that define `run`, without importing them."""

from __future__ import annotations

import ast
import difflib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

SECONDS = 600  # default time limit of a part; LIMIT = seconds in its module overrides it


class UnknownPart(Exception):
    """--parts has a name that no part has."""


@dataclass(frozen=True)
class Part:
    """A part of `make gpu`.

    Attributes:
        name: its name in --parts.
        module: dotted name of its module.
        title: first line of the module's docstring.
        limit: time limit in seconds.
    """

    name: str
    module: str
    title: str
    limit: float


def find_parts(package: str = "benchmarks.gpu") -> dict[str, Part]:
    """Return the parts of a package by name, in alphabetical order."""
    folder = Path(next(iter(importlib.util.find_spec(package).submodule_search_locations)))
    found = (_part(path, package) for path in sorted(folder.glob("*.py")))
    return {part.name: part for part in found if part is not None}


def _part(path: Path, package: str) -> Part | None:
    tree = ast.parse(path.read_text(), str(path))
    if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
        return None
    limits = [node.value.value for node in tree.body
              if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
              and [getattr(target, "id", "") for target in node.targets] == ["LIMIT"]]
    title = (ast.get_docstring(tree) or path.stem).splitlines()[0].rstrip(".")
    return Part(path.stem, f"{package}.{path.stem}", title, *(limits or [SECONDS]))


def choose(parts: dict[str, Part], names: str | None) -> list[Part]:
    """Return the parts that --parts selects, in that order.

    Args:
        parts: all parts by name.
        names: value of --parts, names separated by commas, or None for all parts.

    Raises:
        UnknownPart: No part has one of the names; the message suggests the nearest.
    """
    if names is None:
        return list(parts.values())
    for name in names.split(","):
        if name not in parts:
            near = difflib.get_close_matches(name, parts, n=1, cutoff=0)[0]
            raise UnknownPart(f"--parts {names}: there is no part {name!r}; the parts are "
                              f"{', '.join(parts)}; nearest: --parts {near}")
    return [parts[name] for name in dict.fromkeys(names.split(","))]
