"""Checksums of a checkpoint's files, in the format that `sha256sum -c` reads."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


def sha256(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write the folder's SHA256SUMS.

    Args:
        folder: an iteration's folder.
        sums: checksums by path inside the folder.
    """
    with open(folder / SUMS, "w") as file:
        file.writelines(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
        file.flush()
        os.fsync(file.fileno())


def read_sums(folder: Path) -> dict[str, str] | None:
    """Return the checksums by path, or None if there is no list, as in Megatron-LM's checkpoints.

    Raises ValueError if the list itself is corrupted.
    """
    if not (folder / SUMS).exists():
        return None
    sums = {}
    for number, line in enumerate((folder / SUMS).read_text(errors="replace").splitlines(), 1):
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is not a checksum and a name: {line[:80]!r}")
        sums[match[2]] = match[1]
    if not sums:
        raise ValueError("it is empty")
    return sums


def find_problems(folder: Path, share: int = 0, shares: int = 1) -> list[str]:
    """Return the problems of a checkpoint, one sentence per file; empty if it is intact.

    Args:
        folder: an iteration's folder.
        share: first file to check, so that each rank checks a share of them.
        shares: distance between files to check.
    """
    if not folder.is_dir():
        return [f"there is no {folder.name}"]
    try:
        sums = read_sums(folder)
    except (ValueError, OSError) as error:
        return [f"{folder.name}/{SUMS}: {error}"]
    if sums is None:
        names = sorted(str(path.relative_to(folder)) for path in folder.glob("mp_rank_*/*.pt"))
        if not names:
            return [f"{folder.name} holds no mp_rank_* folder"]
        sums = dict.fromkeys(names, "")
    problems = [file_problem(folder / name, digest)
                for name, digest in sorted(sums.items())[share::shares]]
    return [problem for problem in problems if problem]


def file_problem(path: Path, digest: str) -> str:
    """Return the problem of one file, or "" if it is intact.

    Args:
        digest: the file's SHA-256; if it is empty, the CRCs inside the file are checked instead.
    """
    name = f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
    try:
        if not path.exists():
            return f"there is no {name}"
        if digest:
            return "" if sha256(path) == digest else (
                f"{name} ({path.stat().st_size} bytes) is not what was saved: its sha256 differs")
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        return "" if broken is None else f"{name} is corrupted in {broken}"
    except (OSError, zipfile.BadZipFile, ValueError, EOFError) as error:
        return f"{name} cannot be read: {error}"
