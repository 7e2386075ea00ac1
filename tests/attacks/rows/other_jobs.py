"""Job scripts that train something else than the exercise's model, and keep what checks look at."""

from __future__ import annotations

from tests.attacks.attack import attack
from tests.attacks.rows.scripts import START, TRAIN, with_flags

RIGHT = TRAIN.format(micro=4, batch=16, data="data/x", more="")
TINY = "--ffn-hidden-size 1 --kv-channels 1"
FILE = f"echo '{TINY}' > flags.txt\n"
# torchrun reads its own flags from PET_; somebody might hope that the trainer does so, too.
VARIABLES = ("export PET_NPROC_PER_NODE=1 FFN_HIDDEN_SIZE=1 MEGATRON_ARGS='--ffn-hidden-size 1'\n"
             "export VIRTUAL_GPU=h100 VIRTUAL_NETWORK=infiniband:8x400gbit\n")
# One step, in which every node starts a second training after the right one.
HIDDEN = RIGHT.replace("srun torchrun", "srun bash -c 'torchrun").rstrip() + (
    "; python code/pretrain_gpt.py --num-layers 1'\n")
RENAMED = "cp code/pretrain_gpt.py code/mine.py\n" + RIGHT + RIGHT.replace("pretrain_gpt", "mine")
OWN = RIGHT.replace("code/pretrain_gpt.py", "/tmp/mine/pretrain_gpt.py")


def script(text: str) -> str:
    return START + text


ATTACKS = [
    attack("n1", "tiny-model", "A job script with a tiny model", job=with_flags(TINY)),
    attack("n2", "no-dropout", "A job script without dropout",
           job=with_flags("--attention-dropout 0 --hidden-dropout 0"), small=True),
    attack("n3", "short-samples", "A job script with shorter samples and no padded vocabulary",
           job=with_flags("--seq-length 8 --make-vocab-size-divisible-by 1")),
    attack("n4", "flag-twice", "A flag given twice: the right value, then another one",
           job=with_flags("--num-layers 2 --num-layers 1 --lr 1e-4 --lr 9")),
    attack("n5", "flags-file", "Flags from a file", job=script(FILE + TRAIN.format(
        micro=4, batch=16, data="data/x", more="$(cat flags.txt)"))),
    attack("n6", "flags-at-file", "Flags from an argument that names a file",
           job=script(FILE + TRAIN.format(micro=4, batch=16, data="data/x", more="@flags.txt"))),
    attack("n7", "flags-variables", "Settings in environment variables",
           job=script(VARIABLES + RIGHT)),
    attack("n8", "second-run", "A second training after the right one",
           job=script(RIGHT + TRAIN.format(micro=1, batch=4, data="data/x", more=TINY))),
    attack("n9", "hidden-run", "A second training in the step of the right one",
           job=script(HIDDEN)),
    attack("n10", "renamed-run", "A second training by a copy of the trainer under another name",
           job=script(RENAMED)),
    attack("n11", "queued-run", "A second job that the script submits",
           job=script(RIGHT + "sbatch code/other.sh\n")),
    attack("n12", "own-trainer", "A trainer of the student's own under the trainer's name",
           job=script(OWN)),
    attack("n13", "numbers", "Numbers that are equal in Python and none to the trainer",
           job=with_flags("--num-layers 2.0 --train-iters True --hidden-dropout 0.10e0")),
    attack("n14", "same-job", "None: the same job, spelled otherwise", score=2.0, job=with_flags(
        "--ffn-hidden-size 0256 --hidden-dropout 1e-1 --lr .0001 --balance 2 --log-interval 7 "
        "--save $LAB_HOME/megatron/checkpoints/mine --save-interval 1")),
]
