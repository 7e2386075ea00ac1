"""Versions: received/STUDENT/LAB/DIGEST.ipynb has all of them, and submitted/ the one to grade."""

from __future__ import annotations

import datetime
import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

from grader.course import Submission, receipts
from grader.course.receipts import Receipt
from labcore.atomic import write_atomic
from labcore.errors import LabError

BY_HAND = "found in submitted/: the file's own time"


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def version_path(submission: Submission) -> Path:
    """Return the file of this version."""
    return (submission.course.root / "received" / submission.student / submission.lab
            / f"{submission.digest}.ipynb")


def store_version(submission: Submission, content: bytes) -> str:
    """Store a version unless it already exists, and return its digest.

    Args:
        submission: the submission.
        content: the notebook.
    """
    digest = digest_of(content)
    path = version_path(replace(submission, version=digest))
    if not path.is_file() or path.stat().st_size != len(content):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    return digest


def register(submission: Submission) -> None:
    """Store a notebook that was put into submitted/ by hand, with the file's own time.

    Raises LabError when there is a link in its path.
    """
    course, path = submission.course, submission.notebook()
    _require_plain(path, course.root)
    if not path.is_file():
        return
    digest = store_version(submission, path.read_bytes())
    lab, student = submission.key
    known = receipts.read(course).get((student, lab), [])
    if digest not in {receipt.digest for receipt in known}:
        changed = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
        receipts.add(course, Receipt(student, lab, digest, changed.isoformat(), BY_HAND))


def _require_plain(path: Path, root: Path) -> None:
    while path != root:
        if path.is_symlink():
            raise LabError(f"{path} is a link: remove it, then collect again")
        path = path.parent


def _move_aside(submission: Submission, other: Path) -> None:
    """Move timestamp.txt and other files beside the notebook to where nothing reads them."""
    folder = version_path(submission).parent / "beside"
    folder.mkdir(parents=True, exist_ok=True)
    target, number = folder / other.name, 1
    while os.path.lexists(target):
        number += 1
        target = folder / f"{other.name}.{number}"
    shutil.move(other, target)


def _move_others_aside(submission: Submission) -> None:
    path = submission.notebook()
    for other in sorted(path.parent.iterdir()) if path.parent.is_dir() else ():
        if other.name != path.name and not other.name.startswith("."):
            _move_aside(submission, other)


def clear(submission: Submission) -> None:
    """Take a notebook out of submitted/; received/ keeps it. Call `register` first."""
    path = submission.notebook()
    _move_others_aside(submission)
    path.unlink(missing_ok=True)
    shutil.rmtree(path.parent, ignore_errors=True)


def submit_version(submission: Submission) -> bool:
    """Put this version into submitted/, and return whether that changed anything. Call `register`
    first."""
    path = submission.notebook()
    _move_others_aside(submission)
    if submission.course.digest(*submission.key) == submission.digest:
        return False
    content = version_path(submission).read_bytes()
    if digest_of(content) != submission.digest:
        raise LabError(f"{version_path(submission)} was changed: remove it, then collect that "
                       "submission again")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)
    return True
