"""Play a file on this machine, in a separate process and with the contest's time limit.

As in grading, the file runs in an empty folder and sees none of your other files.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from labkit.check import wire
from labkit.check.sides import Raised
from labkit.contest.declaration import Contest, Disqualified, Given
from labkit.guest import protocol

SECONDS_TO_START = 20.0  # seconds for starting Python
SECONDS_TO_END = 1.0  # seconds for a process that has closed its pipe to exit


class LocalPlayer:
    """Plays one file. Use it in a `with`; a process that hangs or dies is replaced."""

    def __init__(self, contest: Contest, path: Path) -> None:
        """
        Args:
            path: the file.
        """
        self.contest, self.path = contest, path.absolute()
        self.process: subprocess.Popen | None = None
        self.unusable: Disqualified | None = None  # the file itself
        self.folder = tempfile.TemporaryDirectory(prefix="contest.")

    def __enter__(self) -> LocalPlayer:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self.folder.cleanup()

    def ask(self, given: Given) -> Any | Raised:
        """Call the function with one case. Raises Disqualified and wire.CannotCross."""
        if self.unusable:
            raise self.unusable
        if self.process is None:
            try:
                self._start()
            except Disqualified as error:
                self.unusable = error
                raise
        response = self._request({"do": "call", "arguments": wire.dumps((dict(given),)).decode()},
                                 self.contest.seconds)
        if "raised" in response:
            return _raised(response)
        if "value" not in response:
            raise wire.CannotCross(str(response.get("cannot") or response.get("bad")))
        return wire.loads(response["value"].encode("utf-8", "surrogatepass"))

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "labkit.contest.player", str(self.path),
             self.contest.entry, *self.contest.masks],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self.folder.name)
        self._request({"do": "ready"}, SECONDS_TO_START)
        response = self._request({"do": "load"}, self.contest.seconds)
        if "raised" in response:
            self._end()
            raise Disqualified("error", f"{self.path.name} cannot be run: {_raised(response)}",
                               "Run it with python first.")

    def _request(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        try:
            self.process.stdin.write(protocol.pack(message | {"id": 0}))
            self.process.stdin.flush()
            size = protocol.length(self._read(protocol.HEADER.size, deadline))
            return protocol.unpack(self._read(size, deadline))
        except TimeoutError:
            self._end()
            raise Disqualified("out of time", f"no answer after {seconds:g} s",
                               "Search less in large cases.") from None
        except (EOFError, BrokenPipeError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(SECONDS_TO_END)
            code = self.process.poll()
            self._end()
            how = ("closed its pipe" if code is None else f"ended by signal {-code}" if code < 0
                   else f"ended with exit code {code}")
            raise Disqualified("crash", f"its process {how}",
                               "Return a value instead of ending the process.") from None
        except protocol.BadFrame as error:
            self._end()
            raise Disqualified("crash", f"its process sent something else ({error})") from None

    def _read(self, count: int, deadline: float) -> bytes:
        content = b""
        while len(content) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise TimeoutError
            part = os.read(self.process.stdout.fileno(), count - len(content))
            if not part:
                raise EOFError
            content += part
        return content

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
            self.process = None


def _raised(response: dict[str, Any]) -> Raised:
    return Raised(tuple(response["raised"]["names"]), response["raised"]["text"])
