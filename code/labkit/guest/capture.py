"""Capture what a cell prints, displays, or raises, as nbformat outputs, within a limit.

Python's own prints come through CapturedStream. Output that programs and libraries write to the
descriptors 1 and 2 comes through pipes. A thread empties them, so that no writer blocks and no line
has to fit into memory.
"""

from __future__ import annotations

import io
import json
import os
import select
import sys
import threading
from typing import Any

MOST_BYTES = 2_000_000  # of one cell's outputs, as JSON
MOST_OUTPUTS = 1000
TRUNCATED = "\n[the rest of this cell's output was cut: it is more than 2 MB]\n"
NAMES = {1: "stdout", 2: "stderr"}
CHUNK = 65536


def size_of(value: Any) -> int:
    """Return the size of a value as JSON in UTF-8, in bytes."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def cost_of(text: str) -> int:
    """Return `size_of` a string without its quotes, with a fast path for plain ASCII."""
    if text.isascii() and text.replace("\n", " ").isprintable():
        return len(text) + sum(map(text.count, '\n"\\'))
    return size_of(text) - 2


class Capture:
    """The outputs of the running cell. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.RLock()
        self._pipes: dict[int, int] = {}  # by the descriptor that programs write to
        self._clear()

    def _clear(self) -> None:
        self._outputs: list[dict[str, Any]] = []
        self._displayed: list[str | None] = []  # each output's display_id
        self._budget = MOST_BYTES
        self._truncated = self._clear_next = False

    # --- adding

    def print(self, name: str, text: str) -> None:
        """Add `text`, which Python printed, after all that programs had written before it.

        Args:
            name: "stdout" or "stderr".
            text: any string.
        """
        with self._lock:
            if not self._truncated:
                self._read_pipes()
            self._add_text(name, text)

    def _add_text(self, name: str, text: str) -> None:
        with self._lock:
            self._before_next()
            if self._truncated:
                return
            last = self._outputs[-1] if self._outputs else None
            continues = last is not None and last.get("name") == name
            piece = text[:self._budget]
            while piece and (cost := cost_of(piece)) > self._budget:
                piece = piece[:len(piece) * self._budget // cost]
            if piece and not self._has_room(continues):
                piece = ""
            if piece:
                self._budget -= cost_of(piece)
                if continues:
                    last["text"].append(piece)
                else:
                    self._append({"output_type": "stream", "name": name, "text": [piece]})
            if len(piece) < len(text):
                self._report_truncation()

    def add(self, output: dict[str, Any], display_id: str | None = None, update: bool = False
            ) -> None:
        """Add a complete output; with `update`, replace those with the same display_id."""
        with self._lock:
            self.drain()
            self._before_next()
            if self._truncated:
                return
            cost = size_of(output)
            if cost > self._budget or not self._has_room(False):
                self._report_truncation()
                return
            self._budget -= cost
            if update:
                for place, shown in enumerate(self._displayed):
                    if shown == display_id:
                        self._outputs[place] |= {"data": output["data"],
                                                 "metadata": output["metadata"]}
            else:
                self._append(output, display_id)

    def clear(self, wait: bool) -> None:
        """Clear the outputs, like clear_output(); with `wait`, when the next output comes."""
        with self._lock:
            self._clear_next = wait
            if not wait:
                self._clear()

    def _before_next(self) -> None:
        if self._clear_next:
            self._clear()

    def _has_room(self, continues: bool) -> bool:
        return continues or len(self._outputs) < MOST_OUTPUTS

    def _append(self, output: dict[str, Any], display_id: str | None = None) -> None:
        self._outputs.append(output)
        self._displayed.append(display_id)

    def _report_truncation(self) -> None:
        if not self._truncated:
            self._truncated = True
            self._append({"output_type": "stream", "name": "stderr", "text": [TRUNCATED]})
        self._budget = 0

    # --- taking

    def take(self) -> list[dict[str, Any]]:
        """Return and clear the outputs since the last call."""
        with self._lock:
            self.drain()
            taken = self._outputs
            self._clear()
        for output in taken:
            if output["output_type"] == "stream":
                output["text"] = "".join(output["text"])
        return taken

    # --- file descriptors

    def take_descriptors(self) -> None:
        """Redirect the descriptors 1 and 2, so that what is written to them becomes an output."""
        for number in NAMES:
            reader, writer = os.pipe()
            os.dup2(writer, number)
            os.close(writer)
            os.set_blocking(reader, False)
            self._pipes[number] = reader
        threading.Thread(target=self._watch, daemon=True).start()

    def drain(self) -> None:
        """Read everything that is waiting in the pipes."""
        if os.getpid() != self.process:
            return
        with self._lock:
            if "ctypes" in sys.modules and self._pipes:
                _flush_c()
            for number, reader in self._pipes.items():
                while content := _read(reader):
                    self._add_text(NAMES[number], content.decode(errors="replace"))

    def _watch(self) -> None:
        poll = select.poll()
        for reader in self._pipes.values():
            poll.register(reader, select.POLLIN)
        while True:
            poll.poll()
            self._read_pipes()

    def _read_pipes(self) -> None:
        """Add one chunk from each pipe: a whole pipe, unless its size was raised."""
        with self._lock:  # held from reading to adding, so that a drain never misses a chunk
            for number, reader in self._pipes.items():
                if content := _read(reader):
                    self._add_text(NAMES[number], content.decode(errors="replace"))


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, CHUNK)
    except OSError:  # nothing there, or closed by the student's code
        return b""


def _flush_c() -> None:
    """Flush the buffers of C's printf."""
    ctypes = sys.modules["ctypes"]
    try:
        ctypes.CDLL(None).fflush(None)
    except (AttributeError, OSError):
        return


class CapturedStream(io.TextIOBase):
    """sys.stdout or sys.stderr of the student's code."""

    encoding, errors = "utf-8", "strict"

    def __init__(self, capture: Capture, number: int) -> None:
        super().__init__()
        self._capture, self._number = capture, number
        self.name = f"<{NAMES[number]}>"

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if os.getpid() != self._capture.process:  # in a forked child, whose memory is separate
            content = text.encode(errors="replace")
            while content:
                content = content[os.write(self._number, content):]
        else:
            self._capture.print(NAMES[self._number], text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number
