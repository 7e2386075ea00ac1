"""Link to TensorBoard from notebooks, behind any base path: `tensorboard.link()`."""

from __future__ import annotations

from lab.tensorboard.proxy import NAME
from labcore.errors import LabError
from lablib.served import ServerLink, find_server

TABS = {None: "", "scalars": "#timeseries", "profiler": "#pytorch_profiler"}


def link(tab: str | None = None) -> ServerLink:
    """Return a link to TensorBoard, which a notebook shows if it is the last line of a cell.

    Args:
        tab: the tab to open: "scalars", "profiler", or None for the first one.

    Raises:
        LabError: there is no such tab.
    """
    if tab not in TABS:
        raise LabError(f"tensorboard.link({tab!r}): no such tab; "
                       f"nearest: {', '.join(repr(name) for name in TABS if name)}, or nothing")
    profiler = tab == "profiler"
    return ServerLink(
        "Open the profiler in TensorBoard" if profiler else "Open TensorBoard",
        f"{NAME}/{TABS[tab]}", find_server(),
        "TensorBoard: run `lab tensorboard` in a terminal, and open the URL that it prints"
        + (", tab PYTORCH_PROFILER" if profiler else ""))
