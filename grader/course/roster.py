"""The class: nbgrader's table of students, how it is filled, and who is meant by a name."""

from __future__ import annotations

import csv
import functools
import io
import unicodedata
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from nbgrader.api import Gradebook

from grader.course.names import composed, key_of, problem_of_id
from grader.course.spreadsheet import harmless, original
from labcore.errors import LabError
from labcore.terminal import visible

MOST_SHOWN = 20  # bad lines of a file
LARGEST = 10_000_000  # bytes of a file


@dataclass(frozen=True)
class Person:
    """A student; the columns of a roster file. Empty: not known."""

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
    """All students of the gradebook, by id."""
    return sorted((Person(*(getattr(student, column) or "" for column in COLUMNS))
                   for student in book.students), key=lambda person: person.id)


def read_file(path: Path) -> tuple[list[Person], list[str]]:
    """The people in a CSV file, and what else to know. Raises LabError that names every bad line,
    so that nothing is imported from a file that is not right."""
    text, notes = _decoded(path)
    rows, where = _rows(text, path)
    if not rows:
        raise LabError(f"{path} is empty; its first line names columns: {','.join(COLUMNS)}")
    header = [name.strip().lower() for name in rows[0]]
    if "id" not in header:
        raise LabError(f"{path}, line 1: no column id, but {', '.join(map(visible, rows[0]))}; "
                       f"columns are {','.join(COLUMNS)}")
    if len(set(header)) < len(header):
        raise LabError(f"{path}, line 1: a column is there twice: {','.join(header)}")
    others = [name for name in header if name not in COLUMNS]
    notes += [f"columns that are not used: {', '.join(map(visible, others))}"] * bool(others)
    found, problems = [], []
    for row, line in zip(rows[1:], where[1:], strict=True):
        if not any(cell.strip() for cell in row):
            continue
        person, problem = _person(header, row)
        problems += [f"line {line}: {problem}"] * bool(problem)
        found.append((line, person))
    problems += _twice(found)
    if problems:
        more = [f"and {len(problems) - MOST_SHOWN} more"] * (len(problems) > MOST_SHOWN)
        raise LabError(f"{path}: nothing was imported:\n  "
                       + "\n  ".join(problems[:MOST_SHOWN] + more))
    if not found:
        raise LabError(f"{path} has a line of columns, but no student below it")
    return [person for _, person in found], notes


def _decoded(path: Path) -> tuple[str, list[str]]:
    content = path.read_bytes()
    if len(content) > LARGEST:
        raise LabError(f"{path} has {len(content) / 1e6:.0f} MB; a roster has at the most "
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
    raise LabError(f"{path} is no text in UTF-8, UTF-16 or Windows-1252: save it as \"CSV UTF-8\"")


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
    cells = {name: composed(original(cell.strip())) for name, cell in zip(header, row, strict=True)
             if name in COLUMNS}
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


def _twice(found: list[tuple[int, Person]]) -> list[str]:
    problems = []
    for column in ("id", "lms_user_id"):
        lines: dict[str, int] = {}
        for line, person in found:
            value = getattr(person, column)
            if value and key_of(value) in lines:
                problems.append(f"line {line}: {column} {value!r} is there already, in line "
                                f"{lines[key_of(value)]} (capitals do not count)")
            lines.setdefault(key_of(value), line)
    return problems


def add(book: Gradebook, new: list[Person]) -> tuple[int, int]:
    """Write them into the gradebook; an empty cell leaves what is there. (added, changed).

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


def write_csv(found: list[Person]) -> str:
    """A roster file, which spreadsheets take for text and `read_file` reads again."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows([harmless(value) for value in asdict(person).values()] for person in found)
    return text.getvalue()


class Roster:
    """Who is meant by what an LMS or a folder says. Never a guess: one person, or a reason."""

    def __init__(self, found: list[Person]) -> None:
        self.people = found
        self.ids = {person.id: person for person in found}
        self._by_key: dict[tuple[str, str], list[Person]] = {}
        for person in found:
            for column in KEYS:
                self._by_key.setdefault((column, key_of(getattr(person, column))), []).append(
                    person)

    def by_id(self, text: str) -> str:
        """By id, else LMS id, e-mail or name. Raises LookupError with the reason."""
        for column in KEYS:
            if found := self._by_key.get((column, key_of(text))):
                return self._one(found, text)
        return self.by_name(text)

    def by_lms(self, number: str, name: str) -> str:
        """Canvas gives the user's number there, and lastfirst. Raises LookupError."""
        found = [person for person in self.people if person.lms_user_id == number]
        if found:
            return self._one(found, number)
        student = self.by_name(name)
        if self.ids[student].lms_user_id:
            raise LookupError(f"its name is {student}'s, whose lms_user_id is "
                              f"{self.ids[student].lms_user_id}, not {number}")
        return student

    def is_called(self, student: str, name: str) -> bool:
        """Return whether that may be the student's name, where the roster has one. Canvas drops
        letters that are not ASCII."""
        known = self.ids[student].name
        return not known or any(
            strip(name) in (strip(known), strip(self.ids[student].backward_name))
            for strip in (_letters, _ascii_letters))

    def by_name(self, name: str) -> str:
        """By first and last name, in either order. Raises LookupError."""
        wanted = _letters(name)
        found = [person for person in self.people if wanted and wanted in (
            _letters(person.first_name + person.last_name),
            _letters(person.last_name + person.first_name))]
        return self._one(found, name)

    def _one(self, found: list[Person], text: str) -> str:
        shown = visible(text)
        if not found:
            raise LookupError(f"{shown!r} is nobody on the roster")
        if len(found) > 1:
            raise LookupError(f"{shown!r} may be " + " or ".join(person.id for person in found))
        return found[0].id


def _ascii_letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isascii() and letter.isalnum())


@functools.lru_cache(maxsize=20_000)  # every name of a class is compared with every other
def _letters(name: str) -> str:
    """Canvas drops all but letters, digits and _, in small letters; accents differ by disk."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in plain if letter.isalnum())
