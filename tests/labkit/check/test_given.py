"""A job script is compared with the exercise's, flag by flag, after all that flags imply."""


import pytest

from labkit.check.checks import Failed
from labkit.check.compared import InvalidOnly, settable_fields
from labkit.check.given import differences, from_reference, report, require_sound
from labkit.check.job import Job, resolve
from labkit.check.scripts import script
from labkit.check.sides import checking_on

FILE = "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py"
MODEL = ("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
         "--max-position-embeddings 64 --micro-batch-size 2 --global-batch-size 8 --train-iters 5 "
         "--lr 1e-3 --lr-warmup-fraction 0.2 --device virtual:v100 --virtual-network "
         "ethernet:25gbit --split 949,50,1 --data-path $LAB_HOME/data/x --vocab-file v "
         "--merge-file m")
LAUNCH = {"program": "torchrun", "step": 0, "task": 0, "host": "slurmnode1", "background": False,
          "variables": {}}
HIDDEN = {**LAUNCH, "program": "python", "step": 1}


def launch(flags: str = "", torchrun: str = "--nproc_per_node 2", file: str = FILE, **more) -> dict:
    return {**LAUNCH, "arguments": [*torchrun.split(), file, *f"{MODEL} {flags}".split()], **more}


def record(*launches: dict, directives: dict | None = None) -> dict:
    return {"components": [directives or {"gpus-per-node": "2"}], "notes": [],
            "launches": list(launches), "exit": 0, "output": ""}


def job(flags: str = "", **more) -> Job:
    made = resolve(record(launch(flags, **more)))
    assert made.problems == ()
    return made


def found(student: Job, only: tuple[str, ...] = (), reference: Job | None = None) -> str:
    given = from_reference(reference or job(), only)
    require_sound(given)
    return "\n".join(differences(student, given, only))


class Recorded:
    """A side on which every script has this record."""

    def __init__(self, made: dict) -> None:
        self.made = made

    def script(self, path: str) -> dict:
        return self.made


def test_the_reference_is_no_different_from_itself():
    assert found(job()) == ""


SAME = [
    "--ffn-hidden-size 256 --kv-channels 16 --hidden-dropout 1e-1 --lr 0.001",
    "--num-layers 7 --num-layers 4", "--train-iters 05 --micro-batch-size 0_2",
    "--device virtual:V100-SXM2-16gb --virtual-network 25gbit --split 949.0/50/1",
    "--data-path data/./x --vocab-file $LAB_HOME/data/../v", "--lr-decay-samples 40",
    "--lr-decay-iters 5", "--ddp-bucket-size 40000000 --loss-scale-window 1000",
    "--schedule 1f1b --balance 4", "--pipeline-model-parallel-layout Ettt*2L",
    "--sequence-parallel",
    "--log-interval 1 --log-throughput --save out --save-interval 3 --timeline t",
    "--tensorboard-dir $LAB_HOME/megatron/tensorboard/mine --profile-execution yes",
    "--no-masked-softmax-fusion --num-workers 7 --distributed-timeout-minutes 2"]


@pytest.mark.parametrize("flags", SAME)
def test_what_means_the_same_is_the_same(flags):
    assert found(job(flags)) == ""


