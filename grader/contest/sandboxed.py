"""Play a file on the secret cases: its function runs in the sandbox, and scoring runs outside.

Only plain values leave the sandbox, and only the scorer's verdict on such a value becomes a score.
Printed output is dropped, because the code has seen the secret cases.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from grader import cleaning
from grader.run.channel import OutOfTime
from grader.run.lab_plan import PlannedCell
from grader.run.measure import EstimateFailed
from grader.run.proxies import Function
from grader.run.remote import Remote, SandboxLost
from grader.run.session import BudgetExhausted, SandboxFailed, Session
from grader.run.settings import Grading
from grader.run.timing import Budget, TimeLimitReached, limited
from grader.sandbox.interface import Backend
from grader.sandbox.masks import SandboxMasks
from grader.sandbox.mounts import HOME
from grader.sandbox.watchdog import SHORT_OF_MEMORY
from labkit.cells import Role
from labkit.check import wire
from labkit.check.sides import Raised
from labkit.contest.declaration import Case, Contest, Disqualified, Given
from labkit.contest.play import CaseResult, play_one

TIME_FACTOR = 3  # times a contest's seconds: a busy grading machine costs nobody a case
SECONDS_TO_SCORE = 30.0  # for one answer, on this side
MOST_TRIES = 3  # at one case, where the machine and not the code was short of memory
NAME = "_contest_entry"  # of the function, in the sandbox


class Unplayed(Exception):
    """Raised when the sandbox could not be used, which is not the student's fault; the text says
    why."""


def play(contest: Contest, cases: Sequence[Case], content: bytes, backend: Backend,
         settings: Grading) -> list[CaseResult]:
    """Play one file on all cases; to be called in the main thread, which has the alarm.

    Args:
        contest: the contest.
        cases: its secret cases.
        content: the file.
        backend: the sandbox that holds on this machine.
        settings: the course's limits.

    Raises Unplayed, and ValueError when the contest's own scorer fails.
    """
    with _Player(contest, len(cases), content, backend, settings) as player:
        return [_scored(contest, case, player) for case in cases]


def _scored(contest: Contest, case: Case, player: _Player) -> CaseResult:
    answer = _ask_once(player, case.given)
    with limited(SECONDS_TO_SCORE):
        try:
            return play_one(contest, case, answer)
        except TimeLimitReached:
            pass
    return play_one(contest, case, _unscorable)


def _ask_once(player: _Player, given: Given) -> Callable[[Given], Any]:
    """Call the function now, and return a function that repeats its answer, so that the alarm times
    only the scorer.
    """
    try:
        value = player.ask(given)
    except (Disqualified, wire.CannotCross) as error:
        failed = error
    else:
        return lambda given: value

    def fail(given: Given) -> Any:
        raise failed

    return fail


def _unscorable(given: Given) -> Any:
    raise Disqualified("too large", f"its answer could not be scored in {SECONDS_TO_SCORE:g} s")


class _Player:
    """One file in a sandbox, which is restarted when the code ends it."""

    def __init__(self, contest: Contest, cases: int, content: bytes, backend: Backend,
                 settings: Grading) -> None:
        self.contest, self.seconds = contest, TIME_FACTOR * contest.seconds
        path = f"contest/{contest.file}"
        limits = Grading(seconds_per_cell=self.seconds, memory_mb=settings.memory_mb,
                         disk_mb=settings.disk_mb, processes=settings.processes,
                         seconds_per_notebook=2 * self.seconds * (cases + 1) + 60)
        self.session = Session(backend, limits, {path: content}, _masks(tuple(contest.masks)))
        self.remote = Remote(self._not_ready, "", self._no_figures)
        self.cell = PlannedCell(0, Role.ANSWER, contest.file)
        self.source = (f"from labkit.contest.player import load as {NAME}\n"
                       f"{NAME} = {NAME}({HOME + '/' + path!r}, {contest.entry!r})")
        self.unusable: Disqualified | None = None  # the file itself

    def __enter__(self) -> _Player:
        self._load()
        return self

    def __exit__(self, *error: object) -> None:
        self.session.discard()

    def ask(self, given: Given) -> Any | Raised:
        """Call the function. Raises Disqualified, CannotCross and Unplayed."""
        if self.unusable:
            raise self.unusable
        for _ in range(MOST_TRIES):
            try:
                return self._call(given)
            except SandboxLost:
                error = self.remote.lost
                self.session.discard()
                if str(error) != SHORT_OF_MEMORY:
                    break
        if str(error) == SHORT_OF_MEMORY:
            raise Unplayed(SHORT_OF_MEMORY)
        if isinstance(error, OutOfTime):
            raise Disqualified("out of time", f"no answer after {self.seconds:g} s",
                               "Search less in large cases.")
        raise Disqualified("crash", f"its code ended the sandbox: {cleaning.line(str(error), 200)}",
                           "Return a value instead of ending the process.")

    def _load(self) -> None:
        for _ in range(MOST_TRIES):
            try:
                result = self.session.run(self.cell, self.source)
            except (SandboxFailed, BudgetExhausted) as error:
                raise Unplayed(str(error) or "the sandbox took too long to start") from error
            if result is not None:
                if result.raised:
                    self.unusable = Disqualified(
                        "error", f"{self.contest.file} cannot be run: {result.raised}",
                        "Run it with python first.")
                return
            why = self.session.incidents.pop(self.cell.name)
            if SHORT_OF_MEMORY not in why:
                kind = "out of time" if why.startswith("out of time") else "crash"
                self.unusable = Disqualified(kind, f"{self.contest.file} cannot be run: {why}")
                return
        raise Unplayed(SHORT_OF_MEMORY)

    def _call(self, given: Given) -> Any | Raised:
        try:
            self.session.ready()
        except (SandboxFailed, BudgetExhausted) as error:
            raise Unplayed(str(error) or "the sandbox took too long to start") from error
        self.remote.lost = None
        self.remote.ask = self.session.ask(Budget(self.seconds))
        return self.remote.call(Function(NAME, self.remote), [dict(given)], {})

    @staticmethod
    def _not_ready(*arguments: Any, **fields: Any) -> dict[str, Any]:
        raise RuntimeError("the sandbox was asked before it was ready")

    @staticmethod
    def _no_figures(words: Any) -> dict[str, Any]:
        raise EstimateFailed("a contest measures nothing")


@functools.cache
def _masks(names: tuple[str, ...]) -> SandboxMasks:
    return SandboxMasks(names)  # once per process: it makes files


def as_json(outcomes: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """Return outcomes as they are stored, with all text from the sandbox cleaned and bounded."""
    cleaned = [vars(outcome) | {"reason": cleaning.line(outcome.reason, 500),
                                "note": cleaning.line(outcome.note, 200)} for outcome in outcomes]
    return json.loads(json.dumps(cleaned))
