"""One run, in a process of its own: start the ranks, watch them, report, and leave none behind.

A rank that has returned or raised stays alive, connections open, until the run's end. So a rank's
exception comes alone: no other rank sees a closed connection and adds its own. Only a process that
dies at once (a crash in C, os._exit) breaks its peers' connections; it is then the cause.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from warmranks import pickling
from warmranks.processes import (
    adopt_orphans,
    end_with_parent,
    kill_all,
    reap,
    signal_all,
    threads,
)
from warmranks.rank import STACK_SIGNAL, be, environment, parsed
from warmranks.requests import CHUNK, Outcome, Report, Run, receive, send
from warmranks.waiting import Board, Stall, sit

LINGER = 0.2  # seconds for other ranks' failures to arrive, after the first
PATIENCE = 30  # seconds that torchrun leaves ranks between SIGTERM and SIGKILL
STACK_SECONDS = 2.0
GLANCE = 0.1  # seconds between two looks for a deadlock


class Abandoned(Exception):
    """The caller or the server is gone."""


def conduct(channel: socket.socket, files: list[int], parent: int) -> NoReturn:
    """Serve one run on a channel to the caller; this process ends with it.

    Args:
        channel: carries the request and the report.
        files: descriptors that become the ranks' standard input, output, and error.
        parent: the server's process id.
    """
    try:
        end_with_parent(parent, signal.SIGTERM)
        run: Run = receive(channel)
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
            os.close(descriptor)
        report = Manager(run, channel).report()
        send(channel, report)
    except (Abandoned, EOFError, BrokenPipeError):
        os._exit(1)
    except BaseException:
        with contextlib.suppress(OSError):
            send(channel, Report([], problem=traceback.format_exc()))
        os._exit(1)
    os._exit(0)


class Manager:
    """The ranks of one run."""

    def __init__(self, run: Run, channel: socket.socket) -> None:
        self.run, self.channel = run, channel
        self.count = run.ranks or 1
        self.outcomes = [Outcome() for _ in range(self.count)]
        self.pids: dict[int, int] = {}  # rank by process id, of those that run
        self.unread = [bytearray() for _ in range(self.count)]
        # Plain files: the grading sandbox refuses memfd_create.
        self.stacks = [tempfile.TemporaryFile() for _ in range(self.count)]  # noqa: SIM115
        self.selector = selectors.DefaultSelector()
        self.board = Board(self.count)
        self.stall = None if run.stall is None else Stall(self.board, run.stall)
        self.deadlock = False
        self.cause: int | None = None
        self.terminated = False
        self.store: Any = None

    def report(self) -> Report:
        """Run the ranks to their end. Raises Abandoned when nobody waits for it any more."""
        try:
            task = self._load()
        except BaseException:
            return Report([], problem=traceback.format_exc())
        self.started = time.monotonic()
        try:
            self._start(task)
            timed_out = not self._watch(self.started + self.run.timeout)
            if timed_out:
                self._take_stacks()
        finally:
            if self.run.is_program:  # what it left running on purpose goes on, as from a shell
                self._end_program()
            else:
                kill_all(set(self.pids))
        return Report(self.outcomes, self.cause, timed_out, self.deadlock)

    def _load(self) -> tuple[Callable, tuple]:
        """Import the function here, once for all ranks."""
        os.umask(self.run.umask)
        os.chdir(self.run.cwd)
        os.environ.clear()
        os.environ.update(self.run.env)
        sys.path[:] = self.run.path
        if self.run.sources:
            import linecache

            linecache.cache.update(self.run.sources)
        task = pickling.loads(self.run.task)
        if self.run.backend:  # here, where it was not preloaded, so that no rank has to
            importlib.import_module("torch.distributed")
        if threads() > 1:
            raise RuntimeError(f"importing {task[0]} started a thread: no safe fork is possible. "
                               "Import what starts it inside the function")
        return task

    def _start(self, task: tuple[Callable, tuple]) -> None:
        manager = os.getpid()
        if not self.run.is_program:
            adopt_orphans()
        wake, self.woken = socket.socketpair()  # kept: the descriptor is the interpreter's now
        for end in (wake, self.woken):
            end.setblocking(False)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.woken.fileno(), warn_on_full_buffer=False)
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        port = listener.getsockname()[1]
        pipes = [os.pipe() for _ in range(self.count)]
        for rank in range(self.count):
            more = environment(self.run, rank, port)
            pid = os.fork()
            if not pid:
                for one in (wake, self.woken, listener, self.channel):
                    one.close()
                for other, (reader, writer) in enumerate(pipes):
                    os.close(reader)
                    if other != rank:
                        os.close(writer)
                sit(self.board, rank)
                be(self.run, task, more, pipes[rank][1], self.stacks[rank].fileno(), manager)
            self.pids[pid] = rank
        self.selector.register(wake, selectors.EVENT_READ, "wake")
        self.selector.register(self.channel, selectors.EVENT_READ, "caller")
        for rank, (reader, writer) in enumerate(pipes):
            os.close(writer)
            os.set_blocking(reader, False)
            self.selector.register(reader, selectors.EVENT_READ, rank)
        if self.run.ranks:
            self.selector.register(listener, selectors.EVENT_READ, "store")
        else:
            listener.close()

    def _serve_store(self, listener: socket.socket) -> None:
        """Serve the ranks' rendezvous from here, so that it outlives every rank.

        Called when the first rank connects: ranks that never meet need no torch.
        """
        from torch.distributed import TCPStore

        self.selector.unregister(listener)
        port = listener.getsockname()[1]
        self.store = TCPStore("127.0.0.1", port, None, True, timedelta(seconds=self.run.timeout),
                              wait_for_workers=False, master_listen_fd=listener.detach())

    def _watch(self, deadline: float) -> bool:
        """Wait until all ranks have ended, or the first failed. Return False at the deadline, or
        when they wait for each other."""
        while any(one.state == "running" for one in self.outcomes):
            left = deadline - time.monotonic()
            if left <= 0:
                return self.cause is not None
            self._look(left if self.stall is None else min(left, GLANCE))
            if self.stall is not None and self.cause is None and self.stall.found(self._running()):
                self.deadlock = True
                return False
            if self.cause is None and (failed := self._failed()):
                self.cause = failed[0]
                if self.run.is_program:
                    signal_all(set(self.pids), signal.SIGTERM)
                    deadline = min(deadline, time.monotonic() + PATIENCE)
                else:
                    deadline = min(deadline, time.monotonic() + LINGER)
        if self.cause is not None and not self.run.is_program:
            self.cause = self._first()
        return True

    def _running(self) -> dict[int, int]:
        """Return the process ids, by rank, of the ranks that still run."""
        return {rank: pid for pid, rank in self.pids.items()
                if self.outcomes[rank].state == "running"}

    def _failed(self) -> list[int]:
        return [rank for rank, one in enumerate(self.outcomes)
                if one.state == "raised" or (one.state == "died" and (
                    one.code or not self.run.is_program))]

    def _first(self) -> int:
        """Return the rank whose failure explains the others'."""
        failed = self._failed()
        died = [rank for rank in failed if self.outcomes[rank].state == "died"]
        return min(died or failed, key=lambda rank: self.outcomes[rank].seconds)

    def _look(self, seconds: float) -> None:
        """Take what happens within some seconds."""
        for key, _ in self.selector.select(seconds):
            if key.data == "caller":
                raise Abandoned
            if key.data == "store":
                self._serve_store(key.fileobj)
            elif key.data == "wake":
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(CHUNK)
            else:
                self._read(key.data, key.fd)
        if self.terminated:
            raise Abandoned
        for pid, code in reap().items():
            rank = self.pids.pop(pid, None)
            if rank is not None:
                self._died(rank, code)

    def _read(self, rank: int, descriptor: int) -> None:
        try:
            part = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        if not part:
            self.selector.unregister(descriptor)
            return
        self.unread[rank] += part
        if outcome := parsed(self.unread[rank]):
            self.outcomes[rank] = outcome

    def _died(self, rank: int, code: int) -> None:
        if self.outcomes[rank].state == "running":
            state = "died" if code or not self.run.is_program else "returned"
            self.outcomes[rank] = Outcome(state, code=code,
                                          seconds=time.monotonic() - self.started)

    def _take_stacks(self) -> None:
        """Ask every rank that still runs for its Python frames."""
        asked = self._running()
        for rank in asked:
            _, self.outcomes[rank].waits = self.board.read(rank)
        signal_all(set(asked.values()), STACK_SIGNAL)
        deadline = time.monotonic() + STACK_SECONDS
        missing = set(asked)
        while missing and time.monotonic() < deadline:
            for rank in list(missing):
                stack = self.stacks[rank].fileno()
                size = os.fstat(stack).st_size
                text = os.pread(stack, size, 0).decode(errors="replace")
                if "\n" in text and self.outcomes[rank].stack == text:  # complete: it grew no more
                    missing.discard(rank)
                self.outcomes[rank].stack = text
            time.sleep(0.02)

    def _end_program(self) -> None:
        signal_all(set(self.pids), signal.SIGKILL)
        for pid in self.pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _on_sigterm(self, *_: Any) -> None:
        self.terminated = True
