"""Determine who submitted a file from its path, by the naming of Canvas, Moodle, or folders."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from grader.collect.given import Participant
from grader.course.names import normalized, problem_of_id
from grader.course.roster import Roster, same_name
from labcore.errors import LabError
from labcore.terminal import visible

# NAME[_LATE]_USER_ATTACHMENT_FILE. A name may end in digits and a file may begin with them, so one
# file name can have several readings.
CANVAS = re.compile(r"(?P<who>.*?)_\d+_\d+_.+")
CANVAS_READING = re.compile(r"(?=_(?P<user>\d+)_(?P<number>\d+)_(?P<file>.+)$)")
CANVAS_ANONYMOUS = re.compile(r"(LATE_)?anon_[^_]+_\d+_.+")
LAB_FILE = re.compile(r"\d\d_[a-z]")  # our notebooks begin with digits, too
# NAME_NUMBER_assignsubmission_file_; the number is of this one assignment, not the user's.
MOODLE_MARK = re.compile(r"_\d+_assignsubmission_")
MOODLE = re.compile(r"(?P<name>.+)_(?P<number>\d+)_assignsubmission_file_?(?P<file>.*)")
NO_NUMBERS: Mapping[str, Participant] = {}
FIELDS = ("student", "lab", "any")
CANVAS_NAMES, MOODLE_NAMES, PLAIN_NAMES, EITHER = "Canvas", "Moodle", "folders", "Canvas or Moodle"


@dataclass(frozen=True)
class Claim:
    """Whose a file is said to be.

    Attributes:
        student: an id of the roster; empty if there is a problem.
        named_as: the source's own name for the student; two names for one student are two people.
        late: whether the LMS marks it as late.
        serial: larger is newer, where the LMS counts.
        name: the file's name as the student chose it.
        folders: the folders between the student's and the file.
        lms: whether an LMS named the file, whose archives belong to one assignment.
    """

    student: str = ""
    named_as: str = ""
    problem: str = ""
    late: bool = False
    serial: int = 0
    name: str = ""
    folders: tuple[str, ...] = ()
    lms: bool = False


def layout_of(paths: list[str], roster: Roster, *, as_is: bool, pattern: str | None,
              numbers: Mapping[str, Participant] = NO_NUMBERS, groups: Collection[str] = ()
              ) -> Callable[[str], Claim]:
    """Return the function that reads one path.

    Each file is read by its own name; the others only tell which folder is around all of them, and
    whose a name is that both LMSs could have given.

    Args:
        paths: all paths of the source.
        roster: the class.
        as_is: whether folder names are students' ids.
        pattern: the value of --pattern.
        numbers: the participants of Moodle's worksheet, by number.
        groups: names of groups, which Moodle puts before a name, with a hyphen.

    Raises LabError.
    """
    if pattern:
        return _pattern(pattern, roster, as_is)
    around = _folder_around(paths, roster, as_is)
    kinds = Counter(_named_by(path.removeprefix(around)) for path in paths)

    def read(path: str) -> Claim:
        path = path.removeprefix(around)
        kind = _named_by(path)
        if kind == EITHER and kinds[CANVAS_NAMES] != kinds[MOODLE_NAMES]:
            kind = max(CANVAS_NAMES, MOODLE_NAMES, key=kinds.__getitem__)
        if kind == EITHER:
            return Claim(problem="its name can be read in two ways: as Canvas's and as Moodle's",
                         name=path)
        if kind == CANVAS_NAMES:
            return replace(_canvas(path, roster), lms=True)
        if kind == MOODLE_NAMES:
            return replace(_moodle(path, roster, numbers, groups), lms=True)
        return _plain(path, roster, as_is)

    return read


def _named_by(path: str) -> str:
    """Return who gave a path its first part, which in a class's folder is never the student."""
    top, slash, _ = path.partition("/")
    canvas = CANVAS.fullmatch(top)
    is_canvas = not slash and (CANVAS_ANONYMOUS.fullmatch(top) or (
        canvas is not None and all(map(_is_of_word, canvas["who"]))))
    is_moodle = bool(MOODLE_MARK.search(top))
    if is_canvas and is_moodle:
        return EITHER
    return CANVAS_NAMES if is_canvas else MOODLE_NAMES if is_moodle else PLAIN_NAMES


def _is_of_word(letter: str) -> bool:
    """Return whether Canvas keeps a character of a person's name: letters, marks (the vowels of
    Hindi and Thai, and a disk's decomposed accents), digits, and underscores."""
    kind = unicodedata.category(letter)
    return kind[0] in "LM" or kind in ("Nd", "Pc")


def _folder_around(paths: list[str], roster: Roster, as_is: bool) -> str:
    """Return the folder into which an archive was unpacked, with its slash; empty if there is
    none."""
    folders = {path.split("/")[0] for path in paths if "/" in path}
    only = next(iter(folders), "")
    if len(folders) != 1 or MOODLE_MARK.search(only) or _known(only, roster) or any(
            _named_by(path) != PLAIN_NAMES for path in paths if "/" not in path):
        return ""
    inner = [path.partition("/")[2] for path in paths if "/" in path]
    tops = {path.split("/")[0]: path for path in inner}
    # A folder that is not on the roster may be a student's: few names in it prove nothing.
    named = sum(_named_by(path) != PLAIN_NAMES or ("/" in path and _known(top, roster))
                for top, path in tops.items())
    students = as_is and len(tops) > 1 and all("/" in path for path in inner)
    return only + "/" if students or named * 2 > len(tops) else ""


def _known(name: str, roster: Roster) -> bool:
    try:
        return bool(roster.by_id(name))
    except LookupError:
        return False


