"""Students' home directories, as a hub mounts them: STUDENT/work/notebooks/LAB.ipynb is submitted.

Nothing else in a home counts, so copies, drafts, and other people's notebooks are not submitted,
and no folder inside a home can name another student.
"""

from __future__ import annotations

import datetime
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from grader.collect.layouts import Claim, claim
from grader.collect.sources import File, FileRefused, Folder, checked_files
from grader.course.names import problem_of
from grader.course.roster import Roster
from labcore.errors import LabError

SAID_BY = "the home's file system (ctime)"


class Homes(Folder):
    """The notebooks `below`/LAB.ipynb of each folder in `path`."""

    def __init__(self, path: Path, below: str, labs: Iterable[str]) -> None:
        """Open a folder of homes.

        Args:
            path: the folder.
            below: the folder inside each home.
            labs: the labs to collect.

        Raises LabError when `path` is not a folder, or `below` cannot be inside a home.
        """
        super().__init__(path)
        if not path.is_dir():
            raise LabError(f"{path} is not a folder: --below is for a folder of students' homes")
        if problem := problem_of(below):
            raise LabError(f"--below {below!r} cannot be a folder inside a home ({problem}); for "
                           "example --below work/notebooks")
        self.below, self.labs = below, sorted(labs)

    def files(self) -> list[File]:
        return checked_files(list(self._notebooks()), self.path)

    def _notebooks(self) -> Iterator[File]:
        for home in sorted(os.listdir(self.path)):
            for lab in self.labs:
                path = f"{home}/{self.below}/{lab}.ipynb"
                try:
                    status = self._status(path)
                except FileNotFoundError:
                    continue  # who has not begun has handed in nothing
                except OSError as error:
                    yield File(path, 0, f"it cannot be read: {error.strerror}")
                    continue
                plain = stat.S_ISREG(status.st_mode)
                yield File(path, status.st_size, "" if plain else "a link or a special file")

    def _status(self, path: str) -> os.stat_result:
        """Return the file's status without following links. Raises OSError."""
        with self.folder_of(path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def when(self, file: File) -> tuple[datetime.datetime, str, str]:
        """Return the time of the file's last change (ctime), which its owner cannot set.

        Call it after the file was read, so that no version is newer than its time.
        """
        try:
            seconds = self._status(file.path).st_ctime
        except OSError as error:
            raise FileRefused(f"it disappeared while it was read: {error.strerror}") from error
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC), SAID_BY, ""


def layout(roster: Roster, as_is: bool) -> Callable[[str], Claim]:
    """Return a function that assigns every file to its home's owner.

    Args:
        roster: the class.
        as_is: whether folder names are students' ids.
    """
    return lambda path: claim(path.split("/")[0], path.rpartition("/")[2], roster, as_is)
