"""code/my_trainer.py trains like pretrain_gpt.py, on any number of ranks."""

import re
from itertools import combinations

import pytest

from lab.mytrainer import flags as ours
from labcore.listing import listed
from minimegatron.errors import UserError
from tests.lab.mytrainer.conftest import FP16, MODEL, SCALED, TRAINING

pytestmark = pytest.mark.slow

OVERLAP, RING = "--overlap-grad-reduce ", "--ring-all-reduce "


@pytest.mark.parametrize(("ranks", "micro_batch"), [(0, 2), (2, 2), (4, 4)], ids=[
    "one process, 8 micro-batches", "two ranks, 4 micro-batches", "four ranks, 1 micro-batch"])
def test_loss_and_gradient_norm_are_the_trainers(
        my_trainer, student, dataset, reference, ranks, micro_batch):
    if ranks:
        student.solve("collectives", "ddp")
    run = my_trainer(MODEL + TRAINING + dataset.flags + f"--micro-batch-size {micro_batch}", ranks)
    losses, norms = reference
    assert run.column("lm loss") == pytest.approx(losses, rel=1e-5) and len(losses) == 32
    assert run.column("grad norm") == pytest.approx(norms, abs=1.01e-3)  # three decimals
    assert losses[-1] < losses[0] - 0.3 and min(norms) > 0.3


MEMORY = ("states", "checkpointing", "saved", "placement", "attention", "offload")
UNIFORM = "--recompute-granularity full --recompute-method uniform --recompute-num-layers "
BLOCK = UNIFORM.replace("uniform", "block")


@pytest.mark.parametrize(("flags", "ranks", "used"), [
    (UNIFORM + "2 --overlap-grad-reduce", 2, "checkpointing"), (BLOCK + "1", 0, "checkpointing"),
    ("--recompute-granularity selective", 2, "checkpointing"),
    ("--activation-memory-mb 0.3", 0, "placement"),
    ("--tiled-attention " + UNIFORM + "1", 0, "attention"),
    ("--offload-activations", 0, "offload")])
def test_saving_memory_changes_neither_losses_nor_gradient_norms(
        my_trainer, student, dataset, reference, flags, ranks, used):
    student.solve("ddp", "train", *MEMORY)
    short = TRAINING.replace("--train-iters 32", "--train-iters 4 --lr-decay-iters 32")
    run = my_trainer(MODEL + short + dataset.flags + "--micro-batch-size 2 " + flags, ranks)
    losses, norms = (column[:4] for column in reference)
    assert run.column("lm loss") == pytest.approx(losses, rel=1e-5) and len(losses) == 4
    assert run.column("grad norm") == pytest.approx(norms, abs=1.01e-3)
    assert f"mytrainer/{used}.py" in run.out


# The files of lab 04: each alone, each beginning of the lab, and all of them with each flag.
FILES = ("collectives", "ddp", "launch", "train")
SUBSETS = [(["launch"], 0, ""), (["train"], 0, ""), (["collectives", "ddp"], 2, ""),
           (["collectives", "ddp", "launch"], 2, OVERLAP), (list(FILES), 0, ""),
           (list(FILES), 2, ""), (list(FILES), 4, OVERLAP), (list(FILES), 4, RING)]
PAIRS = [([*pair], 2 if "ddp" in pair else 0, "") for pair in combinations(FILES, 2)]


@pytest.mark.parametrize(("files", "ranks", "flags"), [
    *SUBSETS, *(pytest.param(*pair, marks=pytest.mark.stress) for pair in PAIRS)],
    ids=lambda value: "+".join(value) if isinstance(value, list) else str(value))
