"""Wrong files: another lab's, files that are no notebook, and names in every script."""

from __future__ import annotations

import csv
import datetime
import re
import unicodedata

import pytest

from grader.course import Submission, receipts, unreadable
from grader.course.received import received
from grader.course.roster import Person, add
from grader.feedback.unreadable import make_pages
from grader.gradebook.records import gradebook
from grader.gradebook.ungraded import leave_ungraded
from grader.report.grades import save
from tests.grader.collect.conftest import NAME, bytes_of_zip, put, zipped

OTHER = "91_other"


@pytest.fixture
def other(course, answer) -> bytes:
    """An untouched notebook of another lab of the course."""
    content = answer("# other").replace(b'"grade_id": "', b'"grade_id": "other-')
    put(course.root / "source" / OTHER, {f"{OTHER}.ipynb": content})
    return content


def row(course, student: str) -> dict[str, str]:
    save(course)
    with (course.root / "grades.csv").open() as file:
        return next(row for row in csv.DictReader(file)
                    if (row["student"], row["lab"]) == (student, NAME))


@pytest.mark.parametrize("path, options", [
    (f"ada/{OTHER}.ipynb", {}), (f"ada/{OTHER}/Untitled.ipynb", {}),
    (f"ada/{OTHER} (1).ipynb", {}), (f"ada/{OTHER}.ipynb", {"lab": OTHER}),
    ("lovelaceada_101_555_x.ipynb", {"lab": OTHER}), ("lovelaceada_101_555_91_other-1.ipynb", {}),
    (f"Ada Lovelace_7_assignsubmission_file_/{OTHER}.ipynb", {}),
    ("ada-91_other.ipynb", {"pattern": "{student}-{lab}.ipynb"})])
def test_a_wrong_upload_is_no_attempt_at_the_lab_of_its_cells(take, course, submitted, tmp_path,
                                                              answer, other, path, options):
    take(put(tmp_path / "good", {f"ada/{NAME}.ipynb": answer()}))
    before = receipts.read(course)["ada", NAME]
    line = take(put(tmp_path / "in", {path: answer("# untouched")}), **options)[path]
    assert (line.verdict, line.lab) == ("refused", OTHER) and f"{NAME}'s" in line.why
    assert submitted("ada") == answer() and receipts.read(course)["ada", NAME] == before
    assert "wrong file" in str(unreadable.newest(course)[OTHER, "ada"])


@pytest.mark.parametrize("name", ["Untitled.ipynb", f"{NAME}.ipynb"])
@pytest.mark.parametrize("form", ["canvas", "moodle"])
def test_an_lmss_archive_is_of_one_lab(take, course, submitted, tmp_path, answer, other, form,
                                       name):
    """Ada's notebook of the small lab, uploaded to the other, is no attempt at the small one."""
    who = {"canvas": ("lovelaceada_101_5_", "hoppergrace_102_6_", "müllerjosé_107_7_"),
           "moodle": ("Ada Lovelace_5_assignsubmission_file_/",
                      "Grace Hopper_6_assignsubmission_file_/",
                      "Jose Muller_7_assignsubmission_file_/")}[form]
    take(put(tmp_path / "good", {f"ada/{NAME}.ipynb": answer()}))
    with gradebook(course) as book:
        add(book, [Person("jm2", first_name="Jose", last_name="Other"),
                   Person("jm1", lms_user_id="107")])
    (tmp_path / "w.csv").write_text("Identifier,Full name,ID number\nParticipant 7,,jm1\n")
    files = {f"{who[0]}{name}": answer("# untouched"), f"{who[1]}a.ipynb": other,
             f"{who[2]}b.ipynb": other + b" "}
    archive = zipped(tmp_path / "lms.zip", files)
    lines = take(archive, worksheet=tmp_path / "w.csv")
    line = lines[f"{who[0]}{name}"]
    assert (line.verdict, line.lab) == ("refused", OTHER) and f"--lab {NAME}" in line.why
    assert submitted("ada") == answer() and len(receipts.read(course)["ada", NAME]) == 1
    assert "--lab" not in str(unreadable.newest(course)[OTHER, "ada"])
    assert take(archive, lab=NAME)[f"{who[0]}{name}"].verdict == "new"


def test_an_assignment_for_two_labs_is_collected_with_a_note(take, tmp_path, answer, other):
    files = {"lovelaceada_101_5_a.ipynb": answer(), "lovelaceada_101_6_b.ipynb": other,
             "hoppergrace_102_7_b.ipynb": other}
    lines = take(zipped(tmp_path / "canvas.zip", files))
    assert {line.verdict for line in lines.values()} == {"new"}
    assert "is it meant for" in lines["lovelaceada_101_5_a.ipynb"].why


