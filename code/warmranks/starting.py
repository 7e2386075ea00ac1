"""Start a fork server's process in one of two ways: as a program, or as a fork of its caller."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from warmranks import forking
from warmranks.processes import threads

START = ("import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
         "from warmranks.forking import main; main()")
# A library that starts threads when it is imported would make every fork unsafe.
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                                     "NUMEXPR_NUM_THREADS")}


class ServerProcess(Protocol):
    """The part of `subprocess.Popen` that a server's caller uses."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


def spawn_server(control: socket.socket, preload: Sequence[str]) -> ServerProcess:
    """Start a server as a new program.

    Args:
        control: the server's end of a socket pair.
        preload: modules that the server imports.
    """
    control.set_inheritable(True)
    return subprocess.Popen(
        [sys.executable, "-c", START, str(control.fileno()), json.dumps(sys.path),
         json.dumps(preload)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[control.fileno()],
        env=os.environ | ONE_THREAD, start_new_session=True)  # Ctrl-C must reach the caller only


def fork_server(control: socket.socket, preload: Sequence[str]) -> ServerProcess:
    """Import the modules in this process, and start a server as a fork of it.

    Args:
        control: the server's end of a socket pair.
        preload: the modules.

    Raises:
        RuntimeError: this process has several threads, or a module starts one.
    """
    if threads() > 1:
        raise RuntimeError("a process with several threads cannot fork a server safely")
    gc_enabled = gc.isenabled()
    try:
        forking.preload(preload)
    finally:
        if gc_enabled:
            gc.enable()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _serve(control.detach(), parent)
    return ForkedServer(pid)


class ForkedServer:
    """A server that was forked, with the methods of ServerProcess."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        return self._wait(0) or 0

    def _wait(self, flags: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:  # other code in this process already waited for it
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _serve(control: int, parent: int) -> NoReturn:
    """Run the server in a fork that keeps only the parent's memory.

    Args:
        control: the descriptor of the server's end.
        parent: the parent's process ID.
    """
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.closerange(3, control)
        os.closerange(control + 1, os.sysconf("SC_OPEN_MAX"))
        gc.disable()  # a collection could close descriptors of the parent's objects
        gc.freeze()
        forking.serve(socket.socket(fileno=control), parent)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(code)