def test_the_student_s_files_train_with_the_course_s_in_place_of_the_others(
        my_trainer, student, dataset, reference, files, ranks, flags):
    student.solve(*files)
    short = TRAINING.replace("--train-iters 32", "--train-iters 8 --lr-decay-iters 32")
    run = my_trainer(MODEL + short + dataset.flags + "--micro-batch-size 2 " + flags, ranks)
    losses, norms = (column[:8] for column in reference)
    assert run.column("lm loss") == pytest.approx(losses, rel=1e-5) and len(losses) == 8
    assert run.column("grad norm") == pytest.approx(norms, abs=1.01e-3)
    used = [name for name in FILES if name in files and (name != "collectives" or flags == RING)]
    names = listed(f"mytrainer/{name}.py" for name in used)
    assert re.search(f"with {re.escape(names)}$", run.out, re.M) or used == []


@pytest.mark.parametrize(("name", "old", "new", "message"), [
    ("launch", "range(consumed + rank, consumed + batch, ranks)", "range(consumed, consumed + 3)",
     "mytrainer/launch.py: own_samples(0, 16, 0, 1) returns 3 numbers instead of 16"),
    ("launch", "return device", "return str(device)", "mytrainer/launch.py: connect() returns "
     "'cpu'; --device cpu asks for device(type='cpu') on rank 0"),
    ("launch", "dist.init_process_group(backend)", "pass", "mytrainer/launch.py: connect() returns "
     "device(type='cpu'), and no process group has been initialized; --device cpu asks for"),
    ("train", "def train(", "def training(", "mytrainer/train.py does not define train; rename "
     "training to train")])
def test_a_wrong_file_is_named(my_trainer, student, dataset, name, old, new, message):
    student.change(name, old, new)
    run = my_trainer(MODEL + TRAINING + dataset.flags + "--micro-batch-size 2", code=1)
    assert message in run.err


@pytest.mark.parametrize(("files", "message"), [
    (["ddp"], "--ring-all-reduce needs mytrainer/collectives.py, which you write in lab 04"),
    (["ddp", "collectives"], "--ring-all-reduce: DataParallel in mytrainer/ddp.py has no parameter "
     "all_reduce, which lab 04 describes")])
def test_a_ring_that_the_files_do_not_have_is_refused(monkeypatch, student, files, message):
    student.solve(*files)
    config = parsed(monkeypatch, MODEL + TRAINING + "--micro-batch-size 2 " + RING, 2)
    wrapper = type("DataParallel", (), {"__init__": lambda self, module, bucket_mb=25.0: None})
    with pytest.raises(UserError, match=f"^{re.escape(message)}; until then"):
        ours.require_pieces(config, wrapper)


def test_a_ddp_that_does_not_average_is_seen_in_the_gradient_norm(
        my_trainer, student, dataset, reference):
    student.change("ddp", "flat /= dist.get_world_size()", "pass")
    flags = TRAINING.replace("--train-iters 32", "--train-iters 2 --lr-decay-iters 32")
    run = my_trainer(MODEL + flags + dataset.flags + "--micro-batch-size 2", ranks=2)
    assert run.column("lm loss")[0] == pytest.approx(reference[0][0], rel=1e-5)
    assert run.column("grad norm")[0] == pytest.approx(2 * reference[1][0], rel=3e-3)


@pytest.mark.parametrize("samples", ["12,4", "16,0", "4,2,8,2"])
def test_ranks_with_unequal_numbers_of_samples_train_like_one_process(
        my_trainer, student, dataset, reference, samples):
    """Loss and gradient norm are those of one process with the same samples."""
    student.solve("new/ddp")
    flags = TRAINING.replace("--train-iters 32", "--train-iters 8 --lr-decay-iters 32")
    run = my_trainer(MODEL + flags + dataset.flags + f"--micro-batch-size 2 --samples-per-rank "
                     f"{samples}", ranks=samples.count(",") + 1)
    losses, norms = (column[:8] for column in reference)
    assert run.column("lm loss") == pytest.approx(losses, rel=1e-5) and len(losses) == 8
    assert run.column("grad norm") == pytest.approx(norms, abs=1.01e-3)


