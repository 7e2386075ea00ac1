"""A submission's sandbox: runs its cells, and restarts without the cell that ended it."""

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
from grader.sandbox.masks import SandboxMasks
from labkit.check.sides import Raised
from labkit.guest import protocol
from labkit.guest.serving import RANKS

# Not -I: the sandbox's variables are ours, and PYTHONHASHSEED among them makes runs repeatable.
GUEST = (sys.executable, "-P", "-s", "-m", "labkit.guest")
START_SECONDS = 30.0
RANKS_SECONDS = 60.0  # to import torch, too


class SandboxFailed(Exception):
    """Raised when the sandbox does not start, or ends before the student's code begins."""


class BudgetExhausted(Exception):
    """Raised when the notebook has used up its time limit."""


@dataclass(frozen=True)
class CellResult:
    """The outputs of a cell, and the exception that it raised."""

    outputs: list[NotebookNode] = field(default_factory=list)
    raised: Raised | None = None


class Session:
    """Runs cells in the sandbox.

    When a cell ends the sandbox, for example by using too much time or memory, the next request
    starts a new sandbox and reruns all earlier cells except that one.
    """

    def __init__(self, backend: Backend, settings: Grading, files: Mapping[str, bytes],
                 masks: SandboxMasks | None = None, uses_ranks: bool = False) -> None:
        """Args:
            backend: starts the sandbox.
            settings: the limits for one submission.
            files: what students get with the notebook, by path in the sandbox's home directory.
            masks: the modules and names that answers may not use.
            uses_ranks: whether checks run drivers on ranks or virtual GPUs.
        """
        self.uses_ranks = uses_ranks
        self.backend, self.settings, self.files, self.masks = backend, settings, files, masks
        self.notebook_budget = Budget(settings.seconds_per_notebook)
        self.channel: Channel | None = None
        self.done: list[tuple[PlannedCell, str]] = []
        self.incidents: dict[str, str] = {}  # by the name of a cell that was left out: why

    def budget(self) -> Budget:
        """Return the time budget of the next cell or check."""
        return Budget(min(self.settings.seconds_per_cell, self.notebook_budget.left()))

    def run(self, cell: PlannedCell, source: str) -> CellResult | None:
        """Run a cell; return None when it ended the sandbox, and record the incident.

        Args:
            cell: the cell.
            source: its source.

        Raises SandboxFailed and BudgetExhausted.
        """
        result = self._run(cell, source)
        if result is not None:
            self.done.append((cell, source))
        return result

    def ask(self, budget: Budget) -> Callable[..., dict[str, Any]]:
        """Return a function that sends a check's requests within its budget and raises
        ChannelError."""
        def request(do: str, **fields: Any) -> dict[str, Any]:
            assert self.channel is not None
            try:
                return self.channel.request(do, budget.left(), **fields)
            except ChannelError:
                self.discard()
                raise

        return request

    def ready(self) -> None:
        """Start a sandbox and rerun all cells so far. Raises SandboxFailed and BudgetExhausted."""
        while self.channel is None:
            if self.notebook_budget.left() <= 0:
                raise BudgetExhausted
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
        """Return a message for people: why a cell or check could not finish.

        Args:
            error: how the request failed; None when the time was up before it.
            name: the cell's name.
            seconds: the limit that applied.
        """
        if self.notebook_budget.left() <= 0:
            return (f"out of time at cell {name} (all cells together have used up their "
                    f"{self.settings.seconds_per_notebook:g} s)")
        if error is None or isinstance(error, OutOfTime):
            return f"out of time at cell {name} ({seconds:g} s)"
        return f"its code ended the sandbox at cell {name}: {cleaning.line(str(error), 200)}"

    def _start(self) -> None:
        command = (*GUEST, RANKS) if self.uses_ranks else GUEST
        running = self.backend.start(command, self.settings.limits(), files=self.files,
                                     masks=self.masks)
        self.channel = Channel(running)
        try:
            self.channel.request("ready", RANKS_SECONDS if self.uses_ranks else START_SECONDS)
        except ChannelError as error:
            noise = cleaning.line(running.error_output()[-200:], 200)
            self.discard()
            raise SandboxFailed(f"the sandbox did not start: {error}" + f" ({noise})" * bool(noise)
                                ) from error

    def _run(self, cell: PlannedCell, source: str) -> CellResult | None:
        if self.notebook_budget.left() <= 0:
            raise BudgetExhausted
        if self.channel is None:
            self.ready()
        assert self.channel is not None
        budget = self.budget()
        try:
            return checked_result(self.channel.request("cell", budget.left(), source=source))
        except (ChannelError, protocol.BadFrame) as error:
            if isinstance(error, protocol.BadFrame):
                error = BrokenChannel("its source is too long")
            self.discard()
            self.incidents.setdefault(cell.name, self.explain(error, cell.name, budget.seconds))
            if self.notebook_budget.left() <= 0:
                raise BudgetExhausted from error
            return None


def checked_result(response: dict[str, Any]) -> CellResult:
    """Return a cell's response after validation. Raises BrokenChannel."""
    sent = response.get("error")
    error = as_raised(sent) if sent is not None else None
    if sent is not None and error is None:
        error = Raised(("Exception",), f"(of a class that cannot be named in {MOST_TITLE} letters)")
    return CellResult(cleaning.outputs(response.get("outputs")), error)
