"""The class: nbgrader's table of students, its import and export, and whom a name refers to."""

from __future__ import annotations

import csv
import functools
import io
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from nbgrader.api import Gradebook

from grader.course import lms_rosters
from grader.course.names import key_of, normalized, problem_of_id
from grader.course.spreadsheet import harmless, original
from labcore.errors import LabError
from labcore.terminal import visible

MOST_SHOWN = 20  # bad lines of a file
LARGEST = 10_000_000  # bytes of a file


@dataclass(frozen=True)
class Person:
    """A student; the columns of a roster file. Unknown fields are empty."""

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    lms_user_id: str = ""

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}".strip()

    @property
    def backward_name(self) -> str:
        return f"{self.last_name} {self.first_name}".strip()


KEYS = ("id", "lms_user_id", "email")  # each means one person
COLUMNS = [field.name for field in fields(Person)]


def people(book: Gradebook) -> list[Person]:
    """Return all students of the gradebook, by id."""
    return sorted((Person(*(getattr(student, column) or "" for column in COLUMNS))
                   for student in book.students), key=lambda person: person.id)


def read_file(path: Path, id_column: str | None = None) -> tuple[list[Person], list[str]]:
    """Return the people in a roster file, Canvas's gradebook, or Moodle's list of participants, and
    notes.

    Args:
        path: the file.
        id_column: the heading of the ids in an LMS's file.

    Raises LabError that names every bad line, so that no faulty file is imported in part.
    """
    text, notes = _decoded(path)
    rows, where = _rows(text, path)
    if not rows:
        raise LabError(f"{path} is empty; its first line names columns: {','.join(COLUMNS)}")
    if lms_rosters.lms_of(rows[0]):
        rows, where, more = lms_rosters.as_roster(rows, where, path, id_column)
        notes += more
    elif id_column:
        raise LabError(f"--id {id_column}: only for Canvas's and Moodle's files; {path} is a "
                       "roster file, whose column is id")
    header = [name.strip().lower() for name in rows[0]]
    if "id" not in header:
        raise LabError(f"{path}, line 1: no column id, but {', '.join(map(visible, rows[0]))}; "
                       f"columns are {','.join(COLUMNS)}")
    if len(set(header)) < len(header):
        raise LabError(f"{path}, line 1: a column occurs twice: {','.join(header)}")
    others = [name for name in header if name not in COLUMNS]
    notes += [f"columns that are not used: {', '.join(map(visible, others))}"] * bool(others)
    numbered, problems = [], []
    for row, line in zip(rows[1:], where[1:], strict=True):
        if not any(cell.strip() for cell in row):
            continue
        person, problem = _person(header, row)
        problems += [f"line {line}: {problem}"] * bool(problem)
        numbered.append((line, person))
    problems += _duplicates(numbered)
    if problems:
        more = [f"and {len(problems) - MOST_SHOWN} more"] * (len(problems) > MOST_SHOWN)
        raise LabError(f"{path}: nothing was imported:\n  "
                       + "\n  ".join(problems[:MOST_SHOWN] + more))
    if not numbered:
        raise LabError(f"{path} has a line of columns, but no student below it")
    return [person for _, person in numbered], notes


