"""Lab 03: other ways to launch the ranks of exercise 7, and what the text claims."""

import pytest

from labcore import shipping, workspace
from layout_estimator import costs
from tests.labs import graded
from tests.labs.test_labs import lab_of

LAB = workspace.CHECKOUT / "solutions" / "03_multi_node.py"

FIRST = """LAYOUT="--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
BATCH="--micro-batch-size 1 --global-batch-size 16"
MASTER_ADDR=$(scontrol show hostnames | head -n 1)
"""
TRAINER = "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py $DEVICE $LAYOUT $MODEL $BATCH " \
          "$TEXT $OUTPUT"
TOLD = "--nnodes 2 --nproc_per_node 2 --master_addr $MASTER_ADDR --master_port 6000"
RENDEZVOUS = "--nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:6000"
RIGHT = {
    "double quotes": f'srun bash -c "torchrun --node_rank \\$SLURM_NODEID {TOLD} {TRAINER}"',
    "here-document": f"cat > code/inner.sh <<EOF\ntorchrun --node_rank \\$SLURM_NODEID {TOLD} "
                     f"{TRAINER}\nEOF\nsrun bash code/inner.sh",
    "array": f'run=(torchrun {RENDEZVOUS} {TRAINER})\nsrun "${{run[@]}}"',
}
WRONG = {
    "another sequence length": (f"srun torchrun {RENDEZVOUS} {TRAINER} --seq-length 128",
                                "--seq-length 128; the exercise uses 1024"),
    "the last node's address": (FIRST.replace("head", "tail") + "export MASTER_ADDR\nsrun bash -c '"
                                f'torchrun --node_rank $SLURM_NODEID {TOLD} "$@"\' x {TRAINER}',
                                "address is slurmnode2, but rank 0 runs on slurmnode1"),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    home = tmp_path_factory.mktemp("workspace")
    shipping.make_workspace(home)
    lab = lab_of(LAB)
    pieces = lab.answers["my-script"].source.split("### BEGIN SOLUTION")
    given = pieces[0] + pieces[1] + pieces[2].partition("### END SOLUTION")[2]

    def judge(lines: str) -> str:
        outcome = graded.run(
            lab, home, lambda cell: f"{given.rstrip()}\n{FIRST}{lines}\n"
            if cell.grade_id == "my-script" else cell.source, {"my-script-check"})
        return graded.text(outcome.checks["my-script-check"])

    return judge


@pytest.mark.parametrize("name", RIGHT)
def test_other_ways_to_start_the_ranks_are_right(judged, name):
    assert judged(RIGHT[name]) == "None"


@pytest.mark.parametrize("name", WRONG)
def test_other_trainings_are_wrong_and_told_why(judged, name):
    lines, said = WRONG[name]
    assert said in judged(lines)


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


def test_exercise_7_separates_no_two_sensible_micro_batches():
    """The ideal bubble with 4 or more micro-batches is at most 20%, with fewer at least 33%."""
    layout = GPT2 + ("--world-size 4 --tensor-model-parallel-size 2 --global-batch-size 16 "
                     "--pipeline-model-parallel-size 2 ")
    found = costs.of({size: f"--micro-batch-size {size}" for size in "1248"}, layout)
    assert [cost.bubble < 0.30 for cost in found] == [True, True, True, False]
    assert max(cost.bubble for cost in found[:3]) < 0.27 and found[3].bubble > 0.33