def test_the_instructors_word_on_the_lab_goes_before_the_name(take, tmp_path, answer, other):
    folder = put(tmp_path / "in", {f"ada/{OTHER}.ipynb": answer()})
    line = take(folder, lab=NAME)[f"ada/{OTHER}.ipynb"]
    assert (line.lab, line.verdict) == (NAME, "new") and f"its name says {OTHER}" in line.why


FORMS = {"plain": ("ada/{}", "grace/{}"),
         "canvas": ("lovelaceada_101_555_{}", "hoppergrace_102_556_{}"),
         "moodle": ("Ada Lovelace_7_assignsubmission_file_/{}",
                    "Grace Hopper_8_assignsubmission_file_/{}")}


@pytest.mark.parametrize("form, name, content, why", [
    ("plain", f"{NAME}.pdf", b"%PDF-1.7", "a .pdf file, not a notebook"),
    ("canvas", "my report.html", b"<html>", "a .html file, not a notebook"),
    ("moodle", "Untitled.ipynb.txt", b"{}", "rename it so that it ends in .ipynb"),
    ("moodle", f"{NAME}.ipynb", b" \n", "it is empty"),
    ("canvas", f"{NAME}.ipynb", b" " * 20_000_001, "like a zip bomb"),
    ("canvas", "work.zip", bytes_of_zip({"a.ipynb": b"{}"}), "an archive inside"),
    ("plain", f"{NAME}/notes.docx", b"x", "a .docx file"),
    ("moodle", "answers", b"x", "a file without an ending")])
def test_what_cannot_be_read_was_received_all_the_same(take, course, tmp_path, answer, form, name,
                                                       content, why):
    path, others = FORMS[form][0].format(name), FORMS[form][1]
    closed = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    files = {path: content, others.format(f"{NAME}.ipynb"): answer()}
    line = take(zipped(tmp_path / "in.zip", files), received=closed)[path]
    assert (line.student, line.lab, line.verdict) == ("ada", NAME, "refused") and why in line.why
    found = row(course, "ada")
    assert found["state"] == "ungraded" and found["received"] == "2026-01-31T12:00:00+00:00"
    assert "received, but unreadable" in found["reason"] and why in found["reason"]
    assert row(course, "jm1")["reason"] == "nothing submitted"
    line = take(tmp_path / "in.zip")[path]  # later: the first time counts
    assert line.when == closed.isoformat()


def test_a_notebook_over_the_limit_was_received(take, course, tmp_path):
    path = f"ada/{NAME}.ipynb"
    take(put(tmp_path / "in", {path: b" " * 20_000_001}))
    assert "more than 20 MB" in unreadable.newest(course)[NAME, "ada"].why


def test_its_student_is_told_on_a_page(take, course, command, tmp_path, answer):
    name = f"{NAME}<script>.pdf".replace(">", "").replace("<", "&lt;x")
    closed = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    take(put(tmp_path / "in", {f"ada/{NAME}/{name}": b"%PDF"}), received=closed)
    done = command("feedback", NAME, "--to", str(tmp_path / "pages"))
    assert done.returncode == 0 and "1 of 1 pages" in done.stdout, done.stderr
    page = (tmp_path / "pages" / "ada" / f"{NAME}.html").read_text()
    assert "on 2026-01-31 12:00 UTC" in page and "a .pdf file, not a notebook" in page
    assert "&amp;lt;xscript" in page
    take(put(tmp_path / "in2", {f"ada/{NAME}.ipynb": answer()}))
    assert "no feedback yet" in command("feedback", NAME).stderr


@pytest.mark.parametrize("problem", ["another lab", "a bomb"])
def test_a_page_tells_the_reason_in_whole_sentences(take, course, tmp_path, answer, other, problem):
    if problem == "a bomb":
        take(zipped(tmp_path / "in.zip", {f"ada/{OTHER}.ipynb": b" " * 20_000_001}))
    else:
        take(put(tmp_path / "in", {f"ada/{OTHER}.ipynb": answer()}))
    (page, student), = make_pages(course, [OTHER])
    sentence = re.search(r"cannot be graded: ([^<]*)</p>", page.read_text())
    assert student == "ada" and re.fullmatch(r"[^?]+[^?.]\.", sentence[1])


@pytest.mark.parametrize("content, why", [
    (b"{", f"{NAME}.ipynb is not a notebook: Expecting property name"),
    (b"[]", "it has no list of cells"), (b"\xff\xfe", "is not a notebook"),
    (b'{"cells": [], "nbformat": 4}', "it has none of the lab&#39;s answer cells")])
