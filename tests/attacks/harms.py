"""Finds what an attack did to a course folder, to the others in it and to the machine."""

from __future__ import annotations

import csv
import hashlib
import html.parser
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.attacks import attack as kinds
from tests.attacks.attack import Attack
from tests.attacks.course import HIDDEN, LAB, PEER, PEERS, SOLUTION
from tests.attacks.rows.stages import FORGED_STAMP

MOST_KEPT = 6_000_000  # bytes of one student in autograded/ and in feedback/
LARGEST = 50_000_000  # bytes of a file whose content is looked at
ESCAPES = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]")
# What grading writes; all else in a course folder must stay as it was.
WRITTEN = ("autograded", "feedback", "attempts", "results", "gradebook.db", "gradebook.db-journal",
           ".gradebook.json", "backups", "grades.csv", "grading.log", ".grading.lock",
           ".nbgrader.log", "release", ".measured")
TAKEN = re.compile(r"(HOLDS|FORKED|THREADS|OPENED|ZOMBIES) (\d+)")
TOO_MUCH = {"HOLDS": 1_000_000_000, "FORKED": 250, "THREADS": 5_000, "OPENED": 50_000,
            "ZOMBIES": 1_500}
LONGEST = 25.0  # seconds that one submission may hold up the others, except on ranks


@dataclass
class Scene:
    """A course folder after a batch. `scores`: of who has a line in the table, None: ungraded."""

    root: Path
    scores: dict[str, float | None]
    table: list[dict[str, str]]
    terminal: str  # what the instructor saw
    times: dict[str, float]  # seconds that somebody's submission took, where that is known
    before: dict[str, str]  # digests by path, from before the batch
    after: dict[str, str]
    reached: list[str] = field(default_factory=list)  # what came in at the listener
    left: list[str] = field(default_factory=list)  # processes that were still there

    def kept(self, student: str) -> Iterator[Path]:
        for step in ("autograded", "feedback"):
            for path in (self.root / step / student).rglob("*"):
                if path.is_file():
                    yield path


def found(scene: Scene, one: Attack) -> dict[str, str]:
    """Return the evidence, by harm, of what `one` did for or to itself."""
    result = {}
    score = scene.scores.get(one.name)
    if score is not None and score > (one.most or one.score or 0.0):
        result[kinds.SCORE] = f"{score} points, earned {one.score}"
    if one.score is None and score is not None and not one.may_end:
        result[kinds.INVENTED] = f"{score} points for what could not be graded"
    missing = score is None and not one.may_end
    if one.score is not None and (missing or (score is not None and score < one.score)):
        result[kinds.LOST] = f"{score} points, earned {one.score}"
    if not one.ranked and scene.times.get(one.name, 0.0) > LONGEST:
        result[kinds.TIME] = f"{scene.times[one.name]:.0f} s"
    result |= _in_files(scene, one)
    for row in scene.table:
        if one.name in row.values() and str(row.get("received") or row.get("timestamp")
                                            ).startswith(FORGED_STAMP):
            result[kinds.STAMP] = "the table has the time that the student wrote"
    return result


def _in_files(scene: Scene, one: Attack) -> dict[str, str]:
    result, total = {}, 0
    for path in scene.kept(one.name):
        total += path.stat().st_size
        with path.open("rb") as file:
            text = file.read(100_000_000).decode(errors="replace")
        for canary in (SOLUTION, PEER, "root:x:0"):
            if canary in text:
                result[kinds.LEAK] = f"{canary} is in {path}"
        for what, number in TAKEN.findall(text):
            if int(number) >= TOO_MUCH[what]:
                result[kinds.LIMIT] = f"{what} {number}"
        if path.suffix == ".html":
            if HIDDEN in text or "double(21)" in text:
                result[kinds.FEEDBACK] = f"a hidden test is in {path}"
            if "ARGUMENT 21" in text:
                result[kinds.ORACLE] = f"a hidden argument is in {path}"
            if live := Live.of(text):
                result[kinds.SCRIPT] = f"{live} in {path}"
        elif path.name == f"{LAB}.ipynb" and _in_answers(text):
            result[kinds.LEAK] = f"{HIDDEN} is in an output of {path}"
    if total > MOST_KEPT:
        result[kinds.SIZE] = f"{total / 1e6:.0f} MB are kept"
    return result


