"""metrics.jsonl has the figures of the log: complete lines, JSON numbers, documented names."""

import errno
import json
import re
import time
from types import SimpleNamespace

import pytest

from labcore.workspace import CHECKOUT
from minimegatron.context import Progress
from minimegatron.report.metrics import NAMES, Metrics, metrics_path
from minimegatron.report.requested import make_reports
from minimegatron.timers import Timers

STEPS = ("--global-batch-size 8 --train-iters 4 --log-interval 2 --eval-interval 2 --eval-iters 1 "
         "--log-throughput ")


VALUES = dict.fromkeys(NAMES.values())
START = SimpleNamespace(progress=Progress())  # all that metrics need of a trainer


def read(path):
    """The objects of a file; NaN and Infinity are not JSON."""
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def documented(kind):
    """The fields of a kind of object, in docs/trainer.md: its own, and those of all kinds."""
    text = (CHECKOUT / "docs" / "trainer.md").read_text().partition("## Metrics")[2]
    rows = re.findall(r"^\| (\w+) \| (.*?) \|", text.partition("\n## ")[0], re.MULTILINE)
    return {name for row, fields in rows if row in ("all", kind)
            for name in re.findall(r"`(\w+)`", fields)}


@pytest.mark.slow
def test_a_run_and_its_continuation_write_what_the_log_says(train, tmp_path):
    path, board = tmp_path / "metrics.jsonl", f"--tensorboard-dir {tmp_path} "
    saved = f"--save {tmp_path}/saved --load {tmp_path}/saved --save-interval 2 "
    run = train(STEPS + board + saved + "--exit-interval 2 --pipeline-model-parallel-size 2", 2)
    content = read(path)
    assert [one["kind"] for one in content] == ["start", "iteration", "validation"]
    for one in content:
        assert set(one) == documented(one["kind"]), one["kind"]
    start, step, validation = content
    assert start["arguments"]["seed"] == 1234 and start["pipeline_model_parallel_size"] == 2
    assert f"> writing metrics of run {start['run']} to {path}\n" in run.out
    for name, column, form in (("lm_loss", "lm loss", ".6E"), ("grad_norm", "grad norm", ".3f"),
                               ("learning_rate", "learning rate", ".3E"),
                               ("elapsed_ms_per_iteration", "elapsed time per iteration (ms)",
                                ".1f"),
                               ("tflops_per_gpu", "throughput per GPU (TFLOP/s/GPU)", ".1f"),
                               ("consumed_samples", "consumed samples", "d"),
                               ("nan_iterations", "number of nan iterations", "d")):
        assert run.column(column) == [float(format(step[name], form))], name
    assert f"lm loss value: {validation['lm_loss']:.6E} " in run.out
    assert step["peak_memory_allocated_bytes"] > 2**20 and step["modeled"] is None

    train(STEPS + board + saved + "--pipeline-model-parallel-size 2", 2)
    resumed = read(path)[3:]
    assert [one["kind"] for one in resumed] == ["start", "iteration", "validation", "validation",
                                                "validation"]
    assert [one["iteration"] for one in resumed] == [2, 4, 4, 4, 4]
    assert [one["dataset"] for one in resumed[2:]] == ["validation", "validation", "test"]
    assert {one["run"] for one in resumed}.isdisjoint({start["run"]})


def test_a_virtual_gpu_has_no_loss_and_says_that_times_are_modeled(train, tmp_path):
    path = tmp_path / "mine.jsonl"
    train(f"--device virtual:v100 --train-iters 1 --log-interval 1 --eval-iters 0 --metrics {path}")
    _, step = read(path)
    assert (step["lm_loss"], step["grad_norm"]) == (None, None)
    assert step["modeled"] == "virtual v100-sxm2-16gb" and step["elapsed_ms_per_iteration"] > 0


def test_values_that_json_does_not_have_are_named(make_context, tmp_path):
    metrics = Metrics(make_context(f"--metrics {tmp_path}/m.jsonl"))
    metrics.line(Progress(), {**VALUES, "loss": float("nan"), "norm": float("inf")}, {})
    (content,) = read(tmp_path / "m.jsonl")
    assert (content["lm_loss"], content["grad_norm"], content["num_zeros"]) == (None, None, None)
    assert content["non_finite"] == {"lm_loss": "nan", "grad_norm": "inf"}


def test_a_full_disk_costs_a_warning_and_no_half_line(make_context, tmp_path, capsys):
    metrics = Metrics(make_context(f"--metrics {tmp_path}/m.jsonl"))
    metrics.start(START)
    room, file = 20, metrics.file

    class Full:
        """A file on a disk with room for `room` more bytes."""

        def __getattr__(self, name):
            return getattr(file, name)

        def write(self, line):
            if file.write(line[:room]) == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return room

    metrics.file = Full()
    for _ in range(3):
        metrics.line(Progress(), VALUES, {})
    assert capsys.readouterr().out.count("WARNING: metrics of run") == 1
    assert [one["kind"] for one in read(tmp_path / "m.jsonl")] == ["start"]


def test_a_device_that_is_always_full_costs_one_warning(make_context, capsys):
    metrics = Metrics(make_context("--metrics /dev/full"))
    metrics.start(START)
    metrics.validation(1.0, "test", Progress())
    said = capsys.readouterr().out
    assert said.count("WARNING") == 1 and "(No space left on device)" in said


def test_what_a_killed_run_left_half_written_spoils_no_line(make_context, tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"kind": "iter')
    Metrics(make_context(f"--metrics {path}")).start(START)
    first, second = path.read_text().splitlines()
    assert first == '{"kind": "iter' and json.loads(second)["kind"] == "start"


def test_a_slurm_job_has_its_file_beside_its_log(make_context, tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NAME", "a/b c")
    config = make_context().config
    assert metrics_path(config) is None
    (tmp_path / "megatron" / "logs").mkdir(parents=True)
    assert metrics_path(config) == tmp_path / "megatron" / "logs" / "a_b_c_7.metrics.jsonl"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert metrics_path(config) is None


@pytest.mark.parametrize(("changes", "warned"), [
    ({}, True), ({"SLURM_PROCID": "3"}, False), ({"SLURM_STEP_NUM_TASKS": "1"}, False),
    ({"RANK": "0"}, False)])
def test_processes_of_srun_that_train_alone_are_warned_of(make_context, monkeypatch, capsys,
                                                          changes, warned):
    step = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4",
            "SLURM_PROCID": "0"}
    monkeypatch.delenv("RANK", raising=False)
    ctx = make_context()
    for name, value in (step | changes).items():
        monkeypatch.setenv(name, value)
    make_reports(ctx, Timers(time.monotonic), in_slurm=True)
    said = capsys.readouterr().out
    assert ("WARNING: SLURM_NTASKS=4, but RANK and WORLD_SIZE are not set: each of these 4 "
            "processes trains alone" in said) is warned
    assert warned or "SLURM_NTASKS" not in said


@pytest.mark.parametrize("place", ["/proc/x.jsonl", "."])
def test_a_file_that_cannot_be_written_is_refused(train, place):
    run = train(f"--train-iters 1 --metrics {place}", code=1)
    assert f"error: --metrics {place} is not a file that can be written to (" in run.err
    assert "Traceback" not in run.err