def test_a_ddp_that_ignores_the_samples_is_seen_in_the_gradient_norm(
        my_trainer, student, dataset, reference):
    student.change("new/ddp", "flat *= self.weight", "pass", "ddp")
    flags = TRAINING.replace("--train-iters 32", "--train-iters 4 --lr-decay-iters 32")
    run = my_trainer(MODEL + flags + dataset.flags + "--micro-batch-size 2 --samples-per-rank 14,2",
                     ranks=2)
    assert run.column("lm loss")[0] == pytest.approx(reference[0][0], rel=1e-5)
    assert run.column("grad norm") != pytest.approx(reference[1][:4], abs=5e-3)


def test_unequal_samples_need_the_ddp_of_lab_14(my_trainer, student, dataset):
    student.solve("ddp")
    run = my_trainer(MODEL + TRAINING + dataset.flags + "--micro-batch-size 2 --samples-per-rank "
                     "12,4", ranks=2, code=1)
    assert ("--samples-per-rank 12,4: DataParallel in mytrainer/ddp.py has no begin(), which you "
            "write in lab 14, exercise 7; until then, leave the flag out, so that the ranks have "
            "8,8 samples") in run.err


NEEDED = ("precision", "unscale", "scaler")  # with --fp16


@pytest.mark.parametrize(("files", "ranks"), [
    ((), 0), (("new/train",), 0), (("collectives", "ddp", "launch", "new/train"), 2)],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value))
def test_fp16_has_the_trainer_s_losses_norms_scales_and_skipped_steps(
        my_trainer, student, dataset, scaled, files, ranks):
    """With each of the student's other files in place of the course's, and on several ranks."""
    student.solve(*NEEDED, *files)
    run = my_trainer(MODEL + SCALED + FP16 + dataset.flags, ranks)
    assert run.column("lm loss") == pytest.approx(scaled.column("lm loss"), rel=1e-4)
    assert run.column("grad norm") == pytest.approx(scaled.column("grad norm"), abs=3e-3)
    for column in ("loss scale", "number of skipped iterations", "learning rate"):
        assert run.column(column) == scaled.column(column)
    skipped = run.column("number of skipped iterations")
    assert 3 < sum(skipped) < 15 and skipped[0] == 1


def test_a_fixed_scale_that_is_too_high_skips_every_step(my_trainer, student, dataset):
    student.solve(*NEEDED)
    flags = FP16.replace("--initial-loss-scale 33554432 --loss-scale-window 4 --hysteresis 2",
                         "--loss-scale 1073741824").strip() + " --log-interval 4 "
    run = my_trainer(MODEL + SCALED + flags + dataset.flags)
    assert run.column("loss scale") == [2**30] * 5 and run.column("lm loss") == []
    assert run.column("number of skipped iterations") == [4] * 5


def test_master_weights_in_bf16_train_as_the_trainer_s_own_do(my_trainer, train, student, dataset):
    student.solve("precision", "histogram")
    flags = SCALED + "--bf16 --log-num-zeros-in-grad "
    run, reference = (my_trainer(MODEL + flags + dataset.flags),
                      train(flags, base=MODEL + dataset.flags))
    assert run.column("lm loss") == pytest.approx(reference.column("lm loss"), rel=1e-4)
    assert run.column("num zeros") == pytest.approx(reference.column("num zeros"), rel=0.05, abs=30)
    assert "with mytrainer/histogram.py and mytrainer/precision.py" in run.out


def test_autocast_trains_fp32_parameters_with_bf16_gemms(my_trainer, student, dataset, reference):
    """Losses are the reference's up to the GEMMs' rounding, on two ranks and in its memory."""
    student.solve("collectives", "ddp", "precision", "autocast")
    short = TRAINING.replace("--train-iters 32", "--train-iters 4 --lr-decay-iters 32")
    run = my_trainer(MODEL + short + dataset.flags + "--micro-batch-size 2 --bf16 --autocast", 2)
    losses, norms = (column[:4] for column in reference)
    assert run.column("lm loss") == pytest.approx(losses, rel=1e-3)
    assert run.column("lm loss") != pytest.approx(losses, rel=1e-6)
    assert run.column("grad norm") == pytest.approx(norms, rel=0.02)
    assert "mytrainer/autocast.py" in run.out


