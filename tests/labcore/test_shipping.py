"""Labs and job scripts in the workspace: updated while they are the course's, kept once they are
the student's."""

import json
import os

import pytest

from labcore import shipping, workspace


def notebook(*sources, outputs=(), **metadata):
    cells = [{"cell_type": "code", "source": source, "outputs": list(outputs), "metadata": {}}
             for source in sources]
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


class Course:
    """A checkout with one lab, its worked notebook and one script, and a workspace."""

    def __init__(self, root):
        self.checkout, self.home, self.said = root / "checkout", root / "home", []
        self.put("notebooks/03_x.ipynb", notebook("one"))
        self.put("notebooks/worked/03_x.ipynb", notebook("worked"))
        self.put("code/jobs/run.sh", "srun one\n")

    def put(self, path, text):
        (self.checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (self.checkout / path).write_text(text)

    def ship(self):
        self.home.mkdir(exist_ok=True)
        shipping.ship(self.checkout, self.home, self.said.append)

    def copy(self, path):
        return self.home / path


@pytest.fixture
def course(tmp_path):
    made = Course(tmp_path)
    made.ship()
    return made


def test_programs_that_jobs_start_come_beside_the_scripts(course):
    course.put("code/jobs/measure.py", "print(1)\n")
    course.put("code/jobs/__pycache__/measure.pyc", "")
    course.ship()
    assert sorted(path.name for path in course.copy("code").iterdir()) == ["measure.py", "run.sh"]
    assert not os.access(course.copy("code/measure.py"), os.X_OK)


def test_labs_worked_notebooks_and_scripts_come_as_copies(course):
    assert course.copy("notebooks/03_x.ipynb").read_text() == notebook("one")
    assert course.copy("notebooks/worked/03_x.ipynb").read_text() == notebook("worked")
    assert os.access(course.copy("code/run.sh"), os.X_OK)
    assert not course.said


@pytest.mark.parametrize(("shipped", "copy", "new"), [
    ("notebooks/03_x.ipynb", "notebooks/03_x.ipynb", notebook("two")),
    ("code/jobs/run.sh", "code/run.sh", "srun two\n")])
def test_an_unchanged_copy_is_updated(course, shipped, copy, new):
    course.put(shipped, new)
    course.ship()
    assert course.copy(copy).read_text() == new
    assert not course.said


@pytest.mark.parametrize(("shipped", "copy", "mine", "new", "beside"), [
    ("notebooks/03_x.ipynb", "notebooks/03_x.ipynb", notebook("mine"), notebook("two"),
     "notebooks/03_x.new.ipynb"),
    ("code/jobs/run.sh", "code/run.sh", "mine", "srun two\n", "code/run.new.sh")])
def test_a_changed_copy_stays_and_the_new_version_is_laid_beside_it_said_once(
        course, shipped, copy, mine, new, beside):
    course.copy(copy).write_text(mine)
    course.ship()
    assert not course.said and not course.copy(beside).exists()  # nothing new: nothing to say
    course.put(shipped, new)
    course.ship()
    course.ship()
    assert course.copy(copy).read_text() == mine
    assert course.copy(beside).read_text() == new
    assert course.said == [f"the course has a new version of {copy}: yours stays, the new one is "
                           f"{beside}"]


def test_a_new_version_beside_is_the_students_too_once_he_has_changed_it(course):
    lab = course.copy("notebooks/03_x.ipynb")
    lab.write_text(notebook("mine"))
    course.put("notebooks/03_x.ipynb", notebook("two"))
    course.ship()
    course.copy("notebooks/03_x.new.ipynb").write_text(notebook("two, and mine"))
    course.put("notebooks/03_x.ipynb", notebook("three"))
    course.ship()
    texts = [course.copy(f"notebooks/03_x{end}.ipynb").read_text() for end in ("", ".new", ".new2")]
    assert texts == [notebook("mine"), notebook("two, and mine"), notebook("three")]


def test_an_unchanged_new_version_beside_is_replaced_by_the_next(course):
    course.copy("code/run.sh").write_text("mine")
    for text in ("two", "three"):
        course.put("code/jobs/run.sh", text)
        course.ship()
    assert course.copy("code/run.new.sh").read_text() == "three"
    assert len(list((course.home / "code").iterdir())) == 2


def test_what_jupyterlab_saves_by_itself_is_no_change(course):
    output = {"output_type": "stream", "name": "stdout", "text": "x"}
    course.copy("notebooks/03_x.ipynb").write_text(
        notebook(["on", "e"], outputs=[output], language_info={"version": "3.11"}))
    course.ship()
    kept = course.copy("notebooks/03_x.ipynb").read_text()
    assert '"stdout"' in kept  # the same version: outputs are not lost
    course.put("notebooks/03_x.ipynb", notebook("two"))
    course.ship()
    assert course.copy("notebooks/03_x.ipynb").read_text() == notebook("two")
    assert not course.said


@pytest.mark.parametrize("broken", ["", "{", "[]", "null", '{"cells": 3}', '{"cells": [{}]}',
                                    '{"cells": [null]}', "[" * 100_000])
def test_a_broken_notebook_of_the_students_is_kept(course, broken):
    course.copy("notebooks/03_x.ipynb").write_text(broken)
    course.put("notebooks/03_x.ipynb", notebook("two"))
    course.ship()
    assert course.copy("notebooks/03_x.ipynb").read_text() == broken
    assert course.copy("notebooks/03_x.new.ipynb").read_text() == notebook("two")


@pytest.mark.parametrize("record", [None, "", "{", "[]", "null", '{"code/run.sh": 3}'])
def test_without_its_record_nothing_of_the_students_is_replaced(course, record):
    course.copy("code/run.sh").write_text("mine")
    if record is None:
        (course.home / shipping.RECORD).unlink()
    else:
        (course.home / shipping.RECORD).write_text(record)
    course.ship()
    assert course.copy("code/run.sh").read_text() == "mine"
    assert course.copy("code/run.new.sh").read_text() == "srun one\n"


def test_a_deleted_copy_comes_back_and_a_folder_in_the_way_is_left_alone(course):
    course.copy("code/run.sh").unlink()
    course.ship()
    assert course.copy("code/run.sh").read_text() == "srun one\n"
    course.copy("code/run.sh").unlink()
    course.copy("code/run.sh").mkdir()
    course.put("code/jobs/run.sh", "two")
    course.ship()
    assert course.copy("code/run.sh").is_dir()
    assert course.copy("code/run.new.sh").read_text() == "two"


def test_a_workspace_has_copies_of_the_labs_pictures(tmp_path):
    shipping.make_workspace(tmp_path, lambda line: None)
    ours = {path.name: path.read_bytes() for path in (workspace.CHECKOUT / "images").glob("*.svg")}
    theirs = {path.name: path.read_bytes() for path in (tmp_path / "images").iterdir()}
    assert theirs == ours and len(ours) >= 2
    assert not (tmp_path / "images").is_symlink()  # Jupyter's server would refuse it


def test_a_lab_whose_worked_notebook_is_not_there_has_no_links_to_it(course):
    text = "What is p?" + shipping.WORKED_LINK.format("worked/04_y.ipynb#cell-id=a-b")
    course.put("notebooks/04_y.ipynb", notebook(text, "p = 1"))
    course.ship()
    assert course.copy("notebooks/04_y.ipynb").read_text().count("Stuck?") == 0
    cells = json.loads(course.copy("notebooks/04_y.ipynb").read_text())["cells"]
    assert ["".join(cell["source"]) for cell in cells] == ["What is p?", "p = 1"]
    course.put("notebooks/worked/04_y.ipynb", notebook("worked"))
    course.ship()
    assert "Stuck?" in course.copy("notebooks/04_y.ipynb").read_text()
    assert not course.said
