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
ENTRIES_QUERY = """SELECT assignment.name, submitted_assignment.student_id FROM submitted_assignment
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


def entered_versions(connection: sqlite3.Connection) -> dict[Key, tuple[str, str] | None]:
    """Return (digest, attempt) of every submission in the gradebook, by (lab, student); None for
    one that was entered before this table existed."""
    has_table = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?",
                                   (ENTERED.name,)).fetchone()
    known = {(lab, student): (digest, attempt) for lab, student, digest, attempt in
             connection.execute("SELECT lab, student, digest, attempt FROM lab_entered")
             } if has_table else {}
    return {(lab, student): known.get((lab, student))
            for lab, student in connection.execute(ENTRIES_QUERY)}


def graded_records(course: Path) -> Iterator[tuple[Key, str, str]]:
    """Yield ((lab, student), digest, attempt) of every record whose scores the gradebook should
    have.

    Damaged records are skipped; grading reports them.
    """
    for path in sorted((course / "attempts").glob("*/*.json")):
        try:
            record = json.loads(path.read_text())
            if path.name.startswith(".") or not (
                    record["state"] == "graded" or record.get("unscored")):
                continue
            yield (path.stem, path.parent.name), record["digest"], record.get("attempt", "")
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue


def missing_grades(course: Path, connection: sqlite3.Connection | None) -> list[Key]:
    """Return (lab, student) of grades in attempts/ that the gradebook does not have, or has for
    another version.

    Args:
        course: the course folder.
        connection: the gradebook; None if it does not exist.
    """
    entries = entered_versions(connection) if connection else {}
    return [key for key, digest, attempt in graded_records(course)
            if key not in entries or entries[key] not in (None, (digest, attempt))]
