"""Groups: one submission gives every member the grade, the page, and the export."""

from __future__ import annotations

import csv
import os
import zipfile

import pytest

from grader.batch import merge
from grader.collect.collecting import CollectOptions, collect
from grader.course import Submission, groups
from grader.course.roster import Person, add
from grader.feedback.pages import FeedbackPages
from grader.gradebook import decisions, notices, records
from grader.gradebook.extensions import all_extensions
from grader.report.grades import save
from tests.grader import small_lab
from tests.grader.collect.conftest import put, zipped
from tests.grader.conftest import run
from tests.grader.export.files import csv_bytes
from tests.grader.gradebook.conftest import Office
from tests.grader.small_lab import RIGHT, WRONG

pytestmark = pytest.mark.slow
NAME = small_lab.NAME
GROUPS = "student,group\nada,Team 1\ngrace,Team 1\njane@uni.test,Team 2\n"


@pytest.fixture
def team(office, tmp_path) -> Office:
    """Ada and Grace are a group, and Jane is one alone. Ada has submitted for hers."""
    with records.gradebook(office.course) as book:
        add(book, [Person("ada", "Ada", "Lovelace"), Person("grace", "Grace", "Hopper"),
                   Person("jane", "Jane", "Doe", "jane@uni.test"), Person("mary", "Mary", "S")])
    (tmp_path / "groups.csv").write_text(GROUPS)
    assert office.lab("groups", "import", str(tmp_path / "groups.csv")) == 0
    return office


def rows(office: Office) -> dict[str, dict[str, str]]:
    save(office.course)
    with (office.course.root / "grades.csv").open() as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def test_a_members_own_notebook_that_was_put_there_by_hand_is_named(team):
    team.result("grace", WRONG)
    assert "submitted/grace does not count" in rows(team)["grace"]["notes"]
    assert "does not count" not in rows(team)["ada"]["notes"]


def without_name(row: dict[str, str]) -> dict[str, str]:
    return {**row, "student": ""}


@pytest.mark.parametrize("setting", ["", "c.Attempts.counts = 'best'\n"])
def test_every_member_has_the_groups_grade(team, setting):
    with team.course.config_file.open("a") as file:
        file.write(setting)
    team.merge(team.result("ada", WRONG))
    found = rows(team)
    assert without_name(found["grace"]) == without_name(found["ada"])
    assert (found["grace"]["score"], found["grace"]["group"]) == (found["ada"]["score"], "Team 1")
    assert found["mary"]["reason"] == "nothing submitted" and found["mary"]["group"] == ""


def test_what_any_member_submits_is_the_groups(team, tmp_path, capsys):
    course = team.course
    content = course.notebook("submitted", NAME, "ada").read_bytes()
    source = put(tmp_path / "in", {f"grace/{NAME}.ipynb": content + b" "})
    line, = collect(course, str(source), CollectOptions())
    assert (line.student, line.verdict) == ("ada", "new") and "from grace" in line.why
    assert course.digest(NAME, "ada") != "" and not course.submitted(NAME, "grace")
    moodle = "Team 1-Grace Hopper_7_assignsubmission_file_"
    line, = collect(course, str(zipped(tmp_path / "m.zip", {f"{moodle}/x.ipynb": content + b"  "})),
                    CollectOptions())
    assert line.student == "ada" and "from grace" in line.why
    both = put(tmp_path / "two", {f"{who}/{NAME}.ipynb": content + who.encode()
                                  for who in ("ada", "grace")})
    assert {line.verdict for line in collect(course, str(both), CollectOptions())} == {"refused"}
    unread = put(tmp_path / "pdf", {f"grace/{NAME}.pdf": b"%PDF"})
    collect(course, str(unread), CollectOptions())
    assert "unreadable" in rows(team)["ada"]["notes"] == rows(team)["grace"]["notes"]


def test_in_homes_the_one_notebook_of_a_group_is_the_groups(team, tmp_path):
    course = team.course
    content = course.notebook("submitted", NAME, "ada").read_bytes()
    release = course.notebook("release", NAME).read_bytes()
    homes = put(tmp_path / "homes", {f"grace/w/{NAME}.ipynb": content + b" ",
                                     f"ada/w/{NAME}.ipynb": release})
    lines = {line.file.split("/")[0]: line
             for line in collect(course, str(homes), CollectOptions(below="w"))}
    assert (lines["grace"].student, lines["grace"].verdict) == ("ada", "new")
    assert "from grace, for the group" in lines["grace"].why and "unchanged" in lines["ada"].why
    taken = course.digest(NAME, "ada")
    put(homes, {f"ada/w/{NAME}.ipynb": content + b"  ", f"jane/w/{NAME}.ipynb": content})
    lines = {line.file.split("/")[0]: line
             for line in collect(course, str(homes), CollectOptions(below="w"))}
    assert [lines[one].verdict for one in ("ada", "grace", "jane")] == ["refused", "refused", "new"]
    assert "ada and grace submit as a group" in lines["ada"].why
    assert lines["grace"].why.endswith("(to take this one, add --student grace)")
    assert course.digest(NAME, "ada") == taken and "unreadable" not in rows(team)["ada"]["notes"]
    line, = collect(course, str(homes), CollectOptions(below="w", students=("ada",)))
    assert line.verdict == "new" and course.digest(NAME, "ada") != taken
    put(homes, {f"grace/w/{NAME}.ipynb": content + b"  "})  # both have the same now
    assert {line.verdict for line in collect(course, str(homes), CollectOptions(below="w"))
            if line.student == "ada"} == {"same"}


