"""Whoever handed in is found, or listed; nobody is guessed."""

from __future__ import annotations

import pytest

from labcore.errors import LabError
from tests.grader.collect.conftest import NAME, put, zipped
from tests.grader.small_lab import RIGHT, WRONG


@pytest.mark.parametrize("name", [
    "lovelaceada_101_555_90_small.ipynb", "lovelaceada_LATE_101_555_90_small.ipynb",
    "lovelaceada_101_555_90_small-1.ipynb", "lovelaceada_101_555_90_small (2).ipynb",
    "lovelaceada_101_555_Untitled.ipynb", "whatever_101_555_x_1_2_y.ipynb",
    "sub/lovelaceada_101_555_90_small.ipynb",
])
def test_canvas_says_who_by_the_users_number(take, submitted, tmp_path, answer, name):
    line = take(zipped(tmp_path / "canvas.zip", {name: answer()}))[name]
    assert (line.student, line.lab, line.verdict) == ("ada", NAME, "new")
    assert ("late" in line.why) == ("LATE" in name)
    assert submitted("ada") == answer()


def test_of_two_uploads_to_canvas_the_later_one_counts(take, submitted, tmp_path, answer):
    old, new = "lovelaceada_101_77_a.ipynb", "lovelaceada_101_555_a-1.ipynb"
    lines = take(zipped(tmp_path / "c.zip", {new: answer(RIGHT), old: answer(WRONG)}))
    assert (lines[old].verdict, lines[new].verdict) == ("other", "new")
    assert submitted("ada") == answer(RIGHT)


@pytest.mark.parametrize("name, problem", [
    ("nobodyknown_999_555_90_small.ipynb", "not on the roster"),
    ("lovelaceada_999_555_90_small.ipynb", "whose lms_user_id is 101"),
    ("mllerjos_999_555_90_small.ipynb", "not on the roster"),
    ("müllerjosé_999_555_90_small.ipynb", "may be jm1 or jm2"),
    ("anon_X7dq2_555_90_small.ipynb", "turn anonymous grading off"),
    ("LATE_anon_X7dq2_555_90_small.ipynb", "turn anonymous grading off"),
])
def test_canvas_and_who_it_does_not_name(take, submitted, tmp_path, answer, name, problem):
    good = "hoppergrace_102_556_90_small.ipynb"
    lines = take(zipped(tmp_path / "canvas.zip", {name: answer(), good: answer()}))
    assert lines[name].verdict == "refused" and problem in lines[name].why
    assert lines[good].verdict == "new" and submitted("grace") == answer()


@pytest.mark.parametrize("name", [
    f"Ada Lovelace_4711_assignsubmission_file_/{NAME}.ipynb",
    "Ada Lovelace_4711_assignsubmission_file/Untitled1.ipynb",
    f"Ada Lovelace_4711_assignsubmission_file_{NAME}.ipynb",
    f"Lovelace Ada_4711_assignsubmission_file_/deep/{NAME}.ipynb",
    f"Ada_Lovelace_4711_assignsubmission_file_/{NAME}.ipynb",
])
def test_moodle_says_who_by_name(take, submitted, tmp_path, answer, name):
    line = take(zipped(tmp_path / "moodle.zip", {name: answer()}))[name]
    assert (line.student, line.verdict) == ("ada", "new")
    assert submitted("ada") == answer()


@pytest.mark.parametrize("name", [
    # The student named the file, or the folder below Moodle's own.
    "Ada Lovelace_4711_assignsubmission_file_Grace Hopper_1_assignsubmission_file_.ipynb",
    f"No_Body_4711_assignsubmission_file_/Grace Hopper_1_assignsubmission_file_/{NAME}.ipynb",
    f"No_Body/Grace Hopper_1_assignsubmission_file_/{NAME}.ipynb",
])
def test_nobody_can_name_another_student_in_moodles_archive(take, tmp_path, answer, name):
    good = f"Ada Lovelace_4712_assignsubmission_file_/{NAME}.ipynb"
    others = [f"Nobody {number}_{number}_assignsubmission_file_/{NAME}.ipynb"
              for number in range(3)]
    lines = take(zipped(tmp_path / "moodle.zip", {one: answer() for one in (name, good, *others)}))
    assert (lines[name].verdict, lines[name].student) == ("refused", "")
    assert lines[good].student == "ada"


