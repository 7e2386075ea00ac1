"""Good command lines mean what Megatron-LM means; bad ones are refused in words that help."""

import shlex
import subprocess
from pathlib import Path

import pytest

import megatron_flags
from minimegatron.arguments import parse_arguments, upstream
from minimegatron.arguments.parse import build_parser, notes
from minimegatron.arguments.table import EstimateConfig
from minimegatron.arguments.unknown import TRAINER, distance, suggestion, values_of
from minimegatron.errors import UserError

GOOD = ("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
        "--max-position-embeddings 32 --micro-batch-size 2 --lr 1e-3 --train-iters 10 "
        "--data-path d --vocab-file v --merge-file m ")


def parse(flags="", ranks=1, base=GOOD):
    return parse_arguments(shlex.split(base + flags), {"RANK": "0", "WORLD_SIZE": str(ranks)})


def test_what_is_derived():
    config = parse("--global-batch-size 24", ranks=4)
    assert (config.data_parallel_size, config.num_micro_batches) == (4, 3)
    assert (config.ffn_hidden_size, config.kv_channels) == (256, 16)
    assert config.lr_decay_samples == 240
    assert parse(ranks=4).global_batch_size == 8


def test_the_classic_course_s_flags():
    config = parse("--global-batch-size 8 --lr-decay-iters 320000 --lr-decay-style cosine "
                   "--min-lr 1.0e-5 --lr-warmup-fraction 0.01 --data-impl mmap --split 949,50,1 "
                   "--distributed-backend nccl --log-interval 10 --save-interval 100 "
                   "--eval-interval 200 --eval-iters 10 --profile-execution '' --local_rank=1 "
                   "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 "
                   "--DDP-impl local --no-masked-softmax-fusion")
    assert config.lr_warmup_samples == 25600
    assert config.distributed_backend == "nccl"
    assert not config.profile_execution


def test_one_timing_flag_brings_upstream_s_default_of_the_other():
    for flags, expected in (("", (None, None)), ("--timing-log-level 2", (2, "minmax")),
                            ("--timing-log-option all", (0, "all"))):
        config = parse(flags)
        assert (config.timing_log_level, config.timing_log_option) == expected


@pytest.mark.parametrize("spelling", ["--local_rank 3", "--local-rank=3"])
def test_both_spellings_of_local_rank(spelling):
    assert parse(spelling).local_rank == 3


@pytest.mark.parametrize("spelling", ["learnig", "learning"])
def test_a_true_default_is_turned_off_by_a_no_flag(spelling):
    assert parse().log_learning_rate_to_tensorboard
    flag = f"--no-log-{spelling}-rate-to-tensorboard"
    assert not parse(flag).log_learning_rate_to_tensorboard


PARSER = {option for action in build_parser(EstimateConfig)._actions
          for option in action.option_strings}


def test_every_flag_of_megatron_has_one_place():
    assert len(TRAINER.values) == 606
    placed = [PARSER & TRAINER.values.keys(), TRAINER.harmless.keys(), TRAINER.reasons.keys()]
    assert set().union(*placed) == TRAINER.values.keys()
    assert sum(map(len, placed)) == len(TRAINER.values)
    page = (Path(__file__).parents[2] / "docs/trainer.md").read_text()
    accepted, harmless, refused = map(len, placed)
    for row in (f"| flags (of {len(TRAINER.values)}) |", f"\n| {accepted} | accepted |",
                f"\n| {harmless} (and, with certain values, {len(TRAINER.harmless_values)} of the "
                "refused flags) |",
                f"\n| {refused} | refused |"):
        assert row in page


def test_the_table_of_foreign_flags_has_no_name_that_megatron_lacks():
    names = [name for table in (TRAINER.no_effect, TRAINER.refused) for text in table.values()
             for name in text.split()]
    assert len(names) == len(set(names))
    for name in names:
        assert any(flag == name or (name.endswith("*") and flag.startswith(name[:-1]))
                   for flag in TRAINER.values), name
    assert {*TRAINER.instead, *TRAINER.harmless_values} <= TRAINER.reasons.keys()


def test_what_is_recommended_instead_exists():
    for text in TRAINER.instead.values():
        assert {word.rstrip(",") for word in text.split() if word.startswith("--")} <= {
            *PARSER, "--ckpt-format", "--requeue"}


