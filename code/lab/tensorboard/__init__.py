"""TensorBoard in the notebooks: `link()` shows where it is, whatever base path is in front."""

from __future__ import annotations

import html
import json
import os
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

from lab.errors import LabError
from lab.tensorboard.proxy import NAME

TABS = {None: "", "scalars": "#timeseries", "profiler": "#pytorch_profiler"}


class Link:
    """A link that opens TensorBoard in a new tab; in a terminal it is its address."""

    def __init__(self, tab: str | None, server: dict | None) -> None:
        self.tab, self.server = tab, server

    @property
    def path(self) -> str:
        """With the server's base path, without host: the browser knows under which it came."""
        return f"{self.server['base_url'].rstrip('/')}/{NAME}/{TABS[self.tab]}"

    @property
    def text(self) -> str:
        return "Open the profiler in TensorBoard" if self.tab == "profiler" else "Open TensorBoard"

    def _repr_html_(self) -> str | None:
        if self.server is None:
            return None
        return (f'<a href="{html.escape(self.path)}" target="_blank" rel="noopener" '
                f'style="font-weight:bold">{self.text}</a>')

    def __repr__(self) -> str:
        if self.server is None:
            return ("TensorBoard: type  lab tensorboard  in a terminal and open the address that "
                    "it prints" + (", tab PYTORCH_PROFILER" if self.tab == "profiler" else ""))
        root = self.server["url"].removesuffix(self.server["base_url"])
        return f"{self.text}: {root}{self.path}"


def link(tab: str | None = None) -> Link:
    """A link to TensorBoard over the workspace's runs; as the last line of a cell it is shown.

    `tab`: None, "scalars" or "profiler". Raises LabError for another one.
    """
    if tab not in TABS:
        raise LabError(f"tensorboard.link({tab!r}): there is no such tab; "
                       f"nearest: {', '.join(repr(name) for name in TABS if name)}, or nothing")
    return Link(tab, our_server())


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
