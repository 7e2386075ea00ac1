"""Links in notebooks to what the Jupyter server that started this kernel serves.

A link has the server's base path and no host: the browser knows under which host it came, be that a
tunnel, a proxy or a hub.
"""

from __future__ import annotations

import html
import json
import os
from pathlib import Path
from urllib.parse import quote

from jupyter_core.paths import jupyter_runtime_dir


class Link:
    """Opens in a new tab; in a terminal it is its address.

    target: below the server's base path. instead: what to say where no server started the kernel.
    """

    def __init__(self, text: str, target: str, server: dict | None, instead: str) -> None:
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
    """To a file as it is now; None where no server shows its folder."""
    server = our_server()
    if server is None:
        return None
    root, place = (os.path.realpath(one) for one in (server["root_dir"], path))
    if not Path(place).is_relative_to(root):
        return None
    return Link(text, f"files/{quote(os.path.relpath(place, root))}", server, str(path))


def our_server() -> dict | None:
    """The Jupyter server that started this kernel, as it describes itself; None without one.

    The kernel learns its server's process id from Jupyter. Each server writes its base path into
    a file of the runtime folder that is named after its process id.
    """
    for pid in (os.environ.get("JPY_PARENT_PID"), os.getppid()):
        file = Path(jupyter_runtime_dir()) / f"jpserver-{pid}.json"
        try:
            return json.loads(file.read_text())
        except FileNotFoundError:
            continue
    return None
