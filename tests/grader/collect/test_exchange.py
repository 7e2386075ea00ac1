"""nbgrader's exchange: students can write nearly all of it."""

from __future__ import annotations

import datetime
import os
import pwd

import pytest

from grader.collect import exchange, sources
from grader.course import Submission, receipts
from grader.course.received import received
from grader.course.roster import Person, Roster
from labcore.errors import LabError
from tests.grader.collect.conftest import NAME, put
from tests.needs import needs

EARLY = "2020-01-01 00:00:00.123456 UTC"


def handed_in(root, who: str, content: bytes, stamp: str | None = None, name: str = NAME,
              random: str = "+YWJjZGVmZ2hp") -> str:
    """A hand-in as `nbgrader submit` makes it; the path inside inbound/."""
    stamp = stamp or f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
    folder = f"{who}+{NAME}+{stamp}{random}"
    put(root / "course1" / "inbound" / folder,
        {f"{name}.ipynb": content, "timestamp.txt": stamp.encode()})
    return f"{folder}/{name}.ipynb"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "exchange" / "course1" / "inbound").mkdir(parents=True)
    return tmp_path / "exchange"


@pytest.mark.parametrize("place", ["", "course1", "course1/inbound"])
def test_an_honest_hand_in_is_taken(take, submitted, course, root, answer, place):
    path = handed_in(root, "ada", answer())
    line = take(root / place)[path]
    assert (line.student, line.verdict, line.why) == ("ada", "new", "")
    assert submitted("ada") == answer()
    assert take(root / place)[path].verdict == "same"


def test_the_newest_of_several_counts_and_going_back_counts_too(take, submitted, root, answer):
    for number in (1, 2, 1):
        handed_in(root, "ada", answer(f"# {number}"))
    lines = take(root)
    assert submitted("ada") == answer("# 1") and len(lines) == 3
    take(root)
    assert submitted("ada") == answer("# 1")


def test_a_forged_early_stamp_is_seen_and_does_not_count(take, course, root, answer):
    path = handed_in(root, "ada", answer(), EARLY)
    os.utime(root / "course1" / "inbound" / path, (1.5e9, 1.5e9))
    line = take(root)[path]
    assert "its name says 2020-01-01" in line.why
    assert received(Submission(course, NAME, "ada")) > "2026"
    assert receipts.read(course)["ada", NAME][0].said_by.endswith("(ctime)")
    take(root, keep_times=True, correct=True)  # an instructor who knows better
    assert received(Submission(course, NAME, "ada")).startswith("2020-01-01")


def test_a_hand_in_in_another_students_name_is_refused(take, submitted, root, answer, monkeypatch):
    path = handed_in(root, "ada", answer())
    monkeypatch.setattr(pwd, "getpwuid", lambda number: pwd.struct_passwd(
        ("grace", "", number, 0, "", "", "")))
    assert "belongs to grace" in take(root)[path].why and submitted("ada") is None


@needs("root")
def test_a_file_of_somebody_else_in_a_hand_in_is_refused(take, submitted, root, answer):
    path = handed_in(root, "ada", answer())
    os.chown(root / "course1" / "inbound" / path, 12345, 12345)
    assert "another user" in take(root)[path].why and submitted("ada") is None


def test_links_and_odd_names_in_the_exchange(take, submitted, root, tmp_path, answer):
    secret = put(tmp_path / "secret", {f"{NAME}.ipynb": answer("# secret")}) / f"{NAME}.ipynb"
    path = handed_in(root, "ada", answer())
    (root / "course1" / "inbound" / path).unlink()
    (root / "course1" / "inbound" / path).symlink_to(secret)
    put(root / "course1" / "inbound", {f"nobody/{NAME}.ipynb": answer(), "x.ipynb": answer()})
    lines = take(root)
    assert {line.verdict for line in lines.values()} == {"refused"} and len(lines) == 3
    assert submitted("ada") is None


@pytest.mark.parametrize("who, random", [("a+b", "+YWJjZGVmZ2hp"), ("a+b", ""), ("ada", "")])
@pytest.mark.parametrize("stamp", [EARLY, "2020-01-01 00:00:00 CET", "2020-01-01 00:00:00.1 +0100"])
def test_names_of_hand_ins_are_read(who, random, stamp):
    claim = exchange.layout(Roster([Person(who)]), False)(f"{who}+{NAME}+{stamp}{random}/x.ipynb")
    assert claim.student == who


