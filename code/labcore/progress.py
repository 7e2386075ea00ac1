"""Show the progress of a long step: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

Notify = Callable[[str], object]  # receives lines for the user
INTERVAL = 10.0  # seconds between two lines without a terminal


class ProgressStep:
    """A step of a command: `with ProgressStep("reading", print, total) as step: step.update(done)`.

    Attributes:
        note: text to add to the last line.
    """

    def __init__(self, title: str, notify: Notify, total: int | None = None):
        """Args:
            title: what the step does.
            notify: receives the lines; the last one has the title, `note`, and the elapsed time.
            total: the value of `update` at the end; None for a bar that only shows activity.
        """
        self.title, self.notify, self.total, self.note = title, notify, total, ""
        self._bar = None

    def __enter__(self) -> ProgressStep:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn

        self.started = self._printed = time.monotonic()
        console = Console(stderr=True)
        if console.is_terminal:
            self._bar = Progress("{task.description}", BarColumn(), TaskProgressColumn(),
                                 TimeElapsedColumn(), console=console, transient=True)
            self._task = self._bar.add_task(self.title, total=self.total)
            self._bar.start()
        else:
            self.notify(f"{self.title} ...")
        return self

    def update(self, done: int) -> None:
        """Report that `done` out of `total` is done. It is cheap enough for an inner loop."""
        if self._bar:
            self._bar.update(self._task, completed=done)
        elif time.monotonic() - self._printed > INTERVAL:
            self._printed = time.monotonic()
            percent = f"{done / self.total:.0%}, " if self.total else ""
            self.notify(f"  {percent}{self._printed - self.started:.0f} s so far")

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
        if kind is None:
            title = self.title if self._bar else "  done"
            self.notify(f"{title}: {self.note}{time.monotonic() - self.started:.1f} s")
