"""The servers: processes that have imported torch and the trainer, and fork.

python -m tests.labs.warm.server FOLDER [PID ...]

One process imports everything, and each node's server is a fork of it. So a cluster costs one
import, however many nodes it has, and another cluster's servers, which are forks, too, cost none.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, NoReturn

import ipykernel_launcher

from labcore.imports import imports_without_gc
from slurmbox import syscalls
from slurmbox.processes import kill_descendants
from tests.labs.warm.client import Fork, command
from warmranks import huge_pages, split

STANDARD = 3  # descriptors: input, output, and error


def main(folder: str, *nodes: str) -> NoReturn:
    """Serve this machine, and each node in a fork, until all are killed.

    Args:
        folder: receives the servers' sockets.
        *nodes: a process ID of each node, which tells where the node's namespaces are.
    """
    with imports_without_gc():
        import matplotlib.figure  # noqa: F401  draws the timelines of a job
        import torch._dynamo  # torch's optimizers do
        import torch.distributed.run
        import torch.fx.experimental.symbolic_shapes
        import torch.utils.tensorboard  # noqa: F401

        import layout_estimator.planner  # noqa: F401
        import minimegatron.training  # noqa: F401
    huge_pages.collapse()  # every rank of every job is two forks
    serve_nodes(folder, nodes)
    import_for_notebooks(folder)
    serve(folder)


def serve_nodes(folder: str, nodes: Sequence[str]) -> None:
    """Fork a server for each node."""
    for node in nodes:
        if os.fork() == 0:
            serve_node(folder, node)


def more_nodes(folder: str, modules: str, *nodes: str) -> NoReturn:
    """Fork a server for each node, until this fork is killed.

    Args:
        folder: receives the servers' sockets.
        modules: what the servers import, too; separated by spaces.
        *nodes: as for `main`.
    """
    with imports_without_gc():
        for module in modules.split():
            importlib.import_module(module)
    serve_nodes(folder, nodes)
    while True:
        signal.pause()


def serve_node(folder: str, node: str) -> NoReturn:
    """Serve from within the namespaces of a node's process; a failure ends all servers."""
    kinds = [*(["user"] if os.getuid() else []), "mnt", "uts", "net", "pid"]
    try:
        for descriptor in [os.open(f"/proc/{node}/ns/{kind}", os.O_RDONLY) for kind in kinds]:
            syscalls.setns(descriptor)
            os.close(descriptor)
        if os.fork() == 0:  # only children are in the PID namespace that was entered
            serve(folder)
        os.wait()
    except BaseException:
        traceback.print_exc()
        os.kill(os.getppid(), signal.SIGTERM)
    os._exit(1)


def import_for_notebooks(folder: str) -> None:
    """Import what every lab's kernel imports, and have its estimates start warm, too."""
    with imports_without_gc():
        import ipykernel.debugger
        import ipykernel.kernelapp  # noqa: F401
        import matplotlib

        matplotlib.rcParams["backend"] = "module://matplotlib_inline.backend_inline"  # a kernel's
        import matplotlib.pyplot
        import pexpect  # noqa: F401  of a cell's shell commands

        import slurmbox.control  # noqa: F401
        from labkit.check import measure
        from virtualgpu.launch import ranks

        ranks.warm()  # for cells that run virtual GPUs
    cold = measure.program
    measure.program = lambda words: [*command(folder), "python", *cold(words)[1:]]


def serve(folder: str) -> NoReturn:
    """Fork for every connection, until this process is killed."""
    path = Path(folder, socket.gethostname())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    os.rename(f"{path}.new", path)  # whoever finds the socket is served
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            try:
                supervise(connection, folder)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        connection.close()


