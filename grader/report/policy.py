"""Determine which of a student's attempts counts: `c.Attempts.counts` in nbgrader_config.py.

An attempt is one submitted version; the same file twice in a row is one. Only graded attempts have
a score, and each was graded while it was the newest. So grade between two deadlines if earlier
attempts are to count.
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
    """The policy. By default the latest attempt counts, for full points, without a limit."""

    counts = Enum(("latest", "best", "first"), "latest", help="which one").tag(config=True)
    most = Int(0, min=0, help="later ones do not count; 0: no limit").tag(config=True)
    factors = List(Float(min=0, max=1), [1.0], minlen=1, help="what the points of the first, the "
                   "second, ... attempt are multiplied by; the last one holds for the rest"
                   ).tag(config=True)

    @property
    def is_default(self) -> bool:
        """Return whether the newest attempt's score counts unchanged."""
        return self.counts == "latest" and not self.most and set(self.factors) == {1.0}

    def factor(self, number: int) -> float:
        """Return the factor for the attempt with this number, from 1."""
        return self.factors[min(number, len(self.factors)) - 1]


@dataclass(frozen=True)
class CountedScore:
    """The score that counts; None if the attempt that counts has none."""

    score: float | None  # None: the attempt that counts has none
    note: str = ""


def attempts_of(config: Config) -> Attempts:
    return Attempts(config=config)


def distinct_attempts(submitted_versions: Sequence[tuple[str, str]]) -> list[str]:
    """Return the digests in the order of (time, digest), without immediate repetitions."""
    return [digest for digest, _ in itertools.groupby(digest for _, digest in sorted(
        submitted_versions, key=lambda one: one[0]))]


def submitted_versions(received: Sequence[Receipt], history: Sequence[Mapping[str, Any]]
                       ) -> list[tuple[str, str]]:
    """Return (time, digest) of all known versions: those with receipts, and those graded without
    one.

    Args:
        received: the receipts.
        history: the history in the submission's record.
    """
    known = {receipt.digest for receipt in received}
    return [(receipt.time.isoformat(), receipt.digest) for receipt in received] + [
        (str(one.get("received") or one.get("at") or ""), str(one.get("digest")))
        for one in history if one.get("digest") not in known]


def count(policy: Attempts, digests: Sequence[str],
          scores: Mapping[str, float | None]) -> CountedScore:
    """Return the score that counts.

    Args:
        policy: the policy.
        digests: the attempts' digests, oldest first.
        scores: the graded attempts' scores by digest.
    """
    within = list(digests)[:policy.most or None]
    if not within:
        return CountedScore(None)
    numbers = {"first": [1], "latest": [len(within)],
               "best": list(range(1, len(within) + 1))}[policy.counts]
    worth = {number: score * policy.factor(number) for number in numbers
             if (score := scores.get(within[number - 1])) is not None}
    if not worth:
        subject = f"attempt {numbers[0]}" if len(numbers) == 1 else "no attempt"
        no = "no " * (len(numbers) == 1)
        return CountedScore(None, f"{subject} of {len(digests)} has {no}score "
                                  f"({policy.counts} counts)")
    best = max(worth, key=lambda number: (worth[number], -number))
    times = f", times {policy.factor(best):g}" if policy.factor(best) != 1 else ""
    waiting = len(numbers) - len(worth)
    note = f"attempt {best} of {len(digests)} counts ({policy.counts}{times})"
    return CountedScore(worth[best], note + f"; {waiting} without a score" * bool(waiting))


def to_grade(policy: Attempts, received: Sequence[Receipt]) -> Receipt:
    """Return the receipt of the version to put into submitted/.

    Args:
        policy: the policy.
        received: the receipts, oldest first; at least one.
    """
    starts = [index for index, receipt in enumerate(received)
              if index == 0 or receipt.digest != received[index - 1].digest]
    if policy.counts == "first":
        return received[0]
    return received[starts[:policy.most or None][-1]]


def counted(course: Course, rows: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows of grades.csv with the score of the attempt that counts, which the notes
    mention.

    A row that is still to be graded does not change, because its score is not known yet.

    Args:
        course: the course.
        rows: the rows.
    """
    policy = attempts_of(course.settings())
    if policy.is_default:
        yield from rows
        return
    all_receipts = receipts.read(course)
    for row in rows:
        received = all_receipts.get((row.student, row.lab), [])
        yield row if row.decision else _counted(course, policy, row, received)


def _counted(course: Course, policy: Attempts, row: Any, received: Sequence[Receipt]) -> Any:
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
    result = count(policy, distinct_attempts(submitted_versions(received, history)), scores)
    if result.score is None:
        why = row.reason if row.state == "ungraded" else result.note
        return replace(row, score=None, state="ungraded", reason=why)
    reason = f"the newest attempt is ungraded: {row.reason}" if row.score is None else row.reason
    notes = "; ".join(filter(None, [row.notes, result.note]))
    if result.score != row.score:  # these are of the newest attempt, not of the one that counts
        row = replace(row, raw_score=None, late_penalty=None, late="")
    return replace(row, score=result.score, state="graded", reason=reason, notes=notes)
