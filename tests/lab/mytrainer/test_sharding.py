"""The files of lab 08 in my_trainer.py: what they compute, need, and save."""

import re

import pytest

from lab.mytrainer import flags as ours
from lab.mytrainer import gain, selfcheck
from lab.mytrainer.pieces import PIECES
from labcore.errors import LabError
from minimegatron.errors import UserError
from tests.lab.mytrainer.conftest import FP16, MODEL, SCALED, TRAINING
from tests.lab.mytrainer.test_loop import NEEDED, parsed

pytestmark = pytest.mark.slow

FILES = ("shards", "zero", "zero2", "zero3", "prefetch", "clipping", "reshard")
FSDP = "--use-megatron-fsdp --data-parallel-sharding-strategy "
OPTIM, GRADS, PARAMS = (FSDP + name + " " for name in (
    "optim", "optim_grads", "optim_grads_params"))
PREFETCH = PARAMS + "--overlap-grad-reduce --overlap-param-gather "
RECOMPUTE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2 "


def steps(number):
    """Flags for some of the reference's steps."""
    return TRAINING.replace("--train-iters 32", f"--train-iters {number} --lr-decay-iters 32")


@pytest.fixture
def trained(my_trainer, student, dataset, reference):
    """Train for a few steps, and compare with pretrain_gpt.py on one rank."""

    def run(flags, ranks, first=0, last=4):
        done = my_trainer(f"{MODEL}{steps(last)}--micro-batch-size 2 {dataset.flags} {flags}",
                          ranks)
        losses, norms = (column[first:last] for column in reference)
        assert done.column("lm loss") == pytest.approx(losses, rel=1e-5)
        assert len(losses) == last - first
        assert done.column("grad norm") == pytest.approx(norms, abs=1.01e-3)  # three decimals
        return done

    return run


@pytest.mark.parametrize(("flags", "ranks"), [
    (PARAMS + RECOMPUTE, 2), *(pytest.param(flags, 4, marks=pytest.mark.stress) for flags in (
        OPTIM, "--use-distributed-optimizer --overlap-grad-reduce", GRADS, PREFETCH, PARAMS,
        PREFETCH + RECOMPUTE, OPTIM + "--offload-activations", GRADS + "--offload-activations"))])
def test_losses_and_gradient_norms_are_the_trainers(trained, student, flags, ranks):
    student.solve(*FILES, "states", "checkpointing", "offload")
    assert "mytrainer/clipping.py" in trained(flags, ranks).out


CHAINS = [(PREFETCH, 4, OPTIM, 2)]
MORE = [("", 2, GRADS, 4), (OPTIM, 4, PARAMS, 2), (GRADS, 2, "", 0), (PARAMS, 2, PREFETCH, 4),
        ("", 0, OPTIM, 4)]


@pytest.mark.parametrize(("before", "ranks", "after", "then"), [
    *CHAINS, *(pytest.param(*one, marks=pytest.mark.stress) for one in MORE)])
def test_another_layout_resumes_as_if_nothing_had_happened(
        trained, student, tmp_path, before, ranks, after, then):
    """Four steps with one strategy, and four more with another on other ranks."""
    student.solve(*FILES, "ddp")
    trained(f"{before} --save {tmp_path}/saved --save-interval 100", ranks)
    run = trained(f"{after} --load {tmp_path}/saved", then, first=4, last=8)
    assert "successfully loaded checkpoint" in run.out
    assert [float(one) for one in re.findall(r"iteration +(\d+)/", run.out)] == [5, 6, 7, 8]


@pytest.mark.stress
def test_another_precision_resumes(my_trainer, student, dataset, reference, tmp_path):
    """The checkpoint has the fp32 master weights of any precision."""
    student.solve(*FILES, "precision")
    save = f"--save {tmp_path} --save-interval 100 "
    for number, flags in ((4, "--bf16 " + OPTIM + save), (6, GRADS + save + f"--load {tmp_path} "),
                          (8, f"--bf16 {PREFETCH} --load {tmp_path} ")):
        run = my_trainer(f"{MODEL}{steps(number)}--micro-batch-size 2 {dataset.flags} {flags}",
                         ranks=2)
        losses = run.column("lm loss")
        assert losses == pytest.approx(reference[0][number - len(losses):number], rel=2e-3)
    assert len(losses) == 2


