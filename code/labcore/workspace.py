"""Paths of the checkout and of the student's workspace (LAB_HOME)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from labcore.errors import LabError

CHECKOUT = Path(__file__).resolve().parents[2]
CODE = CHECKOUT / "code"

# What a workspace holds from the first minute on; scripts write into these without asking.
FOLDERS = ("notebooks", "code", "data", "mytrainer", "megatron/logs", "megatron/tensorboard",
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