def test_stochastic_rounding_trains_two_ranks_without_master_weights(
        my_trainer, student, dataset, reference):
    """Updates are right on average, so the losses are fp32's up to the rounding of bf16."""
    student.solve("collectives", "ddp", "rounding")
    short = TRAINING.replace("--train-iters 32", "--train-iters 4 --lr-decay-iters 32")
    run = my_trainer(MODEL + short + dataset.flags + "--micro-batch-size 2 --bf16 "
                     "--stochastic-rounding", 2)
    assert run.column("lm loss") == pytest.approx(reference[0][:4], rel=0.01)
    assert "mytrainer/rounding.py" in run.out


@pytest.mark.parametrize("missing", NEEDED)
def test_fp16_needs_the_files_of_lab_05(monkeypatch, student, missing):
    student.solve(*(name for name in NEEDED if name != missing))
    config = parsed(monkeypatch, MODEL + SCALED + FP16, 1)
    with pytest.raises(UserError, match=rf"^--fp16 needs mytrainer/{missing}\.py, which you write "
                                        "in lab 05; until then, leave the flag out$"):
        ours.require_pieces(config, object)


def test_fp16_needs_a_loop_that_scales_the_loss(monkeypatch, student):
    student.solve(*NEEDED, "train")
    config = parsed(monkeypatch, MODEL + SCALED + FP16, 1)
    with pytest.raises(UserError, match=r"^--fp16: train in mytrainer/train.py has no parameter "
                                        r"scaler; lab 05, exercise 5, .* --adopt train"):
        ours.require_pieces(config, object)


WIDE = MODEL.replace("--hidden-size 32", "--hidden-size 64")  # heads of 16, for FP8
SHORT = TRAINING.replace("--train-iters 32", "--train-iters 20") + "--micro-batch-size 4 "
FP8 = "--bf16 --fp8-format hybrid --fp8-recipe tensorwise "


def test_fp8_layers_train_as_the_trainer_s_own_do(my_trainer, train, student, dataset):
    """Both round and add gradients up in fp32; the trainer's scales are no powers of two."""
    student.solve("collectives", "ddp", "fp8")
    run = my_trainer(WIDE + SHORT + FP8 + dataset.flags, ranks=2)
    assert "with mytrainer/ddp.py and mytrainer/fp8.py" in run.out
    reference = train(SHORT + FP8, base=WIDE + dataset.flags).column("lm loss")
    bf16 = train(SHORT + "--bf16 ", base=WIDE + dataset.flags).column("lm loss")
    losses = run.column("lm loss")
    assert losses == pytest.approx(reference, rel=1e-3) and len(losses) == 20
    assert losses != pytest.approx(bf16, rel=1e-6) and losses[-1] < losses[0] - 0.3


# Most of the first weights are smaller than E4M3's smallest number, 2^-9, so they need their scale.
DELAYED = FP8.replace("tensorwise", "delayed --fp8-amax-history-len 4 --fp8-amax-compute-algo max "
                      "--init-method-std 0.002")


@pytest.fixture(scope="module")
def delayed_losses(train, dataset):
    """Loss of pretrain_gpt.py with delayed scaling."""
    return train(SHORT + DELAYED, base=WIDE + dataset.flags).column("lm loss")


@pytest.mark.parametrize("ranks", [0, 2])
def test_delayed_scaling_trains_as_the_trainer_s_own_does(
        my_trainer, student, dataset, delayed_losses, ranks):
    """The ranks share their amaxes, so the scales are the same on any number of ranks."""
    student.solve("collectives", "ddp", "delayed", "fp8")
    if ranks:
        student.solve("amaxes")
    losses = my_trainer(WIDE + SHORT + DELAYED + dataset.flags, ranks).column("lm loss")
    assert losses == pytest.approx(delayed_losses, rel=1e-4) and len(losses) == 20


