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

from grader.course import Course, Submission, groups, receipts
from grader.course.receipts import Receipt
from grader.gradebook import decisions
from grader.gradebook.decisions import Versions

NO_DECISION = Versions()


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


def count(policy: Attempts, digests: Sequence[str], scores: Mapping[str, float | None],
          decided: Versions = NO_DECISION) -> CountedScore:
    """Return the score that counts. Its note numbers the attempts as `lab attempt` lists them,
    although a withdrawn one is no attempt to the policy.

    Args:
        policy: the policy.
        digests: the attempts' digests, oldest first, those of withdrawn ones included.
        scores: the graded attempts' scores by digest.
        decided: what a person decided about the versions.
    """
    allowed = decided.allowed(digests)
    listed = [number for number, digest in enumerate(digests, 1)
              if digest not in decided.withdrawn]
    within = allowed[:policy.most or None]
    if not within:
        return CountedScore(None)
    numbers = {"first": [1], "latest": [len(within)],
               "best": list(range(1, len(within) + 1))}[policy.counts]
    kind = policy.counts
    if decided.chosen and decided.chosen in allowed:
        within, numbers, kind = allowed, [allowed.index(decided.chosen) + 1], "chosen"
    worth = {number: score * policy.factor(number) for number in numbers
             if (score := scores.get(within[number - 1])) is not None}
    if not worth:
        subject = f"attempt {listed[numbers[0] - 1]}" if len(numbers) == 1 else "no attempt"
        no = "no " * (len(numbers) == 1)
        return CountedScore(None, f"{subject} of {len(digests)} has {no}score "
                                  f"({kind} counts)")
    best = max(worth, key=lambda number: (worth[number], -number))
    times = f", times {policy.factor(best):g}" if policy.factor(best) != 1 else ""
    waiting = len(numbers) - len(worth)
    note = f"attempt {listed[best - 1]} of {len(digests)} counts ({kind}{times})"
    return CountedScore(worth[best], note + f"; {waiting} without a score" * bool(waiting))


def to_grade(policy: Attempts, received: Sequence[Receipt], decided: Versions = NO_DECISION
             ) -> Receipt | None:
    """Return the receipt of the version to put into submitted/; None if all are withdrawn.

    Args:
        policy: the policy.
        received: the receipts, oldest first; at least one.
        decided: what a person decided about the versions.
    """
    for receipt in reversed(received):
        if receipt.digest == decided.chosen:
            return receipt
    received = [one for one in received if one.digest not in decided.withdrawn]
    if not received:
        return None
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
    all_receipts, all_decided = receipts.read(course), decisions.versions(course)
    for row in rows:
        owner = groups.owner_of(course, row.lab, row.student)
        received = all_receipts.get((owner, row.lab), [])
        decided = all_decided.get((row.lab, owner), NO_DECISION)
        yield row if row.decision else _counted(course, policy, row, received, decided)


def _counted(course: Course, policy: Attempts, row: Any, received: Sequence[Receipt],
             decided: Versions) -> Any:
    if policy.is_default and decided == NO_DECISION and row.attempt <= 1:
        return row
    submission = Submission(course, row.lab, groups.owner_of(course, row.lab, row.student))
    record, digest = submission.record, submission.digest
    if record is None or record.digest != digest or (
            record.state == "graded" and row.state == "ungraded"):
        return row
    history = getattr(record, "history", [])
    scores = {one["digest"]: one.get("score") for one in history if one.get("state") == "graded"}
    scores[digest] = row.score  # a person may have changed it since
    if digest not in {one.get("digest") for one in history}:
        history = [*history, {"digest": digest, "received": row.received}]
    # An empty digest is of no version, or of a submission whose notebook cannot be opened.
    digests = [one for one in distinct_attempts(submitted_versions(received, history))
               if one or not digest]
    if policy.is_default and decided == NO_DECISION:
        return _with_better(row, digests, scores)
    result = count(policy, digests, scores, decided)
    if result.score is None:
        why = row.reason if row.state == "ungraded" else result.note
        return replace(row, score=None, state="ungraded", reason=why)
    reason = f"the newest attempt is ungraded: {row.reason}" if row.score is None else row.reason
    notes = "; ".join(filter(None, [row.notes, result.note]))
    if result.score != row.score:  # these are of the newest attempt, not of the one that counts
        row = replace(row, raw_score=None, late_penalty=None, late="")
    return replace(row, score=result.score, state="graded", reason=reason, notes=notes)


def _with_better(row: Any, digests: Sequence[str], scores: Mapping[str, float | None]) -> Any:
    """Return the row of the latest attempt, with a note if an earlier one scored more: perhaps the
    latest is a wrong file.

    Args:
        row: the row.
        digests: the attempts' digests, oldest first.
        scores: the graded attempts' scores by digest.
    """
    earlier = {number: score for number, digest in enumerate(digests[:-1], 1)
               if (score := scores.get(digest)) is not None}
    best = max(earlier, key=lambda number: (earlier[number], -number), default=0)
    if not best or earlier[best] <= (row.score or 0.0):
        return row
    note = (f"attempt {best} of {len(digests)} had {earlier[best]:g} points: "
            f"`lab attempt {row.student} {row.lab}` lists them")
    return replace(row, notes="; ".join(filter(None, [row.notes, note])))
