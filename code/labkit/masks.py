"""Locate the definitions of the names that `check.mask` makes unavailable to answers.

Files are parsed, never imported: the grader must not run the code that it hides, and a notebook
should not have to wait for torch.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import site
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labcore.errors import LabError
from labcore.workspace import CODE

# Everything at hand that makes or runs pipeline schedules: labs about pipelines mask all of it.
PIPELINE_LIBRARIES = ("deepspeed", "pipeline_schedules", "torch.distributed.pipelining",
                      "torchgpipe")
MOST_HOPS = 8  # names on the way to a definition; `import *` is not followed any further
# Packages of other Python versions, whose files are visible in a sandbox, too.
OTHER_PYTHONS = ("usr/lib/python3*/*-packages", "usr/local/lib/python3*/*-packages")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class UnknownName(LabError):
    """Raised for a name that no Python file defines."""


@dataclass(frozen=True)
class MaskTarget:
    """The definition of a masked module or name.

    Attributes:
        name: the dotted name as the author wrote it.
        path: the file that defines it, or the folder of a masked package.
        module: the dotted name of that module.
        qualname: the name within the module, such as "Linear.forward"; empty for a whole module.
        defined: whether the file has a statement that defines it. If not, compiled code does.
    """

    name: str
    path: Path
    module: str
    qualname: str = ""
    defined: bool = True

    def covers(self, module: str, qualname: str) -> bool:
        """Return whether this mask covers the code with this module and qualname."""
        if not self.qualname:
            return f"{module}.".startswith(f"{self.module}.")
        return module == self.module and f"{qualname}.".startswith(f"{self.qualname}.")


def message(name: str) -> str:
    """Return the message for a student whose answer uses the masked `name`."""
    return (f"{name} is not available to your answers: this lab asks you to write what it does "
            "yourself")


@cache
def roots() -> tuple[Path, ...]:
    """Return the folders that may hold modules: the course's code/ and all of the environment's."""
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix))
    folders = [CODE, *(Path(path) for path in sys.path if os.path.isdir(path)),
               *(Path(path) for path in site.getsitepackages(list(prefixes))),
               *(path for pattern in OTHER_PYTHONS for path in sorted(Path("/").glob(pattern)))]
    return tuple(dict.fromkeys(path.resolve() for path in folders if path.is_dir()))


def mask_targets(name: str) -> list[MaskTarget]:
    """Return every definition of `name`, starting with the one that an import would find.

    The list is empty if the package is not installed.

    Raises UnknownName for a module without a Python file, and for a name that the course's own
    packages, which have no compiled code, do not define.
    """
    targets: list[MaskTarget] = []
    for root in roots():
        target = _find(root, name, name, set())
        if target and not target.defined and target.path.is_relative_to(CODE):
            raise UnknownName(f"{name} cannot be masked: {target.path.relative_to(CODE)} does not "
                              "say where it is defined")
        if target and target.path not in [other.path for other in targets]:
            targets.append(target)
    if not targets and importlib.util.find_spec(name.partition(".")[0]):
        raise UnknownName(f"{name} cannot be masked: it is not defined in a Python file")
    return targets


def _find(root: Path, dotted: str, name: str, seen: set[str]) -> MaskTarget | None:
    """Search one root for `dotted`, to which the author's `name` resolved."""
    if dotted in seen:
        return None
    seen.add(dotted)
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        path = _module(root.joinpath(*parts[:length]))
        if path is None:
            continue
        module, rest = ".".join(parts[:length]), parts[length:]
        if not rest:
            return MaskTarget(name, path.parent if path.name == "__init__.py" else path, module)
        return _within(root, MaskTarget(name, path, module, ".".join(rest)), seen)
    return None


def _module(path: Path) -> Path | None:
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return file.resolve()
    return None


