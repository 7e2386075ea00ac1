"""The files of lab 09 in my_trainer.py: what they compute, and what they need."""

import re
import shlex

import pytest

from lab.mytrainer import flags as ours
from lab.mytrainer import gain
from minimegatron.errors import UserError
from tests.lab.mytrainer.conftest import MODEL, TRAINING

pytestmark = pytest.mark.slow

FILES = ("tensor_parallel", "heads", "vocabulary", "randomness", "llama", "sequence_parallel",
         "tp_overlap", "grad_norm")
LLAMA = ("--swiglu --normalization RMSNorm --position-embedding-type rope "
         "--untie-embeddings-and-output-weights --disable-bias-linear --group-query-attention ")
GROUPS = "--num-query-groups 2 "
STEPS = TRAINING.replace("--train-iters 32", "--train-iters 4 --lr-decay-iters 32")
TP2, TP4 = "--tensor-model-parallel-size 2 ", "--tensor-model-parallel-size 4 "


@pytest.fixture(scope="session")
def llama(train, dataset):
    """Loss and gradient norm of pretrain_gpt.py on one rank."""
    run = train(f"{STEPS}{LLAMA}{GROUPS}--micro-batch-size 2", base=MODEL + dataset.flags)
    return run.column("lm loss"), run.column("grad norm")


@pytest.mark.parametrize(("flags", "ranks", "rel"), [
    (TP2, 4, 1e-5), (TP4 + "--sequence-parallel --recompute-granularity selective", 4, 1e-5),
    *(pytest.param(*one, marks=pytest.mark.stress) for one in (
        ("--own-model", 0, 1e-5), ("--own-model --overlap-grad-reduce", 2, 1e-5),
        (TP2 + "--sequence-parallel --overlap-grad-reduce", 4, 1e-5),
        (TP2 + "--async-tensor-model-parallel-allreduce", 2, 1e-5),
        (TP2 + "--use-flash-attn", 2, 1e-5), (TP2 + "--bf16", 4, 3e-3),
        (TP2 + "--recompute-granularity full --recompute-method uniform", 2, 1e-5),
        (TP2 + "--recompute-granularity full --recompute-method block", 2, 1e-5),
        ("--own-model --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2, 1e-5)
    ))])
def test_losses_and_gradient_norms_are_the_trainers(
        my_trainer, student, dataset, llama, flags, ranks, rel):
    student.solve(*FILES, "ddp", "checkpointing", "states", "precision", "shards", "zero", "zero2",
                  "clipping")
    run = my_trainer(f"{MODEL}{STEPS}{LLAMA}{GROUPS}--micro-batch-size 2 {dataset.flags} {flags}",
                     ranks)
    assert run.column("lm loss") == pytest.approx(llama[0], rel=rel)
    assert run.column("grad norm") == pytest.approx(llama[1], abs=1.01e-3 if rel < 1e-4 else 0.03)
    assert len(llama[0]) == 4


@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=pytest.mark.stress)])
def test_fewer_key_and_value_heads_than_ranks(my_trainer, student, train, dataset, groups):
    """pretrain_gpt.py refuses this layout, so its losses are those of one rank."""
    student.solve(*FILES)
    flags = f"{MODEL}{STEPS}{LLAMA}--num-query-groups {groups} --micro-batch-size 2 {dataset.flags}"
    run = my_trainer(flags + TP4 + "--sequence-parallel", ranks=4)
    right = train(flags, base="")
    assert run.column("lm loss") == pytest.approx(right.column("lm loss"), rel=1e-5)
    assert run.column("grad norm") == pytest.approx(right.column("grad norm"), abs=1.01e-3)


def test_own_initial_values_and_dropout_do_not_depend_on_the_layout(
        my_trainer, student, dataset, llama):
    student.solve(*FILES, "ddp")
    flags = (f"{MODEL}{STEPS}{LLAMA}{GROUPS}--micro-batch-size 2 {dataset.flags} --own-init "
             "--hidden-dropout 0.1 ")
    runs = [my_trainer(flags + more, ranks) for more, ranks in (
        ("--own-model", 0), (TP2 + "--sequence-parallel", 4))]
    assert runs[1].column("lm loss") == pytest.approx(runs[0].column("lm loss"), rel=1e-5)
    assert runs[1].column("grad norm") == pytest.approx(runs[0].column("grad norm"), abs=1.01e-3)
    assert runs[0].column("lm loss")[0] != pytest.approx(llama[0][0], rel=1e-5)


@pytest.mark.parametrize(("piece", "old", "new"), [
    ("llama", "        self.weight.is_partial = region.splits_sequence\n", ""),
    pytest.param("grad_norm", " / one.copies", "", marks=pytest.mark.stress)])
def test_a_wrong_gradient_is_seen_in_the_norm(my_trainer, student, dataset, piece, old, new):
    """The first loss is right, and the gradient norm is not, if the gradients of norms matter."""
    student.solve(*FILES)
    flags = (f"{MODEL}{STEPS}{LLAMA}{GROUPS}--init-method-std 0.2 --micro-batch-size 2 "
             f"{dataset.flags} {TP2}--sequence-parallel")
    right = my_trainer(flags, ranks=2)
    student.change(piece, old, new)
    run = my_trainer(flags, ranks=2)
    assert run.column("lm loss")[0] == right.column("lm loss")[0]
    assert abs(run.column("grad norm")[0] - right.column("grad norm")[0]) > 5e-3


