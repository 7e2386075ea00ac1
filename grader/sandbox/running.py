"""One started sandbox: its pipes, its end, and the reason for it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable

MOST_ERROR_OUTPUT = 64 * 1024  # bytes of stderr that are kept
EXIT_TIMEOUT = 5.0  # seconds for a killed sandbox to be gone; it takes milliseconds


class Running:
    """A started sandbox. `stdin` and `stdout` are blocking file descriptors; the other ends are
    inside."""

    def __init__(self, process: subprocess.Popen, first: int | None) -> None:
        """Start to read the sandbox's error output.

        Args:
            process: the back end's process.
            first: a pidfd, owned by this object, of the process whose end ends all others inside.
        """
        self.process = process
        self.stdin, self.stdout = process.stdin.fileno(), process.stdout.fileno()
        self.watchdog = None
        self._first = first
        self._at_end: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self._killed = self._ended = False
        self._error_output = bytearray()
        self._reader = threading.Thread(target=self._listen, name="sandbox stderr", daemon=True)
        self._reader.start()

    def at_end(self, work: Callable[[], None]) -> None:
        """Call `work` once when all processes have ended, for example to free a slot or remove a
        group."""
        self._at_end.append(work)

    def watch(self, watchdog) -> None:
        self.watchdog = watchdog
        watchdog.start()

    def poll(self) -> int | None:
        """Return the exit code once every process inside has ended; None while it runs.

        It is negative for a signal. Output that was written before can still be read.
        """
        code = self.process.poll()
        if code is not None:
            self._finish()
        return None if code is None else _signed(code)

    def kill(self) -> None:
        """End the sandbox and close its pipes; return when every process is gone."""
        with self._lock:
            if not self._ended:
                self._killed = self._killed or self.process.poll() is None
                self.send_kill()
                self._finish()
            streams = [self.process.stdin, self.process.stdout]
            if not self._reader.is_alive():
                streams.append(self.process.stderr)
            for stream in streams:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def send_kill(self) -> None:
        """Send the signal only. The kernel ends a PID namespace with its first process."""
        with contextlib.suppress(ProcessLookupError):
            if self._first is not None:
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            else:
                self.process.kill()

    def end_reason(self) -> str:
        """Return why it ended, for people; empty while it runs."""
        code = self.poll()
        if code is None:
            return ""
        if self.watchdog and self.watchdog.verdict:
            return self.watchdog.verdict
        if self._killed:
            return "it was stopped"
        if code == -signal.SIGXCPU:
            return "its processor time was used up"
        return f"ended by signal {-code}" if code < 0 else f"exit code {code}"

    def error_output(self) -> str:
        """Return the beginning of its error output."""
        return bytes(self._error_output).decode(errors="replace")

    def _listen(self) -> None:
        descriptor = self.process.stderr.fileno()
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(descriptor, 65536):  # on and on: nobody blocks on a full pipe
                self._error_output += chunk[:MOST_ERROR_OUTPUT - len(self._error_output)]

    def _finish(self) -> None:
        """Wait for the last process, then release what the sandbox held."""
        with self._lock:
            if self._ended:
                return
            if self.watchdog:
                self.watchdog.stop()
            if self._first is not None:
                select.select([self._first], [], [], EXIT_TIMEOUT)
            try:
                self.process.wait(0.5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self._ended = True
            if self.watchdog:
                self.watchdog.close()
            for work in self._at_end:
                work()
            self._reader.join(1)
            if self._first is not None:
                os.close(self._first)
                self._first = None


def _signed(code: int) -> int:
    """Return the exit code with signals as negative numbers; bwrap and podman report 128 + N."""
    return 128 - code if 128 < code < 128 + 65 else code
