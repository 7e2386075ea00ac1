"""The course folder, in nbgrader's layout; its sources are in the layout of the checkout."""

from __future__ import annotations

import contextlib
import datetime
import difflib
import fcntl
import functools
import hashlib
import hmac
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from labcore import own_labs
from labcore.atomic import write_atomic
from labcore.errors import LabError
from labcore.workspace import CHECKOUT

OUR_SOURCES = CHECKOUT / "grader" / "source"
CONFIG = ("from grader.config import configure  # settings of your own may follow these two lines\n"
          "configure(get_config())  # noqa: F821\n")
MOST_DIGESTED = 20_000_001  # bytes; grader.course.submitted reads one less
REMEMBERED = ".labs.json"  # in source/: by lab, the folder of an author's own
FOLDERS = ("source", "release", "submitted", "autograded", "feedback")


def default_root() -> Path:
    """Return $LAB_COURSE, or `course/` in the checkout, as an absolute path that may not exist
    yet."""
    return Path(os.environ.get("LAB_COURSE") or CHECKOUT / "course").absolute()


T = TypeVar("T")
GRADING, COLLECTING, CONTEST = "grading", "collecting", "contest"  # what one command does at a time


class CourseBusy(LabError):
    """Raised when another command holds the course.

    Attributes:
        holder: that command, its process, and since when.
    """

    def __init__(self, holder: str, command: str) -> None:
        super().__init__(f"{holder}; run `{command}` again when it has ended")
        self.holder = holder