def test_an_import_names_who_loses_the_groups_grade(team, tmp_path, capsys):
    file = tmp_path / "changed.csv"
    file.write_text("student,group\nada,1\ngrace,1\nmary,1\n")
    assert team.lab("groups", "import", str(file)) == 0
    file.write_text("student,group\nada,1\nmary,1\ngrace,2\njane,2\n")
    capsys.readouterr()
    pages = {one: Submission(team.course, NAME, one).page for one in ("ada", "mary", "grace")}
    for page in pages.values():
        page.parent.mkdir(parents=True)
        page.write_text("3 / 5")
    assert team.lab("groups", "import", str(file)) == 0
    err = capsys.readouterr().err
    assert "grace has left ada's group, and its grade and its feedback page no longer" in err
    assert err.count("has left") == 1
    assert [one for one, page in pages.items() if page.exists()] == ["ada", "mary"]
    assert rows(team)["grace"]["reason"] == "nothing submitted"


def test_a_decision_is_one_members_and_an_extension_the_groups(team, capsys, monkeypatch):
    monkeypatch.setattr("grader.batch.grading.remake_pages", lambda course, work, done: work)
    assert team.lab("score", "grace", NAME, "4", "--why", "left the group") == 0
    assert team.lab("score", "ada", NAME, "excused", "--why", "ill, private") == 0
    found = rows(team)
    assert (found["grace"]["score"], found["ada"]["state"]) == ("4.0", "excused")
    assert team.lab("release", NAME, "--due", "2026-01-31 12:00 UTC") == 0
    assert team.lab("extend", "grace", NAME, "2026-02-01 12:00 UTC") == 0
    with records.gradebook(team.course) as book:
        assert set(all_extensions(team.course, book)) == {(NAME, "ada")}
    assert rows(team)["grace"]["due"] == "2026-02-01T12:00:00+00:00"


def test_every_member_has_a_page_and_nobody_sees_another_ones_decision(team):
    decisions.add(team.course, decisions.SCORE, ["ada"], NAME, decisions.EXCUSED, "ill, private")
    team.merge(team.result("ada", RIGHT))
    submission = Submission(team.course, NAME, "ada")
    pages = FeedbackPages(team.course, team.config)
    with records.gradebook(team.course) as book:
        given = merge.feedback_values(submission, book)
        for member in ("", "grace"):
            given["notices"] = notices.notices_of(submission, book, member)
            pages.make(submission, given, member)
    ada, grace = (Submission(team.course, NAME, one).page for one in ("ada", "grace"))
    assert "ill, private" in ada.read_text() and "private" not in grace.read_text()
    assert "3.0 / 5.0" in grace.read_text()
    team.merge(team.result("ada", WRONG))
    assert not ada.exists() and not grace.exists()  # until those of the new version are made


def test_feedback_and_moodles_zip_have_a_page_for_every_member(team, tmp_path):
    """From the workers that make pages, whose own page is decided on or not."""
    decisions.add(team.course, decisions.SCORE, ["grace"], NAME, 4.0, "spoke for the group")
    team.merge(team.result("ada", RIGHT))
    done = run(team.course, "feedback", NAME, "--to", str(tmp_path / "pages"))
    assert done.returncode == 0 and "2 of 2 pages" in done.stdout, done.stderr
    ada, grace = ((tmp_path / "pages" / one / f"{NAME}.html").read_text()
                  for one in ("ada", "grace"))
    assert "spoke for" in grace and "spoke for" not in ada and "3.0 / 5.0" in ada
    rows = [["Identifier", "Full name", "ID number", "Email address", "Status", "Grade",
             "Maximum grade", "Grade can be changed", "Last modified (grade)"]]
    rows += [[f"Participant {number}", name, one, "", "", "", "5", "Yes", "-"] for number, name, one
             in ((11, "Ada Lovelace", "ada"), (12, "Grace Hopper", "grace"))]
    (tmp_path / "w.csv").write_bytes(csv_bytes(rows))
    done = run(team.course, "export", "moodle", "--roster", str(tmp_path / "w.csv"), "--lab", NAME,
               "--to", str(tmp_path / "up.csv"), "--feedback", str(tmp_path / "p.zip"))
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "p.zip") as archive:
        assert archive.namelist() == [f"Ada Lovelace_11_assignsubmission_file_/{NAME}.html",
                                      f"Grace Hopper_12_assignsubmission_file_/{NAME}.html"]
        assert b"spoke for" in archive.read(archive.namelist()[1])
    rows[1][5], rows[2][5] = "3", "4"
    assert (tmp_path / "up.csv").read_bytes() == csv_bytes(rows)


