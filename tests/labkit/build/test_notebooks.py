"""The notebooks that `lab build` makes, and how it puts them in place."""

import json
import os
import subprocess
import sys

import nbformat
import pytest

from labcore import workspace
from labcore.errors import LabError
from labkit.build import read
from labkit.build.cli import build
from labkit.build.notebooks import notebooks
from labkit.cells import read_release

MADE = ["grader/source/90_sample/90_sample.ipynb", "notebooks/90_sample.ipynb",
        "notebooks/checks/90_sample.json", "notebooks/worked/90_sample.ipynb"]
SOURCE, RELEASE, CHECKS, WORKED = MADE


def sources(path):
    """Return the source of each cell, by ID."""
    return {cell["id"]: "".join(cell["source"])
            for cell in json.loads(path.read_text())["cells"]}


@pytest.fixture
def built(author, root):
    author()
    build(root)
    return root


def test_a_function_keeps_its_head_and_its_indentation(built):
    assert sources(built / RELEASE)["global-batch"] == (
        'def global_batch(micro_batch, ranks):\n    """Sequences per step."""\n'
        '    raise NotImplementedError("Your turn: replace this line by your code, then run this '
        'cell again")')


def test_a_stub_names_what_is_to_be_defined(built):
    with pytest.raises(NotImplementedError, match="Your turn: define milliseconds here"):
        exec(sources(built / RELEASE)["guess"])


