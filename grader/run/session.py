"""A submission's sandbox: runs its cells, and comes back without the one that ended it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbformat import NotebookNode

from grader import cleaning
from grader.run.channel import BrokenChannel, Channel, ChannelError, OutOfTime
from grader.run.lab_plan import PlannedCell
from grader.run.remote import MOST_TITLE, as_raised
from grader.run.settings import Grading
from grader.run.timing import Budget
from grader.sandbox.interface import Backend
from grader.sandbox.masks import Masks
from labkit.check.sides import Raised
from labkit.guest import protocol

# Not -I: the sandbox's variables are ours, and PYTHONHASHSEED among them makes runs repeatable.
GUEST = (sys.executable, "-P", "-s", "-m", "labkit.guest")
START_SECONDS = 30.0


class Failed(Exception):
    """The sandbox does not start, or does not last until the student's code begins."""


class Spent(Exception):
    """The notebook has had all its time."""


@dataclass(frozen=True)
class Ran:
    """What a cell did."""

    outputs: list[NotebookNode] = field(default_factory=list)
    raised: Raised | None = None


class Session:
    """Runs cells in the sandbox. When one ends it, by time, memory or otherwise, the next request
    finds a fresh sandbox in which all cells before have run again, but not that one."""

    def __init__(self, backend: Backend, settings: Grading, files: Mapping[str, bytes],
                 masks: Masks | None = None) -> None:
        self.backend, self.settings, self.files, self.masks = backend, settings, files, masks
        self.whole = Budget(settings.seconds_per_notebook)
        self.channel: Channel | None = None
        self.done: list[tuple[PlannedCell, str]] = []
        self.incidents: dict[str, str] = {}  # by the name of a cell that was left out: why

    def budget(self) -> Budget:
        """For the next cell or check."""
        return Budget(min(self.settings.seconds_per_cell, self.whole.left()))

    def run(self, cell: PlannedCell, source: str) -> Ran | None:
        """Run a cell; None when it ended the sandbox, which is then an incident. Raises Failed and
        Spent."""
        ran = self._run(cell, source)
        if ran is not None:
            self.done.append((cell, source))
        return ran

    def ask(self, budget: Budget) -> Callable[..., dict[str, Any]]:
        """How a check asks for things, within its budget. What it returns raises ChannelError."""
        def request(do: str, **fields: Any) -> dict[str, Any]:
            assert self.channel is not None
            try:
                return self.channel.request(do, budget.left(), **fields)
            except ChannelError:
                self.discard()
                raise

        return request

    def ready(self) -> None:
        """Have a sandbox in which all cells so far have run. Raises Failed and Spent."""
        while self.channel is None:
            if self.whole.left() <= 0:
                raise Spent
            self._start()
            for cell, source in list(self.done):
                if self._run(cell, source) is None:
                    self.done.remove((cell, source))
                    break

    def discard(self) -> None:
        """End the sandbox."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def explain(self, error: ChannelError | None, name: str, seconds: float) -> str:
        """Why a cell or check could not be finished, for people."""
        if self.whole.left() <= 0:
            return (f"out of time at cell {name} (all cells together have had their "
                    f"{self.settings.seconds_per_notebook:g} s)")
        if error is None or isinstance(error, OutOfTime):
            return f"out of time at cell {name} ({seconds:g} s)"
        return f"its code ended the sandbox at cell {name}: {cleaning.line(str(error), 200)}"

    def _start(self) -> None:
        running = self.backend.start(GUEST, self.settings.limits(), files=self.files,
                                     masks=self.masks)
        self.channel = Channel(running)
        try:
            self.channel.request("ready", START_SECONDS)
        except ChannelError as error:
            noise = cleaning.line(running.noise()[-200:], 200)
            self.discard()
            raise Failed(f"the sandbox did not start: {error}" + f" ({noise})" * bool(noise)
                         ) from error

    def _run(self, cell: PlannedCell, source: str) -> Ran | None:
        if self.whole.left() <= 0:
            raise Spent
        if self.channel is None:
            self.ready()
        assert self.channel is not None
        budget = self.budget()
        try:
            return ran(self.channel.request("cell", budget.left(), source=source))
        except (ChannelError, protocol.BadFrame) as error:
            if isinstance(error, protocol.BadFrame):
                error = BrokenChannel("its source is too long")
            self.discard()
            self.incidents.setdefault(cell.name, self.explain(error, cell.name, budget.seconds))
            if self.whole.left() <= 0:
                raise Spent from error
            return None


def ran(response: dict[str, Any]) -> Ran:
    """A cell's response, checked. Raises BrokenChannel."""
    sent = response.get("error")
    error = as_raised(sent) if sent is not None else None
    if sent is not None and error is None:
        error = Raised(("Exception",), f"(of a class that cannot be named in {MOST_TITLE} letters)")
    return Ran(cleaning.outputs(response.get("outputs")), error)
