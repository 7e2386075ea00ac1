"""`python -P -m grader.contest.worker ROOT BACKEND`: a trusted process that plays submissions.

Each input line is a JSON task, and each output line its answer, as in grader.batch.worker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.batch.worker import ALREADY_READY, channel, guard, log_error, renew, send
from grader.run import timing

if TYPE_CHECKING:
    from grader.course import Course


class ContestTaskHandler:
    """Runs a worker's tasks, and caches the secret cases between them."""

    def __init__(self, course: Course, backend: Any) -> None:
        """Read the course's settings.

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
    def handler() -> ContestTaskHandler:
        from grader.course import Course
        from grader.sandbox import choice

        return ContestTaskHandler(Course(Path(sys.argv[1])), choice.choose(sys.argv[2]))

    again = [] if ALREADY_READY in sys.argv else [ALREADY_READY]
    serve(handler, [sys.executable, *sys.orig_argv[1:], *again], ready=not again)


def serve(make: Callable[[], ContestTaskHandler], command: Sequence[str], *,
          ready: bool = False) -> None:
    """Answer tasks from standard input until it ends, like `grader.batch.worker.serve`.

    Args:
        make: creates the handler.
        command: the program to restart as once an alarm rang.
        ready: whether the worker has already reported that it is ready.
    """
    guard()
    questions, answers = channel()
    handler = make()
    if not ready:
        send(answers, {"ready": True})
    for line in questions:
        task = json.loads(line)
        try:
            answer = handler.play(task)
        except Exception as error:  # of ours, or of the contest's scorer; the next one has a chance
            log_error(task, error)
            answer = {"unplayed": f"the grader itself failed ({type(error).__name__})"}
        send(answers, answer | {"task": task["task"]})
        if timing.interrupted():
            renew(questions, answers, command)


if __name__ == "__main__":
    main()
