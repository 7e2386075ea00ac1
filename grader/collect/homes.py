"""Students' homes, as a hub mounts them: STUDENT/work/notebooks/LAB.ipynb is what was handed in.

Nothing else of a home is looked at, so that copies, tries and other people's notebooks hand in
nothing, and no folder inside a home can name another student.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from grader.collect.layouts import Claim, claim
from grader.collect.sources import File, Folder, Refused, sorted_out
from grader.course.names import problem_of
from grader.course.roster import Roster
from labcore import shipping
from labcore.errors import LabError
from labcore.workspace import CHECKOUT

SAID_BY = "the home's file system (ctime)"


class Homes(Folder):
    """Of each folder in `path` the notebooks `below`/LAB.ipynb."""

    def __init__(self, path: Path, below: str, labs: Iterable[str]) -> None:
        """Raises LabError where `path` is no folder, or `below` none inside a home."""
        super().__init__(path)
        if not path.is_dir():
            raise LabError(f"{path} is no folder: --below is for a folder of students' homes")
        if problem := problem_of(below):
            raise LabError(f"--below {below!r} cannot be a folder inside a home ({problem}); for "
                           "example --below work/notebooks")
        self.below, self.labs = below, sorted(labs)

    def files(self) -> list[File]:
        return sorted_out(list(self._handed_in()), self.path)

    def _handed_in(self) -> Iterator[File]:
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
        """Of the file, through no link. Raises OSError."""
        with self.folder_of(path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def when(self, file: File) -> tuple[datetime.datetime, str, str]:
        """When it was last changed, by the clock of its disk, which its owner cannot set; asked
        after it was read, so that no version is older than its time."""
        try:
            seconds = self._status(file.path).st_ctime
        except OSError as error:
            raise Refused(f"it went away while it was read: {error.strerror}") from error
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC), SAID_BY, ""


def layout(roster: Roster, as_is: bool) -> Callable[[str], Claim]:
    """It is the home's owner's, whatever stands further down."""
    return lambda path: claim(path.split("/")[0], path.rpartition("/")[2], roster, as_is)


def require_begun(lab: str, content: bytes) -> None:
    """Raises Refused for a notebook as the hub lays it into every home, with links to the worked
    one or without."""
    path = CHECKOUT / "notebooks" / f"{lab}.ipynb"
    # What is much larger was worked on, and may be made to be expensive to read.
    if not path.is_file() or len(content) > 2 * path.stat().st_size:
        return
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        here = shipping.digest(path.name, shipping.without_way_out(content))
        if here == _given(path):
            raise Refused("as it was given out: nothing was done in it")


@functools.cache
def _given(path: Path) -> str:
    return shipping.digest(path.name, shipping.without_way_out(path.read_bytes()))
