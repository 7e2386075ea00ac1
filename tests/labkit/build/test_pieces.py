"""`lab build` extracts the files of mytrainer/ from the labs' solutions."""

import pytest

from labcore.errors import LabError
from labkit.build.cli import build

WORKED = "notebooks/worked/mytrainer/ddp.py"


PIECE = '''
# %% answer="piece"
%%writefile mytrainer/{name}.py
"""A module."""

### BEGIN SOLUTION
SIZE = 25
### END SOLUTION
'''


@pytest.fixture
def write(author, root):
    """Write a lab with an answer in mytrainer/."""
    (root / "solutions").mkdir(exist_ok=True)

    def write(lab: str, piece: str) -> None:
        path = author(name=lab)
        path.write_text(path.read_text() + PIECE.format(name=piece))

    return write


@pytest.fixture
def labs(author, write, root):
    """One lab that writes mytrainer/ddp.py, and one that writes no piece."""
    write("90_sample", "ddp")
    author(name="91_second")
    return root


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


def test_a_file_that_no_lab_writes_any_more_goes_with_the_next_whole_build(labs, author):
    build(labs)
    author(name="90_sample")
    assert WORKED not in build(labs, ["91"]) and (labs / WORKED).exists()
    assert WORKED in build(labs) and not (labs / WORKED).exists()


def test_two_labs_cannot_write_one_file(labs, write):
    write("91_second", "ddp")
    with pytest.raises(LabError, match=r"solutions/91_second.py: mytrainer/ddp.py is already an "
                       r"answer of solutions/90_sample.py"):
        build(labs)
    assert not (labs / "notebooks").exists()


def test_a_later_lab_may_extend_a_file_beside_it(labs, write):
    write("91_second", "new/ddp")
    assert WORKED.replace("ddp", "new/ddp") in build(labs)
    assert WORKED not in build(labs, ["90"]) and (labs / WORKED).exists()
    assert WORKED.replace("ddp", "new/ddp") in build(labs, worked=False)
