"""Find the parts: modules that define `run`, without importing them."""

from __future__ import annotations

import ast
import difflib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

SECONDS = 600  # a part's time limit, unless its module says LIMIT = seconds


class UnknownPart(Exception):
    """A name in --parts is not the name of a part."""


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        name: what --parts calls it.
        module: its dotted name, for a process that imports it.
        title: the first line of its docstring.
        limit: seconds after which it is stopped.
    """

    name: str
    module: str
    title: str
    limit: float


def find_parts(package: str = "benchmarks.gpu") -> dict[str, Part]:
    """Return the parts in a package by name, in alphabetical order."""
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
    """Return the parts that --parts names, in its order, or all of them.

    Args:
        parts: what there is.
        names: the value of --parts, separated by commas; None for all.

    Raises:
        UnknownPart: a name is not a part's; the message has the nearest one.
    """
    if names is None:
        return list(parts.values())
    for name in names.split(","):
        if name not in parts:
            near = difflib.get_close_matches(name, parts, n=1, cutoff=0)[0]
            raise UnknownPart(f"--parts {names}: there is no part {name!r}; the parts are "
                              f"{', '.join(parts)}; nearest: --parts {near}")
    return [parts[name] for name in dict.fromkeys(names.split(","))]
