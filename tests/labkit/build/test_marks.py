"""Short marks: one or two words on a cell's line in place of nbgrader's six keys."""

import json

import jupytext
import pytest

from labcore.errors import LabError
from labkit.build import read
from labkit.build.notebooks import notebooks

ANSWER = ('nbgrader={"grade": false, "grade_id": "global-batch", "locked": false, '
          '"schema_version": 3, "solution": true}')
CHECK = ('nbgrader={"grade": true, "grade_id": "global-batch-check", "locked": true, "points": 2, '
         '"schema_version": 3, "solution": false}')
MUTANT = '# %% [raw] tags=["mutant"] answer="global-batch" hint="nobody adds"'
SHORT = ((ANSWER, 'answer="global-batch"'), (CHECK, 'check="global-batch" points=2'),
         (MUTANT, '# %% [raw] mutant="global-batch" hint="nobody adds"'))


def without_task(texts):
    """The notebooks' cells; nbgrader takes a missing "task" for false."""
    cells = [cell for name, text in texts.items() for cell in json.loads(text)["cells"]
             if name.endswith(".ipynb")]
    for cell in cells:
        cell["metadata"].get("nbgrader", {}).pop("task", None)
        cell["metadata"].get("nbgrader", {}).pop("checksum", None)
    return cells


def test_short_marks_make_the_notebooks_that_long_ones_make(author):
    long = notebooks(read(author()))
    short = notebooks(read(author(*SHORT)))
    assert without_task(short) == without_task(long)
    assert all('"task": false' in text for name, text in short.items()
               if name.endswith(".ipynb") and "worked" not in name)


def test_jupyterlab_keeps_short_marks_when_it_saves_the_source(author):
    text = author(*SHORT).read_text()
    saved = jupytext.writes(jupytext.reads(text, "py:percent"), "py:percent")
    assert [line for line in saved.split("\n") if line.startswith("# %%")] == [
        line for line in text.split("\n") if line.startswith("# %%")]


@pytest.mark.parametrize(("old", "new", "said"), [
    (ANSWER, 'answer=3', "answer=3: give a name in quotes"),
    (ANSWER, 'answer="Global"', "grade_id 'Global': lowercase letters"),
    (ANSWER, 'answer="global-batch" points=2', "an answer has no points; its check does"),
    (ANSWER, 'answer="global-batch" check="global-batch"', "answer= and check= on one cell"),
    (ANSWER, f'answer="global-batch" {ANSWER}', "answer= and nbgrader={...} on one cell"),
    (ANSWER, 'anwser="global-batch"', "roles: none (nearest: answer)"),
    (ANSWER, 'written="why" points=1', "written= belongs on a markdown cell"),
    (CHECK, 'check="global-batch"', "give it points: # %% check="),
    (CHECK, 'check="global-batch" points="two"', "points='two': give the points as a number"),
    (CHECK, 'check="global-batch" points=true', "points=True: give the points as a number"),
    (CHECK, 'check="global-batch" points=0', "points 0: a check needs more than 0"),
    (CHECK, "points=2", "points without a check"),
    (MUTANT, '# %% [raw] mutant="globl-batch" hint="nobody adds"', "(nearest: global-batch)"),
    (MUTANT, '# %% [raw] check="global-batch" points=1', "check= belongs on a code cell"),
])
def test_what_is_refused(author, old, new, said):
    with pytest.raises(LabError) as error:
        read(author((old, new)))
    assert said in str(error.value)
