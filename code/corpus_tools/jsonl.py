"""Read documents from JSON lines, with errors that point at the line."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from minimegatron.errors import UserError


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


def _open(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def read_documents(path: Path, keys: Sequence[str]) -> Iterator[tuple[list[str], int]]:
    """Yield the texts of every line, and the line's length in bytes.

    Lines of white space are skipped.

    Args:
        path: the file; a name that ends in .gz is decompressed.
        keys: the keys of the texts in each JSON object.

    Raises:
        UserError: invalid UTF-8 or JSON, a missing key, or a value that is not a string; the
            message has the file, the line number, and the column.
    """
    require_readable(path)
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, start=1):
                if raw.strip():
                    yield _parse(path, number, raw, keys), len(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
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
