"""The files of a folder, a zip or a tar. Archives are hostile: nothing is unpacked to a disk, only
plain files with plain names are read, and no more of one than a notebook may have."""

from __future__ import annotations

import bz2
import contextlib
import datetime
import gzip
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from grader.course.names import key_of, problem_of
from grader.course.submitted import LARGEST
from labcore.errors import LabError

MOST_FILES = 100_000  # of one source: 200 students with the most that each may have
RATIO = 200  # unpacked to packed; notebooks come to about 10, a bomb to 1,000
SMALL = 1_000_000  # bytes up to which the ratio does not matter
TAR_TOTAL = 2_000_000_000  # bytes of a packed tar, unpacked: it can only be read from its start
LITTER = ("__MACOSX", ".ipynb_checkpoints", ".git")  # folders that nobody meant to hand in


class Refused(Exception):
    """Why one file is not taken; the text is for the table."""


@dataclass(frozen=True)
class File:
    """One file of a source."""

    path: str  # parts joined by "/"
    size: int  # bytes, as the source says
    problem: str = ""  # why it is not read
    changed: datetime.datetime | None = None  # what the source says: the sender could write it
    handle: Any = None  # the reader's own


class Source(Protocol):
    """Files, in the order in which they are cheap to read."""

    path: Path

    def files(self) -> list[File]: ...

    def read(self, file: File) -> bytes:
        """The content. Raises Refused."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Source]:
    """The reader for `path`. Raises LabError when it is none of the three."""
    if path.is_dir():
        yield Folder(path)
        return
    if not path.is_file():
        raise LabError(f"{path}: no such file or folder")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield Zip(path, archive)
        else:
            with _tar(path) as archive:
                yield Tar(path, archive)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError,
            NotImplementedError) as error:  # the last one: a zip of a version to come
        raise LabError(f"{path} is no sound zip or tar ({error}); give the LMS's archive, or a "
                       "folder") from error


def sorted_out(files: list[File], where: Path, skip: int = 0) -> list[File]:
    """Without litter; unsafe names, and names that are there more than once, marked. The first
    `skip` folders are named by somebody else's rules. Raises LabError."""
    if len(files) > MOST_FILES:
        raise LabError(f"{where} has {len(files)} files; at the most {MOST_FILES} are looked at")
    files = [file for file in files if not _litter(file.path)]
    times = Counter(_key(file.path, skip) for file in files)
    result = []
    for file in files:
        problem = problem_of(file.path.split("/", skip)[-1]) or file.problem
        if not problem and times[_key(file.path, skip)] > 1:
            problem = "its name is there more than once (capitals do not count)"
        result.append(replace(file, problem=problem))
    return result


def _key(path: str, skip: int) -> tuple[str, str]:
    """Return what two files of one name have in common. Nobody can take a name in a folder of
    somebody else's, so the first `skip` folders differ by capitals, too."""
    *above, name = path.split("/", skip)
    return "/".join(above), key_of(name)


def _litter(path: str) -> bool:
    parts = path.split("/")
    return (any(part in LITTER for part in parts) or parts[-1].startswith("._")
            or parts[-1] in (".DS_Store", "Thumbs.db", "desktop.ini"))


