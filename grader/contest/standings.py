"""Rank students and groups, each by the best attempt, and ghosts in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from grader.contest import attempts, secret, submissions
from grader.course import Course, groups
from grader.course.roster import Person, people
from grader.gradebook.records import gradebook, gradebook_file
from grader.run.settings import settings_of
from labkit.contest.declaration import Contest
from labkit.contest.play import CaseResult, ghosts, points, points_by_group

NOT_PLAYED = "not played yet"
HIDDEN = "the newest file was not played"  # where students are not named


@dataclass(frozen=True)
class StandingsRow:
    """A student, a group, or a ghost. A row without a rank has no points.

    Attributes:
        name: the name that is shown.
        rank: 1 more than the number of rows with more points.
        points: the total.
        by_group: the points in every group of cases.
        out: number of disqualified cases by kind.
        attempt: which attempt counts, and their number; empty for a ghost.
        received: its time of receipt, ISO 8601, UTC; for a ghost, its source.
        note: a remark.
        ghost: whether it is one.
    """

    name: str
    rank: int = 0
    points: float = 0.0
    by_group: Mapping[str, float] = field(default_factory=dict)
    out: Mapping[str, int] = field(default_factory=dict)
    attempt: str = ""
    received: str = ""
    note: str = ""
    ghost: bool = False


def standings(course: Course, contest: Contest, named: Mapping[str, str] | None = None,
              *, hide: bool = False) -> list[StandingsRow]:
    """Return all rows, the best first; those without a score come last.

    Args:
        course: the course.
        contest: the contest.
        named: what to call the rows of `teams`, by their ids; by default their ids.
        hide: whether to leave out what could tell who a student is.
    """
    drawn = secret.cases(course, contest)
    made_with = secret.digest(contest, drawn, settings_of(course.settings()))
    named, rows = named or {}, []
    for owner, members in teams(course, contest).items():
        row = _team([_student(course, contest, one, made_with) for one in members], hide)
        rows.append(replace(row, name=named.get(owner, owner)))
    sources = {ghost.name: ghost.source for ghost in contest.ghosts}
    rows += [_scored(StandingsRow(name, received=sources[name], ghost=True), outcomes)
             for name, outcomes in ghosts(contest, drawn).items()]
    return ranked(rows)


def teams(course: Course, contest: Contest) -> dict[str, list[str]]:
    """Return the students of each row, by the id of the student or of the group's owner. What any
    member of a group submits is the group's.

    Args:
        course: the course.
        contest: the contest.
    """
    known = {}
    for student in submissions.students(course, contest):
        group = groups.group_of(course, submissions.label(contest), student)
        known[group.owner if group else student] = list(group.members) if group else [student]
    return dict(sorted(known.items()))


def ranked(rows: Sequence[StandingsRow]) -> list[StandingsRow]:
    """Return rows in order, with ranks. Equal points share a rank; among these, ghosts come first,
    then earlier attempts, then names decide."""
    def order(row: StandingsRow) -> tuple:
        when = 0.0 if row.ghost else datetime.fromisoformat(row.received).timestamp()
        return -row.points, not row.ghost, when, row.name

    with_points = sorted((row for row in rows if row.by_group), key=order)
    return [*(replace(row, rank=1 + sum(other.points > row.points for other in with_points))
              for row in with_points),
            *sorted((row for row in rows if not row.by_group), key=lambda row: row.name)]


def roster_of(course: Course) -> list[Person]:
    """Return the class; empty without a gradebook, which a contest does not need."""
    path = gradebook_file(course)
    if path is not None and not path.exists():
        return []
    with gradebook(course) as book:
        return people(book)


def _team(rows: Sequence[StandingsRow], hide: bool) -> StandingsRow:
    """Return the best row of those who submit together.

    Args:
        rows: theirs, each with a student's id as its name.
        hide: whether to leave out what could tell who a student is.
    """
    submitted = [row for row in rows if row.note or row.by_group] or rows[:1]
    best = ranked(submitted)[0]
    if hide:
        notes = {row.note if row.note == NOT_PLAYED else HIDDEN for row in submitted if row.note}
        return replace(best, note=HIDDEN if HIDDEN in notes else "".join(notes))
    if len(submitted) == 1:
        return best
    return replace(best, attempt=f"{best.attempt} ({best.name})" if best.attempt else "",
                   note="; ".join(f"{row.name}: {row.note}" for row in submitted if row.note))


def _student(course: Course, contest: Contest, student: str, made_with: str) -> StandingsRow:
    played, refused = attempts.read(course, contest, student)
    versions = list(submissions.versions(course, contest, student))
    note = f"the newest file is not played: {refused}" if refused else ""
    missing = [digest for digest in versions if digest not in played
               or not played[digest].outcomes or played[digest].made_with != made_with]
    if missing and not note:
        reason = played[missing[-1]].reason if missing[-1] in played else ""
        note = f"not played: {reason}" if reason else NOT_PLAYED
    counts = attempts.best([played[digest] for digest in versions if digest in played], made_with)
    if counts is None:
        return StandingsRow(student, note=note)
    number = versions.index(counts.digest) + 1
    return _scored(StandingsRow(student, attempt=f"{number} of {len(versions)}",
                                received=counts.received,
                                note=note), counts.outcomes)


def _scored(row: StandingsRow, outcomes: Sequence[CaseResult]) -> StandingsRow:
    return replace(row, points=points(outcomes), by_group=points_by_group(outcomes),
                   out=Counter(one.kind for one in outcomes if one.kind))
