"""Where things are: the checkout, and the student's workspace (LAB_HOME)."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from labcore.errors import LabError

CHECKOUT = Path(__file__).resolve().parents[2]
CODE = CHECKOUT / "code"

# What a workspace holds from the first minute on; scripts write into these without asking.
FOLDERS = ("notebooks", "code", "data", "megatron/logs", "megatron/tensorboard",
           "megatron/checkpoints")


def home() -> Path:
    """The workspace: $LAB_HOME, else `workspace/` in the checkout. Absolute; may not exist yet."""
    return Path(os.environ.get("LAB_HOME") or CHECKOUT / "workspace").absolute()


def require_writable(folder: Path) -> None:
    """Make `folder`, or raise LabError that says what stands in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise LabError(
            f"the workspace {folder} is not writable ({error.strerror}): "
            "set LAB_HOME to a folder of your own, for example LAB_HOME=$HOME/workspace"
        ) from error


def put_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file atomically: it appears complete or not at all.

    Raises OSError that names the file, even if the disk is full.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.chmod(mode)
        unfinished.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def point(link: Path, target: Path) -> None:
    """Make `link` lead to `target`; classic scripts start $LAB_HOME/megatron/Megatron-LM/*.py."""
    if link.is_symlink() and os.readlink(link) == str(target):
        return
    if link.exists() and not link.is_symlink():
        raise LabError(f"{link} is in the way: the course links it to {target}; move it elsewhere")
    unfinished = link.with_name(f".{link.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(target)
    unfinished.replace(link)
