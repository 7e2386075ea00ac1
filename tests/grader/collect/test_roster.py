"""A roster file is imported whole or not at all, and what is exported can be imported again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.course.roster import Person, Roster, add, people, read_file, write_csv
from grader.gradebook.records import gradebook
from labcore.errors import LabError
from tests.grader.collect.conftest import PEOPLE

HEADER = "id,first_name,last_name,email,lms_user_id\n"
EVE = Person("eve", "Ève", "Müller", "eve@uni.test", "7")


@pytest.fixture
def read(tmp_path):
    def read(content: str | bytes):
        path = tmp_path / "students.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_file(path)

    return read


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_spreadsheets_files_are_read(read, encoding, delimiter, ending):
    text = (HEADER + "eve,Ève,Müller,eve@uni.test,7\n").replace(",", delimiter)
    content, notes = read(text.replace("\n", ending).encode(encoding))
    assert content == [EVE]
    assert bool(notes) == (encoding == "cp1252")


def test_columns_that_are_not_used_are_named_and_order_does_not_matter(read):
    content, notes = read("sep=;\nGroup;LAST_NAME;ID\n3;Müller;eve\n\n;;\n")
    assert content == [Person("eve", "", "Müller")] and "group" in notes[0]


@pytest.mark.parametrize("text, problem", [
    ("", "is empty"), ("name\nx\n", "line 1: no column id"), (HEADER, "no student below"),
    ("id,id\na,b\n", "occurs twice"), (HEADER + "eve,a,b,c\n", "line 2: 4 cells, but 5 columns"),
    ("id\neve\nbob\neve\n", r"line 4: id 'eve' occurs already in line 2"),
    ("id\neve\nEve\n", "case is ignored"), ("id,email\n,x@y\n", "line 2: no id"),
    ("id,lms_user_id\na,7\nb,7\n", "line 3: lms_user_id '7'"),
    ("id\n../x\n", "slash"), ("id\na\u202eb\n", "invisible"), ("id\nCON\n", "Windows"),
    ("id,email\na,x\n", "no @"), ('id\n"a\n', "unexpected end of data"),
    ("id,first_name\na,x\x1b[2J\n", "cannot be seen"), ("id\n" + "a" * 200 + "\n", "128 char"),
])
def test_a_file_that_is_not_right_is_refused_with_its_lines(read, text, problem):
    with pytest.raises(LabError, match=problem):
        read(text)


def test_all_bad_lines_are_named_at_once_and_nothing_is_imported(course, command, tmp_path):
    (tmp_path / "students.csv").write_text("id\nnew\n../a\nnew\n")
    done = command("roster", "import", str(tmp_path / "students.csv"))
    assert done.returncode == 1 and re.search(r"line 3.*\n.*line 4", done.stderr), done.stderr
    with gradebook(course) as book:
        assert people(book) == PEOPLE


def test_an_import_adds_and_changes_and_keeps_what_is_not_said(course):
    with gradebook(course) as book:
        assert add(book, [EVE, Person("ada", email="new@uni.test"), PEOPLE[1]]) == (1, 1)
        result = Roster(people(book)).ids
    assert result["ada"] == Person("ada", "Ada", "Lovelace", "new@uni.test", "101")
    assert result["eve"] == EVE and len(result) == 5
    with gradebook(course) as book, pytest.raises(LabError, match="is ada's"):
        add(book, [Person("new"), Person("bob", lms_user_id="101")])
    with gradebook(course) as book:
        assert len(people(book)) == 5


def test_the_commands(command, tmp_path):
    listed = command("roster", "list")
    assert "Lovelace" in listed.stdout and "4 students" in listed.stdout
    done = command("roster", "export", "--to", str(tmp_path / "out.csv"))
    assert done.returncode == 0
    assert read_file(tmp_path / "out.csv")[0] == PEOPLE
    done = command("roster", "import", str(tmp_path / "out.csv"))
    assert "0 added, 0 changed, 4 as before" in done.stdout, done.stderr


WORDS = st.text("=+-@'\"aé;, \u4e2d", max_size=8).map(str.strip)


@settings(max_examples=50)
@given(st.lists(st.builds(Person, st.text("=+-@'aéb,;", min_size=1, max_size=8), WORDS, WORDS),
                min_size=1, unique_by=lambda person: person.id.casefold()))
def test_export_and_import_are_inverse_and_no_cell_is_a_formula(tmp_path_factory, found):
    text = write_csv(found)
    path = tmp_path_factory.getbasetemp() / "roster.csv"
    path.write_text(text)
    assert read_file(path)[0] == found
    for cell in re.split(r'[,\n]"?', text):
        assert not cell.startswith(("=", "+", "-", "@")) or '"' in text


@pytest.mark.parametrize("said, student", [
    ("ada", "ada"), ("101", "ada"), ("ADA", "ada"), ("Ada@Uni.test", "ada"),
    ("Lovelace, Ada", "ada"), ("lovelaceada", "ada"), ("José Müller", ""), ("", ""), ("Ad", ""),
])
def test_one_person_is_meant_or_nobody(said, student):
    roster = Roster(PEOPLE)
    if student:
        assert roster.by_id(said) == student
    else:
        with pytest.raises(LookupError):
            roster.by_id(said)


def test_an_id_in_two_spellings_is_refused(course, tmp_path):
    file = tmp_path / "students.csv"
    file.write_text("id\nJose\u0301\n")
    people, _ = read_file(file)
    assert people[0].id == "Jos\u00e9"
    with gradebook(course) as book:
        add(book, people)
        with pytest.raises(LabError, match="is spelled Jos\u00e9 in the gradebook"):
            add(book, [Person("Jose\u0301")])
    with pytest.raises(LookupError, match="may be"):
        Roster([Person("Ada"), Person("ada")]).by_id("ada")


@pytest.mark.parametrize("name", ["Receipts.jsonl", "unreadable.jsonl"])
def test_a_file_of_the_whole_class_is_no_id(tmp_path, name):
    file = tmp_path / "students.csv"
    file.write_text(f"id\n{name}\n")
    with pytest.raises(LabError, match="the name of a file about the whole class"):
        read_file(file)


@pytest.mark.parametrize(("name", "says"), [
    ("ada\u3164", "invisible"), ("a\u034fda", "invisible"), ("ada\ufe0f", "invisible"),
    ("a\u2800da", "invisible"), ("a\xa0da", "invisible"), ("a\u3000da", "invisible"),
    ("\uff41\uff44\uff41", "nearest: ada"), ("ada\uff11", "nearest: ada1"),
    ("\U0001d41ada", "nearest: ada"), ("\ufb01n", "nearest: fin")])
def test_an_id_that_looks_like_another_is_refused(tmp_path, name, says):
    file = tmp_path / "students.csv"
    file.write_text(f"id\n{name}\n")
    with pytest.raises(LabError, match=says):
        read_file(file)


@pytest.mark.parametrize("name", ["jos\u00e9", "\u738b\u82b3", "a b", "\ud55c\uae00",
                                  "\u0440\u0443\u0441", "\u0939\u093f\u0928\u094d\u0926\u0940",
                                  "\u0e19\u0e49\u0e33"])
def test_ids_of_all_scripts_are_taken(tmp_path, name):
    file = tmp_path / "students.csv"
    file.write_text(f"id\n{name}\n")
    assert read_file(file)[0][0].id == name
