"""A course with four people on its roster, and archives as LMSs make them."""

from __future__ import annotations

import io
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from grader.collect.collecting import CollectedFile, CollectOptions, collect
from grader.course import Course
from grader.course.roster import Person, add
from grader.gradebook.records import gradebook
from lab.cli import main
from tests.grader import small_lab

NAME = small_lab.NAME
PEOPLE = [Person("ada", "Ada", "Lovelace", "ada@uni.test", "101"),
          Person("grace", "Grace", "Hopper", "grace@uni.test", "102"),
          Person("jm1", "José", "Müller", "jose@uni.test"),
          Person("jm2", "Jose", "Muller", "muller@uni.test")]


@pytest.fixture(scope="session")
def template(template: Course, tmp_path_factory) -> Course:
    """The other tests' course, with these people."""
    root = tmp_path_factory.mktemp("roster") / "course"
    shutil.copytree(template.root, root)
    with gradebook(Course(root)) as book:
        add(book, PEOPLE)
    return Course(root)


@pytest.fixture(scope="session")
def answer(released):
    """The bytes of a submission with that answer."""
    def answer(text: str = small_lab.RIGHT) -> bytes:
        return nbformat.writes(small_lab.answered(released, text)).encode()

    return answer


@pytest.fixture
def take(course: Course):
    """Collect; the table's lines by file."""
    def take(source: Path | str, **options) -> dict[str, CollectedFile]:
        return {line.file: line for line in collect(course, str(source), CollectOptions(**options))}

    return take


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(course: Course, monkeypatch, capsys):
    """`lab` with those words, in this process: starting one takes seconds."""
    def command(*words: str) -> Done:
        monkeypatch.setenv("LAB_COURSE", str(course.root))
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        code = main(list(words))
        return Done(code, *capsys.readouterr())

    return command


@pytest.fixture
def submitted(course: Course):
    def submitted(student: str, lab: str = NAME) -> bytes | None:
        path = course.notebook("submitted", lab, student)
        return path.read_bytes() if path.is_file() else None

    return submitted


def zipped(path: Path, files: dict[str, bytes] | list[tuple[str | zipfile.ZipInfo, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items() if isinstance(files, dict) else files:
            archive.writestr(name, content)
    return path


def bytes_of_zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
