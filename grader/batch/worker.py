"""`python -P -m grader.batch.worker ROOT SOURCES BACKEND`: a trusted process that grades and makes
pages, one JSON line in and one out for each. No pickle, no shared memory. `serve` is the same in a
fork.

Its standard output is the channel, so nothing else may write there; what anything prints goes to
the log, through standard error. Answers contain no student's text.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from grader.run import timing
from labcore.errors import NO_ROOM, LabError, error_text
from labcore.imports import imports_without_gc

if TYPE_CHECKING:
    from grader.course import Course

MEMORY = 2 << 30  # bytes of data: the parent replaces a worker long before
LONGEST_TRACEBACK = 4000
ALREADY_READY = "again"  # an argument: the worker has already reported that it is ready
TERMINATED = 143  # exit code, as shells have it for SIGTERM
_ending: list[bool] = []


class TaskHandler:
    """Runs a worker's tasks, and caches lab plans and the exporter between them."""

    def __init__(self, course: Course, backend: Any) -> None:
        from grader.run.settings import settings_of

        self.course = course
        self.config = self.course.settings()
        self.settings = settings_of(self.config)
        self.backend = backend
        self.plans: dict[str, Any] = {}
        self.pages: Any = None

    def grade(self, task: dict[str, Any]) -> dict[str, Any]:
        from grader.course import Submission
        from grader.run import attempt, lab_plan, results

        lab = task["lab"]
        if lab not in self.plans:
            self.plans[lab] = lab_plan.read(self.course, lab)
        graded = attempt.grade(Submission(self.course, lab, task["student"]), self.plans[lab],
                               self.backend, self.settings)
        if _ending:  # a check may have caught the SystemExit
            sys.exit(TERMINATED)
        return {"id": results.write(self.course, self.settings.digest(), graded).id}

    def feedback(self, task: dict[str, Any]) -> dict[str, Any]:
        from grader.course import Submission
        from grader.feedback.pages import FeedbackPages

        self.pages = self.pages or FeedbackPages(self.course, self.config)
        submission = Submission(self.course, task["lab"], task["student"])
        self.pages.make(submission, task["given"])
        for member, notices in task.get("others", {}).items():
            self.pages.make(submission, {**task["given"], "notices": notices}, member)
        return {}


def _chosen(name: str) -> Any:
    """Return the back end that the parent chose and tested; None for a worker that only makes
    pages."""
    if name == "-":
        return None
    from grader.sandbox import choice

    return choice.choose(name)


def main() -> int:
    def handler() -> TaskHandler:
        from grader.course import Course

        return TaskHandler(Course(Path(sys.argv[1]), Path(sys.argv[2])), _chosen(sys.argv[3]))

    again = [] if ALREADY_READY in sys.argv else [ALREADY_READY]
    return serve(handler, [sys.executable, *sys.orig_argv[1:], *again], ready=not again)


def serve(make: Callable[[], TaskHandler], command: Sequence[str], *, ready: bool = False) -> int:
    """Answer questions from standard input until its end.

    Args:
        make: creates the handler.
        command: the program that replaces this process after an alarm in a check.
        ready: whether it has already reported that it is ready.
    """
    guard()
    questions, answers = channel()
    with imports_without_gc():
        handler = make()
    if not ready:
        send(answers, {"ready": os.getpid()})
    for line in questions:
        task = json.loads(line)
        try:
            answer = {"grade": handler.grade, "feedback": handler.feedback}[task["do"]](task)
        except Exception as error:  # the parent reports it; the next task may succeed
            from grader.gradebook.records import is_grader_fault

            log_error(task, error)
            answer = {"failed": str(error) if isinstance(error, LabError) else type(error).__name__,
                      "ours": is_grader_fault(error)}
            if isinstance(error, OSError) and error.errno in NO_ROOM and Path(
                    str(error.filename)).is_relative_to(handler.course.root):
                answer["no room"] = error_text(error)  # the course's disk, which no student fills
        send(answers, answer | {"task": task.get("task")})
        if timing.interrupted():
            renew(questions, answers, command)
    return 0


def renew(questions: Any, answers: Any, command: Sequence[str]) -> NoReturn:
    """Replace this process with a new program, because an alarm may have interrupted an import and
    left a library partly initialized.

    Args:
        questions: stream of tasks.
        answers: stream of results.
        command: the program.
    """
    print("an alarm rang in a check: renewed", file=sys.stderr, flush=True)
    os.dup2(questions.fileno(), 0)
    os.dup2(answers.fileno(), 1)
    os.execv(command[0], command)


def guard() -> None:
    """Exit with the parent, limit this process's memory, and disable core dumps."""
    PR_SET_PDEATHSIG = 1
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("its parent process has exited")
    signal.signal(signal.SIGTERM, terminate)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def terminate(*signalled: Any) -> None:
    """Exit on SIGTERM: release all resources, and write nothing more."""
    _ending.append(True)
    sys.exit(TERMINATED)


def channel() -> tuple[Any, Any]:
    """Return (input stream, output stream), and hide both from code that reads or prints."""
    questions = os.fdopen(os.dup(0), "rb", buffering=0)  # so that `renew` finds the next one there
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return questions, answers


def send(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def log_error(task: dict[str, Any], error: Exception) -> None:
    text = "".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:]
    print(f"{task.get('do')} {task.get('lab')!r} {task.get('student')!r}:", ascii(text),
          file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
