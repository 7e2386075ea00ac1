"""Links in notebooks to pages of the Jupyter server that started this kernel.

A link has the server's base path but no host, because only the browser knows the host: there may be
a tunnel, a proxy, or a hub in between.
"""

from __future__ import annotations

import html
import json
import os
from pathlib import Path
from urllib.parse import quote

from jupyter_core.paths import jupyter_runtime_dir


class Link:
    """A link that opens in a new tab; a terminal shows its URL."""

    def __init__(self, text: str, target: str, server: dict | None, instead: str) -> None:
        """Args:
            text: of the link.
            target: the path below the server's base path.
            server: the Jupyter server, as our_server() returns it.
            instead: the text if no server started the kernel.
        """
        self.text, self.target, self.server, self.instead = text, target, server, instead

    @property
    def path(self) -> str:
        return f"{self.server['base_url'].rstrip('/')}/{self.target}"

    def _repr_html_(self) -> str | None:
        if self.server is None:
            return None
        return (f'<a href="{html.escape(self.path)}" target="_blank" rel="noopener" '
                f'style="font-weight:bold">{html.escape(self.text)}</a>')

    def __repr__(self) -> str:
        if self.server is None:
            return self.instead
        root = self.server["url"].removesuffix(self.server["base_url"])
        return f"{self.text}: {root}{self.path}"


def file_link(path: Path, text: str) -> Link | None:
    """Return a link to a file, or None if no server serves its folder.

    Args:
        path: the file.
        text: of the link.
    """
    server = our_server()
    if server is None:
        return None
    root, place = (os.path.realpath(one) for one in (server["root_dir"], path))
    if not Path(place).is_relative_to(root):
        return None
    return Link(text, f"files/{quote(os.path.relpath(place, root))}", server, str(path))


def our_server() -> dict | None:
    """Return the description of the Jupyter server that started this kernel, or None without one.

    Jupyter gives the kernel the process ID of its server. Each server writes its base path into a
    file of the runtime folder that is named after its process ID.
    """
    for pid in (os.environ.get("JPY_PARENT_PID"), os.getppid()):
        file = Path(jupyter_runtime_dir()) / f"jpserver-{pid}.json"
        try:
            return json.loads(file.read_text())
        except FileNotFoundError:
            continue
    return None
