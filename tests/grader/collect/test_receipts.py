"""Receipts: files are kept, the server's clock counts, and nothing is half done."""

from __future__ import annotations

import datetime
import json
import os
import time

import pytest

from grader.collect import store
from grader.course import Submission, receipts
from grader.course.receipts import Receipt
from grader.course.received import received
from grader.course.times import now, parse_time
from lab import cli
from labcore.errors import LabError
from tests.grader.collect.conftest import NAME, put, zipped

FILE = f"ada/{NAME}.ipynb"


def at(day: int) -> datetime.datetime:
    return datetime.datetime(2026, 1, day, 12, tzinfo=datetime.UTC)


def snapshot(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".db"}


def test_collecting_again_changes_nothing(take, course, tmp_path, answer):
    folder = put(tmp_path / "in", {FILE: answer(), f"grace/{NAME}.ipynb": answer("# g")})
    assert {line.verdict for line in take(folder).values()} == {"new"}
    before = snapshot(course.root)
    lines = take(folder)
    assert {line.verdict for line in lines.values()} == {"same"}
    assert snapshot(course.root) == before


def test_the_newest_is_placed_and_the_earlier_ones_are_kept(take, course, submitted, tmp_path,
                                                            answer):
    contents = [answer(f"# {number}") for number in range(3)]
    for day, number in ((1, 0), (3, 2), (2, 1)):  # the middle one is collected last
        put(tmp_path / "in", {FILE: contents[number]})
        line = take(tmp_path / "in", received=at(day))[FILE]
    assert line.verdict == "other" and submitted("ada") == contents[2]
    kept = {path.read_bytes() for path in (course.root / "received" / "ada" / NAME).iterdir()}
    assert kept == set(contents)
    assert received(Submission(course, NAME, "ada")) == "2026-01-03T12:00:00+00:00"


def test_an_old_archive_collected_again_brings_nothing_back(take, submitted, tmp_path, answer):
    old = zipped(tmp_path / "old.zip", {FILE: answer("# old")})
    new = zipped(tmp_path / "new.zip", {FILE: answer("# new")})
    take(old)
    take(new)
    assert take(old)[FILE].verdict == "other" and submitted("ada") == answer("# new")


def test_who_goes_back_to_an_older_version_gets_it_when_the_time_is_said(take, course, submitted,
                                                                         tmp_path, answer):
    source = {text: zipped(tmp_path / f"{text}.zip", {FILE: answer(f"# {text}")}) for text in "ab"}
    take(source["a"], received=at(1))
    take(source["b"], received=at(2))
    assert take(source["a"], received=at(3))[FILE].verdict == "other"
    take(source["a"], received=at(3), correct=True)
    assert submitted("ada") == answer("# a")
    assert received(Submission(course, NAME, "ada")).startswith("2026-01-03")


def test_the_same_file_handed_in_again_is_not_later(course):
    for number, (digest, day) in enumerate([("a", 1), ("b", 2), ("a", 3), ("a", 4)]):
        receipts.add(course, Receipt("ada", NAME, digest, at(day).isoformat(), "test",
                                     str(number)))
    assert receipts.receipt_for(Submission(course, NAME, "ada", "a")).time == at(3)
    assert receipts.receipt_for(Submission(course, NAME, "ada", "b")).time == at(2)
    assert receipts.receipt_for(Submission(course, NAME, "ada", "c")) is None


def test_times_in_a_submission_are_not_looked_at(take, course, submitted, tmp_path, answer):
    folder = put(tmp_path / "in", {FILE: answer(), "ada/timestamp.txt": b"2020-01-01 00:00:00 UTC"})
    os.utime(folder / FILE, (1, 1))
    take(folder)
    assert received(Submission(course, NAME, "ada")) > "2026"
    assert not course.notebook("submitted", NAME, "ada").with_name("timestamp.txt").exists()
    take(folder, keep_times=True)
    assert received(Submission(course, NAME, "ada")) > "2026"  # known: it is not dated again
    take(folder, keep_times=True, correct=True)
    assert received(Submission(course, NAME, "ada")).startswith("1970")


def test_what_was_put_there_by_hand_is_kept_with_all_that_lies_beside(take, course, submitted,
                                                                     tmp_path, answer):
    path = course.notebook("submitted", NAME, "ada")
    put(path.parent, {path.name: answer("# by hand"), "timestamp.txt": b"x", "plot.png": b"y"})
    os.utime(path, (1e9, 1e9))
    take(put(tmp_path / "in", {FILE: answer()}))
    assert submitted("ada") == answer() and [each.name for each in path.parent.iterdir()] == [
        path.name]
    kept = snapshot(course.root / "received" / "ada")
    assert answer("# by hand") in kept.values()
    assert kept[f"{NAME}/beside/timestamp.txt"] == b"x" and b"y" in kept.values()
    assert receipts.read(course)["ada", NAME][0].said_by == store.BY_HAND


