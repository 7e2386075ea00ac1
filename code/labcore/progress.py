"""One line of progress for a long step: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

# Without a terminal, a line this often (seconds); short steps print their result alone.
EVERY = 10.0


class Step:
    """`with Step("reading", say, total) as step: step.update(done)`.

    At the end, `say` gets the title, `note` and the seconds. Without `total` the bar only shows
    that something is going on.
    """

    def __init__(self, title: str, say: Callable[[str], object], total: int | None = None):
        self.title, self.say, self.total, self.note = title, say, total, ""
        self._bar = None

    def __enter__(self) -> Step:
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
            self.say(f"{self.title} ...")
        return self

    def update(self, done: int) -> None:
        """`done` out of `total` so far. Cheap enough for an inner loop."""
        if self._bar:
            self._bar.update(self._task, completed=done)
        elif time.monotonic() - self._printed > EVERY:
            self._printed = time.monotonic()
            percent = f"{done / self.total:.0%}, " if self.total else ""
            self.say(f"  {percent}{self._printed - self.started:.0f} s so far")

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
        if kind is None:
            title = self.title if self._bar else "  done"
            self.say(f"{title}: {self.note}{time.monotonic() - self.started:.1f} s")
