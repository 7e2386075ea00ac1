"""Whose row it is, and what goes into it: a score, EX, or nothing at all."""

from __future__ import annotations

import copy
import time

import pytest

from grader.course.roster import Person
from grader.export.columns import chosen
from grader.export.filling import fill
from grader.export.matching import match
from grader.gradebook.records import NOTHING_SUBMITTED
from grader.report.grades import NEEDS_REVIEW
from labcore.errors import LabError
from tests.grader.export.conftest import NAME, PEOPLE, row
from tests.grader.export.files import CANVAS, DIALECTS, GRADES, WORKSHEET, csv_bytes

ROWS = [row("ada", 4.5), row("grace", 3), row("jm1", state="excused"), row("jm2", 1.0)]
LABS = {NAME: [NAME, "A small lab"]}


def filled(layout, rows, scale=False, column=None):
    matches = match(layout.entries, PEOPLE)
    column = column or chosen(layout, LABS, [NAME], [])[NAME]
    return fill(layout, matches, NAME, column, rows, scale)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_canvas_gets_scores_and_EX(opened, dialect):
    layout = opened("canvas", CANVAS, **dialect)
    one = filled(layout, ROWS)
    expected = copy.deepcopy(CANVAS)
    expected[3][7], expected[4][7], expected[5][7] = "4.5", "3", "EX"
    assert layout.sheet.replaced(one.cells) == csv_bytes(expected, **dialect)
    assert (one.new, one.changed, one.excused) == (1, 1, ["jm1"])
    assert one.lost == ["jm2 (1): Canvas has N/A: not assigned to this student"]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_moodles_worksheet_gets_scores_and_keeps_the_cells_of_the_excused(opened, dialect):
    layout = opened("moodle", WORKSHEET, **dialect)
    one = filled(layout, [row("ada", state="excused"), row("grace", 3), row("jm1", 4)])
    expected = copy.deepcopy(WORKSHEET)
    expected[2][5] = "3"
    assert layout.sheet.replaced(one.cells) == csv_bytes(expected, **dialect)
    assert one.excused == ["ada"]
    assert one.lost == ["jm1 (4): Moodle says that its grade cannot be changed"]


def test_moodles_gradebook_gets_scores_in_the_column_of_points(opened):
    layout = opened("moodle", GRADES, delimiter=";")
    one = filled(layout, ROWS)
    expected = copy.deepcopy(GRADES)
    expected[1][4], expected[2][4] = "4.5", "3"
    assert layout.sheet.replaced(one.cells) == csv_bytes(expected, delimiter=";")
    assert [column.title for column in layout.columns] == [NAME, "One: two"]


def test_every_entry_that_is_replaced_is_named_with_both_values(opened):
    rows = copy.deepcopy(CANVAS)
    rows[5][7] = "1.5"  # jm1's, who is excused here
    one = filled(opened("canvas", rows), ROWS)
    assert one.overwritten == ["grace: 2 -> 3", "jm1: 1.5 -> EX"]
    assert filled(opened("canvas", CANVAS), [row("ada", 4.5), row("grace", 2)]).overwritten == []


def test_an_ungraded_student_keeps_what_the_lms_has(opened):
    layout = opened("canvas", CANVAS)
    one = filled(layout, [row("ada", reason="out of time"), row("grace", reason="out of time")])
    assert one.cells == {}
    assert one.kept == ["ada: out of time", "grace: out of time; Canvas has 2"]


def test_who_submitted_nothing_is_counted_and_listed_only_with_a_grade_there(opened):
    one = filled(opened("canvas", CANVAS), [row("ada", reason=NOTHING_SUBMITTED),
                                            row("grace", reason=NOTHING_SUBMITTED)])
    assert one.cells == {} and one.absent == 1
    assert one.kept == ["grace: nothing submitted; Canvas has 2"]


@pytest.mark.slow
def test_a_class_of_2000_is_matched_by_name_in_seconds(opened):
    rows = [[f"Last{at}, First{at}", "", "", "", "Tue", "", "", "", "", ""] for at in range(2000)]
    people = [Person(f"s{at}", f"First{at}", f"Last{at}") for at in range(2000)]
    layout, start = opened("canvas", [*CANVAS[:3], *rows]), time.process_time()
    assert len(match(layout.entries, people).entries) == 2000
    assert time.process_time() - start < 30


def test_a_score_as_it_was_is_not_touched(opened):
    one = filled(opened("canvas", CANVAS), [row("grace", 2.0)])
    assert one.cells == {} and one.same == 1


def test_a_score_that_somebody_still_has_to_look_at_is_named(opened):
    one = filled(opened("canvas", CANVAS), [row("ada", 2.0, reason=NEEDS_REVIEW)])
    assert one.provisional == ["ada"] and len(one.cells) == 1


def test_rows_are_told_apart_by_what_identifies_a_person(opened):
    matches = match(opened("canvas", CANVAS).entries, PEOPLE)
    assert {student: entry.number for student, entry in matches.entries.items()} == {
        "ada": "101", "grace": "102", "jm1": "103", "jm2": "104"}
    assert matches.refused == {7: "'=HYPERLINK(evil)' is not on the roster"}


def test_two_people_of_one_name_are_not_guessed(opened):
    matches = match(opened("moodle", WORKSHEET).entries, PEOPLE)
    assert set(matches.entries) == {"ada", "grace", "jm1"}
    assert matches.refused == {4: "'Jose Muller' may be jm1 or jm2"}
    assert matches.missing == ("jm2",)