DIFFERENT = [
    ("--ffn-hidden-size 1 --kv-channels 1", "--ffn-hidden-size 1; the exercise uses 256\n"
     "--kv-channels 1; the exercise uses 16"),
    ("--hidden-dropout 0", "--hidden-dropout 0.0; the exercise uses 0.1"),
    ("--hidden-dropout 0.1000001", "--hidden-dropout 0.1000001; the exercise uses 0.1"),
    ("--seq-length 8", "--seq-length 8; the exercise uses 64"),
    ("--make-vocab-size-divisible-by 1", "--make-vocab-size-divisible-by 1; the exercise uses 128"),
    ("--train-iters 1", "--train-iters 1; the exercise uses 5"),
    ("--hidden-size 32", "--hidden-size 32; the exercise uses 64"),
    ("--fp16", "--fp16; the exercise does not use it"),
    ("--bf16 --device virtual:a100", "--bf16; the exercise does not use it\n--device virtual:a100; "
     "the exercise uses virtual:v100"),
    ("--global-batch-size 4", "--global-batch-size 4; the exercise uses 8"),
    ("--data-path $LAB_HOME/data/y", "--data-path $LAB_HOME/data/y; the exercise uses "
     "$LAB_HOME/data/x"),
    ("--split 1,1,1", "--split 1,1,1; the exercise uses 949,50,1"),
    ("--lr-decay-iters 3", "--lr-decay-samples 24; the exercise uses 40"),
    ("--exit-interval 1", "--exit-interval 1; the exercise does not use it"),
    ("--recompute-activations", "--recompute-granularity selective; the exercise does not use it"),
    ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
     "--data-parallel-sharding-strategy optim_grads; the exercise uses no_shard"),
    ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2; the exercise uses 1"),
    ("--pipeline-model-parallel-size 2 --balance 1-3",
     "--pipeline-model-parallel-size 2; the exercise uses 1\n"
     "--pipeline-model-parallel-layout 'Et|t*3L'; the exercise uses 'Et*4L'"),
    ("--load evil --finetune", "--finetune; the exercise does not use it"),
    ("--estimate --world-size 2", "--estimate; the exercise does not use it"),
    ("--schedule evil.py", "--schedule evil.py; the exercise uses 1f1b")]


@pytest.mark.parametrize(("flags", "says"), DIFFERENT)
def test_another_job_is_another_and_its_flag_is_named(flags, says):
    said = found(job(flags))
    assert says in said and len(said.splitlines()) <= len(says.splitlines()) + 1


def test_what_is_missing_is_named():
    missing = job("--use-flash-attn --attention-dropout 0 --clip-grad 0 --exit-interval 3")
    assert found(job("--attention-dropout 0 --clip-grad 0"), reference=missing).splitlines() == [
        "--use-flash-attn is missing; the exercise uses it",
        "--exit-interval is missing; the exercise uses 3"]


def test_what_only_names_is_free_with_all_that_follows_from_it():
    only = ("--micro-batch-size", "--global-batch-size")
    assert found(job("--micro-batch-size 4 --global-batch-size 16"), only) == ""
    assert found(job("--global-batch-size 16"), ("--global-batch-size",)) == ""
    assert "--micro-batch-size 4; the exercise uses 2" in found(
        job("--micro-batch-size 4"), ("--global-batch-size",))
    said = found(job("--global-batch-size 16 --lr-decay-samples 40"), ("--global-batch-size",))
    assert said == "--lr-decay-samples 40; the exercise uses 80"


@pytest.mark.parametrize(("only", "flags"), [
    ("--balance", "--num-layers-per-virtual-pipeline-stage 1"),
    ("--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout Et|t|t|tL"),
    ("--recompute-granularity", "--recompute-activations"),
    ("--use-distributed-optimizer", "--use-megatron-fsdp --data-parallel-sharding-strategy optim"),
    ("--recompute-activations", "--recompute-granularity selective")])
def test_one_spelling_frees_the_others(only, flags):
    reference = job("--pipeline-model-parallel-size 2")
    assert found(job(f"--pipeline-model-parallel-size 2 {flags}"), (only,), reference) == ""


def test_two_names_of_one_sharding_strategy_are_equal():
    sharded = "--use-megatron-fsdp --data-parallel-sharding-strategy"
    assert found(job(f"{sharded} optim"), reference=job("--use-distributed-optimizer")) == ""
    assert found(job("--use-distributed-optimizer"), reference=job(f"{sharded} optim_grads")) == (
        "--data-parallel-sharding-strategy optim; the exercise uses optim_grads")


def test_a_spelling_of_two_things_is_free_where_both_are():
    assert "activations_checkpoint_method" not in settable_fields(["--recompute-granularity"])
    assert settable_fields(["--activations-checkpoint-method"]) == {
        "recompute_granularity", "recompute_method", "recompute_activations",
        "activations_checkpoint_method"}


def test_the_cause_is_named_where_the_rest_no_longer_fits():
    """The student's balance, which is theirs to choose, does not fit the exercise's layers."""
    student = job("--num-layers 2 --pipeline-model-parallel-size 2 --balance 1-1")
    reference = job("--pipeline-model-parallel-size 2 --balance 1-3")
    assert found(student, ("--balance",), reference) == "--num-layers 2; the exercise uses 4"