BASE = f"--lr 1e-3 {MODEL}{LLAMA}{GROUPS}--micro-batch-size 2 --train-iters 1 --eval-iters 0 "
REFUSED = [
    (TP2 + "--fp16", "--fp16 with --tensor-model-parallel-size 2: your own model does not support "
     "it; nearest: leave out --fp16"),
    (TP2 + "--save x --save-interval 1", "--save x with --tensor-model-parallel-size 2: your own "
     "model"),
    (TP2 + "--use-distributed-optimizer", "the files of lab 08 shard parameters over all ranks"),
    (TP2 + "--sequence-parallel --async-tensor-model-parallel-allreduce", "no layer all-reduces"),
    (TP2 + "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
     "--recompute-num-layers 2 with --tensor-model-parallel-size 2: your own layers are recomputed "
     "one by one; nearest: leave out --recompute-num-layers 2"),
    (TP2 + "--rotary-percent 0.5", "--tensor-model-parallel-size 2 trains mytrainer/llama.py, "
     "which is a Llama; add --rotary-percent 1.0"),
    ("--own-init", "--own-init belongs to your own model; nearest: --own-model --own-init"),
    (TP4 + "--num-query-groups 3", "--num-query-groups 3"),
    ("--tiled-attention --own-model", "--tiled-attention with --own-model")]


@pytest.mark.parametrize(("flags", "problem"), REFUSED)
def test_what_the_model_cannot_do_is_refused(monkeypatch, dataset, flags, problem):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=re.escape(problem)):
        ours.parse(shlex.split(f"{BASE}{dataset.flags} {flags}"))


def test_a_gpt_2_cannot_be_shared(monkeypatch, dataset):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=re.escape(
            "which is a Llama; add --swiglu --normalization RMSNorm --position-embedding-type rope "
            "--untie-embeddings-and-output-weights --disable-bias-linear")):
        ours.parse(shlex.split(f"--lr 1e-3 {MODEL}{TP2}--micro-batch-size 2 --train-iters 1 "
                               f"--eval-iters 0 {dataset.flags}"))


def test_a_backward_pass_may_ask_for_its_rank(my_trainer, student, dataset, llama):
    """Backward passes run with the data-parallel group as the default one."""
    student.solve(*FILES, "ddp")
    student.change("tensor_parallel", "        grad = grad.clone(memory_format=",
                   "        assert dist.get_rank(ctx.group) == int(os.environ['RANK']) % 2\n"
                   "        grad = grad.clone(memory_format=")
    student.write("tensor_parallel",
                  "import os\n" + (student.folder / "tensor_parallel.py").read_text())
    run = my_trainer(f"{MODEL}{STEPS}{LLAMA}{GROUPS}--micro-batch-size 2 {dataset.flags} {TP2}", 4)
    assert run.column("lm loss") == pytest.approx(llama[0], rel=1e-5)


@pytest.mark.parametrize("flags", ["", "--sequence-parallel --recompute-granularity selective"])
def test_predicted_layer_memory_is_what_is_counted(my_trainer, student, dataset, flags):
    student.solve(*FILES, "layer_memory", "saved", "checkpointing", "states")
    run = my_trainer(f"{BASE}{dataset.flags} {TP2}{flags}", ranks=2)
    counted, predicted = re.search(r"a layer saves ([\d.]+) MB per micro-batch; "
                                   r"mytrainer/layer_memory.py predicts ([\d.]+) MB",
                                   run.out).groups()
    assert float(predicted) == pytest.approx(float(counted), abs=0.011)


def test_a_missing_file_names_its_lab(my_trainer, student, dataset):
    student.solve(*(name for name in FILES if name != "heads"))
    run = my_trainer(f"{BASE}{dataset.flags} {TP2}", ranks=2, code=1)
    assert ("--tensor-model-parallel-size 2 needs mytrainer/heads.py, which you write in lab 09"
            in run.err)


def test_memory_and_time_on_virtual_gpus(student, dataset, monkeypatch):
    """Eight GPUs hold an eighth of the model; the sequence is shared, too, and overlap helps."""
    student.solve(*FILES, "precision", "ddp")
    monkeypatch.setattr(gain, "text_flags", dataset.flags.split)
    model = ("--preset llama3-8b --num-layers 2 --use-flash-attn --micro-batch-size 1 --bf16 "
             "--attention-dropout 0 --hidden-dropout 0 ")
    whole, plain, sequence, overlap = (gain.measure("h100:8", flags=model + more) for more in (
        "--own-model", *(
            f"--tensor-model-parallel-size 8 {one}" for one in (
                "", "--sequence-parallel", "--async-tensor-model-parallel-allreduce"))))
    assert sequence.peak < plain.peak < whole.peak / 3
    assert overlap.exposed < plain.exposed and overlap.seconds < plain.seconds
    assert plain.tokens * plain.seconds == pytest.approx(8192, rel=0.01)
