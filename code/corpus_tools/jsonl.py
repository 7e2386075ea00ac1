"""Read documents from JSON lines, with errors that point at the line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import platform
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from minimegatron.errors import UserError

# How compressed files begin.
GZIP, XZ, BZIP2, ZSTD = b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd"
PYTHON = ".".join(platform.python_version_tuple()[:2])


def require_readable(path: Path) -> None:
    """Raise UserError unless `path` exists and is readable.

    It is not opened, because a named pipe's writer would take the closing for the end.
    """
    if path.is_dir():
        raise UserError(f"--input {path} is a folder: pass a file with one JSON object per line")
    if not path.exists():
        raise UserError(f"--input {path} does not exist")
    if not os.access(path, os.R_OK):
        raise UserError(f"cannot read --input {path}: permission denied")


def _decompressed(path: Path, file: BufferedReader) -> BinaryIO:
    """Return a reader of an open file's content, decompressed whatever the file's name is.

    Raises:
        UserError: it is compressed in a format that Python cannot read.
    """
    start = file.peek(6)  # which takes nothing out of a named pipe
    if start.startswith(ZSTD):
        raise UserError(f"--input {path} is compressed with zstd, which Python {PYTHON} cannot "
                        f"read; decompress it first: zstd -d {path}")
    if path.suffix == ".gz" or start.startswith(GZIP):
        return gzip.open(file)
    if start.startswith(XZ):
        return lzma.open(file)
    return bz2.open(file) if start.startswith(BZIP2) else file


def read_documents(path: Path, keys: Sequence[str]) -> Iterator[tuple[list[str], int]]:
    """Yield the texts of every line, and the line's length in bytes.

    Lines of white space are skipped.

    Args:
        path: the file; gzip, xz, and bzip2 are decompressed.
        keys: the keys of the texts in each JSON object.

    Raises:
        UserError: invalid UTF-8 or JSON, a missing key, or a value that is not a string; the
            message has the file, the line number, and the column.
    """
    require_readable(path)
    number = 0
    try:
        with open(path, "rb") as raw, _decompressed(path, raw) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _parse(path, number, line, keys), len(line)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"--input {path} is corrupted after line {number}: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read --input {path} after line {number}: {error}") from error


def _parse(path: Path, number: int, raw: bytes, keys: Sequence[str]) -> list[str]:
    where = f"{path}, line {number}"
    try:
        # Some editors begin a file with a byte order mark, which JSON does not allow.
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}, column {error.start + 1}: the byte 0x{raw[error.start]:02x} is "
                        f"not UTF-8; the line begins {_excerpt(raw)}; save the file as UTF-8"
                        ) from error
    try:
        document = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}, column {error.pos + 1}: not JSON ({error.msg}); the line begins "
                        f"{_excerpt(line)}; each line must be one JSON object, such as "
                        '{"text": "..."}') from error
    except (ValueError, RecursionError) as error:  # a number with 5,000 digits, or deep nesting
        raise UserError(f"{where}: not readable as JSON ({error}); the line begins {_excerpt(line)}"
                        ) from error
    if not isinstance(document, dict):
        raise UserError(f"{where}: a JSON {type(document).__name__}, not an object; the line "
                        f'begins {_excerpt(line)}; write {{"{keys[0]}": "..."}}')
    return [_text(where, document, key) for key in keys]


def _text(where: str, document: dict, key: str) -> str:
    if key not in document:
        present = ", ".join(repr(name) for name in list(document)[:8]) or "none"
        raise UserError(f"{where}: no key {key!r} (its keys: {present}); pass the key of the text "
                        "with --json-keys")
    text = document[key]
    if not isinstance(text, str):
        raise UserError(f"{where}: the value of {key!r} is {type(text).__name__}, not a string")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: the text has a lone surrogate, \\u{ord(text[error.start]):04x}, "
                        f"at position {error.start}; remove it, or write the whole pair"
                        ) from error
    return text


def _excerpt(line: bytes | str) -> str:
    """Return the start of a line, for an error message."""
    if isinstance(line, bytes):
        line = line[:160].decode("utf-8", errors="backslashreplace")
    line = line.rstrip("\r\n")
    return repr(line if len(line) <= 60 else line[:60] + "...")