def test_what_does_not_fit_the_exercise_hides_no_difference():
    """With the student's steps, which are free, the exercise's warm-up has no room."""
    def made(flags):
        words = MODEL.replace("--lr-warmup-fraction 0.2", "--lr-warmup-iters 4") + flags
        return resolve(record({**LAUNCH, "arguments": ["--nproc_per_node", "2", FILE,
                                                       *words.split()]}))

    student = made(" --train-iters 3 --lr-decay-iters 100")
    assert found(student, ("--train-iters",), made("")) == (
        "--lr-decay-samples 800; the exercise does not use it")
    student = job("--tensor-model-parallel-size 2 --num-attention-heads 2 --kv-channels 32 "
                  "--pipeline-model-parallel-layout Ettt*2L")
    reference = job("--num-attention-heads 1 --kv-channels 64")
    assert set(found(student, ("--tensor-model-parallel-size",), reference).splitlines()) == {
        "--pipeline-model-parallel-layout 'Et*4L'; the exercise uses another one",
        "--kv-channels 32; the exercise uses 64", "--num-attention-heads 2; the exercise uses 1"}


def test_what_is_kept_does_not_hold_what_is_free():
    only = ("--micro-batch-size", "--global-batch-size", "--nodes", "--nproc_per_node", "--lr",
            "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--balance")
    one = job("--recompute-granularity full --recompute-method block --recompute-num-layers 3")
    two = job("--micro-batch-size 4 --global-batch-size 16 --lr 1 --recompute-activations")
    assert from_reference(one, only) == from_reference(two, only) == {
        "gpus_per_node": 2, "runs": [{"trainer": FILE, "flags": (
            "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
            "--max-position-embeddings 64 --train-iters 5 --data-path '$LAB_HOME/data/x' "
            "--split 949,50,1 --vocab-file v --merge-file m --device virtual:v100 "
            "--virtual-network ethernet:25gbit --lr-warmup-fraction 0.2")}]}


PLACED = [
    (record(launch(torchrun="--nproc_per_node 4")), "nodes x ranks per node: 1 x 4; the exercise "
     "uses 1 x 2"),
    (record(launch(), directives={"gpus-per-node": "1"}), "--gpus-per-node 1; the exercise uses 2"),
    (record(launch(), directives={"gres": "gpu:v100:2"}), ""),
    (record(launch(), directives={"nodes": "2", "gpus": "4"}), "--nodes 2; the exercise uses 1"),
    (record(launch(file="/tmp/pretrain_gpt.py")), "it starts /tmp/pretrain_gpt.py; the exercise's "
     f"trainer is {FILE}"),
    (record(launch(file="../pretrain_gpt.py")), "it starts ../pretrain_gpt.py"),
    (record(launch(file="pretrain_gpt.py")), ""),
    (record(launch(file="megatron/./Megatron-LM/pretrain_gpt.py")), ""),
    (record(launch(variables={"VIRTUAL_NETWORK": "1gbit", "OMP_NUM_THREADS": "3"})),
     "VIRTUAL_NETWORK is 1gbit; in the exercise it is not set"),
    # a second training
    (record(launch(), launch("--num-layers 2", step=1)), "it starts the trainer 2 times; the "
     "exercise's script does so once"),
    (record(launch(), {**launch("--num-layers 2"), "arguments": ["-u", FILE, *MODEL.split()],
                       "program": "python"}), "it starts the trainer 2 times"),
    (record(launch(), launch(file="mine.py", step=1)), "it also starts mine.py"),
    (record(launch(), {**HIDDEN, "arguments": ["-u", "mine.py"]}), "it also starts mine.py"),
    (record(launch(), {**HIDDEN, "program": "sbatch", "arguments": ["x.sh"]}),
     "it also starts sbatch"),
    (record(launch(), {**HIDDEN, "arguments": ["-u", "-m", "mine"]}), "starts python -m mine"),
    (record(launch(), launch(file="mine", torchrun="-m", step=1)), "it also starts mine"),
    (record(launch(), {**HIDDEN, "arguments": ["--version"]}), ""),
    (record(launch(), {**HIDDEN, "arguments": ["-m", "json.tool", "x.py"]}), "")]