def test_a_scale_that_never_advances_is_not_the_trainers(
        my_trainer, student, dataset, delayed_losses):
    student.solve("fp8")
    student.change("delayed", "self.scale = self.largest / amax / 2**self.margin", "pass")
    losses = my_trainer(WIDE + SHORT + DELAYED + dataset.flags).column("lm loss")
    assert losses != pytest.approx(delayed_losses, rel=3e-4)  # three times the tolerance above


def test_the_scales_of_several_ranks_are_those_of_the_amaxes_that_the_piece_returns(
        my_trainer, student, dataset, delayed_losses):
    """If they are too small, values saturate."""
    student.solve("collectives", "ddp", "delayed", "fp8")
    student.change("amaxes", "dist.all_reduce(shared, dist.ReduceOp.MAX, group)", "shared /= 64")
    losses = my_trainer(WIDE + SHORT + DELAYED + dataset.flags, ranks=2).column("lm loss")
    assert losses != pytest.approx(delayed_losses, rel=3e-4)  # three times the tolerance above


# The smallest model whose operands consist of whole blocks of 128 x 128.
BLOCKS = MODEL.replace("--num-layers 2 --hidden-size 32", "--num-layers 1 --hidden-size 128")
FEW = TRAINING.replace("--train-iters 32", "--train-iters 6") + "--micro-batch-size 4 "


@pytest.mark.parametrize(("recipe", "piece"), [("blockwise", "blocks"), ("mxfp8", "mx")])
def test_block_scales_train_as_the_trainer_s_own_do(my_trainer, train, student, dataset, recipe,
                                                    piece):
    """On one process with four micro-batches per step, and on two ranks with two."""
    student.solve("collectives", "ddp", "fp8", piece)
    flags = FEW + FP8.replace("tensorwise", recipe)
    reference = train(flags, base=BLOCKS + dataset.flags).column("lm loss")
    for ranks in (0, 2):
        run = my_trainer(BLOCKS + flags + dataset.flags, ranks)
        assert f"mytrainer/fp8.py, and mytrainer/{piece}.py" in run.out
        assert run.column("lm loss") == pytest.approx(reference, rel=1e-4) and len(reference) == 6


@pytest.mark.parametrize(("piece", "change"), [
    ("blocks", "quantize_blocks(x.t(), dtype, 1, 128)"), ("mx", "mxfp8(x.t(), dtype)")])
def test_a_transpose_with_other_values_is_not_the_trainers(my_trainer, train, student, dataset,
                                                           piece, change):
    """The loss of the first step does not see it; the norm of the weights' gradients does."""
    student.solve("fp8")
    student.change(piece, change, change.replace("x.t()", "2 * x.t()"))
    flags = FEW + FP8.replace("tensorwise", "blockwise" if piece == "blocks" else "mxfp8")
    right, wrong = (run.column("grad norm") for run in (
        train(flags, base=BLOCKS + dataset.flags), my_trainer(BLOCKS + flags + dataset.flags)))
    assert wrong[0] > 1.5 * right[0]


def recipe_flags(recipe):
    return {"delayed": DELAYED}.get(recipe, FP8.replace("tensorwise", recipe))


@pytest.mark.parametrize(("present", "recipe", "ranks", "message"), [
    (["fp8"], "delayed", 0, "needs mytrainer/delayed.py, which you write in lab 13, exercise 3"),
    (["fp8", "ddp", "collectives", "delayed"], "delayed", 2, "on 2 ranks needs "
     "mytrainer/amaxes.py, which you write in lab 13, exercise 4"),
    (["fp8"], "blockwise", 0, "needs mytrainer/blocks.py, which you write in lab 13, exercise 6"),
    (["fp8"], "mxfp8", 0, "needs mytrainer/mx.py, which you write in lab 13, exercise 7")])
