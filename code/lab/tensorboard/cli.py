"""Show the curves and profiles of the workspace's runs in TensorBoard: `lab tensorboard`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path

from labcore import workspace
from labcore.errors import LabError

FOLDER = "megatron/tensorboard"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    text = "show the curves and profiles of the workspace's runs in TensorBoard"
    parser = subparsers.add_parser("tensorboard", help=text, description=text)
    parser.add_argument("--logdir", type=Path, metavar="FOLDER",
                        help=f"the folder with the runs (default: $LAB_HOME/{FOLDER})")
    parser.add_argument("--port", type=server_port, metavar="PORT",
                        help="the port (default: the first free one from 6006)")
    parser.add_argument("--path-prefix", type=path_prefix, default="", metavar="/P",
                        help="the start of its paths, for a proxy that forwards /P/... to it")
    parser.set_defaults(run=run)


def server_port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else 0
    if not 1024 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 1024 to 65535; nearest: 6006")
    return port


def path_prefix(text: str) -> str:
    """Return the prefix in TensorBoard's form: a slash at its start, and none at its end."""
    if "//" in text or any(character in text for character in "?# "):
        raise argparse.ArgumentTypeError(f"{text!r} is not a path; nearest: /tensorboard")
    parts = text.strip("/")
    return f"/{parts}" if parts else ""


def run(arguments: argparse.Namespace) -> None:
    """Serve until Ctrl-C. Raises LabError if the folder does not exist or the port is taken."""
    if arguments.logdir is None:
        logdir = workspace.home() / FOLDER
        workspace.require_writable(logdir)
    else:
        logdir = arguments.logdir.absolute()
        if not logdir.is_dir():
            raise LabError(f"--logdir {arguments.logdir} is not a folder; nearest: "
                           f"{workspace.home() / FOLDER}, the default")
    read_traces_in_forks()
    from lab.tensorboard import server  # imported late, because it is slow

    server.serve(logdir, arguments.port, arguments.path_prefix)


def read_traces_in_forks() -> None:
    """Make the profiler's tab fork the processes that read the traces, one per trace.

    By default, each starts cold and imports pandas. Call this before importing torch_tb_profiler.
    """
    os.environ.setdefault("TORCH_PROFILER_START_METHOD", "forkserver")
    multiprocessing.set_forkserver_preload(["torch_tb_profiler.profiler.loader"])
