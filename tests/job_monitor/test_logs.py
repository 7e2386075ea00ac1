"""A trainer's log as numbers, and as a figure."""

import functools
import math

import pytest

from job_monitor import logs
from labcore.errors import LabError
from lablib import plots

LINE = (" iteration       12/     100 | consumed samples:           96 | elapsed time per "
        "iteration (ms): 640.5 | learning rate: 1.500E-04 | global batch size:     8 | "
        "lm loss: {loss} | loss scale: 1.0 | grad norm: 1.107 | "
        "number of skipped iterations:   0 |")
WORLD = ("using world size: 4, data-parallel-size: 2, tensor-model-parallel size: 2, "
         "pipeline-model-parallel size: 1 ")


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    lines = [WORLD, "noise", LINE.format(loss="6.114205E+00"), LINE.format(loss="nan")]
    (tmp_path / "job.txt").write_text("\n".join(lines))
    return logs.read("job.txt")


def test_sizes_and_iterations_are_read(log):
    assert (log.world_size, log.data_parallel, log.tensor_parallel, log.pipeline_parallel) == (
        4, 2, 2, 1)
    first, second = log.iterations
    assert (first.iteration, first.samples, first.global_batch) == (12, 96, 8)
    assert (first.milliseconds, first.loss, first.grad_norm) == (640.5, 6.114205, 1.107)
    assert math.isnan(second.loss)


def test_a_line_without_loss_is_a_line_all_the_same():
    line = LINE.format(loss="6.0").replace(" lm loss: 6.0 |", "")
    assert logs.parse_line(line).loss is None
    assert logs.parse_line("elapsed time: 3") is None


@pytest.mark.parametrize("sizes", [
    "data-parallel size: 2, context-parallel size: 1, tensor-model-parallel size: 2, "
    "pipeline-model-parallel size: 1",
    "data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel sizes: None, "
    "tensor-model-parallel size: 2, pipeline-model-parallel size: 1",
    "data-parallel size: 2, context-parallel size: 1 tensor-model-parallel size: 2, "
    "encoder-tensor-model-parallel size: 0, pipeline-model-parallel size: 1, "
    "encoder-pipeline-model-parallel size: 0"])
def test_sizes_of_megatron_core_are_read(sizes):
    log = logs.parse([f"using world size: 4, {sizes}"])
    assert (log.world_size, log.data_parallel, log.tensor_parallel, log.pipeline_parallel) == (
        4, 2, 2, 1)


def test_lines_of_megatron_deepspeed_are_read():
    line = ("[default7]: iteration    12/  115311 | consumed samples:   96 | consumed tokens:  "
            "196608 | elapsed time per iteration (s): 5.32 | learning rate: 4.306E-07 | global "
            "batch size:    16 | {}loss: 1.244300E+01 | grad norm: 12.300 | num zeros: 0 | number "
            "of skipped iterations:   0 | samples per second: 3.003 | TFLOPs: 8.99 |")
    for name in ("lm ", "lm-"):
        parsed = logs.parse_line(line.format(name))
        assert (parsed.iteration, parsed.milliseconds, parsed.tflops) == (12, 5320.0, 8.99)
        assert (parsed.loss, parsed.global_batch, parsed.grad_norm) == (12.443, 16, 12.3)


def test_the_trainers_own_lines_are_understood(line_with):
    parsed = logs.parse_line(line_with(loss=5.25))
    assert parsed.iteration == 7 and parsed.loss == 5.25 and parsed.milliseconds == 12.5


@pytest.fixture(params=["2021", "core"])
def line_with(request):
    """Return the trainer's line for a loss, in either log format."""
    from minimegatron.arguments import parse_arguments
    from minimegatron.report.log_lines import iteration_line

    config = parse_arguments(
        "--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 8 "
        "--max-position-embeddings 8 --micro-batch-size 1 --train-iters 9 --lr 1e-3 --data-path a "
        f"--vocab-file v --merge-file m --log-format {request.param}".split(), {})
    return functools.partial(
        iteration_line, config, iteration=7, consumed=7, milliseconds=12.5, lr=1e-3, norm=1.0,
        zeros=None, params_norm=None, nans=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_diverged_is_read_from_the_trainers_own_line(line_with, value):
    assert repr(logs.parse_line(line_with(loss=value)).loss) == repr(value)


def test_a_missing_log_is_named(log):
    with pytest.raises(LabError, match=r"no log at .*none\.txt.*has the job started"):
        logs.read("none.txt")


def test_a_figure_says_in_words_what_it_shows(log):
    picture = plots.loss(run=log)
    assert picture.alt.startswith("Training loss over samples: run from 6.11")
    assert picture.png().startswith(b"\x89PNG")
    assert 'alt="Training loss' in picture._repr_html_()


def test_a_run_without_loss_is_named():
    with pytest.raises(LabError, match="empty: the log has no loss yet"):
        plots.loss(empty=logs.Log(None, None, None, None, ()))


def test_lines_are_found_by_what_they_hold(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("using world size: 2\n 1 of 3\n 2 of 3\n")
    assert logs.lines(log, " of 3") == [" 1 of 3", " 2 of 3"]
    with pytest.raises(LabError, match=r"no line of .*log.txt contains 'loss'.*2 of 3"):
        logs.lines(log, "loss")
    with pytest.raises(LabError, match="no log at"):
        logs.lines(tmp_path / "none.txt", "loss")


def test_skipped_steps_and_the_loss_scale_are_read():
    parsed = logs.parse_line(LINE.format(loss="6.0").replace("scale: 1.0", "scale: 65536.0")
                             .replace("iterations:   0", "iterations:   3"))
    assert (parsed.loss_scale, parsed.skipped) == (65536.0, 3)


def test_the_loss_scale_is_drawn_and_told():
    text = LINE.format(loss="6.0")
    skipped = text.replace(" 12/", " 11/").replace("iterations:   0", "iterations:   1")
    picture = plots.loss_scale(logs.parse([skipped.replace("scale: 1.0", "scale: 4096.0"),
                                           text.replace("scale: 1.0", "scale: 2048.0")]))
    assert repr(picture) == ("Loss scale over 12 iterations: from 4,096 after the first to 2,048 "
                             "after the last; 1 steps were skipped.")
    assert picture.png().startswith(b"\x89PNG")
    with pytest.raises(LabError, match="no loss scale"):
        plots.loss_scale(logs.parse([]))


def test_losses_of_the_same_iterations_are_compared():
    one, other = (logs.parse([WORLD, LINE.format(loss=loss)]) for loss in ("2.0E+00", "2.1E+00"))
    assert logs.loss_difference(one, other) == pytest.approx(0.05)
    assert logs.loss_difference(one, one) == 0.0
    for empty in (logs.parse([WORLD]), logs.parse([])):
        with pytest.raises(LabError, match="losses of 1 and 0 iterations, which are not the same"):
            logs.loss_difference(one, empty)
