"""Run TensorBoard in the foreground, with the profiler's tab that works without internet."""

from __future__ import annotations

import contextlib
import io
import signal
import threading
import zipfile
from pathlib import Path

from tensorboard import assets, default, program
from tensorboard.program import TensorBoardPortInUseError, TensorBoardServerException
from torch_tb_profiler.plugin import TorchProfilerPlugin

from lab.tensorboard import plugin
from labcore.errors import LabError


def assets_behind_a_prefix() -> io.BytesIO:
    """Return TensorBoard's own files, with relative URLs of fonts, which work behind a proxy."""
    changed = io.BytesIO()
    with (assets.get_default_assets_zip_provider()() as file, zipfile.ZipFile(file) as before,
          zipfile.ZipFile(changed, "w") as after):
        for name in before.namelist():
            content = before.read(name)
            if name == "index.html":
                content = content.replace(b"url(/font-roboto/", b"url(font-roboto/")
            after.writestr(name, content)
    changed.seek(0)
    return changed


def start(logdir: Path, port: int | None, prefix: str) -> str:
    """Serve a folder from a thread of this process, and return the URL.

    Args:
        logdir: the folder.
        port: the port; None for the first free one.
        prefix: the start of its paths.

    Raises:
        LabError: the port is taken, or TensorBoard does not start.
    """
    plugin.OfflineProfiler.contents = plugin.pages()
    others = [one for one in default.get_plugins() if one is not TorchProfilerPlugin]
    tensorboard = program.TensorBoard(plugins=[*others, plugin.OfflineProfiler],
                                      assets_zip_provider=assets_behind_a_prefix)
    options = {"logdir": str(logdir), "path_prefix": prefix, "host": "127.0.0.1",
               "load_fast": "false"}  # avoids a second process and a notice; our logs are small
    if port is not None:
        options["port"] = port
    tensorboard.configure(**options)
    try:
        return tensorboard.launch()
    except TensorBoardPortInUseError as error:
        raise LabError(f"--port {port} is taken; leave --port out to use the first free one from "
                       "6006") from error
    except TensorBoardServerException as error:
        raise LabError(f"TensorBoard does not start on {logdir}: {error}") from error


def serve(logdir: Path, port: int | None, prefix: str) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises LabError."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    address = start(logdir, port, prefix)
    print(f"TensorBoard over {logdir}; Ctrl-C stops it.\n\n    {address}\n", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        stopped.wait()
