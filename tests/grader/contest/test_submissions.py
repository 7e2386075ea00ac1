"""Contest submissions: plain UTF-8 files, taken once, with the time of each version."""

from __future__ import annotations

import datetime
import os

import pytest

from grader.contest import submissions
from grader.contest.grading import register_submissions
from grader.course.reasons import Unusable
from grader.course.times import now
from labcore.errors import LabError


def linked_file(path, secret):
    path.symlink_to(secret)


def linked_folder(path, secret):
    path.parent.rmdir()
    path.parent.symlink_to(secret.parent)


def fifo(path, secret):
    os.mkfifo(path)


def too_large(path, secret):
    path.write_bytes(b"#" * 200_001)


def far_too_large(path, secret):
    with path.open("wb") as file:
        file.truncate(10**10)


def not_utf8(path, secret):
    path.write_bytes(b"# caf\xe9")


def nulls(path, secret):
    path.write_bytes(b"# \0")


def another_name(path, secret):
    (path.parent / "mine.py").write_text("")


def link_beside(path, secret):
    path.write_text("")
    (path.parent / "other").symlink_to(secret)


@pytest.mark.parametrize(("place", "reason"), [
    (linked_file, "is a link or a special file"), (linked_folder, "is a link or a special file"),
    (fifo, "is a link or a special file"), (too_large, "200,001 bytes are too many"),
    (far_too_large, "more than"), (not_utf8, "it is not UTF-8 (byte 5)"), (nulls, "a null byte"),
    (another_name, "no pipelines.py in it"), (link_beside, "is a link or a special file")])
def test_what_is_no_plain_small_text_is_refused(course, contest, submit, tmp_path, place, reason):
    secret = tmp_path / "secret" / contest.file
    secret.parent.mkdir()
    secret.write_text("SECRET = 1")
    path = submit("eve", "")
    path.unlink()
    place(path, secret)
    submit("ada", "def schedule(case): pass")
    with pytest.raises(Unusable) as error:
        submissions.read(course, contest, "eve")
    assert reason in str(error.value) and "SECRET" not in str(error.value)
    assert list(register_submissions(course, contest)) == ["eve"]
    assert list(submissions.versions(course, contest, "ada"))
    assert not submissions.versions(course, contest, "eve")


def test_a_forged_modification_time_is_not_when_it_came_in(course, contest, submit):
    path = submit("eve", "x = 1")
    os.utime(path, (0, 0))
    before = now() - datetime.timedelta(minutes=5)
    register_submissions(course, contest)
    (when,) = submissions.versions(course, contest, "eve").values()
    assert before < when < now() + datetime.timedelta(minutes=5)
    path.chmod(0o600)  # which changes its ctime, and not when it came in
    register_submissions(course, contest)
    assert list(submissions.versions(course, contest, "eve").values()) == [when]


def test_every_version_is_kept_and_must_be_what_came_in(course, contest, submit):
    for text in ("x = 1", "x = 2", "x = 1"):
        submit("ada", text)
        register_submissions(course, contest)
    first, second = submissions.versions(course, contest, "ada")
    assert submissions.version(course, contest, "ada", first) == b"x = 1"
    assert submissions.version(course, contest, "ada", second) == b"x = 2"
    (path,) = course.root.glob(f"received/ada/contests/pipelines/{first}.py")
    path.write_text("x = 3")
    with pytest.raises(LabError, match="was changed"):
        submissions.version(course, contest, "ada", first)


def test_a_folder_that_is_nobodys_is_named(course, contest, submit):
    submit("ada", "x = 1")
    submit("a:b", "x = 1")
    assert "no student's id" in register_submissions(course, contest)["a:b"]
    assert submissions.students(course, contest) == ["ada"]


def test_nothing_submitted_is_said(course, contest):
    with pytest.raises(LabError, match=r"contests/pipelines/STUDENT/pipelines\.py"):
        register_submissions(course, contest)