def test_fp16_resumes_with_its_loss_scale_on_other_ranks(
        my_trainer, student, dataset, scaled, tmp_path):
    student.solve(*FILES, *NEEDED, "launch")
    flags = SCALED + FP16 + dataset.flags
    half, most = (flags.replace("--train-iters 20", f"--train-iters {number} --lr-decay-iters 20")
                  for number in (4, 10))
    runs = [my_trainer(f"{MODEL}{half}{PREFETCH} --save {tmp_path} --save-interval 100", ranks=2),
            my_trainer(f"{MODEL}{most}{OPTIM} --load {tmp_path}", ranks=4)]
    skipped = [int(sum(run.column("number of skipped iterations"))) for run in runs]
    assert min(skipped) > 0, skipped

    def both(column):
        return runs[0].column(column) + runs[1].column(column)

    made = 10 - sum(skipped)
    assert both("lm loss") == pytest.approx(scaled.column("lm loss")[:made], rel=1e-4)
    assert both("grad norm") == pytest.approx(scaled.column("grad norm")[:made], abs=3e-3)
    for column in ("loss scale", "number of skipped iterations", "learning rate"):
        assert both(column) == scaled.column(column)[:10] and len(both(column)) == 10


def test_master_weights_in_bf16_are_sharded(my_trainer, train, student, dataset):
    """Two ranks count all zeros of the gradient together."""
    student.solve(*FILES, "precision", "histogram")
    flags = (SCALED.replace("--train-iters 20", "--train-iters 3")
             + "--bf16 --log-num-zeros-in-grad ")
    run, right = (my_trainer(MODEL + flags + dataset.flags + GRADS, ranks=2),
                  train(flags, base=MODEL + dataset.flags))
    assert run.column("lm loss") == pytest.approx(right.column("lm loss"), rel=1e-4)
    assert run.column("num zeros") == pytest.approx(right.column("num zeros"), rel=0.05, abs=30)


@pytest.mark.stress
@pytest.mark.parametrize("strategy", [OPTIM, GRADS, PREFETCH])
@pytest.mark.parametrize(("flags", "files"), [
    ("--bf16 --autocast ", ("precision", "autocast")),
    ("--bf16 --fp8-format hybrid --fp8-recipe tensorwise ", ("precision", "fp8"))])
def test_autocast_and_fp8_train_with_shards_as_with_replicas(
        my_trainer, student, dataset, strategy, flags, files):
    if "fp8" in flags and strategy == PREFETCH:
        strategy = GRADS + "--recompute-granularity selective "  # FP8 with freed weights is refused
    student.solve(*FILES, *files, "ddp", "states", "checkpointing")
    base = (MODEL.replace("--hidden-size 32", "--hidden-size 64") + steps(4)
            + "--micro-batch-size 2 " + dataset.flags + flags)
    plain, sharded = my_trainer(base, ranks=2), my_trainer(base + strategy, ranks=2)
    assert sharded.column("lm loss") == pytest.approx(plain.column("lm loss"), rel=1e-5)
    assert sharded.column("grad norm") == pytest.approx(plain.column("grad norm"), abs=1.01e-3)


@pytest.mark.stress
def test_shards_that_clip_by_their_own_norm_are_seen(my_trainer, student, dataset, reference):
    student.solve(*FILES)
    student.change("clipping", "    dist.all_reduce(square)\n", "")
    run = my_trainer(f"{MODEL}{steps(2)}--micro-batch-size 2 {dataset.flags} {OPTIM}", ranks=2)
    assert run.column("lm loss")[0] == pytest.approx(reference[0][0], rel=1e-5)
    assert run.column("grad norm")[0] < reference[1][0] - 5e-3


VIRTUAL = ("--num-layers 3 --hidden-size 2048 --num-attention-heads 16 --seq-length 1024 "
           "--max-position-embeddings 1024 --make-vocab-size-divisible-by 4096 --use-flash-attn "
           "--attention-dropout 0 --hidden-dropout 0 --bf16 --micro-batch-size 4 "
           "--recompute-granularity full --recompute-method uniform ")


def test_on_virtual_gpus_each_stage_takes_less_memory_and_prefetching_less_time(
        student, dataset):
    student.solve(*FILES, "ddp", "states", "checkpointing")
    (student.home / "data").mkdir()
    (student.home / "data" / "bpe-4096").symlink_to(dataset.folder)
    replicas, optim, grads, params, prefetch = (
        gain.measure("h100:4", flags=VIRTUAL + strategy, steps=2)
        for strategy in ("", OPTIM, GRADS, PARAMS, PARAMS + "--overlap-param-gather"))
    assert replicas.peak > 1.5 * optim.peak and optim.peak > 1.04 * grads.peak
    assert grads.peak > 1.04 * params.peak and prefetch.peak < 1.15 * params.peak
    assert prefetch.exposed < params.exposed / 2
    assert prefetch.seconds < params.seconds - 0.8 * (params.exposed - prefetch.exposed)


