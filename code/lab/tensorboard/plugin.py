"""Make the profiler's tab work without internet, by patching torch_tb_profiler's pages in memory.

Two of its pages load scripts from the internet. They get ours instead: a replacement for Google
Charts that draws with Plotly, and the part of Web Components version 0 that the trace viewer needs.

A trace may come from somebody else, and the tab pastes some of its texts into the page as HTML. So
they are escaped, and each page has a Content-Security-Policy that runs its own scripts only.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import html
import importlib.metadata
import os
import re
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

POLL_INTERVAL = 2  # seconds between two searches for traces
INDEX, TRACE, VIEWER = "index.html", "trace_embedding.html", "trace_viewer_full.html"
# The overview's boxes cut off what is too wide. So its Execution Summary gets a row of its own in a
# narrow window (Configuration has 2 of 12 columns, GPU Summary 3, Execution Summary 7), and long
# titles and values break.
STYLE = """<style>
@media (min-width: 600px) and (max-width: 1599px) {
  .MuiGrid-item.MuiGrid-grid-sm-2, .MuiGrid-item.MuiGrid-grid-sm-3 {
    flex-basis: 50%; max-width: 50%;
  }
  .MuiGrid-item.MuiGrid-grid-sm-7 { flex-basis: 100%; max-width: 100%; }
}
.MuiCard-root .MuiCardHeader-root,
.MuiCard-root .MuiGrid-grid-xs-4, .MuiCard-root .MuiGrid-grid-xs-8 { overflow-wrap: anywhere; }
</style>"""
# Texts in each page of the known version, and their replacements.
MARKERS = {
    INDEX: {'<script src="https://www.gstatic.com/charts/loader.js"></script>':
            '<script src="plotly.min.js"></script><script src="charts.js"></script>'
            '<script src="timeline.js"></script>' + STYLE},
    TRACE: {'<script src="https://cdnjs.cloudflare.com/ajax/libs/webcomponentsjs/0.7.24/'
            'webcomponents.min.js"></script>': '<script src="web_components.js"></script>',
            # Browsers have dropped HTML imports, too, so the viewer is embedded in the page.
            '<link rel="import" href="trace_viewer_full.html" '
            'onerror="onTraceViewerImportFail(event)">': "VIEWER"},
}
SCRIPTS = ("charts.js", "timeline.js", "web_components.js")
TYPES = {"html": "text/html", "js": "text/javascript"}
INLINE = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def patch(page: str, text: str, viewer: str) -> str:
    """Return a page's text with our scripts.

    Args:
        page: the page's file name.
        viewer: the text of the trace viewer, which is embedded.

    Raises:
        LabError: a text to replace does not occur exactly once.
    """
    for marker, ours in MARKERS[page].items():
        if text.count(marker) != 1:
            version = importlib.metadata.version("torch-tb-profiler")
            raise LabError(f"torch-tb-profiler {version}: its {page} does not contain {marker} "
                           "exactly once, so its tab cannot work without internet; nearest version "
                           "that works: pip install torch-tb-profiler==0.4.3")
        text = text.replace(marker, viewer if ours == "VIEWER" else ours)
    return text


def pages(static: Traversable | None = None) -> dict[str, bytes]:
    """Return every page and script of the tab by name. Raises LabError for an unknown version."""
    static = static or resources.files(torch_tb_profiler) / "static"
    texts = {name: (static / name).read_text("utf-8") for name in (INDEX, TRACE, VIEWER)}
    patched = {page: patch(page, texts[page], texts[VIEWER]) for page in (INDEX, TRACE)}
    own_files = resources.files("lab.tensorboard")
    patched |= {name: (own_files / name).read_text("utf-8") for name in SCRIPTS}
    charts = resources.files(plotly) / "package_data" / "plotly.min.js"
    return {name: text.encode() for name, text in patched.items()} | {
        "plotly.min.js": charts.read_bytes()}


@functools.cache
def policy(page: bytes) -> str:
    """Return the Content-Security-Policy of a page: only its own scripts run, and nothing is loaded
    from elsewhere."""
    digests = (hashlib.sha256(script.replace(b"\r\n", b"\n")).digest()
               for script in INLINE.findall(page))
    hashes = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests)
    return (f"default-src 'none'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
            "frame-src 'self'; base-uri 'none'; form-action 'none'")


class OfflineProfiler(TorchProfilerPlugin):
    """The profiler's tab with our pages, which also shows traces that appear or change later."""

    contents: ClassVar[dict[str, bytes]] = {}  # set before TensorBoard creates the plugin
    _unsettled = True

    def get_plugin_apps(self):
        apps = super().get_plugin_apps()
        return apps | {f"/{name}": self.page_route for name in self.contents}

    @wrappers.Request.application
    def page_route(self, request: werkzeug.Request) -> werkzeug.Response:
        name = request.path.rpartition("/")[2]
        kind = f"{TYPES[name.rpartition('.')[2]]}; charset=utf-8"
        headers = [*self.headers]
        if name in MARKERS:
            headers.append(("Content-Security-Policy", policy(self.contents[name])))
        return werkzeug.Response(self.contents[name], content_type=kind, headers=headers)

    @staticmethod
    def respond_as_json(obj, compress=False):
        """Answer a request. The tab pastes a GPU's name into the page as HTML."""
        if isinstance(obj, dict) and (summary := obj.get("gpu_metrics")):
            data = [{**one, "value": html.escape(str(one["value"]))} for one in summary["data"]]
            obj = {**obj, "gpu_metrics": {**summary, "data": data}}
        return TorchProfilerPlugin.respond_as_json(obj, compress)

    @property
    def is_loading(self) -> bool:
        """True while a run is still being written, too, so that the tab asks again."""
        return self._unsettled or super().is_loading

    def _traces(self) -> dict[str, frozenset]:
        """Return the (name, size) of each folder's traces; ranks write theirs one after another."""
        traces: dict[str, set] = {}
        for root, _, files in os.walk(self.logdir, followlinks=True):
            for name in filter(utils.is_chrome_trace_file, files):
                size = os.path.getsize(os.path.join(root, name))
                traces.setdefault(root, set()).add((name, size))
        return {root: frozenset(names) for root, names in traces.items()}

    def _monitor_runs(self) -> None:
        """Load a folder once it no longer changes, reload it after a change, and drop removed ones.

        This replaces a method of the base class, which runs in a thread.
        """
        loaded: dict[str, frozenset] = {}
        before: dict[str, frozenset] = {}
        while True:
            with contextlib.suppress(OSError):  # a trace may be removed during the search
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
            time.sleep(POLL_INTERVAL)

    def _start_loading(self, root: str) -> None:
        thread = threading.Thread(target=self._load_run, args=(root,), daemon=True)
        with self._load_lock:  # _load_run removes itself from the list
            self._load_threads.append(thread)
        thread.start()
