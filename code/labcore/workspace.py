"""Paths of the checkout and of the student's workspace (LAB_HOME)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from labcore.errors import LabError

CHECKOUT = Path(__file__).resolve().parents[2]
CODE = CHECKOUT / "code"

# The folders of a new workspace, so that scripts can write to them.
FOLDERS = ("notebooks", "code", "data", "mytrainer", "megatron/logs", "megatron/tensorboard",
           "megatron/checkpoints")


def home() -> Path:
    """Return the workspace: $LAB_HOME, or else `workspace/` in the checkout, as an absolute path.

    It may not exist yet.
    """
    return Path(os.environ.get("LAB_HOME") or CHECKOUT / "workspace").absolute()


def require_writable(folder: Path) -> None:
    """Create a folder. Raises LabError if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise LabError(
            f"the workspace {folder} is not writable ({error.strerror}): "
            "set LAB_HOME to a folder of your own, such as LAB_HOME=$HOME/workspace"
        ) from error
