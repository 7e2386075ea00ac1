"""`/dli`: the path that scripts of the classic course use for the workspace.

Inside the nodes' own mount namespaces it is always there and private to the cluster. This link is
for the rest of the machine: notebooks, terminals, and jobs in loopback mode. It is there while the
lab is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from labcore.atomic import put_link

DLI = Path("/dli")


def link_dli(home: Path, link: Path = DLI) -> str | None:
    """Make the link. None: it leads to the workspace; else one line that says why not."""
    if link.is_symlink():
        target = Path(os.readlink(link))
        if target == home:
            return None
        if not _dangles(link):
            return f"{link} leads to {target}, not to this workspace, and is left alone"
    elif link.exists():
        if link.resolve() == home.resolve():
            return None
        return f"{link} is a folder of somebody else's and is left alone"
    try:
        put_link(link, home)
    except OSError as error:
        return (f"{link} cannot be made ({error.strerror}); as an administrator: "
                f"ln -sfn {home} {link}")
    return None


def _dangles(link: Path) -> bool:
    try:
        link.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # it leads where we may not look
        return False
    return False


def unlink_dli(home: Path, link: Path = DLI) -> None:
    """Take the link away again, if it is this workspace's."""
    with contextlib.suppress(OSError):
        if link.is_symlink() and os.readlink(link) == str(home):
            link.unlink()
