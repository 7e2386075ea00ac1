"""Lab 00: answers that differ from the reference and are right have full marks."""

import pytest

from labcore import workspace
from labkit.build.lab import Role
from tests.labs import graded
from tests.labs.test_labs import home, lab_of  # noqa: F401

LAB = workspace.CHECKOUT / "solutions" / "00_welcome.py"

LINE_BY_LINE = '''
    before = ""
    for line in log.splitlines():
        prefix, colon, text = line.partition(": ")
        if prefix.startswith("[rank") and before.startswith(" ") and not text.startswith(" "):
            if not any(words in text for words in LOST):
                return int(prefix[5:-1]), text
        before = text
'''
CHAINS = '''
    rows = {}
    for line in table.strip().split("\\n") if table else []:
        job, reason, waits_for = line.split("|")
        others = [] if waits_for == "(null)" else waits_for.split(",")
        rows[int(job)] = reason, [int(one.split(":")[1].split("(")[0]) for one in others]
    bad = ("DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin", "PartitionDown",
           "PartitionTimeLimit")

    def stuck(job):
        reason, others = rows.get(job, ("", []))
        return reason in bad or "Unavailable" in reason or any(map(stuck, others))
    return list(filter(stuck, rows))
'''
FIELDS = '''
    parts = [part.strip() for part in line.split("|")]
    step, last = parts[0].removeprefix("iteration").split("/")
    value = {name: text for name, colon, text in (part.partition(": ") for part in parts)}
    seconds = float(value["elapsed time per iteration (ms)"]) / 1e3
    tokens = int(value["global batch size"]) * sequence_length
    return [tokens / seconds, (int(last) - int(step)) * seconds / 60]
'''
CEILING = '''
    import math
    return math.ceil(tokens / (global_batch * sequence_length))
'''
DATA = '"$LAB_HOME/data/bpe-4096/text_document.bin"'
RESULT = '"$LAB_HOME/megatron/logs/tokens.json"'
ABSOLUTE = f'"$LAB_HOME/code/count_tokens.py" \\\n    --data {DATA} --result {RESULT}'
RELATIVE = ("code/count_tokens.py --data=data/bpe-4096/text_document.bin "
            "--result=megatron/logs/tokens.json")
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


@pytest.mark.parametrize(("answer", "body"), [
    ("steps-for", CEILING), ("progress", FIELDS), ("never-start", CHAINS),
    ("first-cause", LINE_BY_LINE)])
def test_another_right_function_has_full_marks(answer, body, home):  # noqa: F811
    assert said(answer, lambda source: source.partition("    ### BEGIN")[0] + body, home) == ""


@pytest.mark.parametrize("changes", [
    [(ABSOLUTE, RELATIVE), ("set -euo pipefail", 'set -e\ncd "$LAB_HOME"')],
    [(ABSOLUTE, RELATIVE), ("srun ", 'srun --chdir="$LAB_HOME" ')],
    [(ABSOLUTE, RELATIVE), (SRUN, 'cd "$LAB_HOME/notebooks/.." && srun -c 4 torchrun')],
    [(RESULT, '"${LAB_HOME}"/megatron/./logs/tokens.json')],
    [("set -euo pipefail\n", ""), ('echo "done"', "")],
    [("set -euo pipefail\n", ""), (RESULT, f"{RESULT} || exit $?")],
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
