"""Log lines to the letter of Megatron-LM."""

import re
from dataclasses import replace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minimegatron.arguments import parse_arguments
from minimegatron.context import Progress
from minimegatron.evaluation import paused
from minimegatron.model.gpt import Stage
from minimegatron.optim import Optimizer
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.report.log_lines import (
    iteration_line,
    time_line,
    times_of_ranks,
    validation_lines,
)
from minimegatron.report.step_log import StepLog
from minimegatron.report.tensorboard import TensorBoard
from minimegatron.report.timeline import Profiler
from minimegatron.timers import LEVELS, Timers

from .test_arguments import GOOD

CONFIG = parse_arguments((GOOD + "--global-batch-size 16 --train-iters 500").split(), {})


def line(config=CONFIG, **changes):
    values = {"iteration": 10, "consumed": 160, "milliseconds": 123.456, "lr": 1.5e-4,
              "loss": 10.98765, "norm": 2.5, "zeros": None, "params_norm": None, "nans": 0}
    return iteration_line(config, **{**values, **changes})


def test_the_iteration_line_of_2021():
    assert line() == (
        " iteration       10/     500 | consumed samples:          160 | elapsed time per "
        "iteration (ms): 123.5 | learning rate: 1.500E-04 | global batch size:    16 | lm loss: "
        "1.098765E+01 | loss scale: 1.0 | grad norm: 2.500 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |")


def test_optional_columns():
    text = line(zeros=12.0, params_norm=3.14159, nans=2)
    assert "| grad norm: 2.500 | num zeros: 12.0 | params norm: 3.142 | number of skipped" in text
    assert text.endswith("number of nan iterations:   2 |")


def test_a_loss_without_a_value_is_left_out():
    text = line(loss=None, norm=None)
    assert "lm loss" not in text and "grad norm" not in text
    assert "| global batch size:    16 | loss scale: 1.0 |" in text


def test_the_iteration_line_of_today():
    text = line(replace(CONFIG, log_format="core"))
    assert re.match(r" \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] iteration       10/     500 \|",
                    text)
    assert "| learning rate: 1.500000E-04 |" in text


def test_validation_lines():
    rule, text, again = validation_lines("iteration 20", 2.0)
    assert text == (" validation loss at iteration 20 | lm loss value: 2.000000E+00 | "
                    "lm loss PPL: 7.389056E+00 | ")
    assert rule == again == "-" * (len(text) + 1)
    assert "PPL: 4.851652E+08" in validation_lines("x", 1000.0)[1]


def test_timers_add_up_and_start_again():
    clock = iter(range(100))
    timers = Timers(lambda: next(clock))
    for name in ("optimizer", "forward-compute", "forward-compute"):
        with timers(name):
            pass
    assert time_line(timers.take()) == (
        "time (ms) | forward-compute: 2000.00 | optimizer: 1000.00")
    assert timers.take() == {}


def running(level):
    """The timers that read the clock at this level."""
    clock = iter(range(100))
    timers = Timers(lambda: next(clock), level)
    for name in LEVELS:
        with timers(name):
            pass
    return list(timers.take())


def test_the_level_decides_which_timers_run():
    assert running(0) == ["model-and-optimizer-setup", "train/valid/test-data-iterators-setup"]
    assert running(1)[2:] == ["forward-backward", "backward-params-all-reduce",
                              "backward-embedding-all-reduce", "optimizer-copy-to-main-grad",
                              "optimizer-unscale-and-check-inf", "optimizer-clip-main-grad",
                              "optimizer-copy-main-to-model-params", "optimizer"]
    assert running(2) == list(LEVELS)
    assert running(None) == [name for name in LEVELS if name != "forward-backward"]


def test_a_timer_above_the_level_does_not_wait_for_the_device():
    with Timers(lambda: pytest.fail("the clock was read"), level=0)("optimizer"):
        pass


def test_a_timer_that_no_line_would_show_is_a_mistake():
    with pytest.raises(KeyError), Timers(lambda: 0.0)("optimiser"):
        pass


RANKS = [{"optimizer": 0.25, "forward-compute": 1.5}, {"optimizer": 0.5}]


