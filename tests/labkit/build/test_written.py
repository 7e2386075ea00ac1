"""Written answers and their rubrics: what is built of them, and what is refused."""

import json

import pytest

from labcore.errors import LabError
from labkit.build import read
from labkit.build.cli import build
from tests.labkit.build.conftest import SAMPLE, line_of

WRITTEN = """
# %% [markdown]
# ## Exercise 4: why
#
# Why is a step slower with more ranks?

# %% [markdown] written="why" points=3
# Every rank waits for the slowest link.

# %% [markdown] rubric="why" visible=true
# - 1 point: names the all-reduce
# - 2 points: says that its time is that of the slowest link,
#   not of the fastest
#
# Accept "network" for "link".
"""
SOURCE, RELEASE, WORKED = (f"{folder}/90_sample.ipynb" for folder in
                           ("grader/source/90_sample", "notebooks", "notebooks/worked"))


@pytest.fixture
def written(author, root):
    """The sample lab with a written answer; `changes` are made in its cells."""
    def write(*changes):
        path, text = author(), WRITTEN
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(SAMPLE + text)
        return path

    return write


def cells_of(root, name):
    return {cell["id"]: "".join(cell["source"])
            for cell in json.loads((root / name).read_text())["cells"]}


def test_students_get_the_question_and_the_criteria_and_no_model_answer(written, root):
    written()
    build(root)
    cells, text = cells_of(root, RELEASE), (root / RELEASE).read_text()
    assert cells["why"] == "*Your turn: replace this line with your answer.*"
    assert "slowest link." not in text and "Accept" not in text and "SOLUTION" not in text
    (question,) = [source for source in cells.values() if "Exercise 4" in source]
    assert "*A person grades this answer (3 points) by these criteria:*" in question
    assert "- 1 point: names the all-reduce\n- 2 points: says" in question
    assert "slowest link, not of the fastest" in question and "#cell-id=why" in question
    marks = next(cell for cell in json.loads((root / RELEASE).read_text())["cells"]
                 if cell["id"] == "why")["metadata"]["nbgrader"]
    assert (marks["grade"], marks["solution"], marks["locked"], marks["points"]) == (
        True, True, False, 3)


def test_criteria_that_are_not_visible_are_the_graders_alone(written, root):
    written((" visible=true", ""))
    build(root)
    text = (root / RELEASE).read_text()
    assert "A person grades this answer (3 points).*" in text and "all-reduce" not in text
    source = cells_of(root, SOURCE)["why"]
    assert source == """### BEGIN SOLUTION
Every rank waits for the slowest link.

**Rubric** (3 points)

- 1 point: names the all-reduce
- 2 points: says that its time is that of the slowest link, not of the fastest

Accept "network" for "link".
### END SOLUTION"""
    worked = cells_of(root, WORKED)["why"]
    assert worked == "Every rank waits for the slowest link."
    assert "Rubric" not in (root / WORKED).read_text()


def test_text_around_the_model_answer_stays_in_the_students_cell(written, root):
    written(("# Every rank waits", "# My answer:\n#\n# ### BEGIN SOLUTION\n# Every rank waits"),
            ("slowest link.\n", "slowest link.\n# ### END SOLUTION\n"))
    build(root)
    assert cells_of(root, RELEASE)["why"].startswith("My answer:\n\n*Your turn")
    assert cells_of(root, SOURCE)["why"].endswith('"link".\n### END SOLUTION')


@pytest.mark.parametrize(("old", "new", "said", "piece"), [
    ("- 1 point: names", "- 2 points: names", "its criteria sum to 4 points, but written answer "
     "why is worth 3", None),
    ("- 1 point: names", "- 1 pt: names", "'- 1 pt: names the all-reduce' is not a criterion",
     "- 1 pt"),
    ('rubric="why"', 'rubric="wy"', "no written answer with that name (nearest: why)", None),
    ('rubric="why"', 'rubrik="why"', "it has no rubric, and a person grades it", None),
    ("visible=true", 'visible="yes"', "visible is true or false", None),
    ("# Every rank waits for the slowest link.\n", "#\n", "it is empty: write the model answer",
     None),
    (" points=3", "", "give it points: # %% [markdown] written=", None),
    (" points=3", " points=0", "points 0: a written answer needs more than 0", None),
    ("# - 1 point: names the all-reduce\n# - 2 points: says that its time is that of the slowest "
     "link,\n#   not of the fastest\n", "", "it has no criteria", None),
    ("# %% [markdown]\n# ## Exercise 4", '# %% [markdown] tags=["setup"]\n# ## Exercise 4',
     "a Markdown cell is either plain text", None),
])
def test_rubrics_that_are_refused(written, old, new, said, piece):
    path = written((old, new))
    with pytest.raises(LabError) as error:
        read(path)
    (line,) = [line for line in str(error.value).split("\n") if said in line]
    if piece:
        assert line.startswith(f"{path}:{line_of(path, piece)}:")


def test_a_lab_of_written_answers_alone_is_a_lab(root):
    head = SAMPLE[:SAMPLE.index('# %% tags=["setup"]')]
    (root / "solutions" / "90_sample.py").write_text(head + WRITTEN)
    assert not read(root / "solutions" / "90_sample.py").checks