def _canvas(name: str, roster: Roster) -> Claim:
    if CANVAS_ANONYMOUS.fullmatch(name):
        return Claim(problem="Canvas gave it without a name: turn anonymous grading off there, "
                             "then download again", name=name)
    claims = [_canvas_reading(name[:match.start()], match, roster)
              for match in CANVAS_READING.finditer(name)]
    if not claims:
        return Claim(problem="its name does not follow Canvas's pattern", name=name)
    possible = [claim for claim in claims if claim.student]
    students = list(dict.fromkeys(claim.student for claim in possible))
    if len(students) > 1:
        return replace(possible[0], student="", problem="its name may be that of a file of "
                       + " or ".join(students))
    best = (possible or claims)[0]
    # A stranger's name may end in this student's number: stranger_101_999_555_x.ipynb. And a
    # stranger may name a file as this student's: stranger_999_555_lovelaceada_101_7_x.ipynb.
    more_digits = re.match(r"\d+_", best.name) and not LAB_FILE.match(best.name)
    is_later = best is not claims[0]
    is_called = possible and roster.is_called(best.student, best.named_as.rpartition("_")[0]) and (
        not is_later or roster.ids[best.student].name)
    if possible and (more_digits or is_later) and not is_called:
        return replace(best, student="", problem=f"it has {best.student}'s number, but another "
                       "name: its name can be read in two ways")
    return best


def _canvas_reading(name: str, match: re.Match[str], roster: Roster) -> Claim:
    """Return the claim for one reading of a Canvas file name.

    Args:
        name: the student's name in this reading.
        match: the match of the rest of the file name.
        roster: the class.
    """
    late, name = name.endswith("_LATE"), name.removesuffix("_LATE")
    facts = {"named_as": f"{name}_{match['user']}", "late": late,
             "serial": int(match["number"][:18]), "name": match["file"]}
    try:
        return Claim(roster.by_lms(match["user"], name), **facts)
    except LookupError as error:
        return Claim(problem=str(error), **facts)


def _moodle(path: str, roster: Roster, numbers: Mapping[str, Participant],
            groups: Collection[str]) -> Claim:
    """Return the claim for a path whose first part was named by Moodle.

    Args:
        path: the path.
        roster: the class.
        numbers: the participants of the assignment's worksheet; a name in it is not needed.
        groups: names of groups.
    """
    top, name = path.split("/")[0], path.rpartition("/")[2]
    match, marks = MOODLE.fullmatch(top), len(MOODLE_MARK.findall(top))
    if match is None or marks > 1 or ("/" in path and match["file"]):
        why = ("can be read in two ways" if marks > 1
               else "is not one that Moodle gives to a file")
        return Claim(problem=f"its name {why}", name=name)
    name = match["file"] if "/" not in path else name
    named_as = f"{match['name']}_{match['number']}"
    names = [match["name"], *(match["name"].removeprefix(f"{group}-") for group in groups
                              if match["name"].startswith(f"{group}-"))]
    if participant := numbers.get(match["number"]):
        if not any(same_name(called, participant.name) for called in names):
            return Claim("", named_as, f"the worksheet calls participant {match['number']} "
                         f"{visible(participant.name)}", name=name)
        if participant.student:
            return Claim(participant.student, named_as, name=name)
    problem = ""
    for called in names:
        try:
            return Claim(roster.by_name(called), named_as, name=name)
        except LookupError as error:
            problem = problem or str(error)
    return Claim("", named_as, problem, name=name)


def _plain(path: str, roster: Roster, as_is: bool) -> Claim:
    if "/" not in path:
        return Claim(problem="it is in no student's folder: put it in one, or pass --pattern, for "
                             "example '{student}_{lab}.ipynb'", name=path)
    top, *folders, name = path.split("/")
    return replace(claim(top, name, roster, as_is), folders=tuple(folders))


def claim(named_as: str, name: str, roster: Roster, as_is: bool) -> Claim:
    """Return the claim for a folder, or a part of a name, that names the student.

    Args:
        named_as: the name.
        name: the file's name.
        roster: the class.
        as_is: whether it is a student's id.
    """
    if as_is:
        student = normalized(named_as)
        problem = problem_of_id(student)
        return Claim("" if problem else student, named_as, problem, name=name)
    try:
        return Claim(roster.by_id(named_as), named_as, name=name)
    except LookupError as error:
        return Claim("", named_as, str(error), name=name)


def _pattern(pattern: str, roster: Roster, as_is: bool) -> Callable[[str], Claim]:
    """Return the reader for a pattern such as {student}_{any}.ipynb; each field matches the
    shortest text.

    Args:
        pattern: the value of --pattern.
        roster: the class.
        as_is: whether {student} is a student's id.
    """
    parts = re.split(r"(\{\w*\})", pattern)
    fields = [part[1:-1] for part in parts[1::2]]
    if wrong := [field for field in fields if field not in FIELDS]:
        raise LabError(f"--pattern {pattern!r}: no field {{{wrong[0]}}}; there are "
                       + ", ".join(f"{{{field}}}" for field in FIELDS))
    if fields.count("student") != 1 or len(set(fields)) < len(fields):
        raise LabError(f"--pattern {pattern!r}: {{student}} must occur exactly once, and the "
                       "others at most once")
    text = "".join(rf"(?P<{part[1:-1]}>[^/]+?)" if index % 2 else re.escape(part)
                   for index, part in enumerate(parts))

    def read(path: str) -> Claim:
        match = re.fullmatch(rf"(?:.*/)?{text}", path)
        name = path.rpartition("/")[2]
        if match is None:
            return Claim(problem=f"it does not match --pattern {pattern}", name=name)
        lab = match.groupdict().get("lab")
        return claim(match["student"], f"{lab}.ipynb" if lab else name, roster, as_is)

    return read