@pytest.mark.parametrize("name, problem", [
    ("hoppergrace_101_102_555_x.ipynb", "may be that of a file of ada or grace"),
    ("hoppergrace_101_102_555_90_small.ipynb", "may be that of a file of ada or grace"),
    ("hoppergrace_101_77_102_555_x.ipynb", "may be that of a file of ada or grace"),
    ("nobody_101_999_555_x.ipynb", "can be read in two ways"),
    ("nobody_LATE_101_999_555_x.ipynb", "can be read in two ways"),
    # Somebody who is not on the roster, but submits in the same course, named the file.
    ("nobody_999_555_x_101_7_y.ipynb", "can be read in two ways"),
    ("nobody_999_555_101_7_90_small.ipynb", "can be read in two ways"),
    ("nobody_999_555_lovelaceada_101_7_90_small.ipynb", "can be read in two ways"),
    ("nobody_999_555_lovelaceada_LATE_101_7_90_small.ipynb", "can be read in two ways"),
])
def test_no_name_names_another_student_in_canvas(take, tmp_path, answer, name, problem):
    line = take(zipped(tmp_path / "canvas.zip", {name: answer()}))[name]
    assert line.verdict == "refused" and problem in line.why


def test_one_students_folder_does_not_turn_a_class_into_moodles(take, tmp_path, answer):
    planted = f"grace/Ada Lovelace_1_assignsubmission_file_/{NAME}.ipynb"
    files = {f"ada/{NAME}.ipynb": answer(), planted: answer(WRONG)}
    lines = take(zipped(tmp_path / "plain.zip", files))
    assert {name: line.student for name, line in lines.items()} == {
        f"ada/{NAME}.ipynb": "ada", planted: "grace"}


def test_two_people_of_one_name_are_nobody(take, submitted, tmp_path, answer):
    names = [f"Ada Lovelace_{number}_assignsubmission_file_/{NAME}.ipynb" for number in (1, 2)]
    names.append(f"Jose Müller_3_assignsubmission_file_/{NAME}.ipynb")
    lines = take(zipped(tmp_path / "moodle.zip", {name: answer() for name in names}))
    assert all("more than one may be ada" in lines[name].why for name in names[:2])
    assert "may be jm1 or jm2" in lines[names[2]].why
    assert submitted("ada") is None


@pytest.mark.parametrize("name", [
    f"ada/{NAME}.ipynb", f"ada/{NAME}/{NAME}.ipynb", f"ada@uni.test/{NAME}.ipynb",
    f"101/{NAME}.ipynb", f"Lovelace, Ada/{NAME}.ipynb", f"ada/{NAME} (2).ipynb",
    "ada/Untitled.ipynb", f"ADA/Copy of {NAME}.ipynb",
])
def test_a_folder_says_who(take, submitted, tmp_path, answer, name):
    line = take(put(tmp_path / "in", {name: answer()}))[name]
    assert (line.student, line.lab, line.verdict) == ("ada", NAME, "new")
    assert submitted("ada") == answer()


def test_one_folder_around_all_of_them_is_looked_through(take, submitted, tmp_path, answer):
    take(zipped(tmp_path / "a.zip", {f"class/{who}/{NAME}.ipynb": answer(f"# {who}")
                                     for who in ("ada", "grace")}))
    assert submitted("ada") != submitted("grace") is not None


def test_the_labs_own_name_goes_before_copies_and_others_are_a_tie(take, submitted, tmp_path,
                                                                  answer):
    own, copy = f"ada/{NAME}.ipynb", f"ada/{NAME}-Copy1.ipynb"
    lines = take(put(tmp_path / "in", {own: answer(RIGHT), copy: answer(WRONG)}))
    assert (lines[own].verdict, lines[copy].verdict) == ("new", "other")
    assert submitted("ada") == answer(RIGHT)
    names = [f"grace/{NAME} ({number}).ipynb" for number in (1, 2)]
    lines = take(put(tmp_path / "b", dict(zip(names, [answer(RIGHT), answer(WRONG)], strict=True))))
    assert all("nothing says which is newer" in lines[name].why for name in names)
    assert submitted("grace") is None