def test_the_student_of_a_damaged_notebook_is_told_on_a_page(take, course, tmp_path, answer,
                                                             content, why):
    """It was collected, because its name is the lab's, and only grading reads it."""
    closed = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    path = f"ada/{NAME}/{NAME} (2).ipynb"
    take(put(tmp_path / "in", {path: content}), received=closed, lab=NAME)
    assert make_pages(course, [NAME]) == []  # nobody has tried to grade it
    leave_ungraded(Submission(course, NAME, "ada"), "x")
    (page, student), = make_pages(course, [NAME])  # as `lab feedback` does
    assert (page, student) == (Submission(course, NAME, "ada").page, "ada")
    page = page.read_text()
    assert f"{NAME} (2).ipynb</code> on 2026-01-31 12:00 UTC" in page
    sentence = re.search(r"cannot be graded: ([^<]*)</p>", page)
    assert why in sentence[1] and re.fullmatch(r"[^?]+[^?.]\.", sentence[1])
    take(put(tmp_path / "in2", {f"ada/{NAME}.ipynb": answer()}), received=closed)
    leave_ungraded(Submission(course, NAME, "ada"), "out of time at cell batch-check (60 s)")
    assert make_pages(course, [NAME]) == []  # that one can be read
    assert not Submission(course, NAME, "ada").page.exists()


def test_what_lies_beside_a_notebook_is_no_submission(take, course, tmp_path, answer):
    files = {f"ada/{NAME}/{NAME}.ipynb": answer(), f"ada/{NAME}/plot.pdf": b"%PDF",
             f"ada/{NAME}/timestamp.txt": b"x", "grace/plot.pdf": b"%PDF"}
    assert set(take(put(tmp_path / "in", files))) == {f"ada/{NAME}/{NAME}.ipynb"}
    assert unreadable.newest(course) == {}


def test_an_unreadable_file_after_a_good_one_is_a_note(take, course, submitted, tmp_path, answer):
    take(put(tmp_path / "in", {f"ada/{NAME}.ipynb": answer()}))
    take(put(tmp_path / "late", {f"ada/{NAME}.pdf": b"%PDF"}))
    found = row(course, "ada")
    assert submitted("ada") == answer() and "later received, but unreadable" in found["notes"]


def test_one_lab_is_picked_out_of_a_folder_of_many(take, course, tmp_path, answer, other):
    """Files of other labs, and what lies around, are no unreadable submissions of this one."""
    files = {f"ada/{NAME}.ipynb": answer(), "ada/plot.pdf": b"x", "grace/Untitled.ipynb": answer(),
             f"jm1/{OTHER}.ipynb": other, f"jm2/{OTHER}.pdf": b"%PDF", "jm2/notes.txt": b"x"}
    lines = take(put(tmp_path / "in", files), lab=OTHER)
    assert {path: line.verdict for path, line in lines.items()} == {
        f"ada/{NAME}.ipynb": "refused", "grace/Untitled.ipynb": "refused",
        f"jm1/{OTHER}.ipynb": "new", f"jm2/{OTHER}.pdf": "refused"}
    assert set(unreadable.newest(course)) == {(OTHER, "jm2")}
    take(put(tmp_path / "one", {"jm1/Report.pdf": b"%PDF"}), lab=NAME)
    assert set(unreadable.newest(course)) == {(OTHER, "jm2"), (NAME, "jm1")}


def test_nobody_can_be_said_to_have_submitted_by_another(take, course, tmp_path, answer):
    paths = [f"../ada/{NAME}.pdf", f"grace/../ada/{NAME}.pdf", f"nobody/{NAME}.pdf"]
    take(zipped(tmp_path / "in.zip", {path: b"x" for path in paths} | {
        f"jm1/{NAME}.ipynb": answer()}))
    assert unreadable.newest(course) == {}


@pytest.mark.parametrize("line", ["{", '{"student": "ada"}'])
def test_a_damaged_line_of_unreadable_files_is_named(take, course, tmp_path, command, line):
    take(put(tmp_path / "late", {f"ada/{NAME}.pdf": b"%PDF"}))
    file = unreadable.file_of(course)
    file.write_text(file.read_text() + line + "\n")
    done = command("collect", str(tmp_path / "late"))
    assert done.returncode == 1 and "line 2 is damaged" in done.stderr
    file.write_text(file.read_text().removesuffix("\n"))  # half written
    assert set(unreadable.newest(course)) == {(NAME, "ada")}


