"""Link `/dli`, which scripts of the classic course use for the workspace, to the workspace.

Inside the nodes' mount namespaces, `/dli` always exists and is private to the cluster. This link
is for the rest of the machine: notebooks, terminals, and jobs in loopback mode. It exists while
the lab runs.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from labcore.atomic import replace_link

DLI = Path("/dli")


def link_dli(home: Path, link: Path = DLI) -> str | None:
    """Create the link. Returns None if it leads to the workspace, or else one line why not."""
    if link.is_symlink():
        target = Path(os.readlink(link))
        if target == home:
            return None
        if not _dangles(link):
            return f"{link} leads to {target}, not to this workspace; it stays as it is"
    elif link.exists():
        if link.resolve() == home.resolve():
            return None
        return f"{link} is a folder that belongs to something else; it stays as it is"
    try:
        replace_link(link, home)
    except OSError as error:
        return (f"{link} cannot be created ({error.strerror}); as an administrator: "
                f"ln -sfn {home} {link}")
    return None


def _dangles(link: Path) -> bool:
    try:
        link.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # it leads to a folder that this user may not read
        return False
    return False


def unlink_dli(home: Path, link: Path = DLI) -> None:
    """Remove the link if it leads to this workspace."""
    with contextlib.suppress(OSError):
        if link.is_symlink() and os.readlink(link) == str(home):
            link.unlink()
