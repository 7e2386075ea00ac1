"""Start a worker as a fork of this process, which has imported what a worker needs.

A program of its own spends more than a second of CPU time on imports before its first task.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import BinaryIO, NoReturn

FIRST_FREE = 3  # descriptor after standard input, output, and error
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)


def can_fork() -> bool:
    """Return whether this process has one Python thread: in a fork, a lock that another thread held
    would never be released."""
    return threading.active_count() == 1


class Fork:
    """A child process with the part of `subprocess.Popen` that the pool uses.

    Fork only while no gradebook is open: SQLite does not allow a connection in two processes.
    """

    def __init__(self, main: Callable[[], int | None], log: BinaryIO) -> None:
        """Start the child in a session of its own.

        Args:
            main: called in the child, with pipes as standard input and output; returns its exit
                code.
            log: takes the child's standard error.
        """
        questions, self._input = os.pipe()
        self._output, answers = os.pipe()
        self.returncode: int | None = None
        # Ctrl-C reaches a new child, too: there it must not unwind what the parent is doing.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _run_child(main, (questions, answers, log.fileno()), before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._pidfd = os.pidfd_open(self.pid)
        os.close(questions)
        os.close(answers)
        self.stdin = os.fdopen(self._input, "wb")
        self.stdout = os.fdopen(self._output, "rb")

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # this process ignores SIGCHLD: the code is lost
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended. Raises subprocess.TimeoutExpired."""
        while (code := self.poll()) is None:
            if not select.select([self._pidfd], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a worker", timeout)
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _run_child(main: Callable[[], int | None], files: tuple[int, int, int],
               signals: set[signal.Signals]) -> NoReturn:
    """Run `main` in the child and exit. It keeps nothing of the parent's but its memory.

    Args:
        main: as in `Fork`.
        files: standard input, output, and error.
        signals: those to block.
    """
    code = 1
    try:
        os.setsid()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        given = [fcntl.fcntl(file, fcntl.F_DUPFD, FIRST_FREE) for file in files]
        for number, file in enumerate(given):
            os.dup2(file, number)
        os.closerange(FIRST_FREE, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        gc.freeze()  # a collection would copy the parent's pages, and finalize its objects
        code = main() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(code)