def read_table(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the headings of any CSV file in lowercase, and each row's line and its cells by
    heading. Raises LabError."""
    rows, where = _rows(_decoded(path)[0], path)
    if not rows:
        raise LabError(f"{path} is empty")
    header = [name.strip().lower() for name in rows[0]]
    for row, line in zip(rows, where, strict=True):
        if len(row) != len(header):
            raise LabError(f"{path}, line {line}: {len(row)} cells, but {len(header)} columns")
    return header, [(line, dict(zip(header, (original(cell.strip()) for cell in row), strict=True)))
                    for row, line in zip(rows[1:], where[1:], strict=True)
                    if any(cell.strip() for cell in row)]


def _decoded(path: Path) -> tuple[str, list[str]]:
    content = path.read_bytes()
    if len(content) > LARGEST:
        raise LabError(f"{path} has {len(content) / 1e6:.0f} MB; a roster has at most "
                       f"{LARGEST / 1e6:.0f}")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # Excel's "Unicode text"
        encodings = ["utf-16"]
    else:
        encodings = ["utf-8-sig", "cp1252"]
    for encoding in encodings:
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        notes = ["read as Windows-1252, since it is not UTF-8: look at the names"]
        return text, notes * (encoding == "cp1252")
    raise LabError(f"{path} is not text in UTF-8, UTF-16 or Windows-1252: save it as \"CSV UTF-8\"")


def _rows(text: str, path: Path) -> tuple[list[list[str]], list[int]]:
    if text.lower().startswith("sep="):  # a line for Excel alone
        text = "\n" + text.partition("\n")[2]
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, where = [], []
    try:
        for row in reader:
            if row:
                rows.append(row)
                where.append(reader.line_num)
    except csv.Error as error:
        raise LabError(f"{path}, line {reader.line_num}: {error}") from error
    return rows, where


def _person(header: list[str], row: list[str]) -> tuple[Person, str]:
    if len(row) != len(header):
        return Person(""), f"{len(row)} cells, but {len(header)} columns"
    cells = {name: normalized(original(cell.strip()))
             for name, cell in zip(header, row, strict=True) if name in COLUMNS}
    person = Person(**cells)
    if not person.id:
        return person, "no id"
    if problem := problem_of_id(person.id):
        return person, f"id {visible(person.id)!r}: {problem}"
    for name, cell in cells.items():
        if visible(cell) != cell:
            return person, f"{name} {visible(cell)!r}: characters that cannot be seen"
        if len(cell) > 128:
            return person, f"{name} has more than 128 characters"
    if person.email and "@" not in person.email:
        return person, f"email {person.email!r} has no @"
    return person, ""


def _duplicates(numbered: list[tuple[int, Person]]) -> list[str]:
    problems = []
    for column in ("id", "lms_user_id"):
        lines: dict[str, int] = {}
        for line, person in numbered:
            value = getattr(person, column)
            if value and key_of(value) in lines:
                problems.append(f"line {line}: {column} {value!r} occurs already in line "
                                f"{lines[key_of(value)]} (case is ignored)")
            lines.setdefault(key_of(value), line)
    return problems


def with_known_ids(new: Sequence[Person], known: Sequence[Person]) -> list[Person]:
    """Return an LMS's people with the ids that they have in this course, by LMS id or email.

    Args:
        new: the people of the file.
        known: the course's.

    Raises LabError when two of the file would become one, or one would become somebody else.
    """
    by_key: dict[tuple[str, str], list[str]] = {}
    for person in known:
        for column in ("lms_user_id", "email"):
            if value := getattr(person, column):
                by_key.setdefault((column, key_of(value)), []).append(person.id)
    ids = {key_of(person.id) for person in known}
    result = []
    for person in new:
        found = {one for column in ("lms_user_id", "email")
                 for one in by_key.get((column, key_of(getattr(person, column))), ())}
        is_known = key_of(person.id) in ids
        if is_known and found and key_of(person.id) not in map(key_of, found):
            raise LabError(f"nothing was imported: {visible(person.id)} is a student of this "
                           "course, but the file has the LMS id or the email address of "
                           f"{' or '.join(sorted(found))} there; --id names the column of the ids")
        keep = is_known or len(found) != 1
        result.append(person if keep else replace(person, id=found.pop()))
    for student, count in Counter(person.id for person in result).items():
        if count > 1:
            raise LabError(f"nothing was imported: {count} rows have an LMS id or an email address "
                           f"of {student} in this course; `lab roster list` shows them")
    return result


def add(book: Gradebook, new: list[Person]) -> tuple[int, int]:
    """Write students into the gradebook; return (number added, number changed).

    An empty cell keeps the current value.

    Args:
        book: the gradebook.
        new: the students.

    Raises LabError before anything is written when an LMS id belongs to somebody else.
    """
    before = {person.id: person for person in people(book)}
    coming = {person.id for person in new}
    holders = {person.lms_user_id: person.id for person in before.values()
               if person.lms_user_id and person.id not in coming}
    spelled = {key_of(student): student for student in before}
    for person in new:
        if spelled.get(key_of(person.id), person.id) != person.id:
            raise LabError(f"nothing was imported: id {person.id} is spelled "
                           f"{spelled[key_of(person.id)]} in the gradebook (capitals and the "
                           "spelling of accents do not count)")
        if person.lms_user_id in holders:
            raise LabError(f"nothing was imported: lms_user_id {person.lms_user_id} of "
                           f"{person.id} is {holders[person.lms_user_id]}'s in the gradebook")
    changed = 0
    for person in new:
        given = {name: value for name, value in asdict(person).items() if value and name != "id"}
        old = before.get(person.id)
        changed += old is not None and any(getattr(old, name) != value
                                           for name, value in given.items())
        book.update_or_create_student(person.id, **given)
    return len(coming - set(before)), changed


def write_csv(everybody: list[Person]) -> str:
    """Return a roster file that spreadsheets treat as text and `read_file` can read."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows([harmless(value) for value in asdict(person).values()] for person in everybody)
    return text.getvalue()


class Roster:
    """Finds the one person that a name in an LMS or a folder refers to, or a reason; it never
    guesses."""

    def __init__(self, everybody: list[Person]) -> None:
        self.people = everybody
        self.ids = {person.id: person for person in everybody}
        self._by_key: dict[tuple[str, str], list[Person]] = {}
        for person in everybody:
            for column in KEYS:
                self._by_key.setdefault((column, key_of(getattr(person, column))), []).append(
                    person)

    def by_id(self, text: str) -> str:
        """Find a student by id, LMS id, email address, or name. Raises LookupError with the
        reason."""
        for column in KEYS:
            if matches := self._by_key.get((column, key_of(text))):
                return self._only_match(matches, text)
        return self.by_name(text)

    def identified(self, text: str) -> set[str]:
        """Return the students whose id, LMS id, or email address this is."""
        return {person.id for column in KEYS for person in self._by_key.get(
            (column, key_of(text)), ())}

    def by_lms(self, number: str, name: str) -> str:
        """Find a student by Canvas's user number, or else by name.

        Args:
            number: the user number.
            name: last name and first name.

        Raises LookupError.
        """
        matches = [person for person in self.people if person.lms_user_id == number]
        if matches:
            return self._only_match(matches, number)
        student = self.by_name(name)
        if self.ids[student].lms_user_id:
            raise LookupError(f"its name is {student}'s, whose lms_user_id is "
                              f"{self.ids[student].lms_user_id}, not {number}")
        return student

    def is_called(self, student: str, name: str) -> bool:
        """Return whether the roster allows this name for the student. Canvas drops non-ASCII
        letters.

        Args:
            student: the student's id.
            name: the name.
        """
        known = self.ids[student].name
        return not known or any(
            strip(name) in (strip(known), strip(self.ids[student].backward_name))
            for strip in (_letters, _ascii_letters))

    def by_name(self, name: str) -> str:
        """Find a student by first and last name, in either order. Raises LookupError."""
        letters = _letters(name)
        matches = [person for person in self.people if letters and letters in (
            _letters(person.first_name + person.last_name),
            _letters(person.last_name + person.first_name))]
        return self._only_match(matches, name)

    def _only_match(self, matches: list[Person], text: str) -> str:
        shown = visible(text)
        if not matches:
            raise LookupError(f"{shown!r} is not on the roster")
        if len(matches) > 1:
            raise LookupError(f"{shown!r} may be " + " or ".join(person.id for person in matches))
        return matches[0].id


def _ascii_letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isascii() and letter.isalnum())


@functools.lru_cache(maxsize=20_000)  # every name of a class is compared with every other
def _letters(name: str) -> str:
    """Return a name's letters and digits in lowercase, like Canvas; accents differ by disk."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in plain if letter.isalnum())


def same_name(one: str, other: str) -> bool:
    """Return whether two spellings of a name have the same letters, or one of them is empty."""
    return not one or not other or _letters(one) == _letters(other)
