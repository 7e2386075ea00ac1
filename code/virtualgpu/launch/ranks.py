"""One process per rank, forked once torch is imported, and none of them left behind."""

from __future__ import annotations

import ctypes
import os
import pickle
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch.distributed as dist

from virtualgpu.launch import failures
from virtualgpu.launch.cluster import Cluster
from virtualgpu.launch.process import become, execute
from virtualgpu.launch.result import Rank
from virtualgpu.launch.settings import Settings
from virtualgpu.pytorch import private_names

PR_SET_PDEATHSIG = 1
LAST_WORDS = 5.0  # seconds of real time for the other ranks to notice that one has failed


@dataclass
class Child:
    """A forked rank, and the pipe that its result comes through."""

    rank: int
    pid: int
    pipe: int
    data: bytes = b""


def run_ranks(cluster: Cluster, settings: Settings, program: Callable[[], object],
              present: Sequence[int] | None = None) -> list[Rank]:
    """Run a program on every rank, or on those that are present.

    Args:
        cluster: all GPUs.
        settings: of the user.
        program: what every rank runs.
        present: the ranks that are processes; None: all.

    Returns the results of those ranks, in order. When one fails, the others are stopped.
    """
    everyone = list(range(cluster.world)) if present is None else list(present)
    warm()
    listener = socket.create_server(("127.0.0.1", 0), backlog=max(128, len(everyone)))
    port = listener.getsockname()[1]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    children: list[Child] = []
    try:
        for rank in everyone:
            children.append(fork(cluster, settings, program, rank, present, listener))
        # As torchrun does: ranks find this store at MASTER_PORT, and none of them has to serve one.
        # It starts a thread: a rank forked later could inherit a lock that it holds.
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False,
                              master_listen_fd=listener.detach())
        found = collect(children)
        del store
    finally:
        stop(children)
    failures.show((one.rank, one.message or "") for one in found if one.error)
    return found


def warm() -> None:
    """Import before the forks what every rank would import after them."""
    import torch._dynamo  # noqa: F401  optimizers do

    private_names.check()  # imports the modules that it looks into


def fork(cluster: Cluster, settings: Settings, program: Callable[[], object], rank: int,
         present: Sequence[int] | None, listener: socket.socket) -> Child:
    """Start one rank."""
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(rank, pid, reading)
    status = 1
    try:
        os.close(reading)
        port = listener.getsockname()[1]
        listener.close()  # this copy
        os.setpgid(0, 0)  # its own children end with it
        # The pipe tells the parent when the rank ends, so no child of the rank may keep it open.
        os.register_at_fork(after_in_child=lambda: os.close(writing))
        die_with(parent)
        # Not in the parent: programs that it starts later would take this store for theirs.
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                          TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError):
                # A line in one piece, or those of several ranks would mix.
                stream.reconfigure(line_buffering=True, write_through=False)
        store = None if present is None else dist.TCPStore("127.0.0.1", port, is_master=False)
        gpu = become(cluster, rank, settings, present, store)
        found = execute(gpu, rank, program)
        gpu.__exit__(None, None, None)
        data = packed(found)
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
        status = found.status
    finally:
        os._exit(status)


def packed(found: Rank) -> bytes:
    """The result as bytes; a value that cannot be sent is an error."""
    try:
        return pickle.dumps(found)
    except Exception as error:  # of foreign objects: anything
        found.error = f"{type(error).__name__}: the value cannot be returned: {error}"
        found.message, found.value, found.status = found.error, None, 1
        return pickle.dumps(found)


def die_with(parent: int) -> None:
    """Let Linux kill this process when its parent dies, however that happens."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def collect(children: Sequence[Child]) -> list[Rank]:
    """Wait for the ranks' results. Those that do not come after one failed are marked."""
    results: dict[int, Rank] = {}
    limit: float | None = None
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.pipe, selectors.EVENT_READ, child)
        while len(results) < len(children):
            ready = selector.select(None if limit is None else max(0.0, limit - time.monotonic()))
            if not ready:
                break
            for key, _ in ready:
                child = key.data
                more = os.read(child.pipe, 2**16)
                child.data += more
                if more:
                    continue
                selector.unregister(child.pipe)
                results[child.rank] = outcome(child)
                if results[child.rank].error and limit is None:
                    limit = time.monotonic() + LAST_WORDS
    failed = next((rank for rank, found in sorted(results.items()) if found.error), None)
    return [results.get(child.rank) or failure(
        child.rank, failures.STOPPED, f"stopped because rank {failed} failed", 1)
        for child in children]


def outcome(child: Child) -> Rank:
    """The result that a rank sent, or how it ended without one."""
    if child.data:
        return pickle.loads(child.data)
    code = ended(child)
    if code < 0:
        name = signal.Signals(-code).name
        memory = ", perhaps because this machine ran out of memory" if name == "SIGKILL" else ""
        return failure(child.rank, "Killed", f"killed by {name}{memory}", 128 - code)
    return failure(child.rank, "Exited", f"exited with status {code} before the program finished",
                   code or 1)


def failure(rank: int, kind: str, message: str, status: int) -> Rank:
    """The result of a rank that sent none.

    Args:
        rank: its number in the job.
        kind: of its end, in place of an exception's type.
        message: what happened to it.
        status: exit status.
    """
    return Rank(rank, error=f"{kind}: {message}", message=message, status=status)


def ended(child: Child) -> int:
    """Exit code of a process that has closed its pipe; negative: the signal that ended it."""
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    end_group(child.pid)
    pid, child.pid = child.pid, 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end_group(pid: int) -> None:
    """Kill a rank and what it has started; nothing where all that is gone."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def stop(children: Sequence[Child]) -> None:
    """Leave nothing running, whatever state it is in."""
    for child in children:
        os.close(child.pipe)
        if child.pid:
            end_group(child.pid)
            os.waitpid(child.pid, 0)
