"""Copy what the course ships to workspaces, without ever replacing a student's work."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from labcore import own_labs, workspace
from labcore.atomic import ensure_link, write_atomic
from labcore.progress import Notify

RECORD = ".shipped.json"  # the digest of each file as it was last copied, by its path
# The end of an exercise's text; {} is the exercise's place in the worked notebook.
WORKED_LINK = "\n\n*Stuck? [The worked notebook]({}) shows one way.*"
EXECUTABLE, PLAIN = 0o755, 0o644


def make_workspace(home: Path, notify: Notify = print) -> None:
    """Create or update the workspace; files that the student changed stay as they are."""
    for folder in workspace.FOLDERS:
        workspace.require_writable(home / folder)
    ship(workspace.CHECKOUT, home, notify)
    if own := own_labs.folder():
        ship(own, home, notify)
    # Classic scripts use this path.
    ensure_link(home / "megatron" / "Megatron-LM", workspace.CODE)


def shipped(checkout: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield every file that students get: its source, its path in the workspace, and its mode."""
    scripts = checkout / "code" / "jobs"
    for script in sorted(one for kind in ("*.sh", "*.py", "*.toml") for one in scripts.glob(kind)):
        yield script, f"code/{script.name}", mode_of(script)
    for program in (checkout / "code").glob("generate.py"):  # an author's folder has none
        yield program, f"code/{program.name}", PLAIN
    for program in sorted((checkout / "code" / "examples").glob("*.*")):
        yield program, f"code/examples/{program.name}", mode_of(program)
    # These are copies, because Jupyter's server does not follow links that lead out of its folder.
    for figure in sorted((checkout / "images").glob("*.*")):
        yield figure, f"images/{figure.name}", PLAIN
    for notebook in sorted((checkout / "notebooks").glob("**/*.ipynb")):
        path = notebook.relative_to(checkout)
        if not any(part.startswith(".") for part in path.parts):
            yield notebook, str(path), PLAIN


def mode_of(program: Path) -> int:
    return EXECUTABLE if program.suffix == ".sh" else PLAIN


def ship(checkout: Path, home: Path, notify: Notify) -> None:
    """Copy all files that students get.

    A copy that the student has not changed is updated. One that the student has changed stays, and
    a new version is put beside it, once.

    Args:
        checkout: the checkout, or an author's folder of labs.
        home: the workspace.
        notify: receives a line for each new version beside a changed copy.
    """
    record = _read_record(home / RECORD)
    before = dict(record)
    try:
        for source, path, mode in shipped(checkout):
            _copy(home, source, path, mode, record, notify)
    finally:
        if record != before:
            write_atomic(home / RECORD, json.dumps(record, indent=1).encode())


def _copy(home: Path, source: Path, path: str, mode: int, record: dict[str, str], notify: Notify
          ) -> None:
    copy, content = home / path, content_of(source)
    new = digest(path, content)
    existing = _digest_of(copy)
    if existing == new:
        record[path] = new
    elif existing is None or existing == record.get(path):
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(copy, content, mode)
        record[path] = new
    elif record.get(path) != new:
        beside = _path_beside(home, path, new, record)
        write_atomic(home / beside, content, mode)
        record[beside] = record[path] = new
        notify(f"the course has a new version of {path}: yours stays, the new one is {beside}")


def content_of(source: Path) -> bytes:
    """Return a file's content as students get it.

    A lab whose worked notebook is missing, as in the container image, has no links to it.
    """
    content = source.read_bytes()
    if (source.suffix != ".ipynb" or b"*Stuck?" not in content
            or (source.parent / "worked" / source.name).exists()):
        return content
    return without_worked_links(content)


def without_worked_links(content: bytes) -> bytes:
    """Return a notebook without links to the worked one, or unchanged if it has none."""
    link = re.compile(r"[^)]*".join(map(re.escape, WORKED_LINK.split("{}"))))
    notebook = json.loads(content)
    removed = 0
    for cell in notebook["cells"]:
        source, count = link.subn("", "".join(cell["source"]))
        cell["source"] = source.splitlines(keepends=True)
        removed += count
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    return text.encode() if removed else content


def _path_beside(home: Path, path: str, new: str, record: dict[str, str]) -> str:
    """Return the first of `X.new.sh`, `X.new2.sh`, ... that replaces no work of the student."""
    stem, dot, suffix = path.rpartition(".")
    number = 1
    while True:
        name = f"{stem}.new{number if number > 1 else ''}{dot}{suffix}"
        if _digest_of(home / name) in (None, new, record.get(name)):
            return name
        number += 1


def _digest_of(path: Path) -> str | None:
    """Return the digest of the existing file, or None if there is none."""
    try:
        return digest(path.name, path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError:  # a folder or unreadable, so the student has changed it
        return "unreadable"


def digest(name: str, content: bytes) -> str:
    """Return the SHA-256 digest of a file's content.

    Only the types and sources of a notebook's cells count, because JupyterLab saves outputs and
    metadata by itself. A notebook that cannot be parsed is hashed like any other file.

    Args:
        name: the file's name.
    """
    if name.endswith(".ipynb"):
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            cells = [(cell["cell_type"], "".join(cell["source"]))
                     for cell in json.loads(content)["cells"]]
            content = json.dumps(cells).encode()
    return hashlib.sha256(content).hexdigest()


def _read_record(path: Path) -> dict[str, str]:
    """Return the digests of the files as they were last copied.

    If the record is missing or corrupted, it is empty. Every copy that differs then counts as the
    student's own, and none is replaced.
    """
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