def test_the_exchange_by_name(take, submitted, root, answer, monkeypatch, course):
    handed_in(root, "ada", answer())
    with pytest.raises(LabError, match="LAB_EXCHANGE"):
        take("exchange")
    monkeypatch.setenv("LAB_EXCHANGE", str(root))
    take("exchange")
    assert submitted("ada") == answer()
    (root / "course2" / "inbound").mkdir(parents=True)
    with pytest.raises(LabError, match="several courses"):
        take("exchange")
    with course.config_file.open("a") as file:
        file.write(f"c.CourseDirectory.course_id = 'course1'\nc.Exchange.root = {str(root)!r}\n")
    monkeypatch.delenv("LAB_EXCHANGE")
    assert {line.verdict for line in take("exchange").values()} == {"same"}


@pytest.fixture
def owners(monkeypatch):
    """Names the owner of everything in a hand-in by its number: ada is 1, grace is 2."""
    monkeypatch.setattr(pwd, "getpwuid", lambda number: pwd.struct_passwd(
        ({1: "ada", 2: "grace"}[number], "", number, 0, "", "", "")))

    def own(root, path: str, number: int) -> None:
        folder = root / "course1" / "inbound" / path.split("/")[0]
        for place in (folder, *folder.iterdir()):
            os.chown(place, number, number)
    return own


@needs("root")
@pytest.mark.parametrize("said, count", [("grace@uni.test", 1), ("Grace", 501), ("GRACE", 1)])
def test_hand_ins_in_anothers_name_do_not_crowd_out_her_own(take, submitted, root, answer, owners,
                                                            said, count):
    honest = handed_in(root, "grace", answer(), EARLY, random="+000000000000")
    owners(root, honest, 2)
    for number in range(count):
        owners(root, handed_in(root, said, answer("# forged"), EARLY, random=f"+{number:012}"), 1)
    lines = take(root)
    assert lines[honest].verdict == "new" and submitted("grace") == answer()
    assert all("belongs to ada" in line.why for path, line in lines.items() if path != honest)


def test_a_folder_that_cannot_be_listed_stops_no_other_hand_in(take, submitted, root, answer):
    handed_in(root, "ada", answer())
    place = os.open(root / "course1" / "inbound", os.O_RDONLY)
    for _ in range(18):  # longer than a path may be
        os.mkdir("x" * 250, dir_fd=place)
        inner = os.open("x" * 250, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    lines = take(root)
    assert submitted("ada") == answer()
    assert [line.why for line in lines.values() if line.verdict == "refused"]


@pytest.mark.parametrize("call", ["with_owner_checked", "read", "when"])
def test_a_hand_in_that_goes_away_stops_no_other(take, submitted, root, answer, monkeypatch, call):
    gone, stays = handed_in(root, "grace", answer()), handed_in(root, "ada", answer())
    original = getattr(exchange.Inbound, call)

    def after_it_went(self, file, *more):
        if getattr(file, "path", file) == gone:
            (root / "course1" / "inbound" / gone).unlink(missing_ok=True)
            (root / "course1" / "inbound" / gone).with_name("timestamp.txt").unlink(missing_ok=True)
            (root / "course1" / "inbound" / gone).parent.rmdir()
            monkeypatch.setattr(exchange.Inbound, call, original)
        return original(self, file, *more)

    monkeypatch.setattr(exchange.Inbound, call, after_it_went)
    lines = take(root)
    assert lines[stays].verdict == "new" and submitted("ada") == answer()
    assert lines[gone].verdict == "refused" and submitted("grace") is None


@needs("root")
def test_one_student_with_too_many_files_stops_no_other(take, submitted, root, answer, owners,
                                                        monkeypatch):
    monkeypatch.setattr(sources, "MOST_FILES", 10)
    honest, flood = handed_in(root, "grace", answer()), handed_in(root, "ada", answer())
    put(root / "course1" / "inbound" / flood.split("/")[0], {f"{n}.txt": b"" for n in range(20)})
    owners(root, honest, 2)
    owners(root, flood, 1)
    lines = take(root)
    assert lines[honest].verdict == "new" and submitted("grace") == answer()
    assert [line.why for path, line in lines.items() if path != honest] == [
        "ada has at least 11 files in the exchange: too many, so none of them is taken"]