def test_the_export_has_every_member(team, tmp_path):
    team.merge(team.result("ada", RIGHT))
    rows = [["Student", "ID", "SIS User ID", "Section", f"{NAME} (1)"],
            ["    Points Possible", "", "", "", "5"], ["Lovelace, Ada", "1", "ada", "A", ""],
            ["Hopper, Grace", "2", "grace", "A", ""], ["Doe, Jane", "3", "jane", "A", ""]]
    (tmp_path / "lms.csv").write_bytes(csv_bytes(rows))
    assert team.lab("export", "canvas", "--roster", str(tmp_path / "lms.csv"), "--to",
                    str(tmp_path / "up.csv")) == 0
    rows[2][4] = rows[3][4] = "3"
    assert (tmp_path / "up.csv").read_bytes() == csv_bytes(rows)


@pytest.mark.parametrize("text, says", [
    ("student,group\nada,A\nada,B\n", "line 3: ada is in A and in B"),
    ("student,group\n\neve,A\n", "line 3: eve is not on the roster"),
    ('student,group\nada,"A, B"\n', "is in several groups"),
    ("name,team\nada,A\n", "it needs student and group"),
    ("student,group\nada,\n", "nobody is in a group"),
    ("student,group\ngrace,Team 1\njane,Team 1\n", "ada cannot leave it"),
    ("student,group\nada,Team 3\nmary,Team 3\n", "ada cannot leave it")])
@pytest.mark.parametrize("words", [[], ["--lab", NAME]])
def test_no_import_takes_a_grade_away(team, capsys, tmp_path, text, says, words):
    before = groups.file_of(team.course).read_bytes()
    (tmp_path / "g.csv").write_text(text)
    assert team.lab("groups", "import", str(tmp_path / "g.csv"), *words) == 1
    assert says in (error := capsys.readouterr().err), error
    assert groups.file_of(team.course).read_bytes() == before


def test_who_submitted_alone_does_not_join_a_group_that_submitted(team, capsys, tmp_path):
    team.merge(team.result("mary", RIGHT))
    (tmp_path / "g.csv").write_text("student,group\nada,Team 1\ngrace,Team 1\nmary,Team 1\n")
    assert team.lab("groups", "import", str(tmp_path / "g.csv")) == 1
    assert "ada and mary submitted already" in capsys.readouterr().err
    assert team.lab("groups", "remove") == 1  # Grace would lose her grade
    (tmp_path / "g.csv").write_text("student,group\nada,Team 1\ngrace,Team 1\njane,Team 1\n")
    assert team.lab("groups", "import", str(tmp_path / "g.csv")) == 0
    assert rows(team)["jane"]["score"] == rows(team)["ada"]["score"]


def test_an_owner_who_leaves_the_course_leaves_the_grade_to_the_others(team, monkeypatch):
    from argparse import Namespace

    from grader.cli import choose

    decisions.add(team.course, decisions.DROPPED, ["ada"], "", decisions.DROPPED, "")
    asked = Namespace(all=False, lab=NAME, students=[], ungraded=False)
    assert choose(team.course, asked) == [(NAME, "ada")]
    assert "ada" not in rows(team) and rows(team)["grace"]["state"] == "graded"
    decisions.add(team.course, decisions.DROPPED, ["grace"], "", decisions.DROPPED, "")
    with pytest.raises(records.LabError, match="nothing to grade"):
        choose(team.course, Namespace(all=False, lab=NAME, students=[], ungraded=False))


def test_groups_of_moodle_and_canvas(team, tmp_path):
    from grader.course.roster import Roster, people

    with records.gradebook(team.course) as book:
        roster = Roster(people(book))
    (tmp_path / "m.csv").write_text('First name,Last name,Email address,Roles,Groups\n'
                                    'Jane,Doe,jane@uni.test,Student,"A"\nT,C,t@x,Teacher,A\n'
                                    'Mary,S,mary,,A\n')  # no role there is a student in a roster
    assert groups.read_file(tmp_path / "m.csv", roster) == {"A": ["jane", "mary"]}
    (tmp_path / "c.csv").write_text("name,canvas_user_id,user_id,login_id,sections,group_name\n"
                                    '"Doe, Jane",7,jane,jane@uni.test,S,A\nAda,8,ada,,S,B\n')
    assert groups.read_file(tmp_path / "c.csv", roster) == {"A": ["jane"], "B": ["ada"]}


def test_a_damaged_file_of_groups_is_named(team):
    groups.file_of(team.course).write_text('{"*": [{"name": "x", "owner": "eve", "members": []}]}')
    os.utime(groups.file_of(team.course), (1, 1))
    with pytest.raises(records.LabError, match=r"groups\.json is damaged"):
        save(team.course)
