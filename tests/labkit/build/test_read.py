"""The result of `labkit.build.read`: a lab's answers, checks, mutants, and short setting."""

import pytest

from labcore.errors import LabError
from labkit.build import Role, read
from labkit.build.metadata import shortened
from labkit.build.notebooks import notebooks
from tests.labkit.build.conftest import line_of

EXPLORED = '# %% tags=["explore"]'


def test_answers_checks_and_mutants_are_found(author):
    lab = read(author())
    assert list(lab.answers) == ["global-batch", "script", "counter", "guess"]
    assert [check.points for check in lab.checks.values()] == [2, 1, 1.5]
    assert {name: [check.grade_id for check in checks] for name, checks in lab.tested_by.items()} \
        == {"global-batch": ["global-batch-check"], "script": ["script-check"],
            "counter": ["counter-check"], "guess": []}
    assert [len(mutants) for mutants in lab.mutants.values()] == [2, 2, 2, 0]
    assert lab.answers["script"].path == "code/mine.sh"
    (setup,) = lab.of(Role.SETUP)
    assert setup.line == line_of(lab.path, "import math")
    assert lab.answers["global-batch"].uses >= {"math"}


PIECE = """# %% answer="piece"
# %%writefile mytrainer/piece.py
### BEGIN SOLUTION
number = 3
### END SOLUTION

# %% [raw] mutant="piece" hint="too many"
# -number = 3
# +number = 4

# %% [raw] mutant="piece" hint="too few"
# -number = 3
# +number = 2

# %% tags=["driver"]
def the_number():
    from mytrainer.piece import number

    return number

# %% check="piece" points=1
check.function(the_number, cases=[()], expected=[3], hints={"too many": [4], "too few": [2]})

"""
PREDICT = "# %% [markdown]\n# ## Predict"


def test_a_driver_tests_the_answer_whose_file_it_imports(author):
    lab = read(author((PREDICT, PIECE + PREDICT)))
    assert lab.answers["piece"].module == "mytrainer.piece"
    assert [check.grade_id for check in lab.tested_by["piece"]] == ["piece-check"]
    assert lab.answers["script"].module is None
    with pytest.raises(LabError, match="it uses none of the student's names"):
        read(author((PREDICT, PIECE.replace("from mytrainer.piece", "from mytrainer.other")
                     + PREDICT)))


def test_the_short_setting_is_in_no_notebook(author):
    lab = read(author((EXPLORED, f'{EXPLORED} short={{"queue": "waiting room", "is": "was"}}')))
    first, *others = map(shortened, lab.of(Role.EXPLORE))
    assert first == "!echo the waiting room was empty"
    assert others == [cell.source for cell in lab.of(Role.EXPLORE)[1:]]
    assert not any("short" in text or "waiting room" in text for text in notebooks(lab).values())
