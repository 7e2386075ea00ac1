"""`lab second`: a sample for a second grader, both scores, and how far they agree."""

from __future__ import annotations

import csv
import re
import shutil

import nbformat
import pytest

from grader.course import Course
from grader.gradebook import records
from grader.written import second
from grader.written.agreement import ScorePair, agreement, weighted_kappa
from lab import cli
from labcore.errors import LabError
from tests.grader.small_lab import NAME
from tests.grader.written.test_written import enter, template_written  # noqa: F401

STUDENTS = ("ada", "grace", "jane", "joan", "mary")


@pytest.fixture(scope="module")
def template_graded(template_written, tmp_path_factory):  # noqa: F811
    """Five answers of which four were graded by hand: 2, 1, 1.5, and 0 points."""
    root = tmp_path_factory.mktemp("second") / "course"
    shutil.copytree(template_written.root, root)
    course = Course(root)
    for number, student in enumerate(STUDENTS):
        enter(course, student, f"Answer of number {number}. <script>alert(1)</script>")
    with records.gradebook(course) as book:
        for student, score in zip(STUDENTS, (2.0, 1.0, 1.5, 0.0), strict=False):
            grade = book.find_grade("why", NAME, NAME, student)
            grade.manual_score, grade.needs_manual_grade = score, False
        book.db.commit()
    return course


@pytest.fixture
def graded(template_graded, tmp_path, monkeypatch):
    shutil.copytree(template_graded.root, tmp_path / "course")
    monkeypatch.setenv("LAB_COURSE", str(tmp_path / "course"))
    return Course(tmp_path / "course")


def answers(course):
    with records.gradebook(course) as book:
        return second.graded_by_hand(course, book, NAME)


def fill(course, scores, comment=""):
    """Give the answers of these students a second score."""
    ids = {one.id: scores[one.student] for one in answers(course) if one.student in scores}
    path = second.folder(course, NAME) / "scores.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["answer"] in ids:
            row |= {"score": str(ids[row["answer"]]), "comment": comment}
    with path.open("w") as file:
        table = csv.DictWriter(file, second.COLUMNS)
        table.writeheader()
        table.writerows(rows)


@pytest.mark.slow
def test_the_draw_is_of_answers_that_a_person_scored_and_always_the_same(graded):
    result = answers(graded)
    assert {one.student for one in result} == set(STUDENTS[:4])
    half = second.draw(result, 0.5)
    assert len(half) == 2
    assert [one.id for one in half] == [one.id for one in second.draw(answers(graded), 0.5)]
    assert len(second.draw(result, 0.01)) == 1 and len(second.draw(result, 1)) == 4


@pytest.mark.slow
def test_the_second_grader_sees_answers_and_rubric_and_neither_names_nor_scores(graded, capsys):
    assert cli.main(["second", NAME, "--share", "1"]) == 0
    assert "4 answers drawn of 4" in capsys.readouterr().out
    place = second.folder(graded, NAME)
    page, table = (place / "answers.html").read_text(), (place / "scores.csv").read_text()
    assert page.count("Answer of ") == 4 and "names the slowest link" in page
    assert "alert(1)</script>" not in page and "Content-Security-Policy" in page
    for student in STUDENTS:
        assert not re.search(rf"\b{student}\b", page + table)
    assert table.startswith("answer,cell,points,score,comment\n") and table.count(",why,2.0,,") == 4


@pytest.mark.slow
def test_both_scores_are_recorded_and_compared_and_no_grade_changes(graded, capsys):
    cli.main(["second", NAME, "--share", "1"])
    before = (graded.root / "gradebook.db").read_bytes()
    fill(graded, {"ada": 2, "grace": 2, "jane": "1,5"}, "=1+1")
    capsys.readouterr()
    assert cli.main(["second", NAME]) == 0
    said = capsys.readouterr().out
    assert "0.33" in said and "+0.33" in said and "(few)" in said
    assert "apart: grace, why: 1 and 2 of 2" in said and "1 without a score" in said
    with (second.folder(graded, NAME) / "agreement.csv").open() as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert (rows["grace"]["first"], rows["grace"]["second"]) == ("1.0", "2.0")
    assert rows["grace"]["comment"] == "'=1+1"
    assert (graded.root / "gradebook.db").read_bytes() == before


