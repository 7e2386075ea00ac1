"""One grading of one submission: rebuild, run in the sandbox, probe from here.

`grade` touches neither the gradebook nor any file but the one that was submitted; what comes out
is an Attempt, which crosses between processes as JSON.
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
from grader.run.lab_plan import Plan
from grader.run.rebuild import rebuild
from grader.run.settings import Grading
from grader.run.timing import Late, limited
from grader.run.walk import Walk
from grader.sandbox.interface import Backend

STATES = ("graded", "ungraded")
MOST = 1e15  # points and seconds
LARGEST = 64_000_000  # bytes of an attempt as JSON
SECONDS_TO_READ = 10.0  # everything is bounded, so an honest notebook takes well under one


class Damaged(ValueError):
    """Bytes that are no Attempt."""


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
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def loads(cls, content: bytes) -> Attempt:
        """The Attempt in `content`. Raises Damaged."""
        try:
            if len(content) > LARGEST:
                raise Damaged(f"{len(content):,} bytes are too much")
            found = json.loads(content)
            names = {field.name for field in fields(cls)}
            if not isinstance(found, dict) or not names - {"own_doing"} <= set(found) <= names:
                raise Damaged("not the fields of an attempt")
            made = cls(**found | {name: tuple(found[name]) for name in ("notes", "unscored")})
        except (ValueError, TypeError, RecursionError) as error:
            raise Damaged(str(error)) from error
        made._require_sound()
        return made

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
            raise Damaged("a field of the wrong kind")


def grade(submission: Submission, plan: Plan, backend: Backend, settings: Grading) -> Attempt:
    """Grade one submission. Whatever it does ends in an Attempt; to be called in the main thread,
    which has the alarm. Raises LabError when the course or this machine is at fault."""
    course, lab, student = submission.course, submission.lab, submission.student
    start, digest = time.monotonic(), ""

    def made(**more: Any) -> Attempt:
        return Attempt(student, lab, digest or submission.digest, plan.digest,
                       seconds=time.monotonic() - start, backend=backend.name, **more)

    try:
        path = submission.notebook()
        content = read(path)
        digest = hashlib.sha256(content).hexdigest()
        with limited(SECONDS_TO_READ):
            notebook, notes = rebuild(plan.skeleton, parse(content, path.name))
    except Unusable as error:
        return made(state="ungraded", reason=explain(error))
    except (Late, MemoryError):
        return made(state="ungraded", reason="it takes too much time or memory to read",
                    own_doing=True)
    walk = Walk(plan, notebook, backend, settings, course.seed(lab, student, digest))
    reason = walk.run()
    if not reason:  # what an answer did that no check needed
        notes += walk.session.incidents.values()
    notebook.metadata["grader"] = {"notes": notes}
    return made(state="ungraded" if reason else "graded", reason=reason, notes=tuple(notes),
                own_doing=bool(reason) and walk.own_doing,
                notebook=json.loads(json.dumps(notebook)), scores=walk.scores,
                unscored=tuple(walk.unscored))
