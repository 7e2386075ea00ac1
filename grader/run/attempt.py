"""Grade one submission once: rebuild it, run it in the sandbox, and check it from outside.

`grade` does not touch the gradebook and reads no file but the submitted notebook. It returns an
Attempt, which crosses between processes as JSON.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from grader.course import Submission
from grader.course.reasons import Unusable, explain
from grader.course.submitted import parse, read
from grader.run.lab_plan import GradingPlan
from grader.run.notebook_run import NotebookRun
from grader.run.rebuild import rebuild
from grader.run.settings import Grading
from grader.run.timing import TimeLimitReached, limited
from grader.sandbox.interface import Backend

STATES = ("graded", "ungraded")
MOST = 1e15  # points and seconds
LARGEST = 64_000_000  # bytes of an attempt as JSON
SECONDS_TO_READ = 10.0  # everything is bounded, so an honest notebook takes well under one


class DamagedAttempt(ValueError):
    """Raised for bytes that are not a valid Attempt."""


@dataclass(frozen=True)
class Attempt:
    """The outcome of grading one submission.

    `scores` has the points of every check that could be decided, `unscored` the grade_ids of the
    others. A check with partial credit is in both if some of its parts could be decided. Cells that
    a person grades are in neither. Without a notebook there was nothing to run.
    """

    student: str
    lab: str
    digest: str  # SHA-256 of the very bytes that were graded; empty when there were none
    lab_digest: str
    state: str  # graded | ungraded
    reason: str = ""
    notes: tuple[str, ...] = ()
    notebook: dict[str, Any] | None = field(default=None, repr=False)  # nbformat 4, with outputs
    scores: dict[str, float] = field(default_factory=dict)
    unscored: tuple[str, ...] = ()
    seconds: float = 0.0
    backend: str = ""
    isolated: bool = True
    own_doing: bool = False  # ungraded because of the submission itself, on a machine in order

    def dumps(self) -> bytes:
        """Return the attempt as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def loads(cls, content: bytes) -> Attempt:
        """Return the attempt in `content`. Raises DamagedAttempt."""
        try:
            if len(content) > LARGEST:
                raise DamagedAttempt(f"{len(content):,} bytes are too many")
            data = json.loads(content)
            names = {field.name for field in fields(cls)}
            if not isinstance(data, dict) or not names - {"own_doing"} <= set(data) <= names:
                raise DamagedAttempt("not the fields of an attempt")
            attempt = cls(**data | {name: tuple(data[name]) for name in ("notes", "unscored")})
        except (ValueError, TypeError, RecursionError) as error:
            raise DamagedAttempt(str(error)) from error
        attempt._require_sound()
        return attempt

    def _require_sound(self) -> None:
        texts = (self.student, self.lab, self.digest, self.lab_digest, self.state, self.reason,
                 self.backend, *self.notes, *self.unscored)
        scores = self.scores.values() if isinstance(self.scores, dict) else [None]
        numbers = (self.seconds, *scores)
        if not (all(isinstance(text, str) for text in texts) and self.state in STATES
                and all(type(number) in (int, float) and 0 <= number < MOST
                        for number in numbers)
                and isinstance(self.isolated, bool) and isinstance(self.own_doing, bool)
                and (self.notebook is None or isinstance(self.notebook, dict))
                and (self.state == "graded") == (not self.reason)):
            raise DamagedAttempt("a field has the wrong type")


def grade(submission: Submission, plan: GradingPlan, backend: Backend,
          settings: Grading) -> Attempt:
    """Grade one submission; nothing that it does prevents an Attempt.

    Call it in the main thread, which receives the alarm signal. Raises LabError when the course or
    this machine is at fault.

    Args:
        submission: the submission to grade.
        plan: the lab's plan.
        backend: starts the sandbox.
        settings: the limits for one submission.
    """
    course, lab, student = submission.course, submission.lab, submission.student
    start, digest = time.monotonic(), ""

    def attempt(**more: Any) -> Attempt:
        return Attempt(student, lab, digest or submission.digest, plan.digest,
                       seconds=time.monotonic() - start, backend=backend.name, **more)

    try:
        path = submission.notebook()
        content = read(path)
        digest = hashlib.sha256(content).hexdigest()
        with limited(SECONDS_TO_READ):
            notebook, notes = rebuild(plan.skeleton, parse(content, path.name))
    except Unusable as error:
        return attempt(state="ungraded", reason=explain(error))
    except (TimeLimitReached, MemoryError):
        return attempt(state="ungraded", reason="reading it takes too much time or memory",
                       own_doing=True)
    run = NotebookRun(plan, notebook, backend, settings, course.seed(lab, student, digest))
    reason = run.run()
    if not reason:  # what an answer did that no check needed
        notes += run.session.incidents.values()
    notebook.metadata["grader"] = {"notes": notes}
    return attempt(state="ungraded" if reason else "graded", reason=reason, notes=tuple(notes),
                   own_doing=bool(reason) and run.own_doing,
                   notebook=json.loads(json.dumps(notebook)), scores=run.scores,
                   unscored=tuple(run.unscored))
