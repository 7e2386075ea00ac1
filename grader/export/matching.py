"""Match rows of the LMS's file with students. It never guesses: one student, or a reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grader.course.names import key_of
from grader.course.roster import Person, Roster
from grader.export.layout import Entry, Identity
from labcore.terminal import visible


@dataclass(frozen=True)
class Matches:
    """The rows of an LMS's file, matched with students.

    Attributes:
        entries: the matched row by student.
        refused: the reason by row for rows without a certain match.
        missing: students without a row.
    """

    entries: Mapping[str, Entry]
    refused: Mapping[int, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def match(entries: Sequence[Entry], people: Sequence[Person]) -> Matches:
    """Compare the rows of an LMS's file with the class.

    Identifiers of a person (ids, login, email address) count first, and all of them have to agree.
    A name counts only if none of these is known on one of the two sides, and only if no second
    person on either side has it.

    Args:
        entries: the rows.
        people: the class.
    """
    index: dict[tuple[str, str], set[str]] = defaultdict(set)
    for person in people:
        for kind in ("id", "email", "lms_user_id"):
            if value := getattr(person, kind):
                index[kind, key_of(value)].add(person.id)
    roster, matched, refused = Roster(list(people)), {}, {}
    for entry in entries:
        try:
            matched[entry.row] = _matched_student(entry, index, roster)
        except LookupError as error:
            refused[entry.row] = str(error)
    rows: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.row in matched:
            rows[matched[entry.row]].append(entry)
    for student, several in rows.items():
        if len(several) > 1:
            refused |= {entry.row: f"{len(several)} rows may be {visible(student)}"
                        for entry in several}
    single = {student: several[0] for student, several in rows.items() if len(several) == 1}
    return Matches(single, refused, tuple(person.id for person in people
                                          if person.id not in rows))


def _matched_student(entry: Entry, index: Mapping[tuple[str, str], set[str]],
                     roster: Roster) -> str:
    """Return the student of one row.

    Args:
        entry: the row.
        index: students by kind and value of identifier.
        roster: the class.

    Raises LookupError with the reason why there is none.
    """
    for identities in (entry.identities, _user_number_as_id(entry)):
        meant = {identity: students for identity in identities
                 if (students := index.get((identity.kind, key_of(_plain(identity.value)))))}
        if students := set().union(*meant.values()):
            if len(students) > 1:
                raise LookupError("; ".join(
                    f"{identity.heading} {visible(identity.value)} is "
                    + " or ".join(map(visible, sorted(several)))
                    for identity, several in meant.items()))
            return students.pop()
    student = roster.by_name(_plain(entry.name))
    person = roster.ids[student]
    for identity in entry.identities:
        ours = getattr(person, identity.kind) if identity.kind != "id" else ""
        if ours:
            raise LookupError(f"its name is {visible(student)}'s, whose {identity.kind} is "
                              f"{visible(ours)}, not {visible(identity.value)}")
    return student


def _user_number_as_id(entry: Entry) -> tuple[Identity, ...]:
    """Return the identities of a class whose ids are Canvas's own user numbers."""
    return tuple(Identity(one.heading, "id", one.value) for one in entry.identities
                 if one.kind == "lms_user_id" and one.heading == "ID")


def _plain(text: str) -> str:
    """Return a cell without the apostrophe that an LMS puts before a possible formula."""
    return text[1:] if text[:1] == "'" and text[1:2] in ("=", "+", "-", "@") else text