def test_an_unanswered_script_says_so_and_fails(built, tmp_path):
    cell = sources(built / RELEASE)["script"]
    assert cell.startswith("%%writefile code/mine.sh\n#!/bin/bash\n#SBATCH --nodes=2\n")
    done = subprocess.run(["bash", "-c", cell.partition("\n")[2]], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Your turn" in done.stderr


def test_the_worked_notebook_has_answers_and_nothing_hidden(built):
    cells, text = sources(built / WORKED), (built / WORKED).read_text()
    assert "    return math.prod((micro_batch, ranks))" in cells["global-batch"]
    assert "srun torchrun --nnodes 2" in cells["script"]
    for word in ("SOLUTION", "HIDDEN", "mutant", "check.draw", "nbgrader", "Stuck?"):
        assert word not in text
    assert "](../../images/sample.svg)" in text
    assert "](../90_sample.ipynb)" in text


def test_the_instructors_source_has_all_but_the_mutants(built):
    text = (built / SOURCE).read_text()
    assert "BEGIN SOLUTION" in text and "BEGIN HIDDEN TESTS" in text
    assert "mutant" not in text


def test_each_checked_exercise_leads_to_its_answer_in_the_worked_notebook(built):
    text = (built / RELEASE).read_text()
    links = [line for cell in sources(built / RELEASE).values() for line in cell.split("\n")
             if line.startswith("*Stuck?")]
    assert links == [
        "*Stuck? [The worked notebook](worked/90_sample.ipynb#cell-id=global-batch) "
        "shows one way.*",
        "*Stuck? [The worked notebook](worked/90_sample.ipynb#cell-id=script) "
        "shows one way.*",
        "*Stuck? [The worked notebook](worked/90_sample.ipynb#cell-id=counter) "
        "shows one way.*"]
    assert [line for line in links if line in text] == links  # not after the prediction


def test_without_worked_notebooks_there_are_no_links_to_them(built):
    assert sorted(build(built, worked=False)) == [SOURCE, RELEASE, WORKED]
    assert "worked" not in (built / RELEASE).read_text() + (built / SOURCE).read_text()
    assert not (built / "notebooks" / "worked").exists()


def test_every_build_makes_the_same_bytes(built, author):
    before = {path: (built / path).read_bytes() for path in MADE}
    assert build(built) == []
    for path in MADE:
        (built / path).unlink()
    assert build(built) == MADE
    assert {path: (built / path).read_bytes() for path in MADE} == before
    for path in (SOURCE, RELEASE, WORKED):
        nbformat.validate(nbformat.read(built / path, as_version=4))


def test_one_more_cell_changes_no_other_cells_id(built, author):
    before = set(sources(built / RELEASE))
    author(("# %% [markdown]\n# ## Predict", "# %% [markdown]\n# More.\n\n"
            "# %% [markdown]\n# ## Predict"))
    build(built)
    assert before < set(sources(built / RELEASE))


def test_check_names_what_is_stale_and_writes_nothing(built, author):
    assert build(built, write=False) == []
    author(("# Everything that a lab may hold.", "# All that a lab may hold."))
    before = {path: (built / path).read_bytes() for path in MADE}
    assert build(built, write=False) == [SOURCE, RELEASE, WORKED]  # no check has changed
    assert {path: (built / path).read_bytes() for path in MADE} == before


def test_notebooks_of_a_lab_that_is_gone_go_too(built):
    (built / "solutions" / "90_sample.py").unlink()
    assert build(built, write=False) == MADE
    assert build(built) == MADE
    assert not any((built / path).exists() for path in MADE)


def test_a_write_that_fails_leaves_no_half(built, author, monkeypatch):
    author(("# Everything that a lab may hold.", "# All that a lab may hold."))
    before = {path: (built / path).read_bytes() for path in MADE}
    real, count = type(built).write_text, iter(range(9))

    def full(path, *args, **kwargs):
        if next(count) == 2:
            raise OSError(28, "No space left on device")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(type(built), "write_text", full)
    with pytest.raises(OSError, match="No space"):
        build(built)
    assert {path: (built / path).read_bytes() for path in MADE} == before
    assert not list(built.rglob("*.ipynb.*"))


@pytest.mark.parametrize(("name", "said"), [
    ("91", "91: no labs of that name"), ("90_simple", r"nearest: 90_sample")])
def test_a_lab_that_is_not_there(built, name, said):
    with pytest.raises(LabError, match=said):
        build(built, [name])


@pytest.mark.parametrize("name", ["90", "90_sample", "solutions/90_sample.py",
                                  "notebooks/90_sample.ipynb"])
def test_a_lab_has_several_names(author, root, name):
    author()
    assert build(root, [name]) == MADE


def test_a_notebook_beside_the_sources_is_refused(built):
    (built / "solutions" / "90_sample.ipynb").write_text("{}")
    with pytest.raises(LabError, match="notebooks store outputs"):
        build(built)


def test_nbgrader_makes_the_same_release(built):
    """`nbgrader generate_assignment`, with the settings of labkit.build.release."""
    course = built / "grader"
    (course / "nbgrader_config.py").write_text(
        "from labkit.build import release\nc = get_config()\nc.merge(release.CONFIG)\n"
        "c.CourseDirectory.course_id = 'labs'\n")
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", "generate_assignment", "90_sample"], cwd=course,
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "JUPYTER_CONFIG_DIR": str(built / "config"), "HOME": str(built),
             # nbgrader starts `alembic` by name
             "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    theirs = json.loads((course / "release" / "90_sample" / "90_sample.ipynb").read_text())
    assert theirs == json.loads((built / RELEASE).read_text())


def test_the_command(tmp_path):
    """On the real checkout, so that it also says whether all is up to date."""
    lab = os.path.join(os.path.dirname(sys.executable), "lab")
    done = subprocess.run([lab, "build", "--check", "nothing"], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"nothing: no labs of that name in {workspace.CHECKOUT / 'solutions'}" in done.stderr


def test_the_links_of_a_worked_notebook_are_all_moved(author):
    lab = read(author((
        "# ## Exercise 2: a script", "# ## Exercise 2: a script\n#\n# <img alt='a' "
        "src='../images/sample.svg'> [a](90_sample.ipynb#Predict) [b](#Predict) [c][d]\n#\n"
        "# [d]: ../images/sample.svg")))
    text = notebooks(lab)[WORKED]
    assert "src='../../images/sample.svg'" in text
    assert "[a](../90_sample.ipynb#Predict) [b](#Predict)" in text
    assert "[d]: ../../images/sample.svg" in text


HELPED = """# %% [markdown]
# ## More

# %% answer="halve"
def halve(n):
    ### BEGIN SOLUTION
    return n / 2
    ### END SOLUTION

# %% tags=["check-setup"]
import math

LIMIT = 4


# The half of a number, rounded up.
def half_of(n):
    return math.ceil(n / 2)


# %% tags=["driver"]
def halved(n):
    return halve(n)


def halved_twice(n):
    return halve(halve(n))

# %% check="halve" points=1
check.function(halved, cases=[(4,)], expected=[2.0],
               hints={"Nothing is halved.": [4]})
check.that(check.call(halved_twice, LIMIT) == 1.0, "Halve it twice, and one is left.")

# %% [raw] mutant="halve" hint="one is left"
# def halve(n):
#     return 2.0

# %% [raw] mutant="halve" hint="Nothing is halved"
# def halve(n):
#     return n

# %% [markdown]
# And now?

# %% tags=["explore"]
!echo {halved_twice(8)}

# %% tags=["explore"]
print(half_of(3))
"""


def test_helpers_of_an_experiment_move_to_it_and_those_of_a_check_are_left_out(author, root):
    path = author()
    path.write_text(path.read_text() + "\n" + HELPED)
    build(root, missing=[])
    notebook = json.loads((root / RELEASE).read_text())
    shown = ["".join(cell["source"]) for cell in notebook["cells"]][-7:]
    assert shown[1:] == [
        'check("halve")', "And now?",
        "def halved_twice(n):\n    return halve(halve(n))", "!echo {halved_twice(8)}",
        "# The half of a number, rounded up.\ndef half_of(n):\n    return math.ceil(n / 2)",
        "print(half_of(3))"]
    roles = [cell.role.value for cell in read_release(root / RELEASE).cells][-6:]
    assert roles == ["answer", "check-setup", "driver", "check", "explore", "explore"]


def test_the_cell_that_imports_the_checks_names_the_lab(built):
    first = next(text for text in sources(built / RELEASE).values() if "import check" in text)
    assert first == 'from labkit import check\n\ncheck.lab("90_sample")'


def test_the_checks_are_not_in_the_notebooks(built):
    for name in (RELEASE, WORKED):
        assert sources(built / name)["global-batch-check"] == 'check("global-batch")'
    text = (built / CHECKS).read_text()
    assert "one rank's share" in text and "check.draw" not in text and "SOLUTION" not in text