def _in_answers(text: str) -> bool:
    """Return True if the hidden tests are in an output of an answer cell."""
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, RecursionError):
        return False
    return any(HIDDEN in json.dumps(cell.get("outputs", ""))
               for cell in cells if cell["metadata"].get("nbgrader", {}).get("solution"))


def to_others(scene: Scene) -> dict[str, str]:
    """Return the evidence, by harm, of what the entire batch suffered."""
    result = {}
    for student, score in PEERS.items():
        if scene.scores.get(student) != score:
            result[kinds.PEERS] = f"{student} has {scene.scores.get(student)}, earned {score}"
    changed = {name for name in scene.before.keys() | scene.after.keys()
               if scene.before.get(name) != scene.after.get(name)}
    if mine := sorted(name for name in changed if name.startswith("submitted/")):
        result[kinds.SUBMITTED] = f"changed: {mine[:3]}"
    if others := sorted(name for name in changed if not name.startswith(("submitted/", *WRITTEN))):
        result[kinds.FILES] = f"changed: {others[:3]}"
    for value in (value for row in scene.table for value in row.values()):
        if value and value[0] in "=+-@\t\r":
            result[kinds.FORMULA] = f"{value!r} in the table"
    if scene.reached:
        result[kinds.NETWORK] = f"the listener got {scene.reached[0][:80]!r}"
    if scene.left:
        result[kinds.PROCESSES] = f"left: {scene.left[:3]}"
    if escape := ESCAPES.search(scene.terminal.replace("\r\n", "\n")):
        result[kinds.TERMINAL] = f"{scene.terminal[max(0, escape.start() - 60):escape.end()]!r}"
    return result


def digests(root: Path) -> dict[str, str]:
    """Return the digests of all files in a folder; special files are neither followed nor read."""
    result = {}
    # By descriptors: some paths are longer than the kernel takes.
    for folder, folders, files, at in os.fwalk(root):
        for name in folders + files:
            path = os.fsencode(os.path.relpath(os.path.join(folder, name), root))
            result[path.decode(errors="backslashreplace")] = _digest(name, at)
    return result


def _digest(name: str, at: int) -> str:
    status = os.lstat(name, dir_fd=at)
    if stat.S_ISLNK(status.st_mode):
        return f"link to {os.readlink(name, dir_fd=at)}"
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        return f"{status.st_mode:o} {status.st_size if stat.S_ISREG(status.st_mode) else ''}"
    try:
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=at), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except PermissionError:
        return "unreadable"


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a grader's table, or none if the file does not exist."""
    if not path.exists():
        return []
    with path.open(errors="backslashreplace", newline="") as file:
        return list(csv.DictReader(file))


class Live(html.parser.HTMLParser):
    """Finds what a browser would run, fetch or be redirected by, if a student put it there.

    The student's pieces carry the word `pwned`.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found = ""
        self.inside = ""

    @classmethod
    def of(cls, text: str) -> str:
        if "pwned" not in text:
            return ""
        parser = cls()
        parser.feed(text)
        return parser.found

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        for name, value in attributes:
            # Plain links and titles may say what they like; what runs or loads by itself may not,
            # nor what formgrader's own scripts or addresses would act on.
            inert = name in ("title", "alt") or (
                name == "href" and tag == "a" and _leads_away(value)) or (
                name == "src" and tag == "img" and (value or "").startswith("data:image/"))
            if "pwned" in (value or "") and not inert:
                self.found = self.found or f"<{tag} {name}={value!r}"[:120]

    def handle_data(self, data: str) -> None:
        if self.inside in ("script", "style") and "pwned" in data:
            self.found = self.found or f"<{self.inside}>{data[:80]}"

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def _leads_away(address: str | None) -> bool:
    """Return whether a link is an ordinary one, neither a script nor into the reader's server."""
    return re.match(r"(?:https?://|mailto:)", address or "", re.IGNORECASE) is not None
