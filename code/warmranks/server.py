"""Start a fork server and send it runs: the caller's side."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from warmranks import pickling
from warmranks.broker import Broker, Exchange
from warmranks.failures import RankError, failure
from warmranks.recording import brokered
from warmranks.records import RankRecord
from warmranks.requests import MAX_PACKET, READY, RunReport, RunRequest, receive, send
from warmranks.starting import ServerProcess, fork_server, spawn_server
from warmranks.warnings_once import shown_once

# Creating an optimizer imports torch._dynamo, which takes a second of CPU time.
TORCH = ("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo",
         "warmranks.ranked")


class ForkServer:
    """A process that has imported torch or other modules, and that forks ranks on request.

    It ends with the `with` statement, with `close()`, or with this process, however that ends. It
    starts in the background, so only the first run waits for its imports.
    """

    def __init__(self, preload: Sequence[str] = TORCH,
                 start: Callable[[socket.socket, Sequence[str]], ServerProcess] = spawn_server
                 ) -> None:
        """Start the server.

        Args:
            preload: modules that the server imports. They must start no threads.
            start: starts its process, as `spawn_server` does.
        """
        self.preload, self.owner = tuple(preload), os.getpid()
        self._lock = threading.Lock()
        self._ready = False
        self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            self.process = start(server_end, self.preload)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """True if the server accepts requests."""
        return self._control.fileno() >= 0 and self.process.poll() is None

    def close(self) -> None:
        """Stop the server, and kill all that it runs."""
        self._control.close()
        if self.owner == os.getpid():  # a fork of this process has a copy of this object
            self.process.wait()

    def load(self, *modules: str) -> None:
        """Have the server import more modules before its next run, unless it has already.

        Modules that it cannot import are left to the run. They must start no threads.
        """
        with self._lock, contextlib.suppress(OSError):  # if it has ended, the next run reports that
            if missing := [name for name in modules if name not in self.preload]:
                self._control.send(json.dumps(missing).encode())
                self.preload += tuple(missing)

    def run_ranks(self, function: Callable, ranks: int, /, *arguments: Any, timeout: float = 60.0,
                  backend: str | None = "gloo", env: Mapping[str, str] | None = None,
                  cwd: str | Path | None = None, stdout: int = 1, stderr: int = 2) -> list[Any]:
        """Call `function(*arguments)` on every rank and return the list of its return values.

        Each rank is a process with one torch thread, torchrun's variables in its environment, and
        the default process group. A function that can be imported is sent by its name; one that is
        defined in a notebook is sent with its code and the globals that it uses.

        Args:
            function: called on each rank.
            ranks: the number of ranks, at least 1.
            *arguments: its arguments, the same on each rank; each rank gets copies.
            timeout: seconds until all ranks are killed.
            backend: the backend of the default process group; with None, the function creates its
                own (`env://`).
            env: variables that are added to this process's environment.
            cwd: the working directory; this process's by default.
            stdout: the descriptor for the ranks' standard output.
            stderr: the descriptor for their standard error.

        Raises:
            RankError: a rank raised an exception or died, with its traceback in the message; or
                its return value cannot be sent.
            RanksTimeout: ranks were still running at the timeout; the message has their frames.
            TypeError: the function or an argument cannot be sent to another process.
        """
        if ranks < 1:
            raise ValueError(f"ranks={ranks}: there must be at least 1 rank; nearest: 1")
        run = self._request((function, arguments), ranks, timeout, dict(os.environ) | dict(
            env or {}), cwd, backend=backend)
        with open(os.devnull) as empty:
            report = self._send(run, [empty.fileno(), stdout, stderr])
        if error := failure(run, report):
            raise error
        return [pickling.loads(one.value) for one in report.outcomes]

    def record_ranks(self, function: Callable, ranks: int, /, *arguments: Any,
                     keywords: Mapping[str, Any] | None = None, timeout: float = 60.0,
                     stderr: int | None = None, **options: Any) -> list[RankRecord]:
        """Call `function(*arguments)` on every rank, and return each rank's value and calls.

        The calls of torch.distributed go through a broker in this process, with gloo's semantics.
        Without `stderr`, the ranks' standard error is printed at the end, and a warning that
        several ranks repeat only once.

        Args:
            function: called on each rank.
            ranks: the number of ranks, at least 1.
            *arguments: its arguments, the same on each rank; each rank gets copies.
            keywords: its keyword arguments.
            timeout: seconds until all ranks are killed.
            stderr: the descriptor for their standard error.
            **options: the arguments `env`, `cwd`, and `stdout` of `run_ranks`.

        Raises:
            RankError, RanksTimeout, TypeError: see `run_ranks`.
            RanksDeadlock: every rank that had not ended waited for what no other one would do.
        """
        broker = Broker(ranks)
        with contextlib.ExitStack() as stack:
            if stderr is None:
                stderr = stack.enter_context(shown_once())
            values = self.run_brokered(broker.exchange, brokered, ranks, function,
                                       dict(keywords or {}), *arguments, timeout=timeout,
                                       stderr=stderr, **options)
        return [RankRecord(pickling.loads(value), broker.record(rank), broker.ranks[rank].flops)
                for rank, value in enumerate(values)]

    def run_brokered(self, exchange: Exchange, function: Callable, ranks: int, /, *arguments: Any,
                     timeout: float, is_raw: bool = False, env: Mapping[str, str] | None = None,
                     cwd: str | Path | None = None, stdout: int = 1, stderr: int = 2
                     ) -> list[bytes]:
        """Call a function on ranks that have a channel each (`ranked.channel`), and return its
        values: pickled, or with `is_raw` the bytes that it returns.

        Args:
            exchange: called with what the ranks send and at first with nothing; see
                `Broker.exchange`.
            function: called on each rank; it is imported before the ranks are forked.
            ranks: the number of ranks.
            *arguments: its arguments, the same on each rank.
            timeout: seconds until all ranks are killed.
            is_raw: see above.
            env, cwd, stdout, stderr: see `run_ranks`.

        Raises what `record_ranks` raises.
        """
        if ranks < 1:
            raise ValueError(f"ranks={ranks}: there must be at least 1 rank; nearest: 1")
        run = self._request((function, arguments), ranks, timeout, dict(os.environ) | dict(
            env or {}), cwd, is_brokered=True, is_raw=is_raw)
        with open(os.devnull) as empty:
            report = self._send(run, [empty.fileno(), stdout, stderr], exchange)
        if error := failure(run, report):
            raise error
        return [one.value for one in report.outcomes]

    def run_program(self, main: Callable, argv: Sequence[str], *arguments: Any, ranks: int = 0,
                    timeout: float = 300.0, env: Mapping[str, str] | None = None,
                    cwd: str | Path | None = None, input: str = ""
                    ) -> subprocess.CompletedProcess[str]:
        """Call a program's main function as a new process would, and return what it printed.

        Args:
            main: called with `sys.argv` set; it may return its exit code, raise SystemExit, or end
                the process.
            argv: the command line, with the program's name.
            *arguments: the arguments of `main`.
            ranks: 0 for one process, or the number of processes with torchrun's variables. Once one
                fails, the others receive SIGTERM, and the first exit code other than 0 counts.
            timeout: seconds until all are killed.
            env: the whole environment, as in subprocess; this process's by default.
            cwd: the working directory; this process's by default.
            input: the text of standard input.

        Raises:
            subprocess.TimeoutExpired: it was still running at the timeout.
            RankError: `main` could not be imported.
        """
        run = self._request((main, arguments), ranks, timeout,
                            dict(os.environ if env is None else env), cwd, argv=list(argv))
        with contextlib.ExitStack() as stack:
            stdin, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            stdin.write(input.encode())
            stdin.seek(0)
            report = self._send(run, [stdin.fileno(), out.fileno(), err.fileno()])
            printed = []
            for file in (out, err):
                file.seek(0)
                printed.append(file.read().decode(errors="replace"))
        if report.timed_out:
            raise subprocess.TimeoutExpired(list(argv), timeout, *printed)
        if report.problem:
            raise failure(run, report)
        code = 0 if report.cause is None else report.outcomes[report.cause].code
        return subprocess.CompletedProcess(list(argv), code, *printed)

    def _request(self, task: tuple[Callable, tuple], ranks: int, timeout: float,
                 env: dict[str, str], cwd: str | Path | None, backend: str | None = None,
                 argv: list[str] | None = None, is_brokered: bool = False, is_raw: bool = False
                 ) -> RunRequest:
        content = pickling.dumps(task)
        umask = os.umask(0)
        os.umask(umask)
        return RunRequest(content, ranks, backend, argv is not None, argv or [], env,
                          str(cwd or Path.cwd()), list(sys.path), pickling.sources(), timeout,
                          umask, is_brokered, is_raw)

    def _send(self, run: RunRequest, files: list[int], exchange: Exchange | None = None
              ) -> RunReport:
        """Have the server carry out a run; when this returns or raises, all its ranks are dead."""
        for stream in (sys.stdout, sys.stderr):  # earlier output must come first
            with contextlib.suppress(Exception):
                stream.flush()
        self._wait_until_ready()
        channel, manager_end = socket.socketpair()
        with channel:
            try:
                with manager_end:
                    socket.send_fds(self._control, [b"run"], [manager_end.fileno(), *files])
                send(channel, run)
                if exchange is not None:
                    send(channel, exchange([]))
                while not isinstance(message := receive(channel), RunReport):
                    replies = exchange(message)
                    if any(replies):
                        send(channel, replies)
                return message
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise RankError("the fork server ended during a run", None,
                                "the fork server ended", "") from None
            finally:
                with contextlib.suppress(OSError):
                    channel.shutdown(socket.SHUT_WR)
                    while channel.recv(MAX_PACKET):  # until the manager has killed the ranks
                        pass

    def _wait_until_ready(self) -> None:
        with self._lock:
            if self._ready:
                return
            answer = self._control.recv(MAX_PACKET)
            if answer != READY:
                raise RankError("the fork server did not start:\n" + (
                    answer.decode(errors="replace") or f"exit code {self.process.wait()}"),
                    None, "the fork server did not start", answer.decode(errors="replace"))
            self._ready = True


_modules: list[str] = list(TORCH)
_default: list[ForkServer] = []


def preload(*modules: str) -> None:
    """Set the modules that the default server imports, in place of `TORCH`.

    Call it before the server's first use; a later call takes effect only after that server ended.
    """
    _modules[:] = modules


def default_server() -> ForkServer:
    """Return this process's own server. The first call starts it, in the background."""
    server = _default[0] if _default else None
    if not (server and server.running and server.owner == os.getpid()):
        server = _set_default(ForkServer(_modules))
    return server


