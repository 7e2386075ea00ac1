"""gpipe.py: the plain model's gradient in every mode, and the program as it is started."""

import os
import runpy
import sys
from functools import partial

import pytest
import torch
from torchgpipe import GPipe

import gpipe
import gpt_layers
import options
import setting
from labcore.errors import LabError
from lablib.saved import SavedTensors
from warmranks import run_program

from .conftest import EXAMPLES
from .runs import assert_same, plain, printed

pytestmark = pytest.mark.slow


def reading(*words):
    """(arguments, setting) of a command line."""
    arguments = gpipe.flags().parse_args(["--seq-length", "16", *words])
    return arguments, setting.read(arguments)


def pipeline(run, balance, chunks, checkpoint):
    devices = ["cpu"] * len(balance)
    return GPipe(gpipe.sequential(run), balance, devices=devices, chunks=chunks,
                 checkpoint=checkpoint)


@pytest.mark.parametrize(("balance", "chunks"), [([4, 3, 3, 4], 4), ([7, 7], 3), ([14], 2)])
@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
def test_the_gradient_is_the_plain_models(in_home, balance, chunks, checkpoint):
    """Tied matrix included; also where chunks do not divide the batch."""
    _, run = reading()
    model, whole = pipeline(run, balance, chunks, checkpoint), gpt_layers.GPT(run.size, run.seed)
    tokens, labels = next(run.batches(5))
    loss, wanted = gpipe.mean_loss(model(tokens), labels), gpipe.mean_loss(whole(tokens), labels)
    loss.backward()
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    gradients = [weight.grad for weight in model.parameters()]
    for ours, plain_weight in zip(gradients, whole.parameters(), strict=True):
        torch.testing.assert_close(ours, plain_weight.grad, rtol=1e-4, atol=1e-7)


def test_checkpoints_trade_activations_for_a_second_forward(in_home):
    _, run = reading()
    tokens, labels = next(run.batches(8))
    peaks = {}
    for mode in ("always", "except_last", "never"):
        model = pipeline(run, [4, 3, 3, 4], 4, mode)
        with SavedTensors(model.parameters()) as saved:
            gpipe.mean_loss(model(tokens), labels).backward()
        peaks[mode] = saved.peak
        assert saved.now == 0
    assert 2 * peaks["always"] < peaks["never"]
    assert peaks["always"] <= peaks["except_last"] < peaks["never"]


def start(home, *words):
    program = str(EXAMPLES / "gpipe.py")
    return run_program(partial(runpy.run_path, program, run_name="__main__"),
                       [program, "--seq-length", "16", *words],
                       env=os.environ | {"LAB_HOME": str(home)})


@pytest.mark.slow
def test_the_program_trains_as_the_plain_model_does(in_home):
    done = start(in_home, "--iterations", "4", "--balance", "time", "--stages", "3")
    assert done.returncode == 0, done.stderr
    _, run = reading()
    assert_same(printed(done.stdout), plain(run, 16, 4))
    assert "checkpoint except_last" in done.stdout and "tokens/s" in done.stdout
    assert "MB of activations at most" in done.stdout


@pytest.mark.slow
def test_a_trained_gpt2_and_questions_with_padding(in_home, checkpoint, rows_file):
    """In the pipeline as on one device."""
    words = ("--pretrained", str(checkpoint), "--dataset", str(rows_file))
    _, run = reading(*words, "--seq-length", "48")
    model, whole = pipeline(run, [4, 3, 3, 4], 4, "except_last"), gpt_layers.GPT(run.size, 1)
    for index, layer in enumerate(whole.layers):
        run.load(layer, index)
    tokens, labels = next(run.batches(8))
    assert (labels == gpt_layers.NO_LABEL).any()
    losses = [gpipe.mean_loss(some(tokens), labels) for some in (model, whole)]
    torch.testing.assert_close(*losses)
    wanted = torch.nn.functional.cross_entropy(whole(tokens)[labels >= 0], labels[labels >= 0])
    torch.testing.assert_close(losses[0], wanted)


@pytest.mark.parametrize("how", ["time", "size"])
def test_balances_hold_every_layer(in_home, how):
    _, run = reading()
    sample, _ = next(run.batches(8))
    balance = gpipe.choose_balance(how, gpipe.sequential(run), sample, 4, 4, torch.device("cpu"))
    assert len(balance) == 4 and sum(balance) == 14 and min(balance) > 0


@pytest.mark.parametrize(("words", "said"), [
    (["--balance", "4,3,3"], "together they must hold 14 .* these hold 10"),
    (["--balance", "5,5,4,0"], "every stage needs a layer"),
    (["--balance", "tiem"], "--balance tiem: give the layers of each stage"),
    (["--chunks", "3"], "--batch-size 16 cannot be cut into --chunks 3"),
    (["--stages", "4"], "--stages 4 is for --balance time or size"),
    (["--balance", "time", "--stages", "15"], "the model has 14 layers"),
    (["--devices", "cpu,cpu"], "names 2 devices for 4 stages"),
    (["--devices", "cpu,cpu,cpu,gpu"], "--devices cpu,cpu,cpu,gpu: "),
    (["--seq-length", "129"], "more than the model's 128 positions"),
    (["--preset", "gpt2"], "--vocab-file .* does not exist"),
    (["--dataset", "none.json"], "there is no such file"),
    (["--batch-size", "40000", "--chunks", "1"], "there is text for .* samples only"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_a_wrong_flag_is_explained(in_home, monkeypatch, capsys, words, said):
    monkeypatch.setattr(sys, "argv", ["gpipe.py", "--iterations", "1", *words])
    assert options.explained(gpipe.main) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    with pytest.raises(LabError, match=said):
        raise LabError(error)