def values(name, good=True):
    """Return values that a flag of Megatron-LM may have."""
    one = TRAINER.harmless_values.get(name, "1").split()[0] if good else "other"
    return {"0": [], "1": [one], "*": [one, one]}[TRAINER.values[name]]


def test_every_harmless_flag_is_accepted_and_named_in_one_line():
    words = [word for name in TRAINER.harmless for word in (name, *values(name))]
    words += [word for name in TRAINER.harmless_values for word in (name, *values(name))]
    argv = [*shlex.split(GOOD), *words, "--seed", "7"]
    config = parse_arguments(argv, {})
    assert config.seed == 7
    (line,) = [line for line in notes(argv, config) if line.startswith("no effect here: ")]
    for name in (*TRAINER.harmless, *TRAINER.harmless_values):
        assert name in line
    assert "--wandb-project" in line and line.count("curves go only to --tensorboard-dir") == 1
    assert not any(line.startswith("no effect here") for line in notes(GOOD.split(), config))


def test_every_refused_flag_is_refused_by_name_all_in_one_message():
    names = list(TRAINER.reasons)
    argv = [*shlex.split(GOOD), *(word for name in names for word in (name, *values(name, False)))]
    with pytest.raises(UserError) as error:
        parse_arguments(argv, {})
    lines = str(error.value).splitlines()
    assert [line.split()[0].rstrip(":") for line in lines] == names
    assert all(line.endswith((" instead", "leave it out")) or ": here it is called --" in line
               for line in lines)


def test_all_problems_are_reported_at_once():
    with pytest.raises(UserError) as error:
        parse("--hiden-size 64 --micro-batch-size two --num-experts 8 --use-rope --lr-decay-style "
              "step --swiglu=1", base="--num-layers 4 --hidden-size 64 ")
    assert str(error.value).splitlines() == [
        "unrecognized argument --hiden-size; did you mean --hidden-size?",
        "argument --micro-batch-size/-b: invalid int value: 'two'",
        "--num-experts 8: a flag of Megatron-LM, but the trainer has no mixture of experts; leave "
        "it out",
        "unrecognized argument --use-rope; did you mean --use-rope-scaling?",
        "argument --lr-decay-style: invalid choice: 'step' (choose from 'constant', 'linear', "
        "'cosine', 'inverse-square-root')",
        "argument --swiglu: ignored explicit argument '1'",
        "the following arguments are required: --num-attention-heads, --seq-length/"
        "--encoder-seq-length, --max-position-embeddings, --lr, --data-path, --vocab-file, "
        "--merge-file"]
    with pytest.raises(UserError) as error:
        parse("--seed -1 --num-layers 0")
    assert len(str(error.value).splitlines()) == 2
    with pytest.raises(UserError) as error:  # the batch cannot be checked without the grid
        parse("--tensor-model-parallel-size 3 --hidden-size 66 --fp16 --bf16 --save x --schedule a",
              ranks=4)
    assert [line.partition(" ")[0] for line in str(error.value).splitlines()] == [
        "--save", "world", "--hidden-size"]


def test_a_blend_is_refused_as_what_it_is():
    with pytest.raises(UserError, match=r"^--data-path 0\.3 a 0\.7 b: a blend of several data "
                       "sets, but pretrain_gpt.py reads one; nearest: --data-path a$"):
        parse("--data-path 0.3 a 0.7 b")
    with pytest.raises(UserError, match="--hidden-size 64 32: unrecognized argument 32"):
        parse("--hidden-size 64 32")


@pytest.mark.parametrize(("name", "near"), [
    ("--hiden-size", "--hidden-size"), ("--micro_batch_size", "--micro-batch-size"),
    ("--micro-batch", "--micro-batch-size"), ("--sequence-paralell", "--sequence-parallel"),
    ("--no-mmap-bin-file", "--no-mmap-bin-files"), ("--lr-dceay-iters", "--lr-decay-iters"),
    ("--vocab-flie", "--vocab-file"), ("--no-mmap", "--no-mmap-bin-files"),
    ("--attention-window", ""), ("--use-mup", ""), ("--log-dir", ""), ("stray", ""), ("--x", "")])
def test_a_suggestion_is_made_for_a_typing_error_only(name, near):
    assert suggestion(name, {*PARSER, *TRAINER.values}) == near


def test_the_distance_counts_letters():
    assert [distance("abc", other) for other in ("abc", "acb", "ab", "xabc", "xyz")] == [
        0, 1, 1, 1, 3]


