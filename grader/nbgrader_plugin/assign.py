"""nbgrader's assignment for a lab: release/ and its entry in the gradebook, from source/."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import Gradebook
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory

from grader.course import OUR_SOURCES, Course, digest_of_folder, read_stamps
from grader.course.log import log_file
from grader.course.reasons import explain
from grader.gradebook import byhand
from grader.gradebook.records import gradebook
from labcore.atomic import write_atomic
from labcore.errors import LabError
from labcore.workspace import CHECKOUT
from labkit import lab_checks
from labkit.build.cli import build
from labkit.build.notebooks import is_draft

OTHER_CELLS = "Cannot add or remove cells"  # nbgrader, while there are submissions


class _Generate(GenerateAssignment):
    """Keeps the cause of an error, which nbgrader logs before it raises something else."""

    cause: Exception | None = None

    def init_assignment(self, *arguments: Any) -> None:
        with self._keeping():
            super().init_assignment(*arguments)

    def convert_single_notebook(self, *arguments: Any) -> None:
        with self._keeping():
            super().convert_single_notebook(*arguments)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.cause = error
            raise


def release(course: Course, lab: str) -> bool:
    """Update source/ and generate the assignment from it; return whether anything changed.

    Args:
        course: the course.
        lab: the lab's name.

    Raises LabError.
    """
    require_finished(course, lab)
    if not course.copy_source(lab) and is_current(course, lab):
        return False
    source, stamps = course.notebook("source", lab), _stamps(course)
    digest, before = course.digest_of_lab(lab), read_stamps(stamps)
    try:
        try:
            _generate(course, lab)
        except RuntimeError as error:
            if OTHER_CELLS not in str(error):
                raise
            with gradebook(course) as book:
                byhand.set_aside_all(course, lab, book)
            _generate(course, lab)
    except LabError:
        raise
    except Exception as error:
        raise LabError(f"{source}: nbgrader cannot generate the assignment: {explain(error)} (the "
                       f"rest is in {log_file(course)})") from error
    if own := course.labs_folder(lab):  # students do not have its checks yet
        checks = lab_checks.path_of(own / "notebooks" / f"{lab}.ipynb")
        beside = course.notebook("release", lab).with_name(f"{lab}{lab_checks.BESIDE}")
        if checks.is_file():  # not of an assignment made without `lab build`
            write_atomic(beside, checks.read_bytes())
    write_atomic(stamps, json.dumps(before | {lab: digest}, indent=1).encode())
    return True


def is_current(course: Course, lab: str) -> bool:
    """Return whether the assignment is the lab's as it is now, so that `release` changes nothing.

    Args:
        course: the course.
        lab: the lab's name.
    """
    ours = digest_of_folder(course.source_of(lab))
    digest = course.digest_of_lab(lab)
    return (ours in ("", digest) and course.notebook("release", lab).exists()
            and read_stamps(_stamps(course)).get(lab) == digest and _in_gradebook(course, lab))


def _stamps(course: Course) -> Path:
    return course.root / "release" / ".made.json"


def require_built(course: Course, lab: str) -> None:
    """Raise LabError when a lab was changed and not rebuilt since.

    Args:
        course: the course.
        lab: the lab's name.
    """
    own = course.labs_folder(lab)
    root = own or CHECKOUT
    if (own is None and course.sources != OUR_SOURCES) \
            or not (root / "solutions" / f"{lab}.py").is_file():
        return
    stale = [path for path in build(root, [lab], write=False, missing=[])
             if not path.startswith("notebooks/worked/")]  # which one may leave out
    if stale:
        where = f" --labs {own}" if own else ""
        raise LabError(f"{stale[0]} does not match solutions/{lab}.py: run "
                       f"`lab build {lab}{where}`, then release it")


def require_finished(course: Course, lab: str) -> None:
    """Raise LabError when the lab's source is a draft.

    Args:
        course: the course.
        lab: the lab's name.
    """
    built = course.source_of(lab) / f"{lab}.ipynb"
    source = built if built.is_file() else course.notebook("source", lab)
    with contextlib.suppress(OSError, ValueError):
        if is_draft(nbformat.read(source, as_version=4)):
            raise LabError(f"{lab} is a draft: `lab build {lab}` without --draft says what it "
                           "lacks")


def _generate(course: Course, lab: str) -> None:
    settings = course.settings()
    settings.CourseDirectory.assignment_id = lab
    converter = _Generate(coursedir=CourseDirectory(config=settings), config=settings)
    converter.force = True
    try:
        converter.start()
    except Exception as error:
        raise converter.cause or error from error


def _in_gradebook(course: Course, lab: str, book: Gradebook | None = None) -> bool:
    with gradebook(course, book) as book:
        return any(one.name == lab and one.notebooks for one in book.assignments)
