"""grading.log may be read on a terminal, whatever students made nbgrader say."""

from __future__ import annotations

from traitlets.log import get_logger

from grader.course import Course
from grader.course.log import log_file, logging_to


def test_what_a_student_said_steers_no_terminal(tmp_path):
    course = Course(tmp_path)
    with logging_to(course):
        get_logger().error("it said:\n%s", "\x1b]0;x\x07 \x9b2J \u202e")
    text = log_file(course).read_text()
    assert text.endswith("it said:\n\\x1b]0;x\\x07 \\x9b2J \\u202e\n")