@pytest.mark.parametrize("content, name, problem", [
    (b'{"cells": []}', "ada/essay.ipynb", "neither its cells nor its name"),
    (b"", f"ada/{NAME}.ipynb", "empty"),
])
def test_what_is_of_no_lab_is_listed(take, submitted, tmp_path, content, name, problem):
    lines = take(put(tmp_path / "in", {name: content}))
    assert problem in lines[name].why and submitted("ada") is None


def test_a_broken_notebook_of_the_right_name_is_taken_for_the_grader_to_say_why(take, submitted,
                                                                               tmp_path):
    lines = take(put(tmp_path / "in", {f"ada/{NAME} (1).ipynb": b"{ broken"}))
    assert [line.verdict for line in lines.values()] == ["new"] and submitted("ada") == b"{ broken"


def test_another_labs_notebook_is_not_taken_for_the_one_asked_for(take, course, tmp_path, answer):
    other = course.root / "source" / "91_other" / "91_other.ipynb"
    put(other.parent, {other.name: answer().replace(b'"batch', b'"other')})
    folder = put(tmp_path / "in", {"ada/x.ipynb": answer()})
    line = take(folder, lab="91_other")["ada/x.ipynb"]
    assert "its cells are 90_small's, not 91_other's" in line.why and line.verdict == "refused"
    assert take(folder)["ada/x.ipynb"].lab == NAME


def test_a_pattern_names_flat_files(take, submitted, tmp_path, answer):
    folder = put(tmp_path / "in", {"ws25_ada_x.ipynb": answer(), "grace.ipynb": answer()})
    lines = take(folder, pattern="ws25_{student}_{any}.ipynb")
    assert lines["ws25_ada_x.ipynb"].verdict == "new"
    assert "does not match --pattern" in lines["grace.ipynb"].why
    assert "--pattern" in take(folder)["grace.ipynb"].why


@pytest.mark.parametrize("pattern", ["{lab}.ipynb", "{student}{student}", "{who}.ipynb"])
def test_a_pattern_that_cannot_be_is_refused(take, tmp_path, answer, pattern):
    with pytest.raises(LabError, match="--pattern"):
        take(put(tmp_path / "in", {"ada.ipynb": answer()}), pattern=pattern)


def test_one_name_in_two_spellings_is_one_student_who_is_not_guessed(take, tmp_path, answer):
    composed, decomposed = "Jos\u00e9", "Jose\u0301"
    both = {f"{composed}/{NAME}.ipynb": answer(RIGHT), f"{decomposed}/{NAME}.ipynb": answer(WRONG)}
    lines = take(put(tmp_path / "both", both), as_is=True)
    assert len(lines) == 2 and {line.verdict for line in lines.values()} == {"refused"}
    one = put(tmp_path / "one", {f"{decomposed}/{NAME}.ipynb": answer()})
    assert {line.student for line in take(one, as_is=True).values()} == {composed}


def test_nobody_is_called_as_the_file_of_receipts(take, course, tmp_path, answer):
    folder = put(tmp_path / "odd", {f"{name}/{NAME}.ipynb": answer()
                                    for name in ("receipts.jsonl", "ada")})
    lines = take(folder, as_is=True)
    assert "the whole class" in lines[f"receipts.jsonl/{NAME}.ipynb"].why
    assert lines[f"ada/{NAME}.ipynb"].verdict == "new"
    assert (course.root / "received" / "receipts.jsonl").is_file()


def test_as_is_takes_whoever_has_a_folder(take, submitted, tmp_path, answer):
    folder = put(tmp_path / "in", {f"newcomer/{NAME}.ipynb": answer()})
    assert "not on the roster" in take(folder)[f"newcomer/{NAME}.ipynb"].why
    assert take(folder, as_is=True)[f"newcomer/{NAME}.ipynb"].student == "newcomer"
    assert submitted("newcomer") == answer()