def test_times_of_all_ranks_as_upstream_prints_them():
    assert times_of_ranks("minmax", RANKS) == [
        "(min, max) time across ranks (ms):",
        "    forward-compute ................................: (1500.00, 1500.00)",
        "    optimizer ......................................: (250.00, 500.00)"]
    assert times_of_ranks("max", RANKS) == [
        "max time across ranks (ms):",
        "    forward-compute ................................: 1500.00",
        "    optimizer ......................................: 500.00"]
    assert times_of_ranks("all", RANKS) == [
        "times across ranks (ms):", "  forward-compute:", "     rank  0: 1500.00", "  optimizer:",
        "     rank  0: 250.00", "     rank  1: 500.00"]
    assert times_of_ranks("max", [{}, {}]) == []


def test_throughput_stands_behind_the_time():
    assert "(ms): 123.5 | throughput per GPU (TFLOP/s/GPU): 43.2 | learning rate" in line(
        throughput=43.21)


def test_nan_losses_are_counted_and_seen(make_context, capsys):
    ctx = make_context("--log-interval 3")
    stage = Stage(ctx, 128, range(2))
    optimizer = Optimizer(ctx, DistributedDataParallel(ctx, stage))
    log = StepLog(ctx, Timers(ctx.device.now), optimizer)
    for loss in (1.0, float("nan"), 4.0):
        log.add(torch.tensor(loss), torch.tensor(0.5), seconds=0.25)
    log.report(Progress(3, 6), torch.tensor(0.0))
    line = capsys.readouterr().out.splitlines()[0]
    assert "| elapsed time per iteration (ms): 250.0 |" in line
    assert "| lm loss: NAN |" in line
    assert line.endswith("| number of nan iterations:   1 |")


def test_skipped_steps_are_counted_and_have_no_loss(make_context, capsys):
    ctx = make_context("--fp16 --log-interval 2")
    optimizer = Optimizer(ctx, DistributedDataParallel(ctx, Stage(ctx, 128, range(2))))
    log = StepLog(ctx, Timers(ctx.device.now), optimizer)
    for advanced in ([0, 0], [1, 0], [0, 1]):
        for loss, good in zip((2.0, 4.0), advanced, strict=True):
            optimizer.advanced = torch.tensor(good)
            log.add(torch.tensor(loss), torch.tensor(0.5 if good else float("inf")), seconds=0.25)
        log.report(Progress(2, 4), torch.tensor(0.0))
    none, first, second = [line for line in capsys.readouterr().out.splitlines()
                           if line.startswith(" iteration")]
    assert "lm loss" not in none and "grad norm" not in none
    assert "| loss scale: 4294967296.0 |" in none
    assert "| number of skipped iterations:   2 |" in none
    assert "| lm loss: 2.000000E+00 |" in first and "grad norm" not in first
    assert "| lm loss: 4.000000E+00 |" in second and "| grad norm: 0.500 |" in second
    assert "| number of skipped iterations:   1 | number of nan iterations:   0 |" in second


@pytest.mark.parametrize("ranks, watches", [(None, True), ((0, 3), True), ((3,), False)])
def test_only_the_chosen_ranks_are_profiled(make_context, tmp_path, ranks, watches):
    ctx = make_context(f"--profile-execution yes --tensorboard-dir {tmp_path}")
    profiler = Profiler(replace(ctx, config=replace(ctx.config, profile_ranks=ranks)))
    profiler.start(run=None)
    assert (profiler.profile is not None) == watches
    profiler.end_training()


def test_evaluation_counts_in_no_step_s_timers():
    ticks = iter(range(100))
    timers = Timers(lambda: next(ticks))
    with timers("forward-compute"):
        pass
    with paused(timers), timers("forward-compute"), timers("forward-recv"):
        pass
    assert timers.take() == {"forward-compute": 1}


@pytest.mark.parametrize(("flags", "steps"), [("", [1, 2]), ("--load {}/saved", [1, 2, 3, 1, 2])])
def test_a_run_that_reuses_a_folder_hides_the_earlier_one_unless_it_resumes(
        make_context, tmp_path, flags, steps):
    for count in (3, 2):
        board = TensorBoard(make_context(f"--tensorboard-dir {tmp_path} " + flags.format(tmp_path)))
        for iteration in range(1, count + 1):
            board.scalar("lm loss", 1.0, iteration)
        board.close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [event.step for event in read.Scalars("lm loss")] == steps
