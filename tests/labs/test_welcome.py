"""Lab 00: answers that differ from the reference and are right have full marks."""

import pytest

from labcore import workspace
from labkit.build.lab import Role
from tests.labs import graded
from tests.labs.test_labs import home, lab_of  # noqa: F401

LAB = workspace.CHECKOUT / "solutions" / "00_welcome.py"

DATA = '"$LAB_HOME/data/$text/text_document.bin"'
RESULT = '"$LAB_HOME/megatron/logs/$text.json"'
ABSOLUTE = f'"$LAB_HOME/code/count_tokens.py" \\\n        --data {DATA} --result {RESULT}'
RELATIVE = ('code/count_tokens.py --data="data/$text/text_document.bin" '
            '--result="megatron/logs/$text.json"')
SRUN = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun'


def said(answer, change, home):  # noqa: F811
    """Return what the check of an answer says after a change to its source."""
    lab = lab_of(LAB)
    checks = {cell.grade_id for cell in lab.tested_by[answer]}
    (cell,) = [cell for cell in lab.of(Role.ANSWER) if cell.grade_id == answer]
    source = change(cell.source)
    assert source != cell.source
    outcome = graded.run(lab, home, lambda one: source if one is cell else one.source, checks)
    assert not outcome.answers
    return "".join(graded.text(error) for error in outcome.checks.values() if error)


@pytest.mark.parametrize("changes", [
    [(ABSOLUTE, RELATIVE), ("failed=0", 'cd "$LAB_HOME"; failed=0')],
    [(ABSOLUTE, RELATIVE), ("srun ", 'srun --chdir="$LAB_HOME" ')],
    [(ABSOLUTE, RELATIVE), (SRUN, 'cd "$LAB_HOME/notebooks/.." && srun -c 4 torchrun')],
    [(RESULT, '"${LAB_HOME}"/megatron/./logs/"$text".json')],
    [("failed=1", 'failed=$?'), ("failed=0", "set -u; failed=0")],
    [('for text in "$@"; do', 'while [ $# -gt 0 ]; do text=$1; shift')],
    [("=%x_%j", "=count_%j"), ("torchrun", "python -m torch.distributed.run")]])
def test_every_repair_that_works_has_full_marks(changes, home):  # noqa: F811
    def change(source):
        for old, new in changes:
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        return source

    assert said("my-count", change, home) == ""


@pytest.mark.parametrize(("old", "new"), [
    ("--time=00:10:00", "-t 10"), ("--time=00:10:00", "--time=0-0:10"),
    ("--ntasks-per-node=1", "--ntasks=1"), ("--output=", "--output=./"),
    (SRUN, "srun -c 4 torchrun"), ("--nproc_per_node 2", "--nproc-per-node=2"),
    (SRUN, "export SRUN_CPUS_PER_TASK=4\nsrun torchrun")])
def test_every_script_with_the_same_job_has_full_marks(old, new, home):  # noqa: F811
    assert said("my-first", lambda source: source.replace(old, new), home) == ""
