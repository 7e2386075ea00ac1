"""The files of a folder, a zip, or a tar. Archives are untrusted: nothing is unpacked to disk, only
plain files with safe names are read, and never more of one than a notebook may have."""

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
SYSTEM_FOLDERS = ("__MACOSX", ".ipynb_checkpoints", ".git")  # folders that nobody meant to hand in


class FileRefused(Exception):
    """Raised when one file is not taken; the text is the reason for the table."""


@dataclass(frozen=True)
class File:
    """One file of a source.

    Attributes:
        path: parts joined by "/".
        size: bytes, according to the source.
        problem: why it is not read.
        changed: its time according to the source, which the sender could write.
        handle: the reader's own object for the file.
    """

    path: str
    size: int
    problem: str = ""
    changed: datetime.datetime | None = None
    handle: Any = None


class Source(Protocol):
    """Files, in an order in which reading is cheap."""

    path: Path

    def files(self) -> list[File]: ...

    def read(self, file: File) -> bytes:
        """Return the content. Raises FileRefused."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Yield the reader for `path`. Raises LabError when it is not a folder, a zip, or a tar."""
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
        raise LabError(f"{path} is not a valid zip or tar ({error}); give the LMS's archive, or a "
                       "folder") from error


def checked_files(files: list[File], where: Path, skip: int = 0) -> list[File]:
    """Return the files without system files, with a problem for unsafe or repeated names.

    Args:
        files: the files of a source.
        where: the source, for messages.
        skip: the number of leading folders that have their own naming rules.

    Raises LabError when there are too many.
    """
    if len(files) > MOST_FILES:
        raise LabError(f"{where} has {len(files)} files; at most {MOST_FILES} are read")
    files = [file for file in files if not _is_system_file(file.path)]
    times = Counter(_key(file.path, skip) for file in files)
    result = []
    for file in files:
        problem = problem_of(file.path.split("/", skip)[-1]) or file.problem
        if not problem and times[_key(file.path, skip)] > 1:
            problem = "its name occurs more than once (case is ignored)"
        result.append(replace(file, problem=problem))
    return result


def _key(path: str, skip: int) -> tuple[str, str]:
    """Return what two files of one name have in common.

    Nobody can take a name in somebody else's folder, so case matters in the first `skip` folders.
    """
    *above, name = path.split("/", skip)
    return "/".join(above), key_of(name)


def _is_system_file(path: str) -> bool:
    parts = path.split("/")
    return (any(part in SYSTEM_FOLDERS for part in parts) or parts[-1].startswith("._")
            or parts[-1] in (".DS_Store", "Thumbs.db", "desktop.ini"))


class Folder:
    """A folder on disk. Links are never followed, even if one is created while it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self) -> list[File]:
        return checked_files(list(self._under("")), self.path)

    def _under(self, inside: str) -> Iterator[File]:
        try:
            with os.scandir(self.path / inside) as entries:
                entries_by_name = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:  # closed to us, gone by now, or at too long a path
            if not inside:
                raise
            yield File(inside, 0, f"it cannot be read: {error.strerror}")
            return
        for entry in entries_by_name:
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
            raise FileRefused(f"it cannot be read: {error.strerror}") from error

    def open(self, path: str) -> BinaryIO:
        """Open a file without following links. Raises OSError."""
        with self.folder_of(path) as (folder, name):
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        opened = os.fdopen(file, "rb")
        if not stat.S_ISREG(os.fstat(file).st_mode):
            opened.close()
            raise OSError(0, "it is not a regular file")
        return opened

    @contextlib.contextmanager
    def folder_of(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the file's folder as a descriptor, and the file's name in it. Raises OSError.

        Each folder is opened relative to its parent, so no part of the path can be a link.
        """
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
    """A zip archive.

    Its times are when the archive was made (Canvas) or when the same bytes were first uploaded
    (Moodle), not the times of submission.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive

    def files(self) -> list[File]:
        return checked_files([File(info.orig_filename, info.file_size, self._problem(info),
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
            return f"it unpacks to more than {RATIO} times its size, like a zip bomb"
        return ""

    def read(self, file: File) -> bytes:
        try:
            with self.archive.open(file.handle) as opened:
                return _limited(opened)
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
                OSError, RuntimeError, ValueError) as error:
            raise FileRefused(f"damaged in the archive: {error}") from error


class Tar:
    """A tar archive, compressed or not."""

    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        self.path, self.archive = path, archive

    def files(self) -> list[File]:
        files: list[File] = []
        for member in self._members():
            if len(files) > MOST_FILES:
                raise LabError(f"{self.path} has more than {MOST_FILES} files")
            if not member.isdir():
                plain = member.isreg() and not member.issparse()
                files.append(File(member.name, member.size,
                                  "" if plain else "a link or a special file", handle=member))
        return checked_files(files, self.path)

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
            raise FileRefused(f"damaged in the archive: {error}") from error


class _Bounded:
    """A file that ends at TAR_TOTAL and returns at most a notebook at a time, because the header of
    a tar's member (its name, for instance) may be of any size and is read at once."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def read(self, size: int) -> bytes:
        if size > LARGEST + 1 or self.file.tell() > TAR_TOTAL:
            raise tarfile.ReadError("it is larger than a class's submissions can be")
        return self.file.read(size)

    def seek(self, position: int) -> int:
        if position > TAR_TOTAL:
            raise tarfile.ReadError("it is larger than a class's submissions can be")
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
        raise FileRefused(f"it has more than {LARGEST / 1e6:.0f} MB")
    return content