def _within(root: Path, place: MaskTarget, seen: set[str]) -> MaskTarget | None:
    """Search a module's file for a name that it defines or imports."""
    first, *rest = place.qualname.split(".")
    tree = parsed(place.path)
    if definition(tree, place.qualname) is not None:
        return place
    for source in (*_imports(tree, first, place, stars=len(seen) < MOST_HOPS),
                   *_imports_on_first_use(tree, first, place.module)):
        target = _find(root, ".".join([source, *rest]), place.name, seen)
        if target and target.defined:
            return target
    return MaskTarget(place.name, place.path, place.module, place.qualname, defined=False)


@cache
def parsed(path: Path) -> ast.Module:
    """Return the statements of a module's file."""
    return ast.parse(path.read_bytes())


def _imports(tree: ast.Module, name: str, place: MaskTarget, stars: bool) -> Iterator[str]:
    """Yield the dotted names that an import may bind to `name`, those of `import *` last."""
    package = place.module.split(".")
    package = package if place.path.name == "__init__.py" else package[:-1]
    all_of = []
    for node in statements(tree.body):
        if isinstance(node, ast.ImportFrom):
            module = _absolute(node, package)
            for alias in node.names:
                if alias.name == "*":
                    all_of.append(f"{module}.{name}")
                elif (alias.asname or alias.name) == name:
                    yield f"{module}.{alias.name}"
    if stars:
        yield from all_of


def _imports_on_first_use(tree: ast.Module, name: str, package: str) -> Iterator[str]:
    """Yield the dotted names that a package's __getattr__ may return for `name`, by its tables
    {module: names} and {name: module}."""
    if definition(tree, "__getattr__") is None:
        return
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            with contextlib.suppress(ValueError):  # not literal
                for key, value in ast.literal_eval(node.value).items():
                    module = value if key == name else key if name in (*value,) else ""
                    if module:
                        inside = module.startswith(f"{package}.")
                        yield f"{module}.{name}" if inside else f"{package}.{module}.{name}"


def _absolute(node: ast.ImportFrom, package: list[str]) -> str:
    above = package[:len(package) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module or a class, those inside `if`, `try` and `with` too."""
    for node in body:
        yield node
        if not isinstance(node, DEFINITIONS):
            for field in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


def definition(tree: ast.Module, qualname: str) -> list[ast.stmt] | None:
    """Return the statements that define `qualname` in a module, or None."""
    body, nodes = tree.body, []
    for part in qualname.split("."):
        nodes = [node for node in statements(body) if part in _binds(node)]
        body = [inner for node in nodes if isinstance(node, ast.ClassDef) for inner in node.body]
    return nodes or None


def _binds(node: ast.stmt) -> list[str]:
    if isinstance(node, DEFINITIONS):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else \
        [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def modules_in(package: str) -> list[str]:
    """Return the dotted names of the modules and public names directly in a package or module."""
    dotted: set[str] = set()
    for root in roots():
        path = _module(root.joinpath(*package.split("."))) if package else root / "__init__.py"
        if path is None:
            continue
        if path.name == "__init__.py":
            names = {entry.stem for entry in path.parent.iterdir()
                     if entry.suffix == ".py" or _module(entry)}
            dotted |= {name for name in names if not name.startswith("_")}
        if package:
            dotted |= {name for node in statements(parsed(path).body) for name in _binds(node)}
    return sorted(f"{package}.{name}".lstrip(".") for name in dotted)


def needed_by(names: Iterable[str]) -> set[str]:
    """Return the course's own modules that are loaded when these names are imported."""
    modules: set[str] = set()
    waiting = list(names)
    while waiting:
        dotted = waiting.pop()
        for length in range(1, dotted.count(".") + 2):
            module = ".".join(dotted.split(".")[:length])
            path = _module(CODE.joinpath(*module.split(".")))
            if path and module not in modules:
                modules.add(module)
                waiting += _imported_at_once(path, module)
    return modules


def _imported_at_once(path: Path, module: str) -> Iterator[str]:
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    body = [node for node in parsed(path).body
            if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    for node in statements(body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, package)
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)
