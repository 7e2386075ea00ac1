"""Whether a checkpoint's files are still what was written: the list that `sha256sum -c` reads."""

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
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """List {path inside `folder`: sha256} in the folder's SHA256SUMS."""
    with open(folder / SUMS, "w") as file:
        file.writelines(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
        file.flush()
        os.fsync(file.fileno())


def read_sums(folder: Path) -> dict[str, str] | None:
    """{path: sha256} of the folder's list; None where there is no list, as in checkpoints of
    Megatron-LM. Raises ValueError for a list that is damaged itself."""
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


def damage(folder: Path, share: int = 0, shares: int = 1) -> list[str]:
    """What is wrong with a checkpoint's folder, one sentence a file; empty when it is whole.

    share, shares: check every `shares`-th file from the `share`-th on, so that ranks divide them.
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
    found = [wrong(folder / name, digest) for name, digest in sorted(sums.items())[share::shares]]
    return [sentence for sentence in found if sentence]


def wrong(path: Path, digest: str) -> str:
    """What is wrong with one file ("" for nothing). Without a digest its own CRCs must do."""
    name = f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
    try:
        if not path.exists():
            return f"there is no {name}"
        if digest:
            return "" if sha256(path) == digest else (
                f"{name} ({path.stat().st_size} bytes) is not what was saved: its sha256 differs")
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        return "" if broken is None else f"{name} is damaged in {broken}"
    except (OSError, zipfile.BadZipFile, ValueError, EOFError) as error:
        return f"{name} cannot be read: {error}"
