"""The cost of a job, from its command line alone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys

import pytest

from labcore import shipping
from labcore.errors import LabError
from labkit import check
from labkit.check import measure
from labkit.check.allocation import Component
from labkit.check.allowed import EstimateHardware, flags_for_estimate, use
from labkit.check.checks import Failed
from labkit.check.job import Job
from labkit.check.runs import TRAINER, TrainingRun
from layout_estimator.planner import RunPlan
from layout_estimator.requests import estimate
from minimegatron.arguments.flag import table_of
from minimegatron.arguments.parse import parse_command_line
from minimegatron.arguments.table import EstimateConfig

CARD, A100 = "virtual:v100", "virtual:a100-80gb"
MODEL = ("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
         "--max-position-embeddings 64 --micro-batch-size 2 --lr 1e-3 --train-iters 20 "
         "--data-path d --vocab-file v --merge-file m")
TWO_BY_TWO = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"


def parsed(line: str, world_size: int = 1) -> EstimateConfig:
    return parse_command_line(line.split(), {"RANK": "0", "WORLD_SIZE": str(world_size)})


def job(flags: str = "", nodes: int = 1, ranks: int = 1) -> Job:
    words = f"{MODEL} {flags}"
    run = TrainingRun(nodes, ranks, parsed(words, nodes * ranks), (), TRAINER, tuple(words.split()),
                      {})
    return Job((Component({}),), (run,), (), ())


# Every flag that is passed or replaced, and what its value becomes.
GO_ON = [
    "--ffn-hidden-size 128", "--kv-channels 32", "--make-vocab-size-divisible-by 256",
    "--attention-dropout 0.3 --hidden-dropout 1e-05", "--use-flash-attn --attention-dropout 0",
    "--global-batch-size 32", "--clip-grad 0", "--fp16 --accumulate-allreduce-grads-in-fp32",
    "--bf16", "--fp16 --loss-scale 0.5", "--sequence-parallel",
    "--schedule gpipe", "--schedule zb-h1",
    "--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 1000",
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
    "--overlap-grad-reduce --overlap-param-gather --num-distributed-optimizer-instances 2",
    "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
    "--activations-checkpoint-method uniform --distribute-saved-activations",
    "--recompute-activations", "--timing-log-level 1", "--timing-log-option all",
    "--num-layers-per-virtual-pipeline-stage 1 --global-batch-size 16", "--balance 1-3",
    "--swiglu --disable-bias-linear",
    "--pipeline-model-parallel-layout E(t)*3,|tL", "--max-position-embeddings 128",
    "--device cpu --virtual-network ethernet:10gbit"]
OLD_NAMES = ("activations_checkpoint_method", "recompute_activations", "balance",
             "num_layers_per_virtual_pipeline_stage", "pipeline_model_parallel_layout")


@pytest.mark.parametrize("flags", GO_ON)
def test_what_a_figure_depends_on_arrives_as_the_trainer_read_it(flags):
    given = parsed(f"{MODEL} {TWO_BY_TWO} {flags}", world_size=8)
    words = flags_for_estimate(given, EstimateHardware(A100, 4, "infiniband:8x200gbit"), 500)
    arrived = parse_command_line(words, {})
    passed = [flag.name for flag in table_of(EstimateConfig).values() if use(flag) == "passed"]
    for name in (*passed, "world_size", "data_parallel_size", "layers_per_chunk"):
        assert getattr(arrived, name) == getattr(given, name), name
    for name in OLD_NAMES[:-1]:
        assert getattr(arrived, name) in (None, False)
    assert (arrived.device, arrived.gpus_per_node, arrived.vocab_size, arrived.virtual_network) == (
        A100, 4, 500, "infiniband:8x200gbit")


# Values that are not the defaults, of the flags that are left out.
NO_MATTER = (
    "--layernorm-epsilon 1e-3 --init-method-std .5 --exit-interval 3 --exit-duration-in-mins 1 "
    "--exit-signal-handler --min-lr 1e-9 --lr-decay-style cosine --lr-decay-iters 9 "
    "--lr-warmup-fraction .1 --override-lr-scheduler --weight-decay 0 --adam-beta1 .5 "
    "--adam-beta2 .5 --adam-eps 1 --fp16 --initial-loss-scale 8 --min-loss-scale 2 "
    "--loss-scale-window 3 --hysteresis 3 --seed 1 --data-impl mmap "
    "--data-cache-path c --split 1,1,1 --eod-mask-loss --num-workers 9 --rotary-base 5 "
    "--distributed-backend gloo --distributed-timeout-minutes 1 --local-rank 3 --save /s "
    "--load /l --load-last-good --save-interval 2 --async-save --no-save-optim --no-load-optim "
    "--finetune "
    "--log-interval 1 --log-format core --eval-interval 1 --eval-iters 1 --log-throughput "
    "--log-params-norm --log-num-zeros-in-grad --metrics /m --tensorboard-dir /t "
    "--tensorboard-log-interval 2 "
    "--tensorboard-queue-size 2 --log-timers-to-tensorboard --log-batch-size-to-tensorboard "
    "--log-validation-ppl-to-tensorboard --log-memory-to-tensorboard "
    "--log-world-size-to-tensorboard --no-log-learning-rate-to-tensorboard "
    "--no-log-loss-scale-to-tensorboard --timeline /x --timeline-iteration 2 "
    "--preset gpt2-small --use-megatron-fsdp "
    "--profile-execution yes --profile-ranks 0 1 --profile-name n")
FP8 = (f"{MODEL} --bf16 --fp8-format hybrid --use-flash-attn --attention-dropout 0 "
       "--hidden-dropout 0")
ROPE = "--position-embedding-type rope"  # which --rotary-base belongs to
# These have one choice, or exclude one of those above.
ONE_CHOICE = {"optimizer", "DDP_impl", "outer_dp_sharding_strategy"}
HUGGING_FACE = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model f"
INSTEAD = {"--train-samples 99": "--train-iters", "--lr-decay-samples 99": "--lr-decay-iters",
           "--lr-warmup-iters 1": "--lr-warmup-fraction",
           "--lr-warmup-samples 1": "--lr-warmup-fraction",
           "--use-checkpoint-lr-scheduler": "--override-lr-scheduler"}


def in_process(words: list[str]) -> RunPlan:
    return estimate(words).plan


def without(line: str, flag: str) -> str:
    shorter, result = re.subn(rf"{flag}( (?!--)\S+)* ?", "", line)
    assert result == 1
    return shorter


@pytest.mark.slow
def test_what_is_left_out_changes_no_figure():
    """The trainer's estimate of the student's own flags, with and without them."""
    whole = f"{MODEL} {ROPE} {NO_MATTER}"
    plain, lines = f"{MODEL} {ROPE} --fp16", [whole]
    lines += [f"{without(whole, flag)} {more}" for more, flag in INSTEAD.items()]
    lines.append(plain.replace("--vocab-file v --merge-file m", HUGGING_FACE))
    plans, changed = {}, set()
    fp8 = [f"{FP8}{more}" for more in (
        "", " --fp8-margin 1 --fp8-amax-compute-algo max")]
    for line in (plain, *lines, *fp8):
        card = "virtual:h100" if line in fp8 else CARD
        flags = parsed(f"{line} {TWO_BY_TWO} --estimate --device {card} --world-size 8 --tokens 9")
        plans[line] = estimate(flags).plan
        changed |= {field.name for field in dataclasses.fields(EstimateConfig)
                    if getattr(flags, field.name) != field.default}
    assert [line for line in lines if plans[line] != plans[plain]] == []
    assert plans[fp8[0]] == plans[fp8[1]]
    left_out = {flag.name for flag in table_of(EstimateConfig).values()
                if use(flag) == "left out" and not flag.derived}
    assert left_out - changed == ONE_CHOICE


@pytest.mark.slow
def test_a_check_has_the_figures_of_the_trainers_own_estimate(capsys):
    given = job(f"{TWO_BY_TWO} --global-batch-size 16", nodes=2, ranks=4)
    result = check.figures(given, CARD, vocab_size=500)
    assert "on 8 virtual v100-sxm2-16gb" in capsys.readouterr().out
    plan = in_process(flags_for_estimate(given.flags, EstimateHardware(CARD, 4), 500))
    assert result.milliseconds == 1000 * plan.seconds_per_iteration
    assert result.tokens_per_second == 16 * 64 / plan.seconds_per_iteration
    assert result.stages == tuple((stage.stage, stage.card, stage.total / 2**30,
                                   stage.capacity / 2**30) for stage in plan.memory)
    assert (result.bubble, result.communication, result.fits, result.card, result.parameters) == (
        plan.bubble, plan.communication, True, "virtual v100-sxm2-16gb", plan.parameters)
    assert 0 < result.bubble < 1 and 0 < result.communication < 1 and len(result.memory) == 2
    assert result.peak_memory == max(result.memory) < result.capacity


@pytest.mark.parametrize(("flags", "says"), [
    ("--schedule /evil.py", "--schedule /evil.py: only"),
    ("--schedule evil.json", "--schedule evil.json: only"),
    ("--num-layers 1001", "1,001 layers"),
    ("--global-batch-size 100000", "50,000 passes")])
def test_what_cannot_be_estimated_is_refused_before_anything_runs(monkeypatch, flags, says):
    monkeypatch.setattr(measure, "run_here", lambda words: pytest.fail("it ran"))
    with pytest.raises(Failed, match=says):
        check.figures(job(flags), CARD)


def test_a_script_that_only_estimates_trains_nothing(monkeypatch):
    monkeypatch.setattr(measure, "run_here", lambda words: pytest.fail("it ran"))
    flags = parsed(f"{MODEL} --estimate --device {CARD} --json")
    with pytest.raises(Failed, match="--estimate: with this flag the trainer does not train"):
        run = TrainingRun(1, 1, flags, (), TRAINER, (), {})
        check.figures(Job((Component({}),), (run,), (), ()), CARD)


def test_a_job_that_would_hang_has_no_figures(monkeypatch):
    monkeypatch.setattr(measure, "run_here", lambda words: pytest.fail("it ran"))
    with pytest.raises(Failed, match="the ranks wait for ever"):
        check.figures(dataclasses.replace(job(), problems=("the ranks wait for ever",)), CARD)


def test_the_card_is_the_checks_and_must_be_virtual():
    with pytest.raises(ValueError, match="not a virtual GPU"):
        check.figures(job(), "v100")


def test_what_the_trainer_refuses_is_said_in_its_words():
    with pytest.raises(Failed, match="this GPU has no bf16 arithmetic"):
        check.figures(job("--bf16"), CARD)


def test_no_text_of_a_script_reaches_our_command_line():
    evil = "--save=$(touch x)"
    named = ("data-path", "load", "save", "tensorboard-dir", "timeline", "split", "vocab-file",
             "metrics")
    given = parse_command_line([*MODEL.split(), *(f"--{name}={evil}" for name in named),
        "--save-interval=1", "--pipeline-model-parallel-layout=E t t,t t L"], {})
    words = flags_for_estimate(given, EstimateHardware(CARD, 1), 500)
    assert not any("$" in word or "t t" in word for word in words)


@pytest.mark.parametrize("printed", [
    b"", b"[]", b"nonsense", b"[" * 100_000, b"{}", b" " * 2_000_000, b'{"memory": [1]}',
    json.dumps({"memory": [{"total": 1}], "card": "c", "fits": 1}).encode()])
def test_what_is_no_estimate_is_refused(printed):
    with pytest.raises(LabError, match="no estimate"):
        measure.read(measure.printed(0, printed, ""), 1)


def test_an_end_in_an_error_is_an_error():
    with pytest.raises(LabError, match=r"^what is wrong$"):
        measure.printed(1, b"", "noise\nerror: what is wrong\n")


@pytest.mark.parametrize(("code", "err"), [
    (9, "\n"), (9, "error: killed"), (1, ""), (1, "Traceback:\n  ...\nOSError: error: x")])
def test_a_crash_is_told_from_a_refusal(code, err):
    with pytest.raises(measure.Crashed, match=f"exit code {code}"):
        measure.printed(code, b"{}", err)


def test_an_estimate_is_made_once_and_so_is_a_refusal_but_not_a_crash(tmp_path, monkeypatch):
    def runs(source):
        """Return the number of runs when it is asked for twice."""
        count = tmp_path / "count"
        count.write_bytes(b"")
        program = [sys.executable, "-IS", "-c",
                   f"import sys; open({str(count)!r}, 'a').write('x'); {source}"]
        monkeypatch.setattr(measure, "program", lambda words: [*program, *words])
        for _ in range(2):
            with contextlib.suppress(LabError):
                assert measure.run_here(["a"]) == {"fits": True}
        return len(count.read_bytes())

    assert runs("print('{\"fits\": true}')") == runs("sys.exit('error: no')") == 1
    assert runs("sys.exit(3)") == runs("print('half')") == 2


@pytest.mark.slow
def test_a_forged_log_convinces_nobody(tmp_path, monkeypatch):
    """All that counts is what the script would start."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.setenv("VIRTUAL_GPU", "h200")
    monkeypatch.setenv("VIRTUAL_NETWORK", "ethernet:1gbit")
    shipping.make_workspace(tmp_path)
    (tmp_path / "megatron" / "logs" / "log.txt").write_text("elapsed time per iteration (ms): 0.1")
    (tmp_path / "pretrain_gpt.py").write_text("print('{}')")
    (tmp_path / "code" / "mine.sh").write_text(
        f"#!/bin/bash\necho 'fits: yes'\ntorchrun x/pretrain_gpt.py {MODEL}\n")
    monkeypatch.chdir(tmp_path)
    result = check.figures(check.script("code/mine.sh", given=None), CARD)
    honest = in_process(flags_for_estimate(job().flags, EstimateHardware(CARD, 1), 50257))
    assert result.milliseconds == 1000 * honest.seconds_per_iteration > 1
