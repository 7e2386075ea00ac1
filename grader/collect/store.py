"""received/STUDENT/LAB/DIGEST.ipynb holds every version; submitted/ the one that is graded."""

from __future__ import annotations

import datetime
import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

from grader.course import Submission, receipts
from grader.course.receipts import Receipt
from labcore.atomic import put_whole
from labcore.errors import LabError

BY_HAND = "found in submitted/: the file's own time"


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def kept(submission: Submission) -> Path:
    """The file that keeps this version."""
    return (submission.course.root / "received" / submission.student / submission.lab
            / f"{submission.digest}.ipynb")


def keep(submission: Submission, content: bytes) -> str:
    """Store a version; one that is there stays as it is. Its digest."""
    digest = digest_of(content)
    path = kept(replace(submission, version=digest))
    if not path.is_file() or path.stat().st_size != len(content):
        path.parent.mkdir(parents=True, exist_ok=True)
        put_whole(path, content)
    return digest


def register(submission: Submission) -> None:
    """What somebody put into submitted/ by hand becomes a version too, of the file's own time.
    Raises LabError when a link is in the way."""
    course, path = submission.course, submission.notebook()
    _require_plain(path, course.root)
    if not path.is_file():
        return
    digest = keep(submission, path.read_bytes())
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


def _aside(submission: Submission, other: Path) -> None:
    """timestamp.txt and whatever else lay beside the notebook: kept, where nothing reads it."""
    folder = kept(submission).parent / "beside"
    folder.mkdir(parents=True, exist_ok=True)
    target, number = folder / other.name, 1
    while os.path.lexists(target):
        number += 1
        target = folder / f"{other.name}.{number}"
    shutil.move(other, target)


def place(submission: Submission) -> bool:
    """Make its version the submitted one; `register` came first. Whether it was another."""
    path = submission.notebook()
    for other in sorted(path.parent.iterdir()) if path.parent.is_dir() else ():
        if other.name != path.name and not other.name.startswith("."):
            _aside(submission, other)
    if submission.course.digest(*submission.key) == submission.digest:
        return False
    content = kept(submission).read_bytes()
    if digest_of(content) != submission.digest:
        raise LabError(f"{kept(submission)} was changed: remove it, then collect that submission "
                       "again")
    path.parent.mkdir(parents=True, exist_ok=True)
    put_whole(path, content)
    return True