@pytest.mark.stress
def test_virtual_gpus_have_nothing_to_save(student, dataset, tmp_path):
    student.solve(*FILES, "states", "checkpointing")
    (student.home / "data").mkdir()
    (student.home / "data" / "bpe-4096").symlink_to(dataset.folder)
    with pytest.raises(LabError, match=f"^--save {tmp_path}: tensors on virtual GPUs have no "
                                       "values; leave the flag out$"):
        gain.measure("h100:2", flags=f"{VIRTUAL}{OPTIM}--save {tmp_path} --save-interval 1")


@pytest.mark.parametrize(("flags", "ranks", "message"), [
    (OPTIM, 1, "--data-parallel-sharding-strategy optim: there is one rank, which would own "
     "everything; nearest: start 2 ranks"),
    ("--use-distributed-optimizer", 1, "--use-distributed-optimizer: there is one rank"),
    (GRADS + "--ring-all-reduce", 2, "--ring-all-reduce with --data-parallel-sharding-strategy "
     "optim_grads: mytrainer/zero.py reduce-scatters gradients with the library; nearest: leave "
     "out --ring-all-reduce"),
    (OPTIM + "--samples-per-rank 12,4", 2, "--samples-per-rank 12,4 with "
     "--data-parallel-sharding-strategy optim: all ranks process equally many samples; nearest: "
     "leave out --samples-per-rank"),
    (PARAMS + "--offload-activations", 2, "--offload-activations with "
     "--data-parallel-sharding-strategy optim_grads_params: the layers' parameters are freed"),
    (PARAMS + "--activation-memory-mb 9", 2, "nearest: --data-parallel-sharding-strategy "
     "optim_grads"),
    (PARAMS + "--bf16 --fp8-format hybrid --fp8-recipe tensorwise", 2, "with --fp8-format hybrid"),
    ("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", 2,
     "--overlap-param-gather with --use-distributed-optimizer: mytrainer/prefetch.py gathers the "
     "parameters that each rank has freed; nearest: --use-megatron-fsdp "
     "--data-parallel-sharding-strategy optim_grads_params --overlap-param-gather"),
    (PARAMS + "--overlap-param-gather", 2, "--overlap-grad-reduce should be turned on"),
    ("--data-parallel-sharding-strategy optim", 2, "has an effect only with --use-megatron-fsdp"),
    (OPTIM + "--num-distributed-optimizer-instances 2", 4, "--num-distributed-optimizer-instances "
     "2: my_trainer.py does not use this flag; leave it out"),
    (PARAMS + "--torch-fsdp2-no-reshard-after-forward", 2, "my_trainer.py does not use this flag"),
    ("--save x", 2, "--save x needs --save-interval"),
    ("--load x --bf16 --fp8-format hybrid --fp8-recipe delayed", 2, "--load x with --fp8-recipe "
     "delayed: checkpoints do not hold the amaxes of earlier steps; nearest: --fp8-recipe "
     "tensorwise")])
def test_what_the_files_cannot_do_is_refused(monkeypatch, flags, ranks, message):
    with pytest.raises(UserError, match=re.escape(message)):
        parsed(monkeypatch, f"{MODEL}{TRAINING}--micro-batch-size 2 {flags} ", ranks)


@pytest.mark.parametrize(("flags", "missing"), [
    (OPTIM, "shards"), (OPTIM, "zero"), (OPTIM, "clipping"), (GRADS, "zero2"), (PARAMS, "zero3"),
    (PREFETCH, "prefetch"), ("--save x --save-interval 2", "shards"), ("--load x", "shards"),
    ("--load x", "reshard")])
def test_a_flag_names_the_file_that_is_missing(monkeypatch, student, flags, missing):
    student.solve(*(name for name in FILES if name != missing))
    config = parsed(monkeypatch, f"{MODEL}{TRAINING}--micro-batch-size 2 {flags} ", 2)
    with pytest.raises(UserError, match=rf"^--.* needs mytrainer/{missing}\.py, which you write in "
                                        "lab 08; until then, leave the flag out$"):
        ours.require_sharding(config)
        ours.require_pieces(config, object)


def test_optim_needs_no_file_of_a_later_stage(monkeypatch, student):
    student.solve("shards", "zero", "clipping")
    config = parsed(monkeypatch, f"{MODEL}{TRAINING}--micro-batch-size 2 {OPTIM} ", 2)
    ours.require_sharding(config)
    ours.require_pieces(config, object)


