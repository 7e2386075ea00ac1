"""Record which version of a submission the gradebook's scores belong to, in an added table.

nbgrader's tables do not say. The row is written in the same transaction as the scores, so an older
copy of the gradebook can be told from the current one submission by submission.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from nbgrader.api import Gradebook
from sqlalchemy import Column, MetaData, String, Table, delete, insert

from grader.course import Submission

TABLES = MetaData()
ENTERED = Table("lab_entered", TABLES, Column("lab", String(128), primary_key=True),
                Column("student", String(128), primary_key=True),
                Column("digest", String(64), nullable=False),
                Column("attempt", String(64), nullable=False))
HELD = """SELECT assignment.name, submitted_assignment.student_id FROM submitted_assignment
    JOIN assignment ON assignment.id = submitted_assignment.assignment_id"""
Key = tuple[str, str]  # (lab, student)


def write(submission: Submission, book: Gradebook, attempt: str = "") -> None:
    """Note, uncommitted, what the scores of a submission belong to.

    Args:
        submission: the submission, of the version that was graded.
        book: the open gradebook.
        attempt: id of the result that was entered; empty for nbgrader's own autograde.
    """
    lab, student = submission.key
    of_it = (ENTERED.c.lab == lab) & (ENTERED.c.student == student)
    book.db.execute(delete(ENTERED).where(of_it))
    book.db.execute(insert(ENTERED).values(lab=lab, student=student, digest=submission.digest,
                                           attempt=attempt))


def held(connection: sqlite3.Connection) -> dict[Key, tuple[str, str] | None]:
    """By (lab, student) of every submission in the gradebook: (digest, attempt), or None for one
    that was entered before this table existed."""
    has_table = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?",
                                   (ENTERED.name,)).fetchone()
    known = {(lab, student): (digest, attempt) for lab, student, digest, attempt in
             connection.execute("SELECT lab, student, digest, attempt FROM lab_entered")
             } if has_table else {}
    return {(lab, student): known.get((lab, student))
            for lab, student in connection.execute(HELD)}


def graded(course: Path) -> Iterator[tuple[Key, str, str]]:
    """((lab, student), digest, attempt) of every record in attempts/ whose scores the gradebook
    should have. A damaged record is left out; grading reports it."""
    for path in sorted((course / "attempts").glob("*/*.json")):
        try:
            found = json.loads(path.read_text())
            if path.name.startswith(".") or not (
                    found["state"] == "graded" or found.get("unscored")):
                continue
            yield (path.stem, path.parent.name), found["digest"], found.get("attempt", "")
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue


def lacking(course: Path, connection: sqlite3.Connection | None) -> list[Key]:
    """(lab, student) of what attempts/ says is graded and the gradebook lacks or has of another
    version; None for a gradebook that is not there."""
    there = held(connection) if connection else {}
    return [key for key, digest, attempt in graded(course)
            if key not in there or (there[key] is not None and there[key] != (digest, attempt))]
