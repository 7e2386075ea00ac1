"""Run the fork server: one thread, with torch imported, that forks a manager per run.

Python's own multiprocessing.forkserver has one instance per process, whose first user fixes the
preloaded modules. It forks processes one at a time, with the server's environment and working
directory, it kills none of them if the caller is killed, and it cannot report where a process
hangs. Here, a run is one request: its manager imports the function, forks all ranks, and kills
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
from warmranks.manager import serve_run
from warmranks.processes import children, reap, signal_all, threads
from warmranks.requests import MAX_PACKET, READY

FILES = 3  # standard input, output, and error
CHECK_INTERVAL = 1.0  # seconds between two checks of the parent and of ended managers
EXIT_TIMEOUT = 10.0  # seconds for managers to kill their ranks
RUNS_BEFORE_COLLAPSE = 10  # huge pages cost 0.4 s of CPU time, which later forks save again


def main() -> None:
    """Import the modules, report that on the control socket, and serve until the socket is closed.

    The arguments are the socket's descriptor, `sys.path`, and the modules, as JSON lists.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    parent = os.getppid()
    control.set_inheritable(False)
    modules = json.loads(sys.argv[3])
    try:
        preload(modules)
    except BaseException:
        control.send(traceback.format_exc().encode()[-MAX_PACKET:])
        sys.exit(1)
    serve(control, parent)


def preload(modules: Sequence[str]) -> None:
    """Import modules for all forks. Raises RuntimeError if one of them starts a thread."""
    gc.disable()  # a collection would touch all imported objects, and a fork would then copy them
    for module in modules:
        importlib.import_module(module)
        if threads() > 1:
            raise RuntimeError(f"importing {module} started a thread: it cannot be preloaded")
    gc.freeze()


def serve(control: socket.socket, parent: int) -> None:
    """Report that the modules are imported, and fork a manager per request until the caller ends.

    Args:
        control: the socket to the caller.
        parent: the caller's process ID.
    """
    control.send(READY)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    runs, is_compact = 0, False
    try:
        while os.getppid() == parent:
            ready, _, _ = select.select([control], [], [], CHECK_INTERVAL)
            reap()
            if not ready:
                continue
            packet, files, _, _ = socket.recv_fds(control, MAX_PACKET, FILES + 1)
            if not packet:
                return
            if files:
                runs += 1
                if runs >= RUNS_BEFORE_COLLAPSE and not is_compact and not children():
                    collapse()
                    is_compact = True
                _fork_manager(control, files)
            else:
                for module in json.loads(packet):
                    with contextlib.suppress(ImportError):  # a run that needs the module reports it
                        preload([module])
    except ConnectionResetError:
        return
    finally:
        _end_managers()


def _fork_manager(control: socket.socket, files: list[int]) -> None:
    server = os.getpid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        control.close()
        serve_run(socket.socket(fileno=files[0]), files[1:], server)
    for descriptor in files:
        os.close(descriptor)


def _end_managers() -> None:
    """Have the managers kill their ranks, then kill the managers."""
    deadline = time.monotonic() + EXIT_TIMEOUT
    signal_all(children(), signal.SIGTERM)
    while children() and time.monotonic() < deadline:
        reap()
        time.sleep(0.01)
    signal_all(children(), signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        reap()
