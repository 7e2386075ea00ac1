"""Files of a contest from folders and archives."""

from __future__ import annotations

import datetime
import json

import pytest

from grader.contest import submissions
from grader.contest.collecting import collect
from grader.course import groups
from grader.course.roster import Person, add
from grader.gradebook import records
from labcore.errors import LabError
from tests.grader.collect.conftest import put, zipped

WHEN = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


@pytest.fixture
def take(course, contest):
    """Collect; (verdict, why) by file."""
    def take(source, **more):
        more.setdefault("as_is", True)
        return {line.file: (line.verdict, line.why)
                for line in collect(course, contest, source, **more)}

    return take


def current(course, contest, student) -> bytes:
    return (submissions.folder(course, contest) / student / contest.file).read_bytes()


def test_new_versions_are_placed_kept_and_dated(course, contest, take, tmp_path):
    folder = put(tmp_path / "in", {"ada/pipelines.py": b"a = 1", "bob/mine.py": b"b = 1",
                                   "bob/notes.txt": b""})
    result = take(folder, received=WHEN)
    assert result == {"ada/pipelines.py": ("new", ""), "bob/mine.py": ("new", "")}
    assert current(course, contest, "bob") == b"b = 1"  # under the contest's name
    assert {verdict for verdict, _ in take(folder).values()} == {"same"}
    put(folder, {"ada/pipelines.py": b"a = 2"})
    assert take(folder)["ada/pipelines.py"][0] == "new"
    assert current(course, contest, "ada") == b"a = 2"
    first, second = submissions.versions(course, contest, "ada").values()
    assert first == WHEN < second


def test_what_was_put_there_by_hand_is_a_version_too(course, contest, take, tmp_path, submit):
    submit("ada", "by = 'hand'")
    take(put(tmp_path / "in", {"ada/pipelines.py": b"a = 1"}))
    assert len(submissions.versions(course, contest, "ada")) == 2


def test_what_cannot_be_taken_is_listed_and_stops_no_other(course, contest, take, tmp_path):
    folder = put(tmp_path / "in", {"ada/pipelines.py": b"a = 1", "bob/one.py": b"", "eve.py": b"",
                                   "bob/two.py": b"", "carl/pipelines.py": b"\xff",
                                   "dora/pipelines.py": b"#" * 200_001})
    (folder / "gil").mkdir()
    (folder / "gil/pipelines.py").symlink_to("/etc/passwd")
    (submissions.folder(course, contest)).mkdir(parents=True)
    (submissions.folder(course, contest) / "hal").symlink_to(tmp_path)
    put(folder, {"hal/pipelines.py": b"h = 1"})
    result = take(folder)
    assert result.pop("ada/pipelines.py")[0] == "new"
    assert {verdict for verdict, _ in result.values()} == {"refused"} and len(result) == 7
    assert result["bob/one.py"][1] == "2 Python files, and none is called pipelines.py"
    for name, why in (("carl", "UTF-8"), ("dora", "too many"), ("gil", "link"), ("hal", "link")):
        assert why in result[f"{name}/pipelines.py"][1]
    assert not (tmp_path / "pipelines.py").exists()


def test_moodles_archive_of_a_groups_assignment_is_read(course, contest, take, tmp_path):
    groups.file_of(course).write_text(json.dumps({"*": [
        {"name": "Team 1", "owner": "ada", "members": ["ada", "grace"]}]}))
    with records.gradebook(course) as book:
        add(book, [Person("grace", "Grace", "Hopper")])
    archive = zipped(tmp_path / "m.zip", {
        "Team 1-Grace Hopper_7_assignsubmission_file_/x.py": b"a = 1"})
    assert {verdict for verdict, _ in take(archive, as_is=False).values()} == {"new"}
    assert current(course, contest, "grace") == b"a = 1"


def test_an_archive_is_read_as_that_of_a_lab_is(take, tmp_path):
    archive = zipped(tmp_path / "in.zip", {"ada/pipelines.py": b"a = 1", "bob/pipelines.py": b""})
    assert {verdict for verdict, _ in take(archive).values()} == {"new"}
    with pytest.raises(LabError, match="the roster is empty"):
        take(archive, as_is=False)
