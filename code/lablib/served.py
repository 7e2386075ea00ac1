"""Link from notebooks to pages of the Jupyter server that started this kernel.

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


class ServerLink:
    """A link that opens in a new tab; a terminal shows its URL."""

    def __init__(self, text: str, target: str, server: dict | None, fallback: str) -> None:
        """Args:
            text: the text of the link.
            target: the path below the server's base path.
            server: the Jupyter server, as from find_server().
            fallback: the text if no server started the kernel.
        """
        self.text, self.target, self.server, self.fallback = text, target, server, fallback

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
            return self.fallback
        root = self.server["url"].removesuffix(self.server["base_url"])
        return f"{self.text}: {root}{self.path}"


def file_link(path: Path, text: str) -> ServerLink | None:
    """Return a link to a file, or None if no server serves its folder.

    Args:
        text: the text of the link.
    """
    server = find_server()
    if server is None:
        return None
    root, file = (os.path.realpath(one) for one in (server["root_dir"], path))
    if not Path(file).is_relative_to(root):
        return None
    return ServerLink(text, f"files/{quote(os.path.relpath(file, root))}", server, str(path))


def find_server() -> dict | None:
    """Return the description of the Jupyter server that started this kernel, or None without one.

    Jupyter gives the kernel the process ID of its server. Each server writes its base path to a
    file in the runtime folder that is named after its process ID.
    """
    for pid in (os.environ.get("JPY_PARENT_PID"), os.getppid()):
        file = Path(jupyter_runtime_dir()) / f"jpserver-{pid}.json"
        try:
            return json.loads(file.read_text())
        except FileNotFoundError:
            continue
    return None
