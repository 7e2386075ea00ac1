"""The course folder and its contents: the package that every other package may use.

folder.py       paths and names, nbgrader's configuration, sources of labs, locks
submission.py   one student's submission of one lab: its files, its version, and its record
record.py       whether it is graded, and if not, why
submitted.py    reads a submission: once, plain files only, within limits
reasons.py      why a submission cannot be graded
receipts.py     times of receipt from trusted sources; received.py: a submission's time of receipt
unreadable.py   what was submitted and cannot be read
roster.py       the class, and whom a name refers to; names.py: names that are safe on every disk
lms_rosters.py  rosters as Canvas and Moodle write them; groups.py: who submits together
times.py        parses times that people write
spreadsheet.py  escapes cells that a spreadsheet would run as formulas
log.py          grading.log

May import labcore and grader.cleaning. Begin with submission.py.
"""

from grader.course.folder import (
    CONFIG,
    OUR_SOURCES,
    Course,
    CourseBusy,
    default_root,
    digest_of_folder,
    read_stamps,
    require_known,
)
from grader.course.submission import Submission

__all__ = ["CONFIG", "OUR_SOURCES", "Course", "CourseBusy", "Submission", "default_root",
           "digest_of_folder", "read_stamps", "require_known"]
