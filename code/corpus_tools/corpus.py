"""Text that every machine has: the installed Python's documentation and library sources."""

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

# Packages that are not the library's, compiled files, and tables (`encodings` is a megabyte of
# code points; `pydoc_data` is read topic by topic instead).
SKIPPED = {"site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data"}

# The library's own tests come last, so that a cap drops them first.
TESTS = {"test", "tests", "idle_test"}

SEED = 1234


def library() -> Path:
    """The folder of the standard library. Raises LabError where there is none (a zipped Python)."""
    folder = Path(sysconfig.get_path("stdlib"))
    if not (folder / "os.py").is_file():
        raise LabError(f"this Python has no library sources in {folder}: give your own text, "
                       "lab data --input my.jsonl")
    return folder


def files() -> list[Path]:
    """The library's text files, tests last, else by name."""
    root = str(library())
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders
                      if name not in SKIPPED and not name.startswith("config-")]
        parts = tuple(Path(folder).relative_to(root).parts)
        tests = bool(TESTS.intersection(parts))
        found += [(tests, (*parts, name), os.path.join(folder, name))
                  for name in names if name.endswith(SUFFIXES)]
    return [Path(path) for *_, path in sorted(found)]


def fingerprint() -> str:
    """Changes when the library does; reads no file's content, so that it takes milliseconds."""
    digest = hashlib.sha256()
    for path in files():
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def documents(limit: int) -> list[str]:
    """At most `limit` bytes of documents: each help topic of pydoc, each file of the library.

    Files that are not UTF-8 are left out. The order is shuffled by a fixed seed, because a split
    into training, validation and test takes documents from the front, the middle and the end.
    """
    texts, size = [], 0
    for text in _all():
        length = len(text.encode("utf-8"))
        if text.strip() and size + length <= limit:
            texts.append(text)
            size += length
    random.Random(SEED).shuffle(texts)
    return texts


def _all() -> Iterator[str]:
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
    """One JSON object a line, {"text": ...}."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for text in texts:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
