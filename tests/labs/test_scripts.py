"""Every job script of a lab must train the exercise's model, however it is written."""

import re

import pytest

from labkit.build.lab import Role
from tests.labs import graded
from tests.labs.test_labs import SOLUTIONS, each_lab, home, lab_of  # noqa: F401

pytestmark = pytest.mark.slow

POSITIONS = re.compile(r"(--max-position-embeddings \d+)")
# Each is refused by itself, too: tests/labkit/check/test_given.py.
OTHER_MODEL = (r"\1 --ffn-hidden-size 4 --hidden-dropout 0.3 --lr 3e-3 "
               "--make-vocab-size-divisible-by 1")
NAMED = ("--ffn-hidden-size 4; ", "--hidden-dropout 0.3; ", "--make-vocab-size-divisible-by 1; ")
# What an honest student may write, and gets the same points for.
HONEST = [
    (r"--time=00:10:00", "--time=00:20:00 # more"), (r"--job-name=\w+", "--job-name=mine"),
    (r"--log-interval \d", "--log-interval 7"),
    (r"set -euo pipefail", "set -exo pipefail  # show what runs"),
    (r'"\$LAB_HOME/megatron/Megatron-LM', '"${LAB_HOME}/megatron/./Megatron-LM'),
    (r"--split 949,50,1", "--split 949.0/50/1"),
    (r"--max-position-embeddings (\d+)", r"--max-position-embeddings \1 --hidden-dropout 1e-1 "
     "--attention-dropout .1 --make-vocab-size-divisible-by 128 --log-throughput")]
# Labs are read when a test asks for one: that takes seconds.
# (A check with given=None compares the script's runs itself.)
SCRIPTS = [(path, script) for path in SOLUTIONS
           for script in re.findall(r'check\.script\("([\w/.]+)"(?!, given=None)',
                                    path.read_text())]
each_script = pytest.mark.parametrize(("path", "script"), SCRIPTS,
                                      ids=[script for _, script in SCRIPTS])


def outcome(path, script, home, change):  # noqa: F811
    """Return the messages of a script's checks after its text is changed."""
    lab = lab_of(path)
    (answer,) = [cell for cell in lab.of(Role.ANSWER) if cell.path == script]
    checks = {cell.grade_id for cell in lab.tested_by[answer.grade_id]}
    got = graded.run(lab, home, lambda cell: change(cell.source) if cell is answer
                     else cell.source, checks)
    return "".join(graded.text(error) for error in got.checks.values() if error)


@each_script
def test_another_model_has_no_marks_and_is_named(path, script, home):  # noqa: F811
    def change(source):
        changed, times = POSITIONS.subn(OTHER_MODEL, source)
        assert times == 1
        return changed

    said = outcome(path, script, home, change)
    assert "changes what this exercise does not ask you to change" in said
    assert [flag for flag in NAMED if flag in said] == list(NAMED)


@each_script
def test_the_same_job_written_otherwise_has_full_marks(path, script, home):  # noqa: F811
    def change(source):
        for old, new in HONEST:
            if path.stem != "00_welcome" or not new.startswith(("--time", "--job", "--log-i")):
                source = re.sub(old, new, source)
        return source

    assert outcome(path, script, home, change) == ""


def test_these_labs_check_scripts():
    assert {path.stem[:2] for path, _ in SCRIPTS} == {"00", "02", "03", "14"}


@each_lab
def test_only_job_scripts_have_no_hidden_tests(path):
    """What docs/students.md says."""
    lab = lab_of(path)
    visible = [name for name, check in lab.checks.items() if "BEGIN HIDDEN" not in check.source]
    assert [name for name in visible
            if not all(answer.endswith(".sh") for answer in paths(lab, name))] == []


def paths(lab, check):
    """The files that a check's answers write; "" for an answer that defines names."""
    answers = lab.answers_of(lab.checks[check])
    return [cell.path or "" for cell in lab.of(Role.ANSWER) if cell.grade_id in answers]
