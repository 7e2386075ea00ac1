"""Run one forked process, from the fork to its exit."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import io
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from warmranks import pickling
from warmranks.failures import traceback_text
from warmranks.processes import end_with_parent
from warmranks.requests import HEADER, RankOutcome, RunRequest

STACK_SIGNAL = signal.SIGRTMAX - 1  # makes a rank write its Python frames to a file


def rank_environment(run: RunRequest, rank: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank, in addition to `run.env`.

    Args:
        port: the TCP port of the rendezvous.
    """
    if not run.ranks:
        return {}
    variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0",
                 "WORLD_SIZE": str(run.ranks), "LOCAL_WORLD_SIZE": str(run.ranks),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                 # env:// then uses the store that the manager serves, so no port can be lost.
                 "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    if run.ranks > 1:
        variables["OMP_NUM_THREADS"] = run.env.get("OMP_NUM_THREADS", "1")
    if run.backend == "gloo":
        variables["GLOO_SOCKET_IFNAME"] = run.env.get("GLOO_SOCKET_IFNAME", "lo")
    return variables


def run_rank(run: RunRequest, task: tuple[Callable, tuple], variables: dict[str, str], report: int,
             stack: int, parent: int, channel: socket.socket | None = None) -> NoReturn:
    """Run a rank, or a program's only process, and end this process.

    Args:
        task: the function and its arguments.
        variables: additions to the environment.
        report: the descriptor of a pipe for the outcome.
        stack: the descriptor of a file for the frames at a timeout.
        parent: the manager's process ID.
        channel: a brokered rank's.
    """
    started = time.monotonic()
    try:
        if channel is not None:
            from warmranks import ranked

            ranked.channel = channel
        _prepare(run, variables, stack, parent)
        if run.is_program:
            _exit(_run_program(run, task[0], task[1]))
        outcome = _call(run, *task)
        outcome.seconds = time.monotonic() - started
        _flush()
        _write(report, outcome.encoded())
        while True:  # keep connections open until all ranks are done and the manager kills this one
            signal.pause()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _prepare(run: RunRequest, variables: dict[str, str], stack: int, parent: int) -> None:
    end_with_parent(parent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(STACK_SIGNAL, file=stack, all_threads=False)
    os.environ |= variables
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")[0] or "utf-8"
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115 - stays open
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding, "backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    if isinstance(sys.stdout, io.TextIOWrapper) and not run.is_program:
        sys.stdout.reconfigure(line_buffering=True)  # so that ranks do not mix within a line
    if "torch" in sys.modules or run.backend:
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1) if run.is_program else 1)
    gc.enable()


def _call(run: RunRequest, function: Callable, arguments: tuple) -> RankOutcome:
    """Call the function; an exception becomes part of the outcome."""
    try:
        if run.backend:
            import torch.distributed as dist

            dist.init_process_group(run.backend)
        value = function(*arguments)
        if run.is_raw:
            return RankOutcome("returned", value=value)
        try:
            content = pickling.dumps(value)
        except TypeError as error:
            raise TypeError(f"the return value {type(value).__name__} {error}") from None
        return RankOutcome("returned", value=content)
    except BaseException as error:
        line = "".join(traceback.format_exception_only(error)).strip()
        return RankOutcome("raised", error=line, traceback=traceback_text(error))


def _run_program(run: RunRequest, main: Callable, arguments: tuple) -> int:
    """Call a program's main function as the interpreter does, and return its exit code."""
    sys.argv[:] = run.argv
    try:
        code = main(*arguments)
        return code & 0xFF if isinstance(code, int) else 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        sys.stderr.write(traceback_text(error))
        return 1


def _exit(code: int) -> NoReturn:
    """Exit as the interpreter does: wait for threads, run exit handlers, and flush."""
    with contextlib.suppress(Exception):
        threading._shutdown()
        atexit._run_exitfuncs()
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _write(descriptor: int, body: bytes) -> None:
    view = memoryview(HEADER.pack(len(body)) + body)
    while view:
        view = view[os.write(descriptor, view):]


def parse_outcome(content: bytearray) -> RankOutcome | None:
    """Return the outcome that a rank wrote, or None while it is incomplete.

    Raises ValueError or TypeError if it is none.
    """
    if len(content) < HEADER.size:
        return None
    (size,) = HEADER.unpack(content[:HEADER.size])
    if len(content) < HEADER.size + size:
        return None
    return RankOutcome.decoded(bytes(content[HEADER.size:]))
