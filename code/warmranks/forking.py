"""The fork server: a process with torch imported and one thread, which forks a manager per run.

Python's own multiprocessing.forkserver has one instance per process, whose preloaded modules are
fixed by whoever used it first. It forks processes one at a time, each with the server's environment
and working directory, kills none of them when the caller is killed, and cannot say where a hanging
one waits. A run here is one message: its manager imports the function, forks all ranks, and ends
them with their descendants.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence

from warmranks.huge_pages import collapse
from warmranks.manager import conduct
from warmranks.processes import children, reap, signal_all, threads
from warmranks.requests import LARGEST_PACKET, READY

FILES = 3  # standard input, output, and error
LOOK = 1.0  # seconds between two looks at the parent and at ended managers
LAST_SECONDS = 10.0  # for managers to end their ranks
MANY = 10  # runs, after which huge pages are worth what they cost: 0.4 s of CPU time


def main() -> None:
    """Import the modules, report that on the control socket, and serve until it is closed.

    The arguments are the socket's descriptor, `sys.path`, and the modules, as JSON lists.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    parent = os.getppid()
    control.set_inheritable(False)
    modules = json.loads(sys.argv[3])
    try:
        preload(modules)
    except BaseException:
        control.send(traceback.format_exc().encode()[-LARGEST_PACKET:])
        sys.exit(1)
    serve(control, parent)


def preload(modules: Sequence[str]) -> None:
    """Import modules for all forks. Raises RuntimeError if one of them starts a thread."""
    gc.disable()  # a collection would walk, and a fork then copy, all that was imported
    for module in modules:
        importlib.import_module(module)
        if threads() > 1:
            raise RuntimeError(f"importing {module} started a thread: it cannot be preloaded")
    gc.freeze()


def serve(control: socket.socket, parent: int) -> None:
    """Report that the modules are imported, and fork for each request until the caller ends.

    Args:
        control: the socket to the caller.
        parent: the caller's process ID.
    """
    control.send(READY)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    runs, is_compact = 0, False
    try:
        while os.getppid() == parent:
            ready, _, _ = select.select([control], [], [], LOOK)
            reap()
            if not ready:
                continue
            packet, files, _, _ = socket.recv_fds(control, LARGEST_PACKET, FILES + 1)
            if not packet:
                return
            if files:
                runs += 1
                if runs >= MANY and not is_compact and not children():  # nobody shares its pages
                    collapse()
                    is_compact = True
                _manage(control, files)
            else:
                for module in json.loads(packet):
                    with contextlib.suppress(ImportError):  # a run that needs it reports it
                        preload([module])
    except ConnectionResetError:
        return
    finally:
        _end()


def _manage(control: socket.socket, files: list[int]) -> None:
    server = os.getpid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        control.close()
        conduct(socket.socket(fileno=files[0]), files[1:], server)
    for descriptor in files:
        os.close(descriptor)


def _end() -> None:
    """Have the managers end what they run."""
    deadline = time.monotonic() + LAST_SECONDS
    signal_all(children(), signal.SIGTERM)
    while children() and time.monotonic() < deadline:
        reap()
        time.sleep(0.01)
    signal_all(children(), signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        reap()