def test_a_recipe_that_the_files_cannot_do_is_refused(monkeypatch, student, present, recipe, ranks,
                                                      message):
    student.solve(*present)
    config = parsed(monkeypatch, BLOCKS + FEW + recipe_flags(recipe), ranks or 1)
    with pytest.raises(UserError, match=f"^--fp8-recipe {recipe} {message}; nearest: "
                                        "--fp8-recipe tensorwise$"):
        ours.require_pieces(config, object)


@pytest.mark.parametrize(("old", "new", "nearest"), [
    ("    recipe = PerTensor()\n", "", "--fp8-recipe tensorwise"),
    ("class PerTensor:", "class Other:", "leave --fp8-format out")])
def test_a_layer_without_a_recipe_is_refused(monkeypatch, student, old, new, nearest):
    student.solve("blocks")
    student.change("fp8", old, new)
    if "Other" in new:
        student.write("fp8", (student.folder / "fp8.py").read_text().replace("PerTensor", "Other"))
    config = parsed(monkeypatch, BLOCKS + FEW + recipe_flags("blockwise"), 1)
    with pytest.raises(UserError, match=f"takes no recipe; .* exercise 5, .*; nearest: {nearest}$"):
        ours.require_pieces(config, object)


def parsed(monkeypatch, words, ranks):
    """Parse flags on one of some ranks."""
    monkeypatch.setattr(ours, "parse_arguments", with_world(ours.parse_arguments, ranks))
    return ours.parse((words + "--data-path x --vocab-file x --merge-file x").split())


def test_a_weight_is_quantized_once_per_step(my_trainer, student, dataset):
    """One that is never quantized again keeps the first step's weights, and learns less."""
    student.solve("fp8")
    student.change("fp8", "if first_micro_batch:", "if self.kept is None:")
    stuck = my_trainer(WIDE + SHORT + FP8 + dataset.flags).column("lm loss")
    student.solve("fp8")
    right = my_trainer(WIDE + SHORT + FP8 + dataset.flags).column("lm loss")
    assert right[0] == stuck[0] and right[-1] < stuck[-1]


def test_fp8_without_the_piece_says_which_lab_has_it(my_trainer, student, dataset):
    run = my_trainer(WIDE + SHORT + FP8 + dataset.flags, code=1)
    assert "--fp8-format hybrid needs mytrainer/fp8.py, which you write in lab 13" in run.err


def test_several_ranks_without_ddp_say_which_lab_has_it(my_trainer, dataset):
    run = my_trainer(MODEL + TRAINING + dataset.flags + "--micro-batch-size 2", ranks=2, code=1)
    assert "[rank 0] error: 2 ranks need mytrainer/ddp.py, which you write in lab 04" in run.err


def test_an_error_in_a_piece_ends_with_its_line(my_trainer, student, dataset):
    student.change("ddp", "work.wait()", "work.wait(); 1 / 0")
    run = my_trainer(MODEL + TRAINING + dataset.flags + "--micro-batch-size 2", ranks=2, code=1)
    assert re.search(r"^\[rank \d\] error: mytrainer/ddp.py, line \d+: ZeroDivisionError: division "
                     "by zero$", run.err, re.M), run.err
    assert not re.search(r"error: mytrainer/ddp.py.*(closed|reset)", run.err), run.err


