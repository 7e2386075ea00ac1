"""Create the folders and files that a run writes to, before it starts."""

from __future__ import annotations

import os
import tempfile

from minimegatron.arguments import Config
from minimegatron.errors import UserError


def create_folders(config: Config) -> None:
    """Create the folders that the run writes to. Raises UserError if one is not writable."""
    for flag, folder in (("--save", config.save), ("--tensorboard-dir", config.tensorboard_dir),
                         ("--timeline", config.timeline)):
        if folder is None:
            continue
        try:
            os.makedirs(folder, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise UserError(f"{flag} {folder} is not a folder that can be written to "
                            f"({error.strerror}); nearest: a folder under $LAB_HOME/megatron"
                            ) from error
    if config.metrics is not None:
        try:
            open(config.metrics, "ab").close()
        except OSError as error:
            raise UserError(f"--metrics {config.metrics} is not a file that can be written to "
                            f"({error.strerror}); nearest: --metrics metrics.jsonl") from error