@pytest.mark.parametrize(("made", "says"), PLACED, ids=range(len(PLACED)))
def test_where_and_what_it_starts_is_compared(made, says):
    said = found(resolve(made))
    assert says in said and bool(says) == bool(said)


def test_ranks_that_srun_starts_have_the_same_flags():
    """Flags that only some ranks receive are seen, too."""
    ranks = [{**HIDDEN, "arguments": [FILE, *f"{MODEL} {flags}".split()], "task": task,
              "variables": {"RANK": str(task), "WORLD_SIZE": "2", "MASTER_ADDR": "slurmnode1",
                            "MASTER_PORT": "6000"}}
             for task, flags in enumerate(("", "--ffn-hidden-size 1"))]
    assert resolve(record(*ranks)).problems == (
        "the ranks start the trainer with different flags",)


def test_two_trainings_are_compared_one_by_one():
    both = resolve(record(launch(), launch("--seed 5", step=1)))
    other = resolve(record(launch(), launch("--seed 6", step=1)))
    assert found(both, reference=both) == ""
    assert found(other, reference=both) == "training 2: --seed 6; the exercise uses 5"
    assert "1 times; the exercise's script does so 2 times" in found(job(), reference=both)


def test_a_check_says_what_differs_and_what_is_free():
    only = ["--micro-batch-size"]
    given = from_reference(job(), only)
    with checking_on(Recorded(record(launch("--ffn-hidden-size 1")))):
        with pytest.raises(Failed) as caught:
            script("code/mine.sh", only=only, given=given)
        # What the unfixed check would have made of it:
        assert script("code/mine.sh", given=None).flags.ffn_hidden_size == 1
    assert str(caught.value) == (
        "code/mine.sh changes what this exercise does not ask you to change:\n"
        "  --ffn-hidden-size 1; the exercise uses 256.\nYours to choose: --micro-batch-size.")


def test_a_notebook_without_what_is_given_says_what_to_do():
    with pytest.raises(Failed, match="this notebook is older than the course's software"):
        script("code/mine.sh")


def test_a_check_refuses_a_job_that_would_go_wrong():
    given = from_reference(job(), [])
    for flags, says in (("--num-layers 4.0", "argument --num-layers: invalid int value: '4.0'"),
                        ("--micro-batch-size 3", "This would go wrong. global batch size (8)"),
                        ("--hidden-dropout nan", "--hidden-dropout nan"),
                        ("@flags.txt", "unrecognized argument @flags.txt")):
        with checking_on(Recorded(record(launch(flags)))), pytest.raises(Failed) as caught:
            script("code/mine.sh", given=given)
        assert says in str(caught.value)


def test_a_message_is_short_whatever_a_script_does():
    told = report([f"--x {number}" for number in range(90)], "code/mine.sh", [])
    assert "... and 84 more." in told and told.endswith("All of it is given; change it back.")
    assert len(found(job("--data-path " + "x" * 5000, file="/" + "y" * 9000 + FILE))) < 1000


@pytest.mark.parametrize(("name", "says"), [
    ("--micro-batch", "--micro-batch is not a flag of the trainer (nearest: --micro-batch-size)"),
    ("micro_batch_size", "nearest: --micro-batch-size"), ("--node", "nearest: --nodes"),
    ("-b", "not a flag of the trainer"), ("--data-parallel-size", "not a flag"),
    ("--layers-per-chunk", "not a flag"), ("--log-interval", "--log-interval is never compared")])
def test_only_names_flags(name, says):
    with pytest.raises(InvalidOnly) as caught:
        settable_fields([name])
    assert says in str(caught.value)


@pytest.mark.parametrize("given", [
    {}, {"runs": []}, {"runs": [{}]}, {"runs": [{"flags": 3}]}, [], None,
    {"runs": [{"flags": "--num-layer 3"}]}, {"runs": [{"flags": "", "nods": 3}]},
    {"nods": 2, "runs": [{"flags": ""}]}])
def test_what_no_build_wrote_is_refused(given):
    with pytest.raises(ValueError, match="given= is not what `lab build` writes"):
        require_sound(given)
