"""The names in a zip of feedback pages lead each LMS back to the right student."""

from __future__ import annotations

import io
import re
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.course import receipts
from grader.course.names import problem_of
from grader.course.receipts import Receipt
from grader.export.archive import names, zipped
from grader.export.layout import Entry
from grader.export.matching import match
from tests.grader.export.conftest import NAME, PEOPLE
from tests.grader.export.files import CANVAS, WORKSHEET


def moodle_reads(path: str) -> tuple[int, str]:
    """(participant, file), by the rule of Moodle's importer: each part of the path is split at its
    first four underscores; the second piece is the number, the rest is the file's path."""
    parts = path.split("/")
    while parts:
        pieces = parts.pop(0).split("_", 4)
        if len(pieces) >= 4 and pieces[1].isdecimal():
            assert pieces[2:4] == ["assignsubmission", "file"]
            return int(pieces[1]), "/".join([*pieces[4:], *parts]).strip("/")
    raise LookupError(path)


def canvas_reads(name: str) -> list[str]:
    """[user, attachment], by the rule of Canvas's importer: the first two pieces between
    underscores that are nothing but digits."""
    pieces = [piece for piece in name.split("_") if piece != "LATE"]
    assert pieces[0] != "anon" and not pieces[-1].startswith("link") and not name.startswith("._")
    return [piece for piece in pieces if re.fullmatch(r"\d+", piece)][:2]


@pytest.fixture
def collected(course):
    for student, serial in (("ada", 90_810), ("ada", 90_811), ("grace", 90_815)):
        receipts.add(course, Receipt(student, NAME, f"{serial:064}", "2026-01-31T22:59:00+00:00",
                                     "--received", f"canvas {serial}", "Untitled.ipynb", serial))
    return course


def test_moodle_finds_the_participant(course, opened):
    layout = opened("moodle", WORKSHEET)
    entries = match(layout.entries, PEOPLE).entries
    result, without = names(course, layout, NAME, entries)
    assert result["jm1"] == f"José Müller_5003_assignsubmission_file_/{NAME}.html"
    assert {student: moodle_reads(name) for student, name in result.items()} == {
        "ada": (5001, f"{NAME}.html"), "grace": (5002, f"{NAME}.html"),
        "jm1": (5003, f"{NAME}.html")} and not without


def test_canvas_finds_the_newest_submission(collected, opened):
    layout = opened("canvas", CANVAS)
    entries = match(layout.entries, PEOPLE).entries
    result, without = names(collected, layout, NAME, entries)
    assert result == {"ada": f"lovelaceada_101_90811_{NAME}.html",
                      "grace": f"hoppergrace_102_90815_{NAME}.html"}
    assert {student: canvas_reads(name) for student, name in result.items()} == {
        "ada": ["101", "90811"], "grace": ["102", "90815"]}
    assert set(without) == {"jm1", "jm2"}


@given(st.text(st.sampled_from("aÜ_/\\.: '\"\n\u202e<>|0=-"), max_size=80))
def test_no_name_of_a_person_misleads_an_lms_or_a_disk(collected_once, opened_once, name):
    canvas, moodle = opened_once
    for layout in (canvas, moodle):
        entry = Entry(3, (), name, "101")
        result = names(collected_once, layout, NAME, {"ada": entry})[0]["ada"]
        assert problem_of(result) == ""
        if layout is moodle:
            assert moodle_reads(result) == (101, f"{NAME}.html")
        else:
            assert canvas_reads(result) == ["101", "90811"]


@pytest.fixture(scope="session")
def collected_once(template, tmp_path_factory):
    from grader.course import Course

    course = Course(tmp_path_factory.mktemp("archive"))
    receipts.add(course, Receipt("ada", NAME, "0" * 64, "2026-01-31T22:59:00+00:00", "", "canvas "
                                 "90811", "", 90_811))
    return course


@pytest.fixture(scope="session")
def opened_once(tmp_path_factory):
    from grader.export import canvas, moodle, sheet
    from tests.grader.export.files import csv_bytes

    folder, result = tmp_path_factory.mktemp("layouts"), []
    for module, rows in ((canvas, CANVAS), (moodle, WORKSHEET)):
        path = folder / "lms.csv"
        path.write_bytes(csv_bytes(rows))
        result.append(module.layout(sheet.read(path, module.REQUIRED)))
    return result


def test_the_zip_is_the_same_for_the_same_pages(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<p>ü</p>")
    pages = {"b_2_assignsubmission_file_/x.html": page, "ä_1_assignsubmission_file_/x.html": page}
    assert zipped(pages) == zipped(dict(reversed(pages.items())))
    with zipfile.ZipFile(io.BytesIO(zipped(pages))) as archive:
        assert set(archive.namelist()) == set(pages) and archive.testzip() is None