def test_a_loop_that_would_clip_by_the_rank_s_own_norm_is_refused(monkeypatch, student):
    student.solve(*FILES, "train")
    config = parsed(monkeypatch, f"{MODEL}{TRAINING}--micro-batch-size 2 {OPTIM} ", 2)
    with pytest.raises(UserError, match=re.escape(
            "--data-parallel-sharding-strategy optim: train in mytrainer/train.py has no parameter "
            "clip, so it would clip by the norm of this rank's part of the gradient alone; "
            "give it the parameter clip=None, and call clip(parameters, max_norm) in place of")):
        ours.require_pieces(config, object)


CLIP = (("scaler=None):", "scaler=None, clip=None):"),
        ("norm = torch.nn.utils.clip_grad_norm_(", "norm = (clip or torch.nn.utils.clip_grad_norm_)"
         "("))


def loop_with_clip(student):
    """Let train.py be the loop of lab 05 with a parameter for clipping."""
    student.solve("new/train")
    text = (student.folder / "train.py").read_text()
    if "clip=None" not in text:
        for old, new in CLIP:
            assert text.count(old) == 1
            text = text.replace(old, new)
    student.write("train", text)
    return text


@pytest.mark.stress
def test_your_loop_clips_with_your_function(trained, student):
    student.solve(*FILES)
    loop_with_clip(student)
    assert "mytrainer/train.py" in trained(OPTIM, 2).out


def test_a_loop_that_does_not_call_clip_fails_its_self_check(student):
    text = loop_with_clip(student)
    assert selfcheck.problem(PIECES["train"]) is None
    student.write("train", re.sub(r"\(clip or (\S+)\)\(", r"\1(", text))
    assert ("mytrainer/train.py: in a step with clip_grad 0.3 and a clip that returns 7, train "
            "calls clip(parameters, max_norm) with the limits [] and logs the norms ["
            ) in selfcheck.problem(PIECES["train"])


WRONG = [
    ("shards", "-(-end // ranks)", "end // ranks", "mytrainer/shards.py: for shapes (3,) and "
     "(2, 2) on two ranks, ShardLayout has size and shard_size of (6, 3) instead of (8, 4)"),
    ("zero", "mine /= dist.get_world_size()", "pass",
     "mytrainer/zero.py: after finish() of step 1, the gradient of words.weight is not the mean"),
    ("zero2", "            self.reduce(unit)\n", "",
     "mytrainer/zero2.py: after a backward pass, rank "),
    ("zero3", "super().reduce(unit)\n        self.free(unit)", "super().reduce(unit)",
     "mytrainer/zero3.py: the loss of step 2 is "),
    ("prefetch", "following += -1 if self.backward else 1", "pass", "mytrainer/prefetch.py: while "
     "block 0 of three runs, the parameters of block 1 are not being gathered"),
    ("clipping", "dist.all_reduce(square)", "pass", "of 12 on rank 1, clip_grad_norm returns "),
    ("reshard", "old_start + first + at - start", "old_start + at - start",
     "mytrainer/reshard.py: for rank ")]
MORE_WRONG = [
    ("shards", "min(start + math.prod(shape), owned.stop)", "owned.stop", "has parts of shards "),
    ("zero", "dist.broadcast(self.buffer, src=0)", "pass",
     "mytrainer/zero.py: after the constructor, parameter words.weight differs from rank 0's"),
    ("zero", "            for unit in self.units:\n                unit.gather()\n", "",
     "mytrainer/zero.py: the loss of step 2 is "),
    ("zero2", '"""Wait for the last reduce-scatter."""\n        self._wait()', "pass",
     "mytrainer/zero2.py: after finish() of step 1, the gradient of "),
    ("zero3", "            self.free(unit)\n\n    def _turn", "            pass\n\n    def _turn",
     "mytrainer/zero3.py: while block 2 of three runs, the parameters of all blocks are in "
     "memory"),
    ("prefetch", "self._start(self.blocks[following])", "[self._start(one) for one in self.blocks]",
     "mytrainer/prefetch.py: the loss of step 2 is "),
    ("clipping", "(max_norm / (norm + 1e-6)).clamp(max=1.0)", "max_norm / (norm + 1e-6)",
     "mytrainer/clipping.py: with a norm of 13 and a max_norm of "),
    ("reshard", "min(part.stop, at + size - offset)", "part.stop",
     "mytrainer/reshard.py: reshard calls read(")]


@pytest.mark.parametrize(("name", "old", "new", "message"), [
    *WRONG, *(pytest.param(*one, marks=pytest.mark.stress) for one in MORE_WRONG)])
def test_a_wrong_piece_fails_its_self_check(student, name, old, new, message):
    student.solve(*FILES)
    student.change(name, old, new)
    problem = selfcheck.problem(PIECES[name])
    assert problem is not None and message in problem