@dataclass(frozen=True)
class Course:
    """Paths and names in a course folder; every method reads its current state."""

    root: Path
    sources: Path = OUR_SOURCES

    def make(self) -> None:
        """Create the folders and files that are missing. Raises LabError when they cannot be
        written."""
        try:
            for folder in FOLDERS:
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            if not self.config_file.exists():
                write_atomic(self.config_file, CONFIG.encode())
            if not self.secret_file.exists():
                write_atomic(self.secret_file, secrets.token_hex(32).encode(), 0o600)
        except OSError as error:
            raise LabError(f"the course folder {self.root} is not writable ({error.strerror}): "
                           "set LAB_COURSE to a folder of your own, for example $HOME/course"
                           ) from error

    @property
    def config_file(self) -> Path:
        return self.root / "nbgrader_config.py"

    @property
    def secret_file(self) -> Path:
        return self.root / "secret"

    def notebook(self, step: str, lab: str, student: str = ".") -> Path:
        """Return the path of a lab's notebook.

        Args:
            step: source, release, submitted, autograded, or feedback.
            lab: the lab's name.
            student: the student's id.
        """
        return self.root / step / student / lab / f"{lab}.ipynb"

    def settings(self) -> Config:
        """Return the configuration in nbgrader_config.py. Raises LabError when it does not load
        ours."""
        try:
            config = PyFileConfigLoader(self.config_file.name, path=str(self.root)).load_config()
        except Exception as error:  # it is a program: anything may come out of it
            raise LabError(f"{self.config_file}: {type(error).__name__}: {error}") from error
        if "sanitize_preprocessors" not in config.Autograde:
            raise LabError(f"{self.config_file} does not load the course's settings; put these "
                           f"lines at its top:\n{CONFIG}")
        config.CourseDirectory.root = str(self.root)
        return config

    def source_of(self, lab: str) -> Path:
        """Return the folder that `lab build` creates for a lab. It may not exist.

        It belongs to an author's own labs (LAB_LABS, or where the lab was released from) or else to
        the checkout. Raises LabError if both have a lab of this name.
        """
        own, ours = self.labs_folder(lab), self.sources / lab
        if own is None:
            return ours
        if ours.is_dir():
            raise LabError(f"{own} and {CHECKOUT} both have a lab {lab}: give yours another name")
        return own / "grader" / "source" / lab

    def labs_folder(self, lab: str) -> Path | None:
        """Return the folder outside the checkout that an author's own lab comes from, if any."""
        remembered = read_stamps(self.root / "source" / REMEMBERED).get(lab)
        for folder in (own_labs.folder(), Path(remembered) if remembered else None):
            if folder and (folder / "grader" / "source" / lab).is_dir():
                return folder
        return None

    def labs(self) -> list[str]:
        """Return the names of the labs with a source: here, in LAB_LABS, or in the checkout."""
        own = own_labs.folder()
        folders = [self.sources, self.root / "source"]
        folders += [own / "grader" / "source"] if own else []
        return sorted({path.parent.name for folder in folders for path in folder.glob("*/*.ipynb")
                       if path.stem == path.parent.name})

    def students(self, lab: str | None = None) -> list[str]:
        """Return the names of the folders in submitted/; with `lab`, those that have a folder for
        it."""
        return sorted(path.name for path in (self.root / "submitted").iterdir()
                      if path.is_dir() and not path.name.startswith(".")
                      and (lab is None or self.submitted(lab, path.name)))

    def submitted(self, lab: str, student: str) -> bool:
        """Return whether the student submitted anything for the lab, readable or not.

        Args:
            lab: the lab's name.
            student: the student's id.
        """
        try:
            os.lstat(self.root / "submitted" / student / lab)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # nobody may look: something may well be there
            return True
        return True

    def digest(self, lab: str, student: str) -> str:
        """Return the SHA-256, in hex, of the submitted notebook; empty if none can be read.

        Of a file that is too large to be graded, only the beginning is read.

        Args:
            lab: the lab's name.
            student: the student's id.
        """
        path = self.notebook("submitted", lab, student)
        try:
            if not path.is_file():
                return ""
            with path.open("rb") as file:
                return hashlib.sha256(file.read(MOST_DIGESTED)).hexdigest()
        except OSError:
            return ""

    def digest_of_lab(self, lab: str) -> str:
        """Return the SHA-256, in hex, of the lab's folder in source/; empty if there is none."""
        return digest_of_folder(self.root / "source" / lab)

    def seed(self, lab: str, student: str, digest: str | None = None) -> str:
        """Return the seed of this submission's hidden cases, which is repeatable and cannot be
        guessed.

        Args:
            lab: the lab's name.
            student: the student's id.
            digest: the digest of the graded bytes, if they are not the ones on disk.
        """
        digest = self.digest(lab, student) if digest is None else digest
        text = "\0".join([lab, student, digest])
        key = self.secret_file.read_bytes()
        return hmac.new(key, text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()

    def copy_source(self, lab: str) -> bool:
        """Copy a lab's source into the course if it has changed; return whether it had.

        Raises LabError when somebody edited the copy, so that no edit is lost.
        """
        ours, copy = self.source_of(lab), self.root / "source" / lab
        stamps = self.root / "source" / ".copied.json"
        copied = read_stamps(stamps)
        new, have = digest_of_folder(ours), digest_of_folder(copy)
        if not ours.is_dir() or new == have:
            return False
        if have and have != copied.get(lab):
            raise LabError(f"{copy} was edited, and {ours} differs from it: remove the first to "
                           "grade with the second, or rename it to keep a lab of your own")
        unfinished = copy.with_name(f".{lab}.{os.getpid()}")
        try:
            shutil.copytree(ours, unfinished)
            if copy.exists():
                shutil.rmtree(copy)
            unfinished.rename(copy)
        except shutil.Error as error:  # several files of it; each with its reason
            raise LabError(f"{copy} cannot be written: {error.args[0][0][2]}") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        write_atomic(stamps, json.dumps(copied | {lab: new}, indent=1).encode())
        if folder := self.labs_folder(lab):
            known = self.root / "source" / REMEMBERED
            stamps = read_stamps(known) | {lab: str(folder)}
            write_atomic(known, json.dumps(stamps, indent=1).encode())
        return True

    @contextlib.contextmanager
    def locked(self, command: str, work: str = GRADING) -> Iterator[None]:
        """Lock the course for one batch, one collection, or one contest's command. A batch may go
        on while submissions come in, because a result belongs to the version that was read.

        Args:
            command: the command that locks it, for the message of another one.
            work: the work that other commands must not do meanwhile: GRADING, COLLECTING, or
                CONTEST.

        Raises CourseBusy at once if another command does that work.
        """
        with open(self.root / f".{work}.lock", "a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.seek(0)
                holder = lock.read() or "another command is running"
                raise CourseBusy(f"{self.root}: {holder}", command) from error
            lock.truncate(0)
            lock.write(f"`{command}` has been running since "
                       f"{datetime.datetime.now(datetime.UTC):%H:%M} UTC (process {os.getpid()})")
            lock.flush()
            yield

    @contextlib.contextmanager
    def entering(self) -> Iterator[None]:
        """Hold off whatever else writes into the gradebook or the records, and wait until it lets
        go, which takes moments: a batch holds this lock only while it enters one result, so a
        decision need not wait for the batch. It must not be nested.
        """
        with open(self.root / ".entering.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def until_changed(missing: Callable[[], T]) -> Callable[[Callable[[Path], T]], Callable[[Path], T]]:
    """Decorate a reader of one file: the file is read again only once it has changed.

    Args:
        missing: makes the value for a file that does not exist, such as dict.
    """
    def decorate(read: Callable[[Path], T]) -> Callable[[Path], T]:
        @functools.lru_cache(maxsize=4)
        def of_version(path: Path, changed: int, size: int) -> T:
            return read(path)

        @functools.wraps(read)
        def current(path: Path) -> T:
            try:
                status = path.stat()
            except FileNotFoundError:
                return missing()
            return of_version(path, status.st_mtime_ns, status.st_size)

        return current

    return decorate


def read_stamps(path: Path) -> dict[str, str]:
    """Return digests by lab. Raises LabError when the file is damaged."""
    try:
        stamps = json.loads(path.read_text()) if path.exists() else {}
    except ValueError:
        stamps = None
    if not isinstance(stamps, dict):
        raise LabError(f"{path} is damaged: remove it, then grade again")
    return stamps


def digest_of_folder(folder: Path) -> str:
    """Return the SHA-256, in hex, of a folder's names and contents; empty if it does not exist.

    JupyterLab's checkpoints do not count.
    """
    if not folder.is_dir():
        return ""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*")
                       if path.is_file() and ".ipynb_checkpoints" not in path.parts):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return total.hexdigest()


def require_known(kind: str, name: str, known: Iterable[str], where: str) -> None:
    """Raise LabError, naming the nearest known name, unless the name is known.

    Args:
        kind: what it names, for the message.
        name: the name.
        known: all names.
        where: where they come from, for the message.
    """
    known = list(known)
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
    hint = f"; nearest: {near[0]}" if near else f"; known: {', '.join(known) or 'nothing yet'}"
    raise LabError(f"no {kind} {name} in {where}{hint}")