def test_a_row_that_contradicts_itself_is_nobody(opened):
    rows = copy.deepcopy(CANVAS)
    rows[4][3] = "ada"  # Grace's row, by its ID, with Ada's login
    matches = match(opened("canvas", rows).entries, PEOPLE)
    assert "grace" not in matches.entries and "ada" in matches.entries
    assert matches.refused[4] == "ID 102 is grace; SIS Login ID ada is ada"


def test_two_rows_for_one_student_are_both_refused(opened):
    rows = [*copy.deepcopy(CANVAS), ["Ada", "", "ada", "", "Wed", "", "", "1", "", ""]]
    matches = match(opened("canvas", rows).entries, PEOPLE)
    assert "ada" not in matches.entries
    assert matches.refused[3] == matches.refused[9] == "2 rows may be ada"


def test_a_name_does_not_outweigh_another_number(opened):
    rows = copy.deepcopy(CANVAS)
    rows[3][1] = "777"
    rows[3][3] = ""
    matches = match(opened("canvas", rows).entries, PEOPLE)
    assert matches.refused[3] == "its name is ada's, whose lms_user_id is 101, not 777"


def test_an_id_like_a_formula_is_matched_and_not_changed(opened):
    mallory = Person("-s5", "Mal", "Lory")
    layout = opened("canvas", CANVAS)
    matches = match(layout.entries, [*PEOPLE, mallory])
    assert matches.entries["-s5"].row == 7
    one = fill(layout, matches, NAME, layout.columns[1], [row("-s5", 5)], False)
    assert b"=HYPERLINK(evil),105,-s5,@mallory,Wed,,3,5,," in layout.sheet.replaced(one.cells)


@pytest.mark.parametrize("most", [20.0, 4.0])
def test_other_maximum_points_are_refused_or_scaled(opened, most):
    layout = opened("canvas", CANVAS)
    with pytest.raises(LabError, match=f"has {most:g} points, but .* has 5: .*--scale"):
        filled(layout, [row("ada", 2.0, most=most)])
    one = filled(layout, [row("ada", 2.0, most=most)], scale=True)
    assert one.cells == {(3, 7): f"{2.0 * 5 / most:g}"}


def test_moodle_would_ignore_more_than_the_maximum_so_it_is_said(opened):
    one = filled(opened("moodle", WORKSHEET), [row("ada", 6.0)])
    assert one.cells == {} and "ignores more than the maximum of 5" in one.lost[0]


def test_a_score_without_a_row_is_named(opened):
    layout = opened("moodle", GRADES)
    assert filled(layout, [row("jm1", 2.0)]).lost == ["jm1 (2): not in moodle.csv"]


@pytest.mark.parametrize("said, found", [
    ([], "90_small (4711)"), (["90_small=Essay, first"], "Essay, first (10)"),
    (["90_small=10"], "Essay, first (10)"), (["90_small=90_small (4711)"], "90_small (4711)")])
def test_the_column_is_found_or_named(opened, said, found):
    layout = opened("canvas", CANVAS)
    assert chosen(layout, LABS, [], said)[NAME].heading == found


@pytest.mark.parametrize("labs, wanted, said, says", [
    ({"other": ["other"]}, [], [], "no column is called like a lab"),
    ({"other": ["other"]}, ["other"], [], "no column that is called other"),
    (LABS, [], ["90_small=Nope"], "no column is called 'Nope'"),
    (LABS, [], ["nope=10"], "give LAB=TITLE"),
    ({**LABS, "small": ["small"]}, [], [], "may be of 90_small or small"),
])
def test_an_uncertain_column_is_an_error(opened, labs, wanted, said, says):
    with pytest.raises(LabError, match=says):
        chosen(opened("canvas", CANVAS), labs, wanted, said)


def test_two_columns_for_one_lab_are_an_error(opened):
    rows = [[*cells, extra] for cells, extra in zip(
        CANVAS, ["Resubmission of 90_small (4712)", "", "5", *[""] * 6], strict=True)]
    with pytest.raises(LabError, match=r"may be any of .*4711.*4712.*--column 90_small=TITLE"):
        chosen(opened("canvas", rows), LABS, [], [])


def test_a_worksheet_wants_one_lab(opened):
    layout = opened("moodle", WORKSHEET)
    with pytest.raises(LabError, match="name its lab with --lab"):
        chosen(layout, LABS, [], [])


@pytest.mark.parametrize("change, says", [
    ((0, 9, "Zuletzt"), "last modified"), ((1, 6, "Pass"), "graded in points"),
    ((1, 6, "10.00"), "one maximum for all")])
def test_a_worksheet_that_moodle_would_not_read_is_refused(opened, change, says):
    rows = copy.deepcopy(WORKSHEET)
    rows[change[0]][change[1]] = change[2]
    with pytest.raises(LabError, match=says):
        opened("moodle", rows)


def test_a_canvas_file_without_its_points_is_refused(opened):
    with pytest.raises(LabError, match="Points Possible"):
        opened("canvas", [CANVAS[0], *CANVAS[3:]])
    with pytest.raises(LabError, match="no column ID"):
        opened("canvas", [["Student", "Mail"], ["a", "b"]])