NAMES = [("सिद्धार्थ", "शर्मा"), ("สมชาย", "ใจดี"), ("José", "Nuñez"), ("علی‌رضا", "رضایی"),
         ("Nguyễn", "Hữu"), ("O'Neil", "Ünal-Öz")]


def canvas_name(first: str, last: str) -> str:
    """The name as Canvas writes it: the letters, marks, and digits of the sortable name."""
    return "".join(letter for letter in (last + first).lower()
                   if unicodedata.category(letter)[0] in "LMN")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("stray", ["README.ipynb", "notes/x.ipynb", "grades.csv", ""])
def test_names_in_every_script_and_a_stray_file_refuse_nobody_else(take, course, tmp_path, answer,
                                                                   form, stray):
    with gradebook(course) as book:
        add(book, [Person(f"s{number}", first, last, "", str(500 + number))
                   for number, (first, last) in enumerate(NAMES)])
    for archive, pattern in (("canvas", "{canvas}_{number}_9{number}_{lab}.ipynb"),
                             ("moodle", "{first} {last}_{number}_assignsubmission_file_/{lab}.ipynb"
                              )):
        files = {unicodedata.normalize(form, pattern.format(
            canvas=canvas_name(first, last), first=first, last=last, number=500 + number,
            lab=NAME)): answer(f"# {number} {archive}")
            for number, (first, last) in enumerate(NAMES)}
        lines = take(zipped(tmp_path / f"{archive}.zip", files | ({stray: b"{}"} if stray else {})))
        assert [lines[path].student for path in files] == [f"s{n}" for n in range(len(NAMES))]
        assert {lines[path].verdict for path in files} == {"new"}
        assert stray not in lines or lines[stray].verdict == "refused"


def test_one_students_folder_does_not_become_a_canvas_archive(take, submitted, tmp_path, answer):
    planted = "ada/hoppergrace_102_555_90_small.ipynb"
    assert take(put(tmp_path / "in", {planted: answer()}))[planted].student == "ada"
    assert submitted("grace") is None


def test_a_second_archive_does_not_date_on_time_work_again(take, command, course, tmp_path,
                                                           answer):
    def when(student: str) -> str:
        return received(Submission(course, NAME, student))[:10]

    ada, grace = "lovelaceada_101_5_90_small.ipynb", "hoppergrace_102_6_90_small.ipynb"
    first = zipped(tmp_path / "1.zip", {ada: answer()})
    second = zipped(tmp_path / "2.zip", {ada: answer(), grace: answer("# g")})
    assert command("collect", str(first), "--received", "2026-01-10 12:00 UTC").returncode == 0
    assert command("collect", str(second), "--received", "2026-01-20 12:00 UTC").returncode == 0
    assert (when("ada"), when("grace")) == ("2026-01-10", "2026-01-20")
    done = command("collect", str(second), "--received", "2026-01-11 12:00 UTC", "--correct",
                   "--student", "grace")
    assert done.returncode == 0 and (when("ada"), when("grace")) == ("2026-01-10", "2026-01-11")
    done = command("collect", str(second), "--student", "grac")
    assert done.returncode == 1 and "nearest: grace" in done.stderr
    done = command("collect", str(second), "--correct")
    assert done.returncode == 1 and "--received TIME" in done.stderr


def test_a_hub_gives_out_an_authors_own_labs_untouched(take, course, submitted, tmp_path, answer,
                                                       monkeypatch):
    """Homes get them from LAB_LABS, and the course's release is the same notebook."""
    own = "92_mine"
    content = answer("# mine").replace(b'"grade_id": "', b'"grade_id": "mine-')
    put(tmp_path / "labs", {f"grader/source/{own}/{own}.ipynb": content,
                            f"notebooks/{own}.ipynb": content})
    monkeypatch.setenv("LAB_LABS", str(tmp_path / "labs"))
    release = course.notebook("release", NAME).read_bytes()
    homes = put(tmp_path / "homes", {f"ada/work/{own}.ipynb": content,
                                     f"ada/work/{NAME}.ipynb": release,
                                     f"grace/work/{own}.ipynb": content + b" "})
    lines = take(homes, below="work")
    assert {line.why for line in lines.values()} == {"unchanged from the release"}
    assert submitted("ada", own) is submitted("ada") is submitted("grace", own) is None
    assert unreadable.newest(course) == {}
    put(homes, {f"ada/work/{own}.ipynb": content.replace(b"# mine", b"worked = 1")})
    assert take(homes, below="work")[f"ada/work/{own}.ipynb"].verdict == "new"
