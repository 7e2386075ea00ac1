"""The course folder, and what lies in it: the room that every other room may use.

folder.py       paths and names, nbgrader's configuration, sources of labs, the lock of a batch
submission.py   one student's submission of one lab: its files, its version, and its record
record.py       whether it is graded, and why not if not
submitted.py    reads what a student handed in: once, plain files only, within limits
reasons.py      why a submission cannot be graded
receipts.py     when what came in, said by the server's side; received.py asks it of a submission
roster.py       the class, and who is meant by a name; names.py names that are safe on every disk
times.py        times that people write
spreadsheet.py  cells that no spreadsheet takes for formulas
log.py          grading.log

May import labcore and grader.cleaning. Begin with submission.py.
"""

from grader.course.folder import (
    CONFIG,
    OUR_SOURCES,
    Course,
    default_root,
    digest_of_folder,
    read_stamps,
    require_known,
)
from grader.course.submission import Submission

__all__ = ["CONFIG", "OUR_SOURCES", "Course", "Submission", "default_root", "digest_of_folder",
           "read_stamps", "require_known"]
