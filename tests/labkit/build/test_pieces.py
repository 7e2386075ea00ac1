"""`lab build` extracts the files of mytrainer/ from the labs' solutions."""

import pytest

from labcore.errors import LabError
from labkit.build.cli import build

WORKED = "notebooks/worked/mytrainer/ddp.py"


@pytest.fixture
def labs(root):
    """One lab that writes mytrainer/ddp.py, and one that writes no piece."""
    for name, path in (("90_first", "mytrainer/ddp.py"), ("91_second", "code/other.py")):
        (root / "solutions" / f"{name}.py").write_text(LAB.format(path=path))
    (root / "solutions" / "90_sample.py").unlink()
    return root


LAB = '''# ---
# jupyter:
#   jupytext:
#     comment_magics: false
# ---

# %% [markdown]
# # A lab

# %% answer="piece"
%%writefile {path}
"""A module."""

### BEGIN SOLUTION
SIZE = 25
### END SOLUTION
'''


def test_the_worked_file_is_the_answer_with_its_solution(labs):
    assert WORKED in build(labs)
    assert (labs / WORKED).read_text() == '"""A module."""\n\nSIZE = 25\n'
    assert [path.name for path in (labs / WORKED).parent.iterdir()] == ["ddp.py"]
    (labs / WORKED).write_text("stale")
    assert build(labs, write=False) == [WORKED]


@pytest.mark.parametrize("names", [[], ["90"]])
def test_without_worked_notebooks_there_are_no_worked_files(labs, names):
    build(labs)
    assert WORKED in build(labs, names, worked=False)
    assert not (labs / WORKED).parent.exists()


def test_a_file_whose_lab_is_gone_goes_too(labs):
    build(labs)
    (labs / "solutions" / "90_first.py").unlink()
    assert build(labs, ["91"]) == [] and (labs / WORKED).exists()
    assert WORKED in build(labs) and not (labs / WORKED).exists()


def test_two_labs_cannot_write_one_file(labs):
    (labs / "solutions" / "91_second.py").write_text(LAB.format(path="mytrainer/ddp.py"))
    with pytest.raises(LabError, match=r"solutions/91_second.py: mytrainer/ddp.py is already an "
                       r"answer of solutions/90_first.py"):
        build(labs)
    assert not (labs / "notebooks").exists()
