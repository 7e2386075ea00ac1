"""One student's submission of one lab: its files, its version, and its record."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from grader.course.folder import Course
from grader.course.record import GradingRecord, read_record, save_record


@dataclass(frozen=True)
class Submission:
    """One student's submission of one lab, as it is when first looked at.

    Its digest and its record are read once, so everything that is decided with one object is about
    the same version. Make a new object to look again.

    Attributes:
        course: the course folder.
        lab: name of the lab.
        student: the student's id.
        version: digest of the version that this is about; None for the one in submitted/.
    """

    course: Course
    lab: str
    student: str
    version: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The pair (lab, student)."""
        return self.lab, self.student

    def notebook(self, step: str = "submitted") -> Path:
        """Return where nbgrader has its notebook at a step: submitted, autograded, or feedback."""
        return self.course.notebook(step, self.lab, self.student)

    @property
    def page(self) -> Path:
        """Return the path of the feedback page."""
        return self.notebook("feedback").with_suffix(".html")

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256, in hex, of its notebook; empty if none can be read."""
        return (self.course.digest(self.lab, self.student) if self.version is None
                else self.version)

    @property
    def exists(self) -> bool:
        """Return whether the student submitted anything, readable or not."""
        return self.course.submitted(self.lab, self.student)

    @property
    def record_file(self) -> Path:
        return self.course.root / "attempts" / self.student / f"{self.lab}.json"

    @cached_property
    def record(self) -> GradingRecord | None:
        """Return its record; None before the first attempt, and an ungraded one if its file is
        damaged."""
        if not self.record_file.exists():
            return None
        return read_record(self.record_file) or GradingRecord(
            "ungraded", self.course.digest(self.lab, self.student),
            f"{self.record_file} is damaged: grade it again")

    def save(self, record: GradingRecord) -> None:
        """Write its record; `record` is then read again."""
        save_record(self.record_file, record)
        vars(self).pop("record", None)
