"""Who submitted a file, as the place where it lies says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from grader.collect.names import problem_of_id
from grader.roster import Roster
from lab.errors import LabError

# NAME[_LATE]_USER_ATTACHMENT_FILE; NAME is letters, digits and _ without _123_ in it. What the
# student named stands last, so the first match is Canvas's.
CANVAS = re.compile(r"(?P<name>\w*?)(?P<late>_LATE)?_(?P<user>\d+)_(?P<number>\d+)_(?P<file>.+)")
CANVAS_ANONYMOUS = re.compile(r"(LATE_)?anon_[^_]+_\d+_.+")
# NAME_NUMBER_assignsubmission_file_; the number is of this one assignment, not the user's.
MOODLE = re.compile(r"(?P<name>[^_]+)_(?P<number>\d+)_assignsubmission_file_?(?P<file>.*)")
FIELDS = ("student", "lab", "any")


@dataclass(frozen=True)
class Claim:
    """Whose a file is said to be."""

    student: str = ""  # an id of the roster; empty: see `problem`
    said: str = ""  # who, in the words there: two of them for one student are two people
    problem: str = ""
    late: bool = False  # the LMS says so
    serial: int = 0  # newer is larger, where the LMS counts
    name: str = ""  # of the file, as the student called it


def layout_of(paths: list[str], roster: Roster, *, as_is: bool, pattern: str | None
              ) -> Callable[[str], Claim]:
    """The function that reads one path, chosen by looking at all of them. Raises LabError."""
    if pattern:
        return _pattern(pattern, roster, as_is)
    last = [path.rpartition("/")[2] for path in paths]
    if any(map(MOODLE.match, paths)) or any("_assignsubmission_" in path for path in paths):
        return lambda path: _moodle(path, roster)
    canvas = [name for name in last
              if CANVAS.fullmatch(name) or CANVAS_ANONYMOUS.fullmatch(name)]
    folders = {path.split("/")[0] for path in paths if "/" in path}
    if canvas and len(canvas) == len(last) and len(folders) <= 1:
        return lambda path: _canvas(path.rpartition("/")[2], roster)
    wrapper = ""  # many archives put all into one folder
    if len(folders) == 1 and all(path.count("/") >= 2 for path in paths):
        only = next(iter(folders))
        inner = {path.split("/")[1] for path in paths}
        students = len(inner) > 1 if as_is else any(_known(name, roster) for name in inner)
        if students and not _known(only, roster):
            wrapper = only + "/"
    return lambda path: _plain(path.removeprefix(wrapper), roster, as_is)


def _known(name: str, roster: Roster) -> bool:
    try:
        return bool(roster.by_id(name))
    except LookupError:
        return False


def _canvas(name: str, roster: Roster) -> Claim:
    if CANVAS_ANONYMOUS.fullmatch(name):
        return Claim(problem="Canvas gave it without a name: turn anonymous grading off there, "
                             "then download again", name=name)
    match = CANVAS.fullmatch(name)
    if match is None:
        return Claim(problem="its name is not one that Canvas gives", name=name)
    said = f"{match['name']}_{match['user']}"
    facts = {"said": said, "late": bool(match["late"]), "serial": int(match["number"][:18]),
             "name": match["file"]}
    try:
        return Claim(roster.by_lms(match["user"], match["name"]), **facts)
    except LookupError as error:
        return Claim(problem=str(error), **facts)


def _moodle(path: str, roster: Roster) -> Claim:
    match = next(filter(None, map(MOODLE.fullmatch, path.split("/"))), None)
    name = path.rpartition("/")[2]
    if match is None:
        return Claim(problem="its name is not one that Moodle gives to a file", name=name)
    name = match["file"] if name == match[0] else name
    said = f"{match['name']}_{match['number']}"
    try:
        return Claim(roster.by_name(match["name"]), said, name=name)
    except LookupError as error:
        return Claim("", said, str(error), name=name)


def _plain(path: str, roster: Roster, as_is: bool) -> Claim:
    if "/" not in path:
        return Claim(problem="it is in no student's folder: put it in one, or say --pattern, for "
                             "example '{student}_{lab}.ipynb'", name=path)
    return claim(path.split("/")[0], path.rpartition("/")[2], roster, as_is)


def claim(said: str, name: str, roster: Roster, as_is: bool) -> Claim:
    """For a folder or a part of a name that says who."""
    if as_is:
        problem = problem_of_id(said)
        return Claim("" if problem else said, said, problem, name=name)
    try:
        return Claim(roster.by_id(said), said, name=name)
    except LookupError as error:
        return Claim("", said, str(error), name=name)


def _pattern(pattern: str, roster: Roster, as_is: bool) -> Callable[[str], Claim]:
    """A pattern such as {student}_{any}.ipynb, where a field is the least that fits."""
    parts = re.split(r"(\{\w*\})", pattern)
    fields = [part[1:-1] for part in parts[1::2]]
    if wrong := [field for field in fields if field not in FIELDS]:
        raise LabError(f"--pattern {pattern!r}: no field {{{wrong[0]}}}; there are "
                       + ", ".join(f"{{{field}}}" for field in FIELDS))
    if fields.count("student") != 1 or len(set(fields)) < len(fields):
        raise LabError(f"--pattern {pattern!r}: {{student}} has to be in it once, the others at "
                       "the most once")
    text = "".join(rf"(?P<{part[1:-1]}>[^/]+?)" if index % 2 else re.escape(part)
                   for index, part in enumerate(parts))

    def read(path: str) -> Claim:
        match = re.fullmatch(rf"(?:.*/)?{text}", path)
        name = path.rpartition("/")[2]
        if match is None:
            return Claim(problem=f"it does not fit --pattern {pattern}", name=name)
        lab = match.groupdict().get("lab")
        return claim(match["student"], f"{lab}.ipynb" if lab else name, roster, as_is)

    return read
