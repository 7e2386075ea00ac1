"""The profiler's tab without internet: torch_tb_profiler's pages, patched in memory.

Two of its pages load scripts from elsewhere. They get ours instead: a stand-in for Google Charts
that draws with Plotly, and the part of Web Components version 0 that the trace viewer needs.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import threading
import time
from importlib import resources
from importlib.resources.abc import Traversable
from typing import ClassVar

import plotly
import torch_tb_profiler
import werkzeug
from torch_tb_profiler import utils
from torch_tb_profiler.plugin import TorchProfilerPlugin
from werkzeug import wrappers

from labcore.errors import LabError

SECONDS_BETWEEN_LOOKS = 2
INDEX, TRACE, VIEWER = "index.html", "trace_embedding.html", "trace_viewer_full.html"
# What each page holds in the version that we know, and what takes its place.
MARKERS = {
    INDEX: {'<script src="https://www.gstatic.com/charts/loader.js"></script>':
            '<script src="plotly.min.js"></script><script src="charts.js"></script>'
            '<script src="timeline.js"></script>'},
    TRACE: {'<script src="https://cdnjs.cloudflare.com/ajax/libs/webcomponentsjs/0.7.24/'
            'webcomponents.min.js"></script>': '<script src="web_components.js"></script>',
            # Browsers have dropped HTML imports too: the viewer comes in the page itself.
            '<link rel="import" href="trace_viewer_full.html" '
            'onerror="onTraceViewerImportFail(event)">': "VIEWER"},
}
SCRIPTS = ("charts.js", "timeline.js", "web_components.js")
TYPES = {"html": "text/html", "js": "text/javascript"}


def patched(page: str, text: str, viewer: str) -> str:
    """`text` of the page with our scripts. Raises LabError where a marker is not in it once."""
    for marker, ours in MARKERS[page].items():
        if text.count(marker) != 1:
            version = importlib.metadata.version("torch-tb-profiler")
            raise LabError(f"torch-tb-profiler {version}: its {page} does not hold {marker} once, "
                           "so its tab cannot be made to work without internet; nearest version "
                           "that it works with: pip install torch-tb-profiler==0.4.3")
        text = text.replace(marker, viewer if ours == "VIEWER" else ours)
    return text


def pages(static: Traversable | None = None) -> dict[str, bytes]:
    """Every page and script of the tab by name. Raises LabError for an unknown version."""
    static = static or resources.files(torch_tb_profiler) / "static"
    texts = {name: (static / name).read_text("utf-8") for name in (INDEX, TRACE, VIEWER)}
    found = {page: patched(page, texts[page], texts[VIEWER]) for page in (INDEX, TRACE)}
    ours = resources.files("lab.tensorboard")
    found |= {name: (ours / name).read_text("utf-8") for name in SCRIPTS}
    charts = resources.files(plotly) / "package_data" / "plotly.min.js"
    return {name: text.encode() for name, text in found.items()} | {
        "plotly.min.js": charts.read_bytes()}


class OfflineProfiler(TorchProfilerPlugin):
    """The profiler's tab with our pages, which also sees traces that come late or again."""

    contents: ClassVar[dict[str, bytes]] = {}  # set before TensorBoard makes the plugin
    _unsettled = True

    def get_plugin_apps(self):
        apps = super().get_plugin_apps()
        return apps | {f"/{name}": self.page_route for name in self.contents}

    @wrappers.Request.application
    def page_route(self, request: werkzeug.Request) -> werkzeug.Response:
        name = request.path.rpartition("/")[2]
        kind = f"{TYPES[name.rpartition('.')[2]]}; charset=utf-8"
        return werkzeug.Response(self.contents[name], content_type=kind, headers=self.headers)

    @property
    def is_loading(self) -> bool:
        """Also while a run is still being written: the tab then asks again by itself."""
        return self._unsettled or super().is_loading

    def _traces(self) -> dict[str, frozenset]:
        """Each folder with traces, and what is in it: a run's ranks write one after another."""
        found: dict[str, set] = {}
        for root, _, files in os.walk(self.logdir, followlinks=True):
            for name in filter(utils.is_chrome_trace_file, files):
                size = os.path.getsize(os.path.join(root, name))
                found.setdefault(root, set()).add((name, size))
        return {root: frozenset(names) for root, names in found.items()}

    def _monitor_runs(self) -> None:
        """Load a folder once it is at rest, again when it has changed, and forget it when gone."""
        loaded: dict[str, frozenset] = {}
        before: dict[str, frozenset] = {}
        while True:
            with contextlib.suppress(OSError):  # a trace that went away while we looked
                now = self._traces()
                for root in loaded.keys() - now.keys():
                    del loaded[root]
                    with self._runs_lock:
                        self._runs.pop(self._get_run_name(root), None)
                changed = [root for root, traces in now.items() if traces != loaded.get(root)]
                for root in changed:
                    if now[root] == before.get(root):
                        loaded[root] = now[root]
                        self._start_loading(root)
                self._unsettled = any(now[root] != loaded.get(root) for root in changed)
                before = now
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _start_loading(self, root: str) -> None:
        thread = threading.Thread(target=self._load_run, args=(root,), daemon=True)
        with self._load_lock:  # _load_run takes itself off the list
            self._load_threads.append(thread)
        thread.start()
