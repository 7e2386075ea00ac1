"""`python -P -m grader.contest.worker ROOT BACKEND`: a trusted process that plays submissions.

One JSON line in and one out for each, as grader.batch.worker does; grader.batch.pool watches it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.batch.worker import AGAIN, channel, guard, log_error, renew, say
from grader.run import timing

if TYPE_CHECKING:
    from grader.course import Course


class Desk:
    """The state that a worker keeps between tasks."""

    def __init__(self, course: Course, backend: Any) -> None:
        """
        Args:
            course: the course.
            backend: the sandbox; the parent chose and tested it.
        """
        from grader.run.settings import settings_of

        self.course, self.backend = course, backend
        self.settings = settings_of(course.settings())
        self.drawn: dict[str, Any] = {}

    def play(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return {"outcomes": [...]}, or {"unplayed": reason}."""
        from grader.contest import sandboxed, secret, submissions
        from labkit.contest import catalog

        contest = catalog.find(task["lab"])
        if contest.name not in self.drawn:
            self.drawn[contest.name] = secret.cases(self.course, contest)
        content = submissions.version(self.course, contest, task["student"], task["digest"])
        try:
            outcomes = sandboxed.play(contest, self.drawn[contest.name], content, self.backend,
                                      self.settings)
        except sandboxed.Unplayed as error:
            return {"unplayed": str(error)}
        return {"outcomes": sandboxed.as_json(outcomes)}


def main() -> None:
    def desk() -> Desk:
        from grader.course import Course
        from grader.sandbox import choice

        return Desk(Course(Path(sys.argv[1])), choice.choose(sys.argv[2]))

    again = [] if AGAIN in sys.argv else [AGAIN]
    serve(desk, [sys.executable, *sys.orig_argv[1:], *again], ready=not again)


def serve(make: Callable[[], Desk], command: Sequence[str], *, ready: bool = False) -> None:
    """Answer questions, as `grader.batch.worker.serve` does."""
    guard()
    questions, answers = channel()
    desk = make()
    if not ready:
        say(answers, {"ready": True})
    for line in questions:
        task = json.loads(line)
        try:
            answer = desk.play(task)
        except Exception as error:  # of ours, or of the contest's scorer; the next one has a chance
            log_error(task, error)
            answer = {"unplayed": f"the grader itself failed ({type(error).__name__})"}
        say(answers, answer | {"task": task["task"]})
        if timing.interrupted():
            renew(questions, answers, command)


if __name__ == "__main__":
    main()
