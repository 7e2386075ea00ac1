"""Random numbers that differ between students, but not between the runs of one student's notebook.

Grading draws its own cases from a seed of each submission (labkit/check/cases.py); this module is
for what a notebook shows.
"""

from __future__ import annotations

import contextlib
import random
import secrets

from labcore import workspace

SEED = ".personal-seed"  # a file of the workspace


def dice(name: str) -> random.Random:
    """Return a generator whose numbers depend on the name and on the workspace.

    The first call in a workspace stores a random seed there. Raises LabError if the workspace is
    not writable.

    Args:
        name: what is drawn, such as "log".
    """
    path = workspace.home() / SEED
    if not path.exists():
        workspace.require_writable(path.parent)
        with contextlib.suppress(FileExistsError), path.open("x") as file:  # by another kernel
            file.write(secrets.token_hex(8))
    return random.Random(f"{path.read_text()}/{name}")
