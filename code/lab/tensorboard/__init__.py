"""TensorBoard in the notebooks: `link()` shows where it is, whatever base path is in front."""

from __future__ import annotations

from lab.notebook.served import Link, our_server
from lab.tensorboard.proxy import NAME
from labcore.errors import LabError

TABS = {None: "", "scalars": "#timeseries", "profiler": "#pytorch_profiler"}


def link(tab: str | None = None) -> Link:
    """A link to TensorBoard over the workspace's runs; as the last line of a cell it is shown.

    `tab`: None, "scalars" or "profiler". Raises LabError for another one.
    """
    if tab not in TABS:
        raise LabError(f"tensorboard.link({tab!r}): there is no such tab; "
                       f"nearest: {', '.join(repr(name) for name in TABS if name)}, or nothing")
    profiler = tab == "profiler"
    return Link("Open the profiler in TensorBoard" if profiler else "Open TensorBoard",
                f"{NAME}/{TABS[tab]}", our_server(),
                "TensorBoard: run `lab tensorboard` in a terminal, and open the URL that it prints"
                + (", tab PYTORCH_PROFILER" if profiler else ""))
