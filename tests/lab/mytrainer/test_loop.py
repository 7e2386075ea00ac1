"""code/my_trainer.py trains like pretrain_gpt.py, on any number of ranks."""

import re

import pytest

pytestmark = pytest.mark.slow

MODEL = ("--device cpu --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 "
         "--max-position-embeddings 32 --attention-dropout 0 --hidden-dropout 0 ")
TRAINING = ("--global-batch-size 16 --train-iters 32 --log-interval 1 --eval-iters 0 --lr 1e-3 "
            "--min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.1 --weight-decay 0.1 "
            "--clip-grad 0.5 --split 900,50,50 ")


@pytest.fixture(scope="module")
def reference(train, dataset):
    """Loss and gradient norm of pretrain_gpt.py on one rank."""
    run = train(TRAINING + "--micro-batch-size 2", base=MODEL + dataset.flags)
    return run.column("lm loss"), run.column("grad norm")


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


WIDE = MODEL.replace("--hidden-size 32", "--hidden-size 64")  # heads of 16, for FP8
SHORT = TRAINING.replace("--train-iters 32", "--train-iters 20") + "--micro-batch-size 4 "
FP8 = "--bf16 --fp8-format hybrid --fp8-recipe tensorwise "


def test_fp8_layers_train_as_the_trainer_s_own_do(my_trainer, train, student, dataset):
    """Both round; the trainer's scales are no powers of two, and it adds gradients up in fp32."""
    student.solve("collectives", "ddp", "fp8")
    run = my_trainer(WIDE + SHORT + FP8 + dataset.flags, ranks=2)
    assert "with mytrainer/ddp.py and mytrainer/fp8.py" in run.out
    reference = train(SHORT + FP8, base=WIDE + dataset.flags).column("lm loss")
    bf16 = train(SHORT + "--bf16 ", base=WIDE + dataset.flags).column("lm loss")
    ours = run.column("lm loss")
    assert ours == pytest.approx(reference, rel=3e-3) and len(ours) == 20
    assert ours != pytest.approx(bf16, rel=1e-6) and ours[-1] < ours[0] - 0.3


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
    losses = my_trainer(WIDE + SHORT + DELAYED + dataset.flags, ranks).column("lm loss")
    assert losses == pytest.approx(delayed_losses, rel=1e-4) and len(losses) == 20


def test_a_scale_that_never_advances_is_not_the_trainers(
        my_trainer, student, dataset, delayed_losses):
    student.solve("fp8")
    student.change("delayed", "self.scale = self.largest / amax / 2**self.margin", "pass")
    losses = my_trainer(WIDE + SHORT + DELAYED + dataset.flags).column("lm loss")
    assert losses != pytest.approx(delayed_losses, rel=3e-4)  # three times the tolerance above


@pytest.mark.parametrize(("present", "message"), [
    (("fp8",), "--fp8-recipe delayed needs mytrainer/delayed.py, which you write in lab 13, "
     "exercise 3"),
    (("delayed", "old fp8"), "Linear in mytrainer/fp8.py has no scales; you write it in lab 13, "
     "exercise 5")])
def test_a_recipe_that_the_files_cannot_do_is_refused(my_trainer, student, dataset, present,
                                                      message):
    student.solve(*(name for name in present if name != "old fp8"))
    if "old fp8" in present:
        student.change("fp8", "    scales = (None, None, None)\n", "")
    run = my_trainer(WIDE + SHORT + DELAYED + dataset.flags, code=1)
    assert message in run.err and run.err.rstrip().endswith("nearest: --fp8-recipe tensorwise")


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
    ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2: my_trainer.py does not use "
     "this flag; leave it out"),
    ("--fp16", "--fp16: my_trainer.py does not use this flag"),
    ("--bf16 --fp8-format hybrid --fp8-recipe mxfp8", "--fp8-recipe mxfp8: mytrainer/fp8.py has "
     "E4M3 values, E5M2 gradients, and one scale per tensor; nearest: --fp8-recipe tensorwise"),
    ("--bf16 --fp8-format hybrid --fp8-amax-history-len 4", "--fp8-amax-compute-algo most_recent: "
     "mytrainer/delayed.py takes the maximum of the 4 entries of its history; nearest: "
     "--fp8-amax-compute-algo max"),
    ("--bf16 --fp8-format e4m3 --fp8-recipe tensorwise", "nearest: --fp8-format hybrid"),
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
    from lab.mytrainer import flags as ours
    from minimegatron.errors import UserError

    monkeypatch.setattr(ours, "parse_arguments", with_world(ours.parse_arguments))
    words = MODEL + TRAINING + "--micro-batch-size 2 --data-path x --vocab-file x --merge-file x "
    with pytest.raises(UserError, match=re.escape(message)):
        ours.parse((words + flags).split())


def test_every_flag_that_the_loop_uses_exists():
    from lab.mytrainer import flags as ours
    from minimegatron.arguments.table.flag import table_of

    assert ours.USED | set(ours.NO_VALIDATION) <= set(table_of(ours.LoopConfig))


def with_world(parse):
    """Parse as one of two ranks."""
    return lambda argv, config: parse(argv, {"RANK": "0", "WORLD_SIZE": "2"}, config)