REFUSED = {
    "--num-layer 2": "--num-layer; did you mean --num-layers",
    "--batch-size 2": "no longer valid, use --micro-batch-size instead",
    "--warmup 2": "use --lr-warmup-fraction instead",
    "--model-parallel-size 2": "use --tensor-model-parallel-size instead",
    "--global-batch-size 5": r"size \(5\) is not divisible .*\(2\) times .*\(1\).* 4 or 6",
    "--global-batch-size 1": r"nearest: --global-batch-size 2",
    "--hidden-size 66": "66 is not divisible by --num-attention-heads 4; nearest: 64 or 68",
    "--seq-length 64": "--max-position-embeddings 32 is less than --seq-length 64; nearest: 64",
    "--num-layers 0": "--num-layers 0: must be at least 1",
    "--micro-batch-size two": "micro-batch-size.*invalid int value: 'two'",
    "--lr -1": "--lr -1.0: must not be negative",
    "--min-lr 1": "--min-lr 1.0 is greater than --lr 0.001; nearest: --min-lr 0.001",
    "--hidden-dropout 1": r"--hidden-dropout 1.0: must be in \[0, 1\)",
    "--lr-decay-style step": "lr-decay-style.*invalid choice: 'step'",
    "--lr-warmup-iters 10": r"warm-up \(20 samples\) is not shorter.*nearest: --lr-warmup-iters 9",
    "--lr-warmup-iters 2 --lr-warmup-fraction 0.1": "can only specify one of lr-warmup-fraction",
    "--train-samples 100": "one of --train-iters and --train-samples, not both",
    "--save x": "--save x needs --save-interval",
    "--profile-execution yes": "--profile-execution yes needs --tensorboard-dir",
    "--profile-ranks 0 3": "--profile-ranks 3: there are ranks 0 to .*; nearest: --profile-ranks",
    "--pipeline-model-parallel-layout E|t|t|L": "nearest: --pipeline-model-parallel-size 4",
    "--timeline x --timeline-iteration 999999": "nearest: --timeline-iteration 10",
    "--profile-name a/b": "--profile-name 'a/b'",
    "--tensor-model-parallel-size 2": r"world size \(1\) is not divisible by tensor model parallel "
                                      r"size \(2\); nearest: --tensor-model-parallel-size 1$",
    "--tensor-model-parallel-size 0": "--tensor-model-parallel-size 0: must be at least 1",
    "--pipeline-model-parallel-size 2": r"\(1\) is not divisible by .* pipeline parallel size "
                                        r"\(2\); nearest: --pipeline-model-parallel-size 1,",
    "--device tpu": "--device tpu: .*auto, cpu, cuda.*; nearest: --device cpu$",
    "--device cuda:0": "--device cuda:0: .*nearest: --device cuda$",
    "--device virtul:v100": "--device virtul:v100: .*nearest: --device virtual:v100-sxm2-16gb$",
    "--device virtual:": "virtual:GPU; nearest: --device virtual:v100-sxm2-16gb$",
    "--device A100": "--device A100: .*nearest: --device virtual:A100$",
    "--device virtual:a100-60gb": "no virtual GPU model is called 'a100-60gb'; nearest: a100-80gb",
    "--device virtual:v100 --bf16": "--bf16 on a virtual v100-sxm2-16gb: .*nearest: --fp16",
    "--use-flash-attn": "nearest: --attention-dropout 0",
    "--data-impl lazy": "data-impl.*invalid choice",
    "--timing-log-level 3": "timing-log-level.*invalid choice: 3",
    "--timing-log-option min": "timing-log-option.*invalid choice: 'min'",
    "--DDP-impl torch": "DDP-impl.*invalid choice",
    "--lr-warmup-iters 1 --lr-warmup-samples 1": "can only specify one of lr-warmup-fraction",
    "--seed -1": "--seed -1: must be from 0 to 4294967295",
    "--lr inf": "--lr inf: must be a finite number",
    "--layernorm-epsilon 0": "--layernorm-epsilon 0.0: must be greater than 0",
    "--distributed-timeout-minutes 1e30": "--distributed-timeout-minutes 1e\\+30: nearest: 525600",
    "--override-lr-scheduler --use-checkpoint-lr-scheduler": "not both",
    "stray": "unrecognized argument stray",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_refused_with_flag_value_and_a_right_value(flags):
    with pytest.raises(UserError, match=REFUSED[flags]):
        parse(flags)


def test_flags_in_one_quoted_variable_are_refused_with_the_cause():
    with pytest.raises(UserError, match="does not split a variable in quotes"):
        parse_arguments(["--num-layers 4 --hidden-size 64"], {})


TENSOR_PARALLEL = {  # on 24 ranks
    "-size 5": r"world size \(24\) is not divisible by .* \(5\); nearest: .*-size 4 or 6$",
    "-size 25": r"world size \(24\) is not divisible by .* \(25\); nearest: .*-size 24$",
    "-size 3": "--num-attention-heads 4 is not divisible by --tensor-model-parallel-size 3; "
               "nearest: 3 or 6, or --tensor-model-parallel-size 2 or 4$",
    "-size 8": "--num-attention-heads 4 .* nearest: 8, or --tensor-model-parallel-size 4$",
    "-size 4 --ffn-hidden-size 98": "--ffn-hidden-size 98 is not divisible by --tensor-model-"
                                    "parallel-size 4; nearest: 96 or 100, or .*-size 2$",
    "-size 4 --sequence-parallel --seq-length 30": "--seq-length 30 is not divisible by --tensor-"
                                                   "model-parallel-size 4; nearest: 28 or 32, or",
    "-size 4 --tp-comm-overlap": "--tp-comm-overlap .* --sequence-parallel; nearest: --sequence-"
                                 "parallel --tensor-model-parallel-size 4$",
    "-size 1 --tp-comm-overlap --sequence-parallel": "nearest: .*-parallel-size 2$",
    "-size 4 --pipeline-model-parallel-size 2 --kv-channels 2 --hidden-size 10 --ffn-hidden-size 8 "
    "--scatter-gather-tensors-in-pipeline": "--hidden-size 10 is not divisible by .*-size 4; "
                                            "nearest: 8 or 12",
}


@pytest.mark.parametrize("flags", TENSOR_PARALLEL)
def test_what_tensor_parallel_ranks_cannot_divide_is_refused(flags):
    with pytest.raises(UserError, match=TENSOR_PARALLEL[flags]):
        parse("--tensor-model-parallel" + flags, ranks=24)


def test_ranks_that_are_not_tensor_parallel_are_replicas():
    config = parse("--tensor-model-parallel-size 2 --sequence-parallel", ranks=8)
    assert (config.data_parallel_size, config.global_batch_size) == (4, 8)
    assert config.sequence_parallel


def test_sequence_parallelism_of_one_rank_is_said_to_have_no_effect():
    config = parse("--sequence-parallel", ranks=8)
    assert not config.sequence_parallel
    assert "--sequence-parallel: no effect, there is one tensor-parallel rank" in notes(
        ["--sequence-parallel"], config)


@pytest.mark.parametrize("flags", ["--sequence-parallel", "--pipeline-model-parallel-size 1"])
def test_activations_that_are_not_sent_whole_are_not_scattered(flags):
    scatter = "--scatter-gather-tensors-in-pipeline"
    grid = f"{scatter} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
    assert parse(grid, ranks=4).scatter_gather_tensors_in_pipeline
    config = parse(grid + flags, ranks=4)
    assert not config.scatter_gather_tensors_in_pipeline
    assert any(line.startswith(f"{scatter}: no effect") for line in notes([scatter], config))


def test_a_missing_flag_is_named():
    with pytest.raises(UserError, match="--lr"):
        parse(base=GOOD.replace("--lr 1e-3", ""))
    with pytest.raises(UserError, match="give one of --train-iters and --train-samples"):
        parse(base=GOOD.replace("--train-iters 10", ""))


def test_samples_instead_of_iterations():
    config = parse("--train-samples 21", base=GOOD.replace("--train-iters 10", ""))
    assert (config.train_iters, config.lr_decay_samples) == (10, 21)


def test_a_broken_environment_is_named():
    with pytest.raises(UserError, match="WORLD_SIZE=two in the environment is not a number"):
        parse_arguments(shlex.split(GOOD), {"WORLD_SIZE": "two"})


PIPELINE = {  # on 2 stages of 4 layers in all
    "--num-layers 5": r"num_layers \(5\) must be divisible .* \(2\); nearest: .* 4 or 6, .* 3-2$",
    "--balance 1-2": "1-2 adds up to 3 layers, but --num-layers is 4; nearest: --balance 2-2",
    "--balance 1-2-1": r"1-2-1 is for 3 stage\(s\), .* is 2; nearest: --balance 2-2",
    "--balance 1,3": "--balance 1,3: .* joined by dashes; nearest: --balance 2-2",
    "--num-layers-per-virtual-pipeline-stage 2": "nothing to interleave; nearest: 1",
    "--schedule interleaved": "--schedule interleaved needs --num-layers-per-virtual",
    "--schedule 1f1": "'1f1'.*did you mean 1f1b",
    "--schedule zbv": "zbv places its chunks in a V.*; nearest: --schedule zb-h1",
    "--balance 2-2 --pipeline-model-parallel-layout Ett|ttL": "each assigns the layers to stages",
    "--pipeline-model-parallel-layout Ett|tL": "has 3 layers, but --num-layers is 4; nearest",
    "--pipeline-model-parallel-layout E|tt|ttL": "has 3 stages, which is not divisible by",
    "--pipeline-model-parallel-layout tt|ttL": "one E .* begins the first stage",
    "--pipeline-model-parallel-layout Ett|ttmL": "no m .multi-token prediction. layers",
    "--pipeline-model-parallel-layout Ex|L": "give E, t, and L, with",
}


@pytest.mark.parametrize("flags", PIPELINE)
def test_a_pipeline_that_cannot_be_is_refused(flags):
    with pytest.raises(UserError, match=PIPELINE[flags]):
        parse("--pipeline-model-parallel-size 2 " + flags, ranks=2)


UPSTREAM = '''
group.add_argument('--switch', '--other-name', action='store_true', help='--not-a-flag')
group.add_argument("--value", type=int, default=None, required=False)
group.add_argument('--maybe', nargs='?')
group.add_argument('--list', nargs='+')
group.add_argument('--both', action=argparse.BooleanOptionalAction)
group.add_argument('positional')
'''


def test_the_table_is_what_its_generator_writes():
    kinds = dict(megatron_flags.flags_in(UPSTREAM))
    assert kinds == {"--switch": "0", "--other-name": "0", "--value": "1", "--maybe": "1",
                     "--list": "*", "--both": "0", "--no-both": "0"}
    made = {}
    exec(megatron_flags.render(kinds, {"a.py": "c0ffee"}), made)
    assert values_of(made["NAMES"]) == kinds and made["SOURCES"] == {"a.py": "c0ffee"}
    assert megatron_flags.TABLE.read_text() == megatron_flags.render(
        TRAINER.values, upstream.SOURCES)


def test_the_generator_reads_commits_of_a_checkout_and_compares_them(tmp_path, monkeypatch, capsys):
    def git(*words):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tmp_path,
                               *words], check=True, capture_output=True, text=True).stdout.strip()

    commits = []
    git("init", "-q")
    for text in (UPSTREAM, "group.add_argument('--switch')\ngroup.add_argument('--seed')\n"):
        (tmp_path / "arguments.py").write_text(text)
        git("add", "arguments.py")
        git("commit", "-q", "-m", "flags")
        commits.append(git("rev-parse", "HEAD"))
    old, new = (f"arguments.py@{commit}" for commit in commits)
    table = tmp_path / "upstream.py"
    monkeypatch.setattr(megatron_flags, "TABLE", table)
    assert megatron_flags.main([str(tmp_path), old]) == 0
    made = {}
    exec(table.read_text(), made)
    assert made["SOURCES"] == {"arguments.py": commits[0]}
    assert values_of(made["NAMES"]) == dict(megatron_flags.flags_in(UPSTREAM))
    for name in ("SOURCES", "NAMES"):
        monkeypatch.setattr(upstream, name, made[name])
    assert megatron_flags.main([str(tmp_path), "--check", old]) == 0
    assert capsys.readouterr().out == "the table is up to date\n"
    assert megatron_flags.main([str(tmp_path), "--check", new]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "new: --seed", *(f"gone: {name}" for name in (
            "--both", "--list", "--maybe", "--no-both", "--other-name", "--value"))]
    for wrong in ("arguments.py", "nowhere.py@HEAD", "arguments.py@nocommit"):
        with pytest.raises(SystemExit):
            megatron_flags.main([str(tmp_path), wrong])
        assert f"{wrong.partition('@')[0]}" in capsys.readouterr().err
