"""nbgrader's exchange: a folder that everybody can write to, with a folder for each submission.

A student can write such a folder's name, its timestamp.txt, and its modification time. A student
cannot change its owner, or the time of the file system's last change to the entry (ctime).
"""

from __future__ import annotations

import datetime
import itertools
import os
import pwd
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from nbgrader.utils import parse_utc
from traitlets.config import Config

from grader.collect import sources
from grader.collect.layouts import Claim, claim
from grader.collect.sources import File, FileRefused, Folder, checked_files
from grader.course.roster import Roster
from labcore.errors import LabError

SLACK = datetime.timedelta(minutes=2)  # between the name's time and the file system's
_NAME = re.compile(r"(?P<student>.+)\+(?P<lab>[^+]+)\+(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
                   r"(\.\d+)?( [\w/+-]{1,40}?)?)(\+[\w=-]{12})?")


def inbound(settings: Config, location: str) -> Path:
    """Return the exchange's folder of submissions.

    Args:
        settings: the course's configuration.
        location: a path in the exchange, or the word "exchange".

    Raises LabError.
    """
    exchange, course = settings.Exchange, settings.CourseDirectory.get("course_id", "")
    if location == "exchange":
        root = os.environ.get("LAB_EXCHANGE") or exchange.get("root")
        if not root:
            raise LabError("no exchange is known: set LAB_EXCHANGE, or c.Exchange.root in "
                           "nbgrader_config.py")
        path = Path(root)
    else:
        path = Path(location)
    folders = [candidate for candidate in (path, path / "inbound", path / course / "inbound",
                                           *sorted(path.glob("*/inbound")))
               if candidate.name == "inbound" and candidate.is_dir()]
    if not folders:
        raise LabError(f"{path} is not an exchange: neither it nor a course in it has a folder "
                       "inbound")
    if len(set(folders)) > 1 and folders[0].parent.name != course:
        raise LabError(f"{path} is the exchange of several courses: set c.CourseDirectory."
                       "course_id, or give the folder of one")
    return folders[0]


def is_exchange(path: Path) -> bool:
    return path.is_dir() and (path.name == "inbound" or (path / "inbound").is_dir()
                              or any(path.glob("*/inbound")))


def layout(roster: Roster, as_is: bool) -> Callable[[str], Claim]:
    def read(path: str) -> Claim:
        match = _NAME.fullmatch(path.split("/")[0])
        if match is None or "/" not in path:
            return Claim(problem="it is in no folder with a name of nbgrader's exchange")
        name = path.rpartition("/")[2]
        return replace(claim(match["student"], name, roster, as_is), folders=(match["lab"],))

    return read


class Inbound(Folder):
    """Reads a submission only if its folder's owner also owns the file; `when` uses the file
    system."""

    def __init__(self, path: Path, owners: dict[str, str]) -> None:
        """Open the exchange.

        Args:
            path: its folder of submissions.
            owners: students by the names of system users.
        """
        super().__init__(path)
        self.owners = owners

    def files(self) -> list[File]:
        files = list(self._submission_files())
        while len(files) > sources.MOST_FILES:  # one student's files stop no other's
            count = Counter(owner for owner, _ in files)
            most = max(count, key=count.__getitem__)
            if len(count) == 1 or count[most] == 1:
                break
            files = [one for one in files if one[0] != most]
            files.append((most, File(_name_of(most), 0, (
                f"{_name_of(most)} has at least {count[most]} files in the exchange: "
                "too many, so none of them is taken"))))
        # The folders' names have times in them, with colons.
        return checked_files([file for _, file in files], self.path, skip=1)

    def _submission_files(self) -> Iterator[tuple[int, File]]:
        """Yield all files, each with the user id of its folder's owner."""
        for name in sorted(os.listdir(self.path)):
            try:
                status = os.stat(self.path / name, follow_symlinks=False)
            except OSError:
                continue  # taken away by its owner
            inside = self._under(name) if stat.S_ISDIR(status.st_mode) else [
                File(name, status.st_size, "it is in no folder")]
            for file in itertools.islice(inside, sources.MOST_FILES + 1):
                yield status.st_uid, file

    def read(self, file: File) -> bytes:
        try:
            owner = self._owner(file.path)
            with self.open(file.path) as opened:
                other = os.fstat(opened.fileno()).st_uid
        except OSError as error:
            raise FileRefused(f"it cannot be read: {error.strerror}") from error
        if other != owner:
            raise FileRefused("it belongs to another user than its folder")
        return super().read(file)

    def with_owner_checked(self, path: str, claim: Claim) -> Claim:
        """Return the claim, with a problem if the folder belongs to another student.

        Args:
            path: the file.
            claim: the claim about its owner.
        """
        try:
            owner = _name_of(self._owner(path))
        except OSError as error:
            return replace(claim, problem=f"it cannot be read: {error.strerror}")
        actual = self.owners.get(owner)
        forged = f"its folder belongs to {owner}" if actual and actual != claim.student else ""
        return replace(claim, problem=claim.problem or forged)

    def _owner(self, path: str) -> int:
        return os.stat(self.path / path.split("/")[0], follow_symlinks=False).st_uid

    def when(self, file: File, trust_names: bool) -> tuple[datetime.datetime, str, str]:
        """Return the time of receipt, its source, and a note.

        Args:
            file: the file.
            trust_names: whether to trust the folder's name.

        Raises FileRefused.
        """
        stamp = self.stamp(file)
        if trust_names and stamp:
            return stamp, "the name of its folder in the exchange", ""
        places = (self.path / file.path.split("/")[0], self.path / file.path)
        try:
            seconds = max(os.stat(place, follow_symlinks=False).st_ctime for place in places)
        except OSError as error:
            raise FileRefused(f"it disappeared while it was read: {error.strerror}") from error
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


def _name_of(owner: int) -> str:
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)
