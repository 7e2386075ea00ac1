"""grading.log: the messages of nbgrader and the workers, kept out of our own output."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

from traitlets.log import get_logger

from grader.course.folder import Course
from labcore.terminal import visible


class PrintableFormatter(logging.Formatter):
    """Formats messages, which may quote students, so that they are safe to print on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), keep="\n\t")


def log_file(course: Course) -> Path:
    return course.root / "grading.log"


@contextlib.contextmanager
def logging_to(course: Course) -> Iterator[None]:
    """Send nbgrader's messages to a file of the course folder."""
    logger = get_logger()
    handler = logging.FileHandler(log_file(course))
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    before = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    with warnings.catch_warnings():
        warnings.showwarning = lambda text, kind, *place: logger.info("%s: %s", kind.__name__, text)
        try:
            yield
        finally:
            logger.handlers[:], logger.level, logger.propagate = before
            handler.close()
