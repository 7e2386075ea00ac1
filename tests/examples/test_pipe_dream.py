"""pipe_dream.py: DeepSpeed's order of work, and two ranks without a compiler at hand."""

import os
import subprocess
import sys

import pytest
import torch

import gpt_layers
import options
import pipe_dream
import setting
from pipeline_schedules import one_f_one_b, parse, to_text
from warmranks import run_program

from ..ports import free_port
from .conftest import EXAMPLES
from .runs import assert_same, plain, printed

PROGRAMS = os.path.dirname(sys.executable)


@pytest.mark.parametrize(("stages", "count"), [(1, 3), (2, 1), (2, 5), (3, 4), (4, 2), (4, 8)])
def test_deepspeeds_train_schedule_is_our_1f1b(stages, count):
    schedule = pipe_dream.deepspeed_schedule(stages, count)
    assert parse(schedule) == one_f_one_b(stages, count)


def test_the_schedule_is_printed_without_a_run(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pipe_dream.py", "--show-schedule", "4,8"])
    assert options.explained(pipe_dream.main) == 0
    rows = [f"stage {stage}: {row}" for stage, row in enumerate(to_text(one_f_one_b(4, 8)))]
    assert capsys.readouterr().out.splitlines()[1:] == rows


def test_padding_has_no_say_whatever_the_micro_batch(in_home):
    """One micro-batch nearly all padding: the mean of the losses is that of the labels."""
    run = setting.read(options.parser("").parse_args(["--seq-length", "16"]))
    tokens, labels = next(run.batches(4))
    labels = labels.clone()
    labels[2:, 1:] = gpt_layers.NO_LABEL
    logits = gpt_layers.GPT(run.size, run.seed)(tokens)
    wanted = torch.nn.functional.cross_entropy(logits[labels != -100], labels[labels != -100])
    padded = setting.Setting(run.size, 16, (tokens, labels), run.seed, None)
    seen, batches = [], pipe_dream.micro_batches(padded, 2, 2)
    model = gpt_layers.GPT(run.size, run.seed)
    for some, theirs in (next(batches), next(batches)):
        seen.append(pipe_dream.mean_loss(model(some), theirs))
    torch.testing.assert_close(sum(seen) / 2, wanted)


def warm(words, environment):
    from . import deepspeed_ranks

    return run_program(deepspeed_ranks.main, words, ranks=2, env=environment)


def launched(words, environment):
    launcher = [f"{PROGRAMS}/deepspeed", "--num_accelerators=2", f"--master_port={free_port()}"]
    return subprocess.run([*launcher, *words], env=environment, capture_output=True, text=True,
                          timeout=240)


@pytest.mark.slow
@pytest.mark.parametrize("start", [warm, pytest.param(launched, marks=pytest.mark.stress)])
def test_two_ranks_train_as_one_process_does(in_home, checkpoint, rows_file, start):
    """With nothing on the PATH that could compile, from trained weights, and with padding. The
    norms are of both stages, the tied matrix once. make stress starts the deepspeed launcher,
    which imports DeepSpeed four times."""
    environment = os.environ | {"PATH": PROGRAMS, "CXX": "none", "OMP_NUM_THREADS": "1"}
    flags = ["--pretrained", str(checkpoint), "--dataset", str(rows_file), "--seq-length", "48"]
    done = start([str(EXAMPLES / "pipe_dream.py"), *flags, "--iterations=3", "--micro-batches=4",
                  "--balance=7,7"], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    run = setting.read(pipe_dream.flags().parse_args(flags))
    assert_same(printed(done.stdout), plain(run, 8, 3))
    for stage, row in enumerate(to_text(one_f_one_b(2, 4))):
        assert f"stage {stage}: {row}\n" in done.stdout
        assert f"stage {stage}: layers {7 * stage} to {7 * stage + 6}, " in done.stdout


def test_a_wrong_configuration_is_explained(in_home, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(sys, "argv", ["pipe_dream.py", "--config", str(tmp_path / "none.json")])
    assert options.explained(pipe_dream.main) == 1
    assert "cannot be read as JSON" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    ([], "start it with srun, or with the deepspeed launcher"),
    (["--show-schedule", "4"], "--show-schedule 4: give two numbers"),
    (["--show-schedule", "0,4"], "--show-schedule 0,4: give two numbers")],
    ids=["alone", "one", "zero"])
def test_a_wrong_start_is_explained(monkeypatch, capsys, words, said):
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["pipe_dream.py", *words])
    assert options.explained(pipe_dream.main) == 1
    assert said in capsys.readouterr().err
