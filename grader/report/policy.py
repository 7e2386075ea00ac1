"""Which of a student's attempts counts: `c.Attempts.counts = "best"` in nbgrader_config.py.

An attempt is one version that was handed in; the same file twice in a row is one. Only attempts
that were graded have a score, and each was graded when it was the newest: so grade between two
deadlines if the earlier attempts are to count.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from traitlets import Enum, Float, Int, List
from traitlets.config import Config, Configurable

from grader.course import Course, Submission, receipts
from grader.course.receipts import Receipt


class Attempts(Configurable):
    """The defaults: the latest, as many as they like, each for full points."""

    counts = Enum(("latest", "best", "first"), "latest", help="which one").tag(config=True)
    most = Int(0, min=0, help="later ones do not count; 0: no limit").tag(config=True)
    factors = List(Float(min=0, max=1), [1.0], minlen=1, help="what the points of the first, the "
                   "second, ... attempt are multiplied by; the last one holds for the rest"
                   ).tag(config=True)

    @property
    def plain(self) -> bool:
        """Whether the newest attempt's score counts as it is."""
        return self.counts == "latest" and not self.most and set(self.factors) == {1.0}

    def factor(self, number: int) -> float:
        """For the attempt of that number, from 1."""
        return self.factors[min(number, len(self.factors)) - 1]


@dataclass(frozen=True)
class Counted:
    """What counts of all attempts."""

    score: float | None  # None: the attempt that counts has none
    note: str = ""


def attempts_of(config: Config) -> Attempts:
    return Attempts(config=config)


def runs(handed_in: Sequence[tuple[str, str]]) -> list[str]:
    """Digests in the order of (time, digest); the same one twice in a row is there once."""
    return [digest for digest, _ in itertools.groupby(digest for _, digest in sorted(
        handed_in, key=lambda one: one[0]))]


def handed_in(came: Sequence[Receipt], history: Sequence[Mapping[str, Any]]
              ) -> list[tuple[str, str]]:
    """(when, digest) of all that is known: receipts, and what was graded without one."""
    known = {receipt.digest for receipt in came}
    return [(receipt.time.isoformat(), receipt.digest) for receipt in came] + [
        (str(one.get("received") or one.get("at") or ""), str(one.get("digest")))
        for one in history if one.get("digest") not in known]


def count(policy: Attempts, digests: Sequence[str], scores: Mapping[str, float | None]) -> Counted:
    """What counts of attempts `digests`, oldest first; `scores` of those that were graded."""
    within = list(digests)[:policy.most or None]
    if not within:
        return Counted(None)
    numbers = {"first": [1], "latest": [len(within)],
               "best": list(range(1, len(within) + 1))}[policy.counts]
    worth = {number: score * policy.factor(number) for number in numbers
             if (score := scores.get(within[number - 1])) is not None}
    if not worth:
        which = f"attempt {numbers[0]}" if len(numbers) == 1 else "no attempt"
        return Counted(None, f"{which} of {len(digests)} has {'no ' * (len(numbers) == 1)}score "
                             f"({policy.counts} counts)")
    best = max(worth, key=lambda number: (worth[number], -number))
    times = f", times {policy.factor(best):g}" if policy.factor(best) != 1 else ""
    waiting = len(numbers) - len(worth)
    return Counted(worth[best], f"attempt {best} of {len(digests)} counts ({policy.counts}{times})"
                   + f"; {waiting} without a score" * bool(waiting))


def to_grade(policy: Attempts, found: Sequence[Receipt]) -> Receipt:
    """Of what was received, oldest first and not empty, the one to put into submitted/."""
    starts = [index for index, receipt in enumerate(found)
              if index == 0 or receipt.digest != found[index - 1].digest]
    if policy.counts == "first":
        return found[0]
    return found[starts[:policy.most or None][-1]]


def counted(course: Course, rows: Iterable[Any]) -> Iterator[Any]:
    """The rows of grades.csv, each with the score of the attempt that counts, which its notes say.

    A row that waits to be graded stays as it is: whatever counts, it is not known yet.
    """
    policy = attempts_of(course.settings())
    if policy.plain:
        yield from rows
        return
    came = receipts.read(course)
    for row in rows:
        found = came.get((row.student, row.lab), [])
        yield row if row.decision else _counted(course, policy, row, found)


def _counted(course: Course, policy: Attempts, row: Any, came: Sequence[Receipt]) -> Any:
    submission = Submission(course, row.lab, row.student)
    record, digest = submission.record, submission.digest
    if record is None or record.digest != digest or (
            record.state == "graded" and row.state == "ungraded"):
        return row
    history = getattr(record, "history", [])
    scores = {one["digest"]: one.get("score") for one in history if one.get("state") == "graded"}
    scores[digest] = row.score  # a person may have changed it since
    if digest not in {one.get("digest") for one in history}:
        history = [*history, {"digest": digest, "received": row.received}]
    found = count(policy, runs(handed_in(came, history)), scores)
    if found.score is None:
        why = row.reason if row.state == "ungraded" else found.note
        return replace(row, score=None, state="ungraded", reason=why)
    reason = f"the newest attempt is ungraded: {row.reason}" if row.score is None else row.reason
    notes = "; ".join(filter(None, [row.notes, found.note]))
    if found.score != row.score:  # these are of the newest attempt, not of the one that counts
        row = replace(row, raw_score=None, late_penalty=None, late="")
    return replace(row, score=found.score, state="graded", reason=reason, notes=notes)
