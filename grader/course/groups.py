"""Groups that submit together: groups.json in the course folder.

One member, the owner, has the group's submission in submitted/, in the gradebook, and everywhere
else. Grades, pages, and exports of the others are made from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.course import lms_rosters
from grader.course.folder import Course, until_changed
from grader.course.names import normalized
from grader.course.roster import Roster, read_table
from labcore.atomic import write_atomic
from labcore.errors import LabError
from labcore.terminal import visible

ALL = "*"  # every lab without groups of its own
GROUP_COLUMNS = ("group", "groups", "group_name")
STUDENT_COLUMNS = ("student", "id", "id number", "username", "email", "email address",
                   "canvas_user_id", "login_id", "user_id")


@dataclass(frozen=True)
class Group:
    """Students who submit one notebook together; the owner is one of the members."""

    name: str
    owner: str
    members: tuple[str, ...]


def file_of(course: Course) -> Path:
    return course.root / "groups.json"


def all_groups(course: Course) -> Mapping[str, Sequence[Group]]:
    """Return all groups by lab, or by ALL. Raises LabError when the file is damaged."""
    return _read(file_of(course))


@until_changed(dict)
def _read(path: Path) -> dict[str, list[Group]]:
    try:
        result = {lab: [Group(one["name"], one["owner"], tuple(one["members"])) for one in groups]
                  for lab, groups in json.loads(path.read_bytes()).items()}
        sound = all(isinstance(text, str) for groups in result.values() for one in groups
                    for text in (one.name, one.owner, *one.members))
        if not sound or not all(one.owner in one.members for groups in result.values()
                                for one in groups):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise LabError(f"{path} is damaged: restore it from a backup of the course folder, or "
                       "import the groups again") from None
    return result


def all_names(course: Course) -> set[str]:
    return {one.name for some in all_groups(course).values() for one in some}


def groups_of(course: Course, lab: str) -> Sequence[Group]:
    """Return the groups of a lab: its own, or those of all labs.

    Args:
        course: the course.
        lab: the lab's name.
    """
    known = all_groups(course)
    return known.get(lab, known.get(ALL, ()))


def group_of(course: Course, lab: str, student: str) -> Group | None:
    """Return the student's group.

    Args:
        course: the course.
        lab: the lab's name.
        student: any member.
    """
    return next((one for one in groups_of(course, lab) if student in one.members), None)


def owner_of(course: Course, lab: str, student: str) -> str:
    """Return who has the submission: the owner of the student's group, or the student.

    Args:
        course: the course.
        lab: the lab's name.
        student: any member.
    """
    group = group_of(course, lab, student)
    return group.owner if group else student


def others_of(course: Course, lab: str, owner: str) -> list[str]:
    """Return the members whose grades are made from the owner's.

    Args:
        course: the course.
        lab: the lab's name.
        owner: who has the submission; of nobody else.
    """
    group = group_of(course, lab, owner)
    return [one for one in group.members if one != owner] if group and group.owner == owner else []


def read_file(path: Path, roster: Roster) -> dict[str, list[str]]:
    """Return the members of each group in a CSV file: of our own, Moodle's list of participants, or
    Canvas's list of a group set.

    Args:
        path: the file.
        roster: the class.

    Raises LabError that names the line.
    """
    header, rows = read_table(path)
    column = next((name for name in GROUP_COLUMNS if name in header), None)
    keys = [name for name in STUDENT_COLUMNS if name in header]
    if column is None or not keys:
        raise LabError(f"{path}: its columns are {', '.join(map(visible, header[:12]))}; it needs "
                       "student and group (or those of Moodle's participants or Canvas's groups)")
    groups: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    for line, cells in rows:
        name = normalized(cells[column])
        found = set().union(*(roster.identified(normalized(cells[key])) for key in keys
                              if cells[key]))
        if not name or not lms_rosters.may_be_student(cells):
            continue
        if len(found) != 1:
            who = visible(", ".join(cells[key] for key in keys if cells[key]))
            raise LabError(f"{path}, line {line}: {who or 'nobody'} "
                           + (f"may be {' or '.join(sorted(found))}" if found
                              else "is not on the roster"))
        student = found.pop()
        if "," in name:
            raise LabError(f"{path}, line {line}: {student} is in several groups: {visible(name)}")
        if seen.setdefault(student, name) != name:
            raise LabError(f"{path}, line {line}: {student} is in {visible(seen[student])} and in "
                           f"{visible(name)}")
        if student not in groups.setdefault(name, []):
            groups[name].append(student)
    if not groups:
        raise LabError(f"{path}: nobody is in a group")
    return groups


def replace_groups(course: Course, lab: str, new: Mapping[str, Sequence[str]],
                   submitters: Iterable[str]) -> list[Group]:
    """Write the groups of a lab, all of them or none.

    Args:
        course: the course.
        lab: the lab's name, or ALL.
        new: the members of each group; empty removes the groups.
        submitters: who has submissions of these labs.

    Raises LabError where a submission would change hands, and a grade would be lost with it.
    """
    known, has = dict(all_groups(course)), set(submitters)
    usual = known.get(ALL, ()) if lab != ALL else ()
    before = known.get(lab, usual)
    owners = {one.owner: one for one in before if len(one.members) > 1}
    result = []
    for name, members in sorted(new.items()):
        own = [student for student in members if student in has]
        if len(own) > 1:
            raise LabError(f"group {visible(name)}: {' and '.join(own)} submitted already, each on "
                           "their own: import groups for labs that nobody has submitted (--lab)")
        kept = [student for student in members if student in owners]
        owner = (own or kept or sorted(members))[0]
        result.append(Group(name, owner, tuple(sorted(members))))
    for student in sorted(has):
        now = next((one for one in result or usual if student in one.members), None)
        then = owners.get(student)
        if now and now.owner != student:
            raise LabError(f"{student} submitted already, and the submissions of group "
                           f"{visible(now.name)} are {now.owner}'s: the grade would be lost")
        if then and (now is None or set(now.members).isdisjoint({*then.members} - {student})):
            raise LabError(f"{student} has the submission of group {visible(then.name)}, so "
                           f"{student} cannot leave it: the others would lose their grades")
    known.pop(lab, None)
    content = known | ({lab: result} if result else {})
    write_atomic(file_of(course), json.dumps(
        {key: [{"name": one.name, "owner": one.owner, "members": one.members} for one in groups]
         for key, groups in content.items()}, indent=1).encode(), 0o600)
    return result
