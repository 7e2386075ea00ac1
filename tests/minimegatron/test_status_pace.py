"""The usual gap between a rank's updates, and the rank that failed first, for `lab top`."""

import json
from types import SimpleNamespace

import pytest

from minimegatron.device.device import CpuDevice
from minimegatron.failures import print_unexpected_error
from minimegatron.report import status
from minimegatron.report.status import Status


@pytest.fixture
def ctx(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK_STATUS", str(tmp_path / "7"))
    return SimpleNamespace(
        device=CpuDevice(), grid=SimpleNamespace(rank=1, world_size=2, position={}),
        config=SimpleNamespace(train_iters=20, global_batch_size=8))


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: now.seconds))
    return now


def read(tmp_path):
    return json.loads((tmp_path / "7" / "1.json").read_text())


def test_the_usual_pace_is_of_this_machine_s_clock(ctx, clock, tmp_path):
    """However long the device says that a step took."""
    one = Status(ctx)
    assert read(tmp_path)["state"] == "starting"
    for iteration in range(1, 5):
        clock.seconds += 2
        one.step(iteration, 0.25, {"loss": 3.5, "tflops": None})
    told = read(tmp_path)
    assert (told["state"], told["iteration"], told["milliseconds"]) == ("training", 4, 250.0)
    assert told["pace"] == pytest.approx(2) and told["loss"] == 3.5


def test_an_evaluation_is_no_step(ctx, clock, tmp_path):
    one = Status(ctx)
    for iteration in (1, 2):
        clock.seconds += 1
        one.step(iteration, 1.0, {})
    one.phase("evaluating")
    assert read(tmp_path)["state"] == "evaluating"
    clock.seconds += 500
    one.step(3, 1.0, {})
    assert (read(tmp_path)["pace"], read(tmp_path)["state"]) == (1, "training")


def test_an_error_nobody_foresaw_names_its_rank(capsys):
    for error in (ValueError("bad shape"), MemoryError("CUDA out of memory. Tried")):
        try:
            raise error
        except Exception as caught:
            print_unexpected_error(caught, 3)
    said = capsys.readouterr().err.splitlines()
    assert "[rank 3] ValueError: bad shape" in said
    assert "[rank 3] RuntimeError: CUDA out of memory. Tried" in said
