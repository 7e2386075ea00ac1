"""nbgrader's exchange: a folder that everybody can write, with a folder for each hand-in.

The name of such a folder, timestamp.txt in it and its time of change are the student's to write.
The owner, and the time at which the file system last changed the entry (ctime), are not.
"""

from __future__ import annotations

import datetime
import os
import pwd
import re
from collections.abc import Callable
from pathlib import Path

from nbgrader.utils import parse_utc
from traitlets.config import Config

from grader.collect.layouts import Claim, claim
from grader.collect.sources import File, Folder, Refused, sorted_out
from grader.roster import Roster
from lab.errors import LabError

SLACK = datetime.timedelta(minutes=2)  # between the name's time and the file system's
_NAME = re.compile(r"(?P<student>.+)\+(?P<lab>[^+]+)\+(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
                   r"(\.\d+)?( [\w/+-]{1,40}?)?)(\+[\w=-]{12})?")


def inbound(settings: Config, said: str) -> Path:
    """The folder of hand-ins, for a path in the exchange or the word "exchange". LabError."""
    exchange, course = settings.Exchange, settings.CourseDirectory.get("course_id", "")
    if said == "exchange":
        root = os.environ.get("LAB_EXCHANGE") or exchange.get("root")
        if not root:
            raise LabError("no exchange is known: set LAB_EXCHANGE, or c.Exchange.root in "
                           "nbgrader_config.py")
        path = Path(root)
    else:
        path = Path(said)
    found = [candidate for candidate in (path, path / "inbound", path / course / "inbound",
                                         *sorted(path.glob("*/inbound")))
             if candidate.name == "inbound" and candidate.is_dir()]
    if not found:
        raise LabError(f"{path} is no exchange: there is no folder inbound in it, nor in a course "
                       "below it")
    if len(set(found)) > 1 and found[0].parent.name != course:
        raise LabError(f"{path} is the exchange of several courses: set c.CourseDirectory."
                       "course_id, or give the folder of one")
    return found[0]


def is_exchange(path: Path) -> bool:
    return path.is_dir() and (path.name == "inbound" or (path / "inbound").is_dir()
                              or any(path.glob("*/inbound")))


def layout(roster: Roster, as_is: bool) -> Callable[[str], Claim]:
    def read(path: str) -> Claim:
        match = _NAME.fullmatch(path.split("/")[0])
        if match is None or "/" not in path:
            return Claim(problem="it is in no folder with a name of nbgrader's exchange")
        name = path.rpartition("/")[2]
        return claim(match["student"], name, roster, as_is)

    return read


class Inbound(Folder):
    """Reads a hand-in only as its folder's owner's; `when` is the file system's word."""

    def __init__(self, path: Path, owners: dict[str, str]) -> None:
        """`owners`: students by the names of system users."""
        super().__init__(path)
        self.owners = owners

    def files(self) -> list[File]:
        return sorted_out(list(self._under("")), self.path, skip=1)  # colons in their times

    def read(self, file: File) -> bytes:
        owner = os.stat(self.path / file.path.split("/")[0], follow_symlinks=False).st_uid
        try:
            with self.open(file.path) as opened:
                other = os.fstat(opened.fileno()).st_uid
        except OSError as error:
            raise Refused(f"it cannot be read: {error.strerror}") from error
        if other != owner:
            raise Refused("it belongs to another user than its folder")
        return super().read(file)

    def forged(self, file: File, student: str) -> str:
        """Why this is not `student`'s: it is another student's folder. "" if it may be."""
        owner = self._owner(file)
        actual = self.owners.get(owner)
        return f"its folder belongs to {owner}" if actual and actual != student else ""

    def _owner(self, file: File) -> str:
        number = os.stat(self.path / file.path.split("/")[0], follow_symlinks=False).st_uid
        try:
            return pwd.getpwuid(number).pw_name
        except KeyError:
            return str(number)

    def when(self, file: File, trust_names: bool) -> tuple[datetime.datetime, str, str]:
        """(when it came in, what that rests on, what else to know)."""
        stamp = self.stamp(file)
        if trust_names and stamp:
            return stamp, "the name of its folder in the exchange", ""
        places = (self.path / file.path.split("/")[0], self.path / file.path)
        seconds = max(os.stat(place, follow_symlinks=False).st_ctime for place in places)
        seen = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        note = ""
        if stamp and abs(seen - stamp) > SLACK:
            note = (f"its name says {stamp:%Y-%m-%d %H:%M:%S} UTC, the file system "
                    f"{seen:%Y-%m-%d %H:%M:%S}")
        return seen, "the exchange's file system (ctime)", note

    def stamp(self, file: File) -> datetime.datetime | None:
        match = _NAME.fullmatch(file.path.split("/")[0])
        try:
            return parse_utc(match["stamp"]).replace(tzinfo=datetime.UTC) if match else None
        except (ValueError, OverflowError):
            return None