def _set_default(server: ForkServer) -> ForkServer:
    _default[:] = [server]
    atexit.register(server.close)
    return server


def split() -> None:
    """Import the default server's modules in this process, and fork this process as that server.

    So one import serves both. Call it when the program starts, because the server keeps everything
    that was imported before, and because a fork is safe only while this process has one thread.

    Raises:
        RuntimeError: this process has several threads, or an import starts one.
    """
    _set_default(ForkServer(_modules, fork_server))


def forget() -> None:
    """Close this fork's copy of its parent's server, which only the parent may use."""
    for server in _default:
        server.close()
    _default.clear()


def load(*modules: str) -> None:
    """Have the default server import more modules, as `ForkServer.load` does."""
    default_server().load(*modules)


def run_ranks(function: Callable, ranks: int, /, *arguments: Any, **options: Any) -> list[Any]:
    return default_server().run_ranks(function, ranks, *arguments, **options)


def run_program(main: Callable, argv: Sequence[str], *arguments: Any, **options: Any
                ) -> subprocess.CompletedProcess[str]:
    return default_server().run_program(main, argv, *arguments, **options)


def run_brokered(exchange: Exchange, function: Callable, ranks: int, /, *arguments: Any,
                 **options: Any) -> list[bytes]:
    return default_server().run_brokered(exchange, function, ranks, *arguments, **options)


def record_ranks(function: Callable, ranks: int, /, *arguments: Any, **options: Any
                 ) -> list[RankRecord]:
    return default_server().record_ranks(function, ranks, *arguments, **options)


run_ranks.__doc__ = ForkServer.run_ranks.__doc__
run_brokered.__doc__ = ForkServer.run_brokered.__doc__
record_ranks.__doc__ = ForkServer.record_ranks.__doc__
run_program.__doc__ = ForkServer.run_program.__doc__