class Folder:
    """A folder on disk. Links are not followed, not even when one is put there meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self) -> list[File]:
        return sorted_out(list(self._under("")), self.path)

    def _under(self, inside: str) -> Iterator[File]:
        try:
            with os.scandir(self.path / inside) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:  # closed to us, gone by now, or at too long a path
            if not inside:
                raise
            yield File(inside, 0, f"it cannot be read: {error.strerror}")
            return
        for entry in found:
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.is_dir(follow_symlinks=False):
                if name.count("/") < 20:  # problem_of says that it is too deep
                    yield from self._under(name)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                yield File(name, 0, f"it cannot be read: {error.strerror}")
                continue
            changed = datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC)
            problem = "" if stat.S_ISREG(status.st_mode) else "a link or a special file"
            yield File(name, status.st_size, problem, changed)

    def read(self, file: File) -> bytes:
        try:
            with self.open(file.path) as opened:
                return _limited(opened)
        except OSError as error:
            raise Refused(f"it cannot be read: {error.strerror}") from error

    def open(self, path: str) -> BinaryIO:
        """Through no link. Raises OSError."""
        with self.folder_of(path) as (folder, name):
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        opened = os.fdopen(file, "rb")
        if not stat.S_ISREG(os.fstat(file).st_mode):
            opened.close()
            raise OSError(0, "it is no plain file")
        return opened

    @contextlib.contextmanager
    def folder_of(self, path: str) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that holds the file, and the file's name in it. Opened
        folder by folder, so that no part of the path can be a link. Raises OSError."""
        *folders, name = path.split("/")
        here = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                os.close(here)
                here = inner
            yield here, name
        finally:
            os.close(here)


class Zip:
    """A zip; its times are the archive's making (Canvas), or the first upload of the same bytes
    (Moodle), so they say nothing about when a student handed in."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive

    def files(self) -> list[File]:
        return sorted_out([File(info.orig_filename, info.file_size, self._problem(info),
                                handle=info)
                           for info in self.archive.infolist() if not info.is_dir()], self.path)

    @staticmethod
    def _problem(info: zipfile.ZipInfo) -> str:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            return "a link or a special file"
        if info.flag_bits & 0x1:
            return "it is encrypted"
        if info.file_size > SMALL and info.file_size > RATIO * info.compress_size:
            return f"packed more than {RATIO} times: a bomb?"
        return ""

    def read(self, file: File) -> bytes:
        try:
            with self.archive.open(file.handle) as opened:
                return _limited(opened)
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
                OSError, RuntimeError, ValueError) as error:
            raise Refused(f"damaged in the archive: {error}") from error


class Tar:
    """A tar, packed or not."""

    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        self.path, self.archive = path, archive

    def files(self) -> list[File]:
        found: list[File] = []
        for member in self._members():
            if len(found) > MOST_FILES:
                raise LabError(f"{self.path} has more than {MOST_FILES} files")
            if not member.isdir():
                plain = member.isreg() and not member.issparse()
                found.append(File(member.name, member.size,
                                  "" if plain else "a link or a special file", handle=member))
        return sorted_out(found, self.path)

    def _members(self) -> Iterator[tarfile.TarInfo]:
        try:
            yield from self.archive
        except OSError as error:
            raise error if error.errno else tarfile.ReadError(str(error)) from error

    def read(self, file: File) -> bytes:
        try:
            with self.archive.extractfile(file.handle) as opened:
                return _limited(opened)
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError,
                ValueError) as error:
            raise Refused(f"damaged in the archive: {error}") from error


class _Bounded:
    """A file that does not go beyond TAR_TOTAL, and gives no more than a notebook at a time: what
    stands before a tar's member (its name, for instance) is read whole and may be of any size."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def read(self, size: int) -> bytes:
        if size > LARGEST + 1 or self.file.tell() > TAR_TOTAL:
            raise tarfile.ReadError("more in it than a class hands in")
        return self.file.read(size)

    def seek(self, position: int) -> int:
        if position > TAR_TOTAL:
            raise tarfile.ReadError("more in it than a class hands in")
        return self.file.seek(position)

    def tell(self) -> int:
        return self.file.tell()


@contextlib.contextmanager
def _tar(path: Path) -> Iterator[tarfile.TarFile]:
    with path.open("rb") as file:
        start = file.read(2)
    openers = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
    with openers.get(start, open)(path, "rb") as file:
        try:
            archive = tarfile.TarFile(fileobj=_Bounded(file), errorlevel=1)
        except OSError as error:  # what gzip and bz2 raise for bad data has no number
            raise error if error.errno else tarfile.ReadError(str(error)) from error
        with archive:
            yield archive


def _limited(opened: Any) -> bytes:
    content = opened.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise Refused(f"it has more than {LARGEST / 1e6:.0f} MB")
    return content
