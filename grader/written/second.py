"""A second grader for a sample of the written answers that were graded by hand.

second/LAB/scores.csv    one line per answer; the second grader fills in `score`
second/LAB/answers.html  the answers, with rubric, without names and without the first score
second/LAB/agreement.csv both scores of every answer that has two

Nothing here changes a grade: use formgrader after the two graders have talked.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode, v4
from nbgrader.api import Gradebook, MissingEntry

from grader.course import Course, Submission
from grader.course.spreadsheet import harmless
from grader.gradebook.pending import is_written
from grader.gradebook.records import state
from grader.written.agreement import ScorePair
from grader.written.rubrics import for_graders
from labcore.atomic import write_atomic
from labcore.errors import LabError

COLUMNS = ("answer", "cell", "points", "score", "comment")
LONGEST_KEY = 12  # hex digits of an answer's id


@dataclass(frozen=True)
class GradedAnswer:
    """A written answer that a person has scored. `key` determines the order of the draw, and its
    beginning is the answer's id; it does not identify the student."""

    key: str
    student: str
    cell: str
    points: float
    first: float
    source: NotebookNode = field(repr=False, compare=False)

    @property
    def id(self) -> str:
        return self.key[:LONGEST_KEY]


@dataclass(frozen=True)
class SampledAnswer:
    """A line of scores.csv; `score` is None until the second grader enters one."""

    answer: str
    cell: str
    points: float
    score: float | None = None
    comment: str = ""


def folder(course: Course, lab: str) -> Path:
    return course.root / "second" / lab


def graded_by_hand(course: Course, book: Gradebook, lab: str) -> list[GradedAnswer]:
    """Return the written answers of graded submissions that have a manual score, sorted by key.

    Args:
        course: the course.
        book: the gradebook.
        lab: the lab's name.
    """
    answers = []
    secret = course.secret_file.read_bytes()
    for student in course.students(lab):
        submission = Submission(course, lab, student)
        if state(submission, book)[0] != "graded":
            continue
        try:
            entry = book.find_submission(lab, student)
            notebook = nbformat.read(submission.notebook("autograded"), as_version=4)
        except (MissingEntry, OSError):
            continue
        cells = {cell.metadata.nbgrader["grade_id"]: cell for cell in notebook.cells
                 if is_written(cell)}
        for grade in (one for part in entry.notebooks for one in part.grades):
            if grade.manual_score is None or grade.name not in cells:
                continue
            text = "\0".join(["second", lab, student, submission.digest, grade.name])
            key = hmac.new(secret, text.encode(errors="surrogateescape"), hashlib.sha256)
            answers.append(GradedAnswer(key.hexdigest(), student, grade.name,
                                        float(grade.max_score),
                                        float(grade.manual_score), cells[grade.name]))
    return sorted(answers, key=lambda answer: answer.key)


def draw(answers: Iterable[GradedAnswer], share: float) -> list[GradedAnswer]:
    """Return the sample: the first answers by key of each written question, rounded up.

    The same answers give the same sample.

    Args:
        answers: the answers.
        share: the share to draw, from 0 to 1.
    """
    by_cell: dict[str, list[GradedAnswer]] = defaultdict(list)
    for answer in answers:
        by_cell[answer.cell].append(answer)
    return [answer for _, group in sorted(by_cell.items())
            for answer in group[:math.ceil(share * len(group) - 1e-9)]]


def read(course: Course, lab: str) -> list[SampledAnswer]:
    """Return the lines of scores.csv; none before the first draw.

    Args:
        course: the course.
        lab: the lab's name.

    Raises LabError that names the line and the value.
    """
    path = folder(course, lab) / "scores.csv"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path} cannot be read: {error}") from error
    header = text.partition("\n")[0]
    # Spreadsheets with a decimal comma save semicolons between the columns.
    separator = ";" if ";" in header and "," not in header else ","
    rows = csv.DictReader(io.StringIO(text), delimiter=separator)
    if missing := set(COLUMNS) - set(rows.fieldnames or ()):
        raise LabError(f"{path}: it has no column {min(missing)}; there should be "
                       f"{', '.join(COLUMNS)}")
    lines: dict[str, SampledAnswer] = {}
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        line = _line(row, where)
        if line.answer in lines:
            raise LabError(f"{where}: a second line for the answer {line.answer}")
        lines[line.answer] = line
    return list(lines.values())


