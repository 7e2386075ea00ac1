"""Replacements for the modules and names that a lab masks (labkit.masks finds them).

A masked module's file raises the message of labkit.masks; of a masked package only such an
`__init__.py` is shown. A file that defines a masked name is shown with a stub in its place. The
`__pycache__` beside a file is shown without the compiled original. All of it is created once, in a
folder of its own, and mounted over the originals.
"""

from __future__ import annotations

import ast
import contextlib
import os
import py_compile
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import psutil

from labkit.masks import MaskTarget, definition, mask_targets, message, parsed

PREFIX = "lab-masks-"
OLDEST = 24 * 3600  # seconds, after which a folder of a process that was killed is removed
CACHE = "__pycache__"
FOR_ALL = 0o755

MODULE = "raise ImportError({message!r})\n"
FUNCTION = """def {name}(*args, **kwargs):
    raise ImportError({message!r})
"""
# Other modules may derive from the class or test for it; only making an instance is refused.
CLASS = """class {name}:
    def __init__(self, *args, **kwargs):
        raise ImportError({message!r})
"""
VALUE = """class {name}:
    def __getattr__(self, name):
        raise ImportError({message!r})
    __call__ = __getitem__ = __iter__ = __len__ = lambda self, *args, **kwargs: self.masked
{name} = {name}()
"""
# What compiled code defines can only be bound anew, after all else that the module does.
LATE = """
def _masked(*args, **kwargs):
    raise ImportError({message!r})
{name} = _masked
del _masked
"""


class SandboxMasks:
    """The files and folders to show in place of others, by the original's path."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    @cached_property
    def shown(self) -> dict[str, str]:
        """The replacement of each path. Raises labkit.masks.UnknownName."""
        masked = [target for name in self.names for target in mask_targets(name)]
        packages = {target.path for target in masked if target.path.is_dir()}
        files: dict[Path, list[MaskTarget]] = {}
        for target in masked:
            if not any(folder in (target.path, *target.path.parents) for folder in packages):
                files.setdefault(target.path, []).append(target)
        result = {}
        for path in packages:
            own = self._new_folder()
            _write(own / "__init__.py", MODULE.format(message=message(
                next(target.name for target in masked if target.path == path))))
            result[str(path)] = str(own)
        for folder in {path.parent for path in files}:
            result |= self._beside(folder, {path: masked for path, masked in files.items()
                                            if path.parent == folder})
        return result

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory:
        sweep()
        folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-")
        os.chmod(folder.name, FOR_ALL)
        return folder

    def _new_folder(self) -> Path:
        """Create a folder that bwrap can enter even if it starts as another user."""
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        folder.chmod(FOR_ALL)
        return folder

    def _beside(self, folder: Path, files: dict[Path, list[MaskTarget]]) -> dict[str, str]:
        """Replace files of one folder, and its `__pycache__`; return the replacements by path."""
        own, result = self._new_folder(), {}
        cache = own / CACHE
        cache.mkdir()
        with contextlib.suppress(OSError):  # what is compiled later must not show up either
            (folder / CACHE).mkdir(exist_ok=True)
        if (folder / CACHE).is_dir():
            stems = {path.stem for path in files}
            for compiled in (folder / CACHE).iterdir():
                if compiled.name.partition(".")[0] not in stems and compiled.is_file():
                    shutil.copy2(compiled, cache)
            result[str(folder / CACHE)] = str(cache)
        for path, masked in files.items():
            _write(own / path.name, rewritten(path, masked))
            py_compile.compile(str(own / path.name), dfile=str(path), doraise=True,
                               invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
            result[str(path)] = str(own / path.name)
            for legacy in (path.with_suffix(".pyc"), path.with_suffix(".pyi")):
                if legacy.is_file():
                    _write(own / legacy.name, "")
                    result[str(legacy)] = str(own / legacy.name)
        for made in (cache, *own.iterdir(), *cache.iterdir()):
            made.chmod(FOR_ALL if made.is_dir() else 0o644)
        return result


def rewritten(path: Path, masked: Sequence[MaskTarget]) -> str:
    """Return the text of a module's file with stubs for its masked names.

    Args:
        path: the file.
        masked: the masked names in it.
    """
    for target in masked:
        if not target.qualname:
            return MODULE.format(message=message(target.name))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for first, last, stub in sorted(_stubs(path, masked), reverse=True):
        lines[first - 1:last] = [stub]
    late = [LATE.format(name=target.qualname, message=message(target.name))
            for target in masked if not target.defined]
    return "".join([*lines, "\n" * bool(late), *late])


def _stubs(path: Path, masked: Sequence[MaskTarget]) -> Iterator[tuple[int, int, str]]:
    """Yield the first and the last line of each masked definition, and its stub."""
    spans = {}
    for target in masked:
        for node in (target.defined and definition(parsed(path), target.qualname)) or ():
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            kind = CLASS if isinstance(node, ast.ClassDef) else \
                VALUE if isinstance(node, ast.Assign | ast.AnnAssign) else FUNCTION
            stub = kind.format(name=target.qualname.rpartition(".")[2],
                               message=message(target.name))
            indent = " " * node.col_offset
            spans[first, node.end_lineno] = re.sub("^(?=.)", indent, stub, flags=re.MULTILINE)
    for (first, last), stub in spans.items():
        if not any(other != (first, last) and other[0] <= first and last <= other[1]
                   for other in spans):
            yield first, last, stub


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def sweep() -> None:
    """Remove the folders that this user's killed processes left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}[0-9]*-*"):
        with contextlib.suppress(OSError, ValueError):  # gone by now, or not ours
            status = folder.lstat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > OLDEST \
                    and not psutil.pid_exists(int(folder.name.split("-")[2])):
                shutil.rmtree(folder, ignore_errors=True)
