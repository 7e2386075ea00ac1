"""`lab tensorboard`: the curves and profiles of the workspace's runs."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path

from labcore import workspace
from labcore.errors import LabError

FOLDER = "megatron/tensorboard"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("tensorboard", help="TensorBoard over the workspace's runs")
    parser.add_argument("--logdir", type=Path, help=f"another folder than $LAB_HOME/{FOLDER}")
    parser.add_argument("--port", type=server_port, help="the first free from 6006 if not given")
    parser.add_argument("--path-prefix", type=path_prefix, default="",
                        help="first part of its paths, for a proxy that forwards /P/... to it")
    parser.set_defaults(run=run)


def server_port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else 0
    if not 1024 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 1024 to 65535; nearest: 6006")
    return port


def path_prefix(text: str) -> str:
    """The prefix as TensorBoard wants it: with a slash in front, with none at the end."""
    if "//" in text or any(character in text for character in "?# "):
        raise argparse.ArgumentTypeError(f"{text!r} is not a path; for example: /tensorboard")
    parts = text.strip("/")
    return f"/{parts}" if parts else ""


def run(arguments: argparse.Namespace) -> None:
    """Serve until Ctrl-C. Raises LabError for a folder that is not there or a port in use."""
    if arguments.logdir is None:
        logdir = workspace.home() / FOLDER
        workspace.require_writable(logdir)
    else:
        logdir = arguments.logdir.absolute()
        if not logdir.is_dir():
            raise LabError(f"--logdir {arguments.logdir} is not a folder; without it: "
                           f"{workspace.home() / FOLDER}")
    read_traces_in_forks()
    from lab.tensorboard import server  # slow to import: only where needed

    server.serve(logdir, arguments.port, arguments.path_prefix)


def read_traces_in_forks() -> None:
    """Have the profiler's tab fork the processes that read the traces, one for each trace.

    By default each starts cold and imports pandas. Call this before torch_tb_profiler is imported.
    """
    os.environ.setdefault("TORCH_PROFILER_START_METHOD", "forkserver")
    multiprocessing.set_forkserver_preload(["torch_tb_profiler.profiler.loader"])
