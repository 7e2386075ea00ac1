"""Lab 03, exercise 10: students write the start of the ranks in other ways than we do."""

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
                                "meet at slurmnode2"),
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


def test_what_exercise_6_reads_in_the_profiler_is_what_the_model_of_the_cards_says():
    lab = lab_of(LAB)
    names = {}
    exec(lab.answers["overview"].source, names)
    (cost,) = costs.of({"the job": "--virtual-network ethernet:25gbit --micro-batch-size 2"},
                       "--device virtual:v100 --world-size 4 --gpus-per-node 2 --num-layers 12 "
                       "--hidden-size 768 --num-attention-heads 32 --seq-length 1024 "
                       "--max-position-embeddings 1024")
    assert names["overview"]["communication"] == pytest.approx(100 * cost.communication, abs=0.2)
