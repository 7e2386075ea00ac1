"""The files of labs 10 to 12 in my_trainer.py: what they compute, and what they need."""


import pytest

from tests.lab.mytrainer.conftest import MODEL, TRAINING
from tests.lab.mytrainer.test_own_model import FILES as LLAMA_FILES
from tests.lab.mytrainer.test_own_model import GROUPS, LLAMA

pytestmark = pytest.mark.slow

FILES = (*LLAMA_FILES, "stage", "llama_stage", "program", "pipeline")
DEEP = MODEL.replace("--num-layers 2", "--num-layers 4")
STEPS = TRAINING.replace("--train-iters 32", "--train-iters 4 --lr-decay-iters 32")
TIED = LLAMA.replace("--untie-embeddings-and-output-weights ", "")
PP2, TP2 = "--pipeline-model-parallel-size 2 ", "--tensor-model-parallel-size 2 "
PP4 = PP2.replace("2", "4")
ZERO = "--use-megatron-fsdp --data-parallel-sharding-strategy optim "


@pytest.fixture(scope="session")
def right(train, dataset):
    """Loss and gradient norm of pretrain_gpt.py on one rank, untied and tied."""
    runs = {}
    for flags in (LLAMA, TIED):
        run = train(f"{STEPS}{flags}{GROUPS}--micro-batch-size 2", base=DEEP + dataset.flags)
        runs[flags] = run.column("lm loss"), run.column("grad norm")
    return runs


STRESS = pytest.mark.stress


@pytest.mark.parametrize(("model", "flags", "ranks", "rel"), [
    (LLAMA, PP2 + TP2 + "--schedule gpipe --sequence-parallel", 4, 1e-5),
    (TIED, PP2 + "--schedule 1f1b", 4, 1e-5),
    (LLAMA, PP2 + "--num-layers-per-virtual-pipeline-stage 1", 4, 1e-5),
    *(pytest.param(*one, marks=STRESS) for one in (
        (LLAMA, PP4 + "--schedule gpipe", 4, 1e-5),
        (TIED, PP4 + "--schedule 1f1b", 4, 1e-5),
        (TIED, PP2 + TP2, 4, 1e-5),
        (LLAMA, PP2 + "--balance 1-3 --recompute-granularity full --recompute-method uniform", 2,
         1e-5),
        (LLAMA, PP2 + ZERO, 4, 1e-5), (LLAMA, PP2 + "--bf16", 4, 3e-3)))])
def test_losses_and_gradient_norms_are_the_trainers(
        my_trainer, student, dataset, right, model, flags, ranks, rel):
    student.solve(*FILES, "p2p", "tied", "gpipe", "one_f_one_b", "interleaved", "ddp",
                  "checkpointing", "states", "precision", "shards", "zero", "clipping")
    run = my_trainer(f"{DEEP}{STEPS}{model}{GROUPS}--micro-batch-size 2 {dataset.flags} {flags}",
                     ranks)
    assert run.column("lm loss") == pytest.approx(right[model][0], rel=rel)
    assert run.column("grad norm") == pytest.approx(right[model][1], abs=1.01e-3 if rel < 1e-4 else
                                                    0.03)