def _line(row: dict[str, Any], where: str) -> SampledAnswer:
    values = {name: (row[name] or "").strip() for name in COLUMNS}
    numbers = {}
    for name in ("points", "score"):
        try:
            numbers[name] = float(values[name].replace(",", ".")) if values[name] else None
        except ValueError as error:
            raise LabError(f"{where}: {name} {values[name]!r} is not a number") from error
    points, score = numbers["points"], numbers["score"]
    if not values["answer"] or points is None:
        raise LabError(f"{where}: its answer or its points are missing; only score and comment are "
                       "for you to fill in")
    if score is not None and not 0 <= score <= points:
        raise LabError(f"{where}: score {score:g}: give 0 to {points:g}")
    return SampledAnswer(values["answer"], values["cell"], points, score, values["comment"])


def add(course: Course, lab: str, answers: list[GradedAnswer],
        share: float) -> tuple[list[SampledAnswer], int]:
    """Draw and write a sample; return all lines, and the number of new ones. Existing lines stay.

    Args:
        course: the course.
        lab: the lab's name.
        answers: the answers.
        share: the share to draw, from 0 to 1.
    """
    before = read(course, lab)
    known = {line.answer for line in before}
    drawn = [one for one in draw(answers, share) if one.id not in known]
    lines = [*before, *(SampledAnswer(one.id, one.cell, one.points) for one in drawn)]
    target = folder(course, lab)
    target.mkdir(parents=True, exist_ok=True)
    listed = {line.answer for line in lines}
    write_atomic(target / "answers.html",
              _page(course, lab, [one for one in answers if one.id in listed]), 0o600)
    write_atomic(target / "scores.csv", _csv(SampledAnswer, lines), 0o600)
    return lines, len(drawn)


def pairs(course: Course, lab: str, answers: list[GradedAnswer]) -> tuple[list[ScorePair], int,
                                                                          int]:
    """Write agreement.csv. Return the answers with two scores, the number of lines without a score,
    and the number of lines whose answers no longer exist or are no longer graded by hand.

    Args:
        course: the course.
        lab: the lab's name.
        answers: the answers.
    """
    lines = read(course, lab)
    known = {one.id: one for one in answers}
    current = [line for line in lines if line.answer in known]
    pairs = [ScorePair(line.answer, answer.student, line.cell, answer.points, answer.first,
                       line.score, line.comment)
             for line in current if line.score is not None and (answer := known[line.answer])]
    write_atomic(folder(course, lab) / "agreement.csv", _csv(ScorePair, pairs), 0o600)
    return pairs, len(current) - len(pairs), len(lines) - len(current)


def _csv(kind: type, rows: Iterable[Any]) -> bytes:
    names = [one.name for one in fields(kind)]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(names)
    table.writerows([harmless(getattr(row, name)) for name in names] for row in rows)
    return text.getvalue().encode(errors="backslashreplace")


def _page(course: Course, lab: str, answers: list[GradedAnswer]) -> bytes:
    """Return the page with the answers, sanitized like a student's page."""
    from grader.feedback.page import FeedbackPage

    rubrics, cells, before = for_graders(course, lab), [], ""
    for one in sorted(answers, key=lambda one: (one.cell, one.key)):
        if one.cell != before:
            cells.append(v4.new_markdown_cell(f"# {one.cell} ({one.points:g} points)\n\n"
                                              + rubrics.get(one.cell, "")))
            before = one.cell
        cells.append(v4.new_markdown_cell(f"## Answer {one.id}"))
        answer = v4.new_markdown_cell(one.source.source, metadata={"nbgrader": {
            "grade_id": one.cell, "solution": True, "grade": False}})
        answer["attachments"] = one.source.get("attachments", {})
        cells.append(answer)
    settings = course.settings()
    settings.HTMLExporter.template_name = "classic"
    notebook = v4.new_notebook(cells=cells)
    text, _ = FeedbackPage(config=settings).from_notebook_node(notebook, {
        "metadata": {"name": f"{lab}: answers for a second grader"}, "nbgrader": {}})
    return text.encode(errors="backslashreplace")
