"""Collect a contest's files from an LMS's archive or a folder, by the same rules as notebooks."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from grader.collect.collecting import CollectedFile
from grader.collect.layouts import Claim, layout_of
from grader.collect.sources import File, FileRefused, Source, opened
from grader.contest import submissions
from grader.contest.standings import roster_of
from grader.course import Course, groups, receipts
from grader.course.folder import CONTEST
from grader.course.reasons import Unusable
from grader.course.receipts import Receipt
from grader.course.roster import Roster
from grader.course.times import now
from labcore.atomic import write_atomic
from labcore.errors import LabError
from labkit.contest.cli import problem_of
from labkit.contest.declaration import Contest

Candidate = tuple[File, Claim]


def collect(course: Course, contest: Contest, source: Path, *,
            received: datetime.datetime | None = None, as_is: bool = False) -> list[CollectedFile]:
    """Take one file per student; every file of the source is taken, or listed with a reason.

    Args:
        course: the course.
        contest: the contest.
        source: a folder, a zip, or a tar.
        received: when all of it came in; by default now.
        as_is: whether folder names are students' ids, on the roster or not.

    Raises LabError for the source as a whole.
    """
    roster = Roster(roster_of(course))
    if not roster.people and not as_is:
        raise LabError("the roster is empty: fill it with `lab roster import students.csv`, or "
                       "pass --as-is to take folder names as the students' ids")
    moment, said_by = received or now(), "--received" if received else "when it was collected"
    with course.locked("lab contest collect", CONTEST), opened(source) as files:
        lines, candidates = _group_by_student(files, roster, as_is, groups.all_names(course))
        for student, group in sorted(candidates.items()):
            chosen, refused = _choose(contest, student, group)
            lines += refused
            if chosen:
                lines.append(_take(course, contest, files, chosen, moment, said_by))
    return lines


def _group_by_student(source: Source, roster: Roster, as_is: bool, names_of_groups: Collection[str]
                      ) -> tuple[list[CollectedFile], dict[str, list[Candidate]]]:
    """Return the files refused by name, and the Python files by student.

    Args:
        source: the files.
        roster: the class.
        as_is: whether folder names are students' ids.
        names_of_groups: how an LMS may begin the names of a group's files.
    """
    lines, python_files, candidates = [], [], defaultdict(list)
    for file in source.files():
        if file.problem:
            lines.append(CollectedFile(file.path, why=file.problem))
        elif file.path.lower().endswith(".py"):
            python_files.append(file)
    layout = layout_of([file.path for file in python_files], roster, as_is=as_is, pattern=None,
                       groups=names_of_groups)
    for file in python_files:
        claim = layout(file.path)
        if claim.problem:
            lines.append(CollectedFile(file.path, claim.student, why=claim.problem))
        else:
            candidates[claim.student].append((file, claim))
    return lines, candidates


def _choose(contest: Contest, student: str, group: list[Candidate]
            ) -> tuple[Candidate | None, list[CollectedFile]]:
    """Return the file to take: the one with the contest's name, else the only or the newest one."""
    names = {claim.named_as for _, claim in group}
    if len(names) > 1:
        why = f"more than one may be {student}: {', '.join(sorted(names))}"
        return None, [CollectedFile(file.path, student, why=why) for file, _ in group]
    newest = max(claim.serial for _, claim in group)
    group = [one for one in group if one[1].serial == newest]
    named = [one for one in group if one[1].name == contest.file] or group
    if len(named) > 1:
        why = f"{len(group)} Python files, and none is called {contest.file}"
        return None, [CollectedFile(file.path, student, why=why) for file, _ in group]
    return named[0], []


def _take(course: Course, contest: Contest, source: Source, candidate: Candidate,
          moment: datetime.datetime, said_by: str) -> CollectedFile:
    file, claim = candidate
    label = submissions.label(contest)
    path = submissions.folder(course, contest) / claim.student / contest.file
    try:
        content = source.read(file)
        if problem := problem_of(content):
            raise FileRefused(problem)
        before = submissions.read(course, contest, claim.student)
        if before is not None:  # perhaps put there by hand
            submissions.register(course, contest, claim.student, before)
        is_new = before != content
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = submissions.store_version(course, contest, claim.student, content)
        if digest not in submissions.versions(course, contest, claim.student):
            receipts.add(course, Receipt(claim.student, label, digest, moment.isoformat(), said_by,
                                         file=claim.name, serial=claim.serial,
                                         lms_late=claim.late))
        if is_new:
            write_atomic(path, content)
    except (FileRefused, Unusable, OSError) as error:
        return CollectedFile(file.path, claim.student, why=str(error))
    when = submissions.versions(course, contest, claim.student)[digest]
    return CollectedFile(file.path, claim.student, contest.name, "new" if is_new else "same",
                         "the LMS calls it late" * claim.late, when.isoformat())
