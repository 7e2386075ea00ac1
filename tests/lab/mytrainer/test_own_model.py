"""The files of lab 09 in my_trainer.py: what they compute, and what they need."""

import re
import shlex

import pytest

from lab.mytrainer import flags as ours
from lab.mytrainer import gain
from minimegatron.errors import UserError
from tests.lab.mytrainer.conftest import FP16, MODEL, SCALED, TRAINING
from tests.lab.mytrainer.test_checkpoints import generated

pytestmark = pytest.mark.slow

FILES = ("tensor_parallel", "heads", "vocabulary", "randomness", "llama", "sequence_parallel",
         "tp_overlap", "grad_norm")
LLAMA = ("--swiglu --normalization RMSNorm --position-embedding-type rope "
         "--untie-embeddings-and-output-weights --disable-bias-linear --group-query-attention ")
GROUPS = "--num-query-groups 2 "
STEPS = TRAINING.replace("--train-iters 32", "--train-iters 4 --lr-decay-iters 32")
TP2, TP4 = "--tensor-model-parallel-size 2 ", "--tensor-model-parallel-size 4 "


@pytest.fixture(scope="session")
def llama(train, dataset, tmp_path_factory):
    """Loss and gradient norm of pretrain_gpt.py on one rank, and its model after two steps."""
    folder = tmp_path_factory.mktemp("llama")
    run = train(f"{STEPS}{LLAMA}{GROUPS}--micro-batch-size 2 --save {folder} --save-interval 2",
                base=MODEL + dataset.flags)
    (folder / "latest_checkpointed_iteration.txt").write_text("2")
    return run.column("lm loss"), run.column("grad norm"), folder


@pytest.mark.parametrize(("flags", "ranks", "rel"), [
    (TP2, 4, 1e-5), (TP4 + "--sequence-parallel --recompute-granularity selective", 4, 1e-5),
    *(pytest.param(*one, marks=pytest.mark.stress) for one in (
        ("--own-model", 0, 1e-5), ("--own-model --overlap-grad-reduce", 2, 1e-5),
        (TP2 + "--sequence-parallel --overlap-grad-reduce", 4, 1e-5),
        (TP2 + "--async-tensor-model-parallel-allreduce", 2, 1e-5),
        (TP2 + "--use-flash-attn", 2, 1e-5), (TP2 + "--bf16", 4, 3e-3),
        (TP2 + "--recompute-granularity full --recompute-method uniform", 2, 1e-5),
        (TP2 + "--sequence-parallel --use-distributed-optimizer", 4, 1e-5),
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
    (TP2 + "--bf16 --fp8-format hybrid --fp8-recipe tensorwise", "--fp8-format hybrid with "
     "--tensor-model-parallel-size 2: the regions' columns and your RowParallelLinear compute its "
     "linear layers, and not the Linear of fp8.py; nearest: leave out --fp8-format hybrid"),
    (TP2 + "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "needs whole "
     "gradients after the last backward pass; only --data-parallel-sharding-strategy optim"),
    (TP4 + "--use-distributed-optimizer", "--use-distributed-optimizer: the ranks share one "
     "replica of the model, so each would own everything; nearest: start 8 ranks"),
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


def test_fp16_skips_the_trainer_s_steps_on_all_ranks(my_trainer, student, train, dataset):
    """An overflow on one rank is one on the ranks that share its layers, too."""
    student.solve(*FILES, "ddp", "precision", "unscale", "scaler", "new/train")
    flags = (f"{MODEL}{SCALED}{LLAMA}{GROUPS}{dataset.flags} {FP16}--train-iters 8 "
             "--lr-decay-iters 20 ")
    right = train(flags, base="")
    run = my_trainer(f"{flags}{TP2}--sequence-parallel", 4)
    scales = run.column("loss scale")
    assert scales == right.column("loss scale") and len(set(scales)) > 1
    assert run.column("lm loss") == pytest.approx(right.column("lm loss"), rel=1e-3)


CHAINS = [(TP2 + "--sequence-parallel --use-distributed-optimizer", 4, TP2, 2)]
MORE = [(TP2, 4, "--own-model --use-distributed-optimizer", 2), ("--own-model", 0, TP4, 4),
        ("--own-model --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", 2,
         TP2 + "--use-distributed-optimizer", 4)]


@pytest.mark.parametrize(("before", "ranks", "after", "then"), [
    *CHAINS, *(pytest.param(*one, marks=pytest.mark.stress) for one in MORE)])
def test_another_layout_resumes_and_generates_text(
        my_trainer, student, dataset, llama, tmp_path, before, ranks, after, then):
    """Two steps in one layout, and two in another. The saved model writes the trainer's text."""
    student.solve(*FILES, "ddp", "shards", "zero", "zero2", "zero3", "clipping", "reshard")
    base = f"{MODEL}{STEPS}{LLAMA}{GROUPS}--micro-batch-size 2 {dataset.flags} "
    my_trainer(f"{base}{before} --train-iters 2 --save {tmp_path}/saved --save-interval 2", ranks)
    run = my_trainer(f"{base}{after} --load {tmp_path}/saved", then)
    assert "successfully loaded checkpoint" in run.out
    assert run.column("lm loss") == pytest.approx(llama[0][2:], rel=1e-5)
    assert run.column("grad norm") == pytest.approx(llama[1][2:], abs=1.01e-3)
    text, right = (generated(folder, student) for folder in (tmp_path / "saved", llama[2]))
    assert text == right and text.startswith("import os")


def test_another_padding_of_the_vocabulary_names_the_flag_that_fits(
        my_trainer, student, dataset, tmp_path):
    student.solve(*FILES, "shards", "reshard")
    flags = f"{BASE}{dataset.flags} --own-model "
    my_trainer(f"{flags}--make-vocab-size-divisible-by 96 --save {tmp_path} --save-interval 1")
    run = my_trainer(f"{flags}--make-vocab-size-divisible-by 100 --load {tmp_path}", code=1)
    assert re.search(r"its vocabulary was padded to ([\d,]+) tokens, and this run's to [\d,]+; "
                     r"nearest: --make-vocab-size-divisible-by \d+", run.err)


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
