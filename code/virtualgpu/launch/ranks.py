"""Fork one process per rank after importing torch, and leave none of them behind."""

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
from virtualgpu.launch.process import INTERRUPTED, become, execute
from virtualgpu.launch.result import Rank
from virtualgpu.launch.settings import Settings
from virtualgpu.pytorch import private_names

PR_SET_PDEATHSIG = 1
GRACE_PERIOD = 5.0  # seconds of real time for the other ranks to notice a failure


@dataclass
class RankProcess:
    """A forked rank, and the pipe that carries its result."""

    rank: int
    pid: int
    pipe: int
    data: bytes = b""


def run_ranks(cluster: Cluster, settings: Settings, program: Callable[[], object],
              present: Sequence[int] | None = None) -> list[Rank]:
    """Run a program on every rank, or on those that are present.

    Args:
        cluster: the job's GPUs.
        settings: the user's settings.
        program: the function that every rank runs.
        present: the ranks that are processes; None for all ranks.

    Returns:
        The results of those ranks, in order. If one fails, the others are stopped.

    Raises:
        VirtualGpuError: a rank that is not present has another GPU model than the one below it.
    """
    cluster.require_representatives(present)
    everyone = list(range(cluster.world)) if present is None else list(present)
    warm()
    listener = socket.create_server(("127.0.0.1", 0), backlog=max(128, len(everyone)))
    port = listener.getsockname()[1]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    children: list[RankProcess] = []
    try:
        for rank in everyone:
            children.append(fork(cluster, settings, program, rank, present, listener))
        # As with torchrun, ranks find this store at MASTER_PORT, and none of them has to host one.
        # It starts a thread, so a rank forked later could inherit a lock that the thread holds.
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False,
                              master_listen_fd=listener.detach())
        results = collect(children)
        del store
    finally:
        stop(children)
    failures.show((result.rank, result.message or "") for result in results if result.error)
    return results


def warm() -> None:
    """Import the modules that every rank would otherwise import after the fork."""
    import torch._dynamo  # noqa: F401  optimizers do

    private_names.check()  # imports the modules of these names


def fork(cluster: Cluster, settings: Settings, program: Callable[[], object], rank: int,
         present: Sequence[int] | None, listener: socket.socket) -> RankProcess:
    """Start one rank."""
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writing)
        return RankProcess(rank, pid, reading)
    status = 1
    try:
        os.close(reading)
        port = listener.getsockname()[1]
        listener.close()  # this copy
        os.setpgid(0, 0)  # its own children end with it
        # The pipe tells the parent when the rank ends, so no child of the rank may keep it open.
        os.register_at_fork(after_in_child=lambda: os.close(writing))
        die_with(parent)
        # Not in the parent, because programs that it starts later would use this store.
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                          TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError):
                # Write complete lines, so that those of several ranks do not mix.
                stream.reconfigure(line_buffering=True, write_through=False)
        store = None if present is None else dist.TCPStore("127.0.0.1", port, is_master=False)
        gpu = become(cluster, rank, settings, present, store)
        result = execute(gpu, rank, program)
        gpu.__exit__(None, None, None)
        data = packed(result)
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
        status = result.status
    except KeyboardInterrupt:  # before or after the program, which execute() interrupts
        status = INTERRUPTED
    finally:
        os._exit(status)


def packed(result: Rank) -> bytes:
    """Return the pickled result; a value that cannot be pickled becomes an error."""
    try:
        return pickle.dumps(result)
    except Exception as error:  # the value's class may raise anything
        result.error = f"{type(error).__name__}: the value cannot be returned: {error}"
        result.message, result.value, result.status = result.error, None, 1
        return pickle.dumps(result)


def die_with(parent: int) -> None:
    """Make Linux kill this process when its parent dies for any reason."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def collect(children: Sequence[RankProcess]) -> list[Rank]:
    """Return the ranks' results; ranks that do not finish after a failure are marked as stopped."""
    results: dict[int, Rank] = {}
    limit: float | None = None
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.pipe, selectors.EVENT_READ, child)
        while len(results) < len(children):
            try:
                ready = selector.select(
                    None if limit is None else max(0.0, limit - time.monotonic()))
            except KeyboardInterrupt:
                if limit is not None:  # the second Ctrl-C
                    raise
                limit = time.monotonic() + GRACE_PERIOD
                for child in children:  # in process groups of their own
                    if child.pid:
                        os.kill(child.pid, signal.SIGINT)
                continue
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
                    limit = time.monotonic() + GRACE_PERIOD
    failed = next((rank for rank, result in sorted(results.items()) if result.error), None)
    reason = failures.INTERRUPTED if failed is None else f"stopped because rank {failed} failed"
    return [results.get(child.rank) or failure(child.rank, failures.STOPPED, reason, 1)
            for child in children]


def outcome(child: RankProcess) -> Rank:
    """Return the result that a rank sent, or one that says how it ended."""
    if child.data:
        return pickle.loads(child.data)
    code = ended(child)
    if code == INTERRUPTED:
        return failure(child.rank, "KeyboardInterrupt", failures.INTERRUPTED, code)
    if code < 0:
        name = signal.Signals(-code).name
        memory = ", perhaps because this machine ran out of memory" if name == "SIGKILL" else ""
        return failure(child.rank, "Killed", f"killed by {name}{memory}", 128 - code)
    return failure(child.rank, "Exited", f"exited with status {code} before the program finished",
                   code or 1)


def failure(rank: int, kind: str, message: str, status: int) -> Rank:
    """Return the result of a rank that sent none.

    Args:
        rank: the rank in the job.
        kind: takes the place of an exception's type.
        message: description of the failure.
        status: exit status.
    """
    return Rank(rank, error=f"{kind}: {message}", message=message, status=status)


def ended(child: RankProcess) -> int:
    """Return the exit code of a process that has closed its pipe; a signal is a negative number."""
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    end_group(child.pid)
    pid, child.pid = child.pid, 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end_group(pid: int) -> None:
    """Kill a rank and its children, if they still run."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def stop(children: Sequence[RankProcess]) -> None:
    """Kill every rank that still runs."""
    for child in children:
        os.close(child.pipe)
        if child.pid:
            end_group(child.pid)
            os.waitpid(child.pid, 0)