def test_a_newer_one_put_there_by_hand_stays(take, course, submitted, tmp_path, answer):
    path = course.notebook("submitted", NAME, "ada")
    put(path.parent, {path.name: answer("# by hand")})
    line = take(put(tmp_path / "in", {FILE: answer()}), received=at(1))[FILE]
    assert line.verdict == "other" and submitted("ada") == answer("# by hand")


@pytest.mark.parametrize("step", [
    "grader.collect.store.store_version", "grader.course.receipts.add",
    "grader.collect.store.submit_version", "grader.collect.store.write_atomic", "os.fsync"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_who_stops_it_anywhere_can_collect_again(take, course, submitted, tmp_path, answer,
                                                 monkeypatch, step, when):
    folder = put(tmp_path / "in", {f"{who}/{NAME}.ipynb": answer(f"# {who}")
                                   for who in ("ada", "grace")})
    module, _, name = step.rpartition(".")
    actual = getattr(__import__(module, fromlist=["x"]), name)

    def stopped(*arguments):
        if when == "after":
            actual(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step, stopped)
        with pytest.raises(KeyboardInterrupt):
            take(folder)
    assert submitted("ada") in (None, answer("# ada"))
    take(folder)
    assert submitted("ada") == answer("# ada") and submitted("grace") == answer("# grace")
    assert len(receipts.read(course)["ada", NAME]) == 1


def test_a_receipt_that_was_being_written_when_the_machine_stopped_is_written_anew(course):
    whole = Receipt("ada", NAME, "a", at(1).isoformat(), "test")
    receipts.add(course, whole)
    file = receipts.file_of(course)
    content = file.read_bytes()
    for cut in (1, 20, len(content) - 1):
        file.write_bytes(content + content[:cut])
        assert receipts.read(course) == {("ada", NAME): [whole]}
        receipts.add(course, Receipt("ada", NAME, "b", at(2).isoformat(), "test"))
        assert [found.digest for found in receipts.read(course)["ada", NAME]] == ["a", "b"]
        assert all(json.loads(line) for line in file.read_text().splitlines())


@pytest.mark.parametrize("line", ["{", "[]", '{"student": "ada"}', json.dumps(
    {"student": "ada", "lab": "x", "digest": "a", "when": "yesterday", "said_by": ""})])
def test_a_damaged_receipt_is_said_and_not_passed_over(course, line):
    receipts.add(course, Receipt("ada", NAME, "a", at(1).isoformat(), "test"))
    with receipts.file_of(course).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(LabError, match="line 2 is damaged"):
        receipts.read(course)


def test_a_version_that_somebody_changed_is_not_placed(take, course, tmp_path, answer):
    take(put(tmp_path / "in", {FILE: answer()}))
    digest = course.digest(NAME, "ada")
    store.version_path(Submission(course, NAME, "ada", digest)).write_bytes(b"x" * len(answer()))
    course.notebook("submitted", NAME, "ada").unlink()
    assert "was changed" in take(tmp_path / "in")[FILE].why


def test_received_is_quick_for_a_big_class(course):
    for number in range(300):
        receipts.add(course, Receipt(f"s{number}", NAME, "a", at(1).isoformat(), "test"))
    start = time.monotonic()
    for number in range(300):
        receipts.receipt_for(Submission(course, NAME, f"s{number}", "a"))
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("text, expected", [
    ("2026-01-31 12:00 UTC", "2026-01-31T12:00:00+00:00"),
    ("2026-01-31T12:00:30Z", "2026-01-31T12:00:30+00:00"),
    ("2026-01-31 12:00 +01:00", "2026-01-31T11:00:00+00:00"),
    ("2026-01-31 12:00-0530", "2026-01-31T17:30:00+00:00"),
    ("2026-07-31 12:00 Europe/Berlin", "2026-07-31T10:00:00+00:00"),
])
def test_a_time_is_one_instant(text, expected):
    assert parse_time(text, "--received").isoformat() == expected


@pytest.mark.parametrize("text, problem", [
    ("2026-01-31 12:00", "no time zone"), ("yesterday", "is not a time"), ("", "is not a time"),
    ("2026-13-01 12:00 UTC", "is not a time"),
    ("2026-01-31 12:00 Europe/Atlantis", "unknown time zone"),
    ("2026-03-29 02:30 Europe/Berlin", "clocks"), ("2026-10-25 02:30 Europe/Berlin", "clocks"),
    ("2026-01-31 12:00 +99:00", "unknown time zone"),
    ("2026-01-31 12:00 ../../etc/passwd", "is not a time"),
])
def test_a_time_that_would_be_a_guess_is_refused(text, problem):
    with pytest.raises(LabError, match=problem):
        parse_time(text, "--received")


def test_the_command_shows_a_table_and_fails_when_nothing_was_taken(command, tmp_path, answer):
    folder = put(tmp_path / "in", {FILE: answer(), f"eve/[red]{NAME}.ipynb": answer()})
    done = command("collect", str(folder), "--received", "2026-01-31 12:00 UTC")
    assert done.returncode == 0 and "2026-01-31" in done.stdout, done.stderr
    assert "refused: eve/[red]90_small.ipynb: 'eve' is not on the roster" in done.stdout
    assert "1 new, 0 same, 0 other, 1 refused" in done.stdout
    done = command("collect", str(folder / "eve"))
    assert done.returncode == 1 and "nothing was taken" in done.stderr
    done = command("collect", str(folder), "--received", "2099-01-31 12:00 UTC")
    assert done.returncode == 1 and "in the future" in done.stderr


def test_who_went_back_to_an_earlier_version_is_pointed_out_and_may_be_taken(
        take, submitted, tmp_path, answer):
    """An archive of Moodle's says nothing that an older archive would not say, too."""
    for text in ("a = 1", "a = 2", "a = 1"):
        put(tmp_path / "in", {FILE: answer(text)})
        line = take(tmp_path / "in")[FILE]
    assert line.verdict == "other" and "--received" in line.why
    assert submitted("ada") == answer("a = 2")
    line = take(tmp_path / "in", received=now(), correct=True)[FILE]
    assert (line.verdict, line.why) == ("new", "") and submitted("ada") == answer("a = 1")


@pytest.fixture
def rounds(command, monkeypatch, answer, tmp_path):
    """`lab collect FOLDER --every 10` with these words, until Ctrl-C in the third pause."""
    folder, said = put(tmp_path / "in", {f"ada/{NAME}.ipynb": answer()}), []

    def sleep(seconds: float) -> None:
        said.append(seconds)
        put(folder, {f"grace/{NAME}.ipynb": answer()} if len(said) == 1 else {})
        if len(said) == 2:
            (folder / "ada").rename(tmp_path / "away")
            (folder / "grace").rename(tmp_path / "away too")
        if len(said) == 3:
            raise KeyboardInterrupt

    def rounds(*words: str):
        graded = []
        monkeypatch.setattr("grader.collect.cli.time.sleep", sleep)
        monkeypatch.setattr("grader.cli.run_grade", lambda given: graded.append(given.lab) or 0)
        monkeypatch.setattr(cli, "build_part", cli.build_part.__wrapped__)  # not cached
        return command("collect", str(folder), "--every", "10", *words), said, graded

    return rounds


def test_collecting_every_ten_minutes_goes_on_after_a_round_without_anything(rounds):
    done, pauses, graded = rounds("--grade", "--lab", NAME)
    assert done.returncode == 130 and pauses == [600] * 3 and "Traceback" not in done.stderr
    assert graded == [NAME] * 2  # not after the round in which nothing was taken
    assert done.stdout.count("1 new, 0 same") == 1 and "1 new, 1 same" in done.stdout
    assert "nothing was taken" in done.stderr


@pytest.mark.parametrize("error", [LabError("no sound zip"), OSError(5, "no sound zip")])
def test_a_round_that_fails_is_said_and_the_next_one_comes(rounds, monkeypatch, error):
    def fails(*arguments):
        raise error

    monkeypatch.setattr("grader.collect.collecting.collect", fails)
    done, pauses, graded = rounds("--grade")
    assert (done.returncode, len(pauses), graded) == (130, 3, [])
    assert done.stderr.count("no sound zip") == 3


@pytest.mark.parametrize("words, said", [
    (["--every", "0"], "give minutes, such as 10"), (["--every", "soon"], "give minutes"),
    (["--every", "nan"], "give minutes"), (["--every", "inf"], "give minutes")])
def test_minutes_that_are_none_are_refused(command, capsys, words, said):
    with pytest.raises(SystemExit):
        command("collect", "folder", *words)
    assert said in capsys.readouterr().err


def test_every_and_received_contradict_each_other(command, tmp_path):
    done = command("collect", str(tmp_path), "--every", "1", "--received", "2026-01-31 12:00 UTC")
    assert done.returncode == 1 and "leave one out" in done.stderr
