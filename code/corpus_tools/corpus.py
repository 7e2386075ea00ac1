"""Collect text that every machine has: the installed Python's documentation and library sources."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from labcore.errors import LabError

SUFFIXES = (".py", ".txt", ".rst")

# Third-party packages, compiled files, and tables (`encodings` is a megabyte of code points;
# `pydoc_data` is read topic by topic instead).
SKIPPED = {"site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data"}

# The library's own tests come last, so that a size limit drops them first.
TESTS = {"test", "tests", "idle_test"}

SEED = 1234


def library() -> Path:
    """Return the standard library's folder. Raises LabError if there is none (a zipped Python)."""
    folder = Path(sysconfig.get_path("stdlib"))
    if not (folder / "os.py").is_file():
        raise LabError(f"this Python has no library sources in {folder}: use your own text with "
                       "lab data --input my.jsonl")
    return folder


def files() -> list[Path]:
    """Return the library's text files, sorted by name, tests last."""
    root = str(library())
    entries = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders
                      if name not in SKIPPED and not name.startswith("config-")]
        parts = tuple(Path(folder).relative_to(root).parts)
        tests = bool(TESTS.intersection(parts))
        entries += [(tests, (*parts, name), os.path.join(folder, name))
                    for name in names if name.endswith(SUFFIXES)]
    return [Path(path) for *_, path in sorted(entries)]


def fingerprint() -> str:
    """Return a hash that changes when the library does. It reads no contents, so it is fast."""
    digest = hashlib.sha256()
    for path in files():
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def documents(limit: int) -> list[str]:
    """Return at most `limit` bytes of documents: pydoc's help topics and the library's files.

    Files that are not UTF-8 are left out. The order is shuffled with a fixed seed, because a split
    into training, validation, and test data takes consecutive documents.
    """
    texts, size = [], 0
    for text in _texts():
        length = len(text.encode("utf-8"))
        if text.strip() and size + length <= limit:
            texts.append(text)
            size += length
    random.Random(SEED).shuffle(texts)
    return texts


def _texts() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics  # not in every distribution's Python
    except ImportError:
        topics = {}
    for name in sorted(topics):
        yield topics[name].strip("\n") + "\n"
    for path in files():
        try:
            yield path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue


def write_jsonl(texts: list[str], path: Path) -> None:
    """Write one JSON object per line: {"text": ...}."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for text in texts:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