def supervise(connection: socket.socket, folder: str) -> None:
    """Start the requested program; end it when its client is gone, and tell its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    request, descriptors = receive(connection)
    pid = os.fork()
    if pid == 0:
        connection.close()
        os.setsid()
        become(request, descriptors, folder)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(pid.to_bytes(8, "big", signed=True))
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([connection, ended], [], [])
        if ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            kill_descendants(os.getpid())
            connection.sendall(code.to_bytes(8, "big", signed=True))
            return
        try:
            numbers = connection.recv(64)
        except ConnectionResetError:  # the client was killed before it read the process's number
            numbers = b""
        if not numbers:
            kill_descendants(os.getpid())
            return
        for number in numbers:
            os.kill(pid, number)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the request of a client.Fork and its open files."""
    data, descriptors, _, _ = socket.recv_fds(connection, 8, STANDARD)
    length = int.from_bytes(data, "big")
    return json.loads(connection.recv(length, socket.MSG_WAITALL)), descriptors


def become(request: dict[str, Any], descriptors: list[int], folder: str) -> None:
    """Be the requested program until its end."""
    import torch

    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(STANDARD, 4096)
    os.environ.clear()
    os.environ.update(request["env"])
    publish(request["env"])
    os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["cpus"])
    threads = request["env"].get("OMP_NUM_THREADS")
    torch.set_num_threads(int(threads) if threads else len(os.sched_getaffinity(0)))
    kind, *words = request["words"]
    if ipykernel_launcher.__file__ in words:
        split()  # checks start ranks; a kernel has threads later
    try:
        if kind == "nodes":
            more_nodes(*words)
        code = script(words) if kind == "python" else torchrun(words, folder, kind)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # torch.distributed's names the rank in every line
        code = 1
    threading._shutdown()  # wait for its threads, as the interpreter does
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        # An interpreter with torch takes as long to end. When a task fails, srun ends the job step,
        # and drops the output that it has not read yet.
        time.sleep(float(request["env"].get("SECONDS_TO_FAIL", 0.5)))
    os._exit(code or 0)


def publish(env: dict[str, str]) -> None:
    """Have /proc/PID/environ show these variables, which tell `lab top` whose process this is.

    The kernel shows the memory where the server's own environment was when it started. Nothing
    points there any more, and `launch.ROOM` made it large enough.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    block = b"".join(os.fsencode(f"{name}={value}\0") for name, value in env.items())
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, block, min(len(block), end - start))


def script(words: list[str]) -> None:
    """Run a program's file as `python` does."""
    if words[0] == "-u":
        words = words[1:]
        sys.stdout.reconfigure(write_through=True)
    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


def torchrun(words: list[str], folder: str, kind: str) -> None:
    """Run torchrun's own program, with warm ranks.

    Args:
        words: its arguments.
        folder: holds the servers' sockets.
        kind: "torchrun", or "launch" for its predecessor, torch.distributed.launch.
    """
    from torch.distributed import launch, run
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    def start(handler: Any, words: tuple[str, ...], env: dict[str, str]) -> Rank:
        return Rank(folder, ("python", *words[1:]), env, (
            0, *(number if file is None else file.fileno()
                 for number, file in ((1, handler._stdout), (2, handler._stderr)))))

    closing = subprocess_handler.SubprocessHandler.close

    def close(handler: Any, death_sig: signal.Signals | None = None) -> None:
        # A child that has ended keeps its ID until torchrun asks for its code; a fork does not.
        with contextlib.suppress(ProcessLookupError):
            closing(handler, death_sig)

    subprocess_handler.SubprocessHandler._popen = start
    subprocess_handler.SubprocessHandler.close = close
    # Its own reads the source of every frame, to log a name: 0.4 s of CPU time per job.
    dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
    sys.argv = [kind, *words]
    (launch if kind == "launch" else run).main()


class Rank(Fork):
    """A rank, with the methods of subprocess.Popen that torchrun calls."""

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self.connection], [], [], 0)[0]:
            super().wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self.connection], [], [], timeout)[0]:
            raise TimeoutExpired("a warm rank", timeout)
        return super().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
