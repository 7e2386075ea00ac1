"""Lab 03: other right answers to exercise 1, and what the text claims."""

import pytest

from labcore import shipping, workspace
from layout_estimator import costs
from tests.labs import graded
from tests.labs.test_labs import lab_of

LAB = workspace.CHECKOUT / "solutions" / "03_multi_node.py"

TORCHRUN = ('torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d '
            '--rdzv_endpoint "$FIRST_NODE:$PORT"')
RIGHT = {
    "array": f'run=({TORCHRUN} $PROGRAM)\nsrun -c 4 "${{run[@]}}" "$@"',
    "shell": f"export FIRST_NODE PORT\nsrun -c 4 bash -c '{TORCHRUN} \"$@\"' x $PROGRAM \"$@\"",
    "variable": f'export SRUN_CPUS_PER_TASK=4\nsrun {TORCHRUN} $PROGRAM "$@"',
}
WRONG = {
    "another sequence length": (f'srun -c 4 {TORCHRUN} $PROGRAM --seq-length 128 "$@"',
                                "--seq-length 128; the exercise uses 1024"),
    "each node its own": (f'srun -c 4 {TORCHRUN.replace("$FIRST_NODE", "127.0.0.1")} $PROGRAM "$@"',
                          "every node resolves it to itself"),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    home = tmp_path_factory.mktemp("workspace")
    shipping.make_workspace(home)
    lab = lab_of(LAB)

    def judge(answer, change):
        outcome = graded.run(lab, home, lambda cell: change(cell.source) if
                             cell.grade_id == answer else cell.source, {f"{answer}-check"})
        return graded.text(outcome.checks[f"{answer}-check"])

    return judge


def launched_by(lines):
    """Exercise 1's script with other lines in place of the launch."""
    return lambda source: source[:source.index("\nsrun ")] + f"\n{lines}\n"


@pytest.mark.parametrize("name", RIGHT)
def test_other_ways_to_start_the_ranks_are_right(judged, name):
    assert judged("my-two-nodes", launched_by(RIGHT[name])) == "None"


@pytest.mark.parametrize("name", WRONG)
def test_other_trainings_are_wrong_and_told_why(judged, name):
    lines, said = WRONG[name]
    assert said in judged("my-two-nodes", launched_by(lines))


GPT2 = ("--device virtual:v100 --virtual-network ethernet:25gbit --gpus-per-node 2 --num-layers 12 "
        "--hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
        "--max-position-embeddings 1024 ")


def test_two_nodes_are_slower_than_one_and_wait_for_more_than_half_of_the_step():
    one, two = costs.of({
        "one": "--world-size 2 --micro-batch-size 2 --global-batch-size 8",
        "two": "--world-size 4 --micro-batch-size 2 --global-batch-size 8"}, GPT2)
    assert two.milliseconds > 1.05 * one.milliseconds and two.communication > 0.5


def test_a_micro_batch_of_8_runs_out_of_memory_and_one_of_6_does_not():
    six, eight = costs.of({size: f"--micro-batch-size {size}" for size in "68"},
                          GPT2 + "--world-size 4")
    assert six.fits and not eight.fits


def test_the_bubble_of_the_two_node_pipeline_is_near_the_formula_s():
    """Exercise 5 compares 1/(4+1) with the model, in which the last stage also has the logits."""
    (cost,) = costs.of({"hybrid": "--tensor-model-parallel-size 2 --micro-batch-size 4 "
                        "--pipeline-model-parallel-size 2 --global-batch-size 16"},
                       GPT2 + "--world-size 4 ")
    assert 0.20 < cost.bubble < 0.30