@pytest.mark.parametrize(("flags", "message"), [
    ("--exit-interval 5", "--exit-interval 5: my_trainer.py does not use this flag; leave it out, "
     "or pass it to megatron/Megatron-LM/pretrain_gpt.py"),
    ("--bf16 --fp8-format hybrid --fp8-amax-history-len 4", "--fp8-amax-compute-algo most_recent: "
     "mytrainer/delayed.py takes the maximum of the 4 entries of its history; nearest: "
     "--fp8-amax-compute-algo max"),
    ("--bf16 --fp8-format e4m3 --fp8-recipe tensorwise", "--fp8-format e4m3: mytrainer/fp8.py has "
     "E4M3 values and E5M2 gradients; nearest: --fp8-format hybrid"),
    ("--activation-memory-mb 0", "--activation-memory-mb 0: must be greater than 0; nearest: leave "
     "it out"),
    ("--activation-memory-mb 9 --recompute-granularity selective", "--activation-memory-mb 9 "
     "chooses the layers to recompute; leave out --recompute-granularity selective"),
    ("--autocast", "--autocast: add --bf16 or --fp16, which sets the dtype of its GEMMs; nearest: "
     "--autocast --bf16"),
    ("--bf16 --autocast --tiled-attention", "--autocast cannot be combined with --tiled-attention; "
     "nearest: leave one of them out"),
    ("--stochastic-rounding", "--stochastic-rounding: mytrainer/rounding.py rounds to bf16; "
     "nearest: --stochastic-rounding --bf16"),
    ("--bf16 --stochastic-rounding --save x --save-interval 4", "--stochastic-rounding with "
     "--save x: a checkpoint has master weights; nearest: leave one of them out"),
    ("--tiled-attention --use-flash-attn", "--tiled-attention: mytrainer/attention.py cannot be "
     "combined with --use-flash-attn; nearest: leave one of them out"),
    ("--tiled-attention --attention-dropout 0.1", "cannot be combined with --attention-dropout "
     "0.1; nearest: --attention-dropout 0"),
    ("--device virtual:h100", "start my_trainer.py with virtualrun --gpus h100:8"),
    ("--samples-per-rank 12", "--samples-per-rank 12: 1 number(s) for 2 rank(s); nearest: "
     "--samples-per-rank 16,0"),
    ("--samples-per-rank 13,3", "--samples-per-rank 13,3: each must be divisible by "
     "--micro-batch-size 2; nearest: --samples-per-rank 14,2"),
    ("--samples-per-rank 24,8", "--samples-per-rank 24,8: the sum is 32 and not "
     "--global-batch-size 16; nearest: --samples-per-rank 12,4"),
    ("--samples-per-rank 3:1", "--samples-per-rank 3:1: expected a number for each rank, separated "
     "by commas; nearest: --samples-per-rank 12,4"),
    ("--samples-per-rank 0,0", "the sum is 0 and not --global-batch-size 16; nearest: "
     "--samples-per-rank 8,8"),
    ("--lr 0", "--min-lr 0.0001 is greater than --lr 0.0"),
    ("--num-layer 2", "did you mean --num-layers?")])
def test_flags_that_the_loop_would_ignore_are_refused(monkeypatch, flags, message):
    with pytest.raises(UserError, match=re.escape(message)):
        parsed(monkeypatch, f"{MODEL}{TRAINING}--micro-batch-size 2 {flags} ", 2)


@pytest.mark.parametrize(("flags", "present", "missing"), [
    ("--recompute-activations", [], "checkpointing"), ("--tiled-attention", [], "attention"),
    ("--offload-activations", [], "offload"),
    ("--activation-memory-mb 9", ["states", "checkpointing", "saved"], "placement")])
def test_a_flag_of_lab_06_names_the_file_that_is_missing(monkeypatch, student, flags, present,
                                                         missing):
    student.solve(*present)
    config = parsed(monkeypatch, f"{MODEL}{TRAINING}--micro-batch-size 2 {flags} ", 1)
    with pytest.raises(UserError, match=f"^--.* needs mytrainer/{missing}.py, which you write in "
                                        "lab 06; until then, leave the flag out$"):
        ours.require_pieces(config, object)


def test_every_flag_of_the_loop_and_of_a_file_exists():
    from lab.mytrainer.pieces import PIECES
    from minimegatron.arguments.flag import table_of

    flags = set(table_of(ours.LoopConfig))
    assert ours.USED | set(ours.NO_VALIDATION) <= flags
    assert flags.issuperset(flag for piece in PIECES.values() for flag in piece.flags)
    assert ours.USED.issuperset(flag for piece in PIECES.values() for flag in piece.flags)


def with_world(parse, ranks=2):
    """Parse as one of some ranks."""
    return lambda argv, config: parse(argv, {"RANK": "0", "WORLD_SIZE": str(ranks)}, config)