@pytest.mark.slow
def test_a_second_draw_keeps_what_was_scored(graded, capsys):
    cli.main(["second", NAME, "--share", "0.25"])
    (line,) = second.read(graded, NAME)
    fill(graded, dict.fromkeys(STUDENTS, 1))
    cli.main(["second", NAME, "--share", "1"])
    assert "3 answers drawn of 4 that were graded by hand; 4 in all" in capsys.readouterr().out
    first, *rest = second.read(graded, NAME)
    assert (first.answer, first.score) == (line.answer, 1.0)
    assert [one.score for one in rest] == [None] * 3


@pytest.mark.slow
def test_a_table_with_semicolons_and_a_decimal_comma_is_read(graded):
    cli.main(["second", NAME, "--share", "0.2"])
    path = second.folder(graded, NAME) / "scores.csv"
    path.write_text("\ufeff" + path.read_text().replace(",why,2.0,,", ",why,2.0,1.5,")
                    .replace(",", ";").replace("1.5", "1,5"))
    (line,) = second.read(graded, NAME)
    assert (line.cell, line.points, line.score) == ("why", 2.0, 1.5)


@pytest.mark.slow
def test_a_score_of_an_older_notebook_is_left_out(graded, capsys):
    cli.main(["second", NAME, "--share", "1"])
    fill(graded, dict.fromkeys(STUDENTS, 1))
    path = graded.notebook("submitted", NAME, "ada")
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["again"] = True
    nbformat.write(notebook, path)
    capsys.readouterr()
    assert cli.main(["second", NAME]) == 0
    said = capsys.readouterr().out
    assert "1 left out: submitted again" in said and "ada" not in said


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "said"), [
    (",why,2.0,,", ",why,2.0,3,", "line 2: score 3: give 0 to 2"),
    (",why,2.0,,", ",why,2.0,-1,", "line 2: score -1: give 0 to 2"),
    (",why,2.0,,", ",why,2.0,nan,", "line 2: score nan: give 0 to 2"),
    (",why,2.0,,", ",why,2.0,good,", "line 2: score 'good' is not a number"),
    (",why,2.0,,", ",why,,1,", "its answer or its points are missing"),
    ("answer,cell", "id,cell", "it has no column answer"),
])
def test_scores_that_are_refused(graded, old, new, said):
    cli.main(["second", NAME, "--share", "0.2"])
    path = second.folder(graded, NAME) / "scores.csv"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(LabError, match=r"scores\.csv.*" + said):
        second.read(graded, NAME)


@pytest.mark.slow
@pytest.mark.parametrize("share", ["0", "1.5", "nan", "some"])
def test_shares_that_are_refused(graded, share, capsys):
    with pytest.raises(SystemExit):
        cli.main(["second", NAME, "--share", share])
    assert "at most 1" in capsys.readouterr().err


@pytest.mark.slow
def test_nothing_to_compare_says_what_comes_first(graded, capsys):
    assert cli.main(["second", NAME]) == 1
    assert f"lab second {NAME} --share 0.2" in capsys.readouterr().err


@pytest.mark.parametrize(("scores", "kappa"), [
    ([(0, 0), (1, 1), (2, 2)], 1.0),
    ([(0, 2), (2, 0)], -1.0),
    ([(0, 0), (0, 2), (2, 0), (2, 2)], 0.0),
    ([(1, 1), (1, 1)], None),
    # Two classes: the unweighted kappa, (0.7 - 0.5) / (1 - 0.5).
    ([(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15, 0.4),
])
def test_weighted_kappa(scores, kappa):
    result = weighted_kappa(scores)
    assert result == kappa if kappa is None else result == pytest.approx(kappa)


def test_agreement_has_differences_in_points():
    pairs = [ScorePair("a", "ada", "why", 4, 3, 4), ScorePair("b", "grace", "why", 4, 2, 0.5)]
    result = agreement(pairs)
    assert (result.count, result.mean_difference, result.bias) == (2, 1.25, -0.25)
