"""Reimport the student's modules after the notebook has rewritten their files.

A virtual GPU is a process forked from the kernel, so it inherits whatever the kernel has imported.
Without this, a rewritten mytrainer/train.py would run only after a restart of the kernel.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class StudentModules:
    """The imported modules whose files are in a folder.

    Args:
        folder: the workspace.
    """

    def __init__(self, folder: Path) -> None:
        # sys.path may hold the folder with its symbolic links or without them.
        self.folders = tuple({f"{folder.absolute()}/", f"{folder.resolve()}/"})
        self.seen: dict[str, tuple[ModuleType, tuple[int, int] | None]] = {}

    def remember(self, *_: Any) -> None:
        """Note the state of the files that were imported since the last call."""
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            known = self.seen.get(name)
            if (path and path.startswith(self.folders)
                    and (known is None or known[0] is not module)):
                self.seen[name] = module, _state(Path(path))

    def drop_rewritten(self, *_: Any) -> None:
        """Let the next import read every file again if one has changed, because they can import
        each other. Names that a cell has bound keep their values."""
        if all(_state(Path(str(module.__file__))) == state for module, state in self.seen.values()):
            return
        for name, (module, _) in self.seen.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
            package, _, short = name.rpartition(".")
            # `from mytrainer import ddp` would find the attribute, and import nothing.
            if getattr(sys.modules.get(package), short, None) is module:
                delattr(sys.modules[package], short)
        self.seen.clear()


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
