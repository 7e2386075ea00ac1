"""A rank's own file: whole, fresh, and never in the way."""

import json
from dataclasses import replace

import pytest

from minimegatron.device.virtual import VirtualDevice
from minimegatron.report.status import WRITE_INTERVAL, Status
from virtualgpu.core import cards

FLAGS = "--num-layers 1 --hidden-size 8 --num-attention-heads 2 --seq-length 8 --train-iters 50"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK_STATUS", str(tmp_path / "job"))
    monkeypatch.setenv("SLURMD_NODENAME", "slurmnode2")
    return tmp_path / "job"


def read(folder):
    return json.loads((folder / "0.json").read_text())


def test_it_is_there_before_the_first_step_and_follows_the_steps(folder, monkeypatch, make_context):
    clock = [100.0]
    monkeypatch.setattr("minimegatron.report.status.time.time", lambda: clock[0])
    status = Status(make_context(FLAGS))
    first = read(folder)
    assert (first["state"], first["iteration"], first["train_iters"]) == ("starting", 0, 50)
    assert (first["node"], first["device"], first["modeled"]) == ("slurmnode2", "the CPU", False)
    status.step(1, 0.25, {"loss": 4.0, "tflops": None})
    assert read(folder) == first  # too soon to write again
    clock[0] += WRITE_INTERVAL
    status.step(2, 0.5, {"loss": 3.5, "tflops": None})
    later = read(folder)
    assert (later["state"], later["iteration"], later["loss"]) == ("training", 2, 3.5)
    assert later["milliseconds"] == 500 and later["time"] == clock[0]
    status.update(state="done")
    assert read(folder)["state"] == "done"
    assert [path.name for path in folder.iterdir()] == ["0.json"]


def test_a_virtual_card_shows_its_memory(folder, make_context):
    device = VirtualDevice(cards.find("a100-80gb"), None)
    try:
        Status(replace(make_context(FLAGS), device=device))
    finally:
        device.gpu.__exit__(None, None, None)
    seen = read(folder)
    assert (seen["device"], seen["card"], seen["modeled"]) == (
        "virtual a100-80gb", "a100-80gb", True)
    assert seen["memory_total"] == device.gpu.card.memory
    assert seen["memory_used"] == device.gpu.card.context  # nothing is allocated yet


def test_without_the_variable_or_the_room_nothing_is_written(folder, tmp_path, monkeypatch,
                                                               make_context):
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file is in the way")
    Status(make_context(FLAGS)).step(1, 1.0, {})
    assert folder.read_text() == "a file is in the way"
    monkeypatch.delenv("RANK_STATUS")
    Status(make_context(FLAGS)).step(1, 1.0, {})
    assert list(tmp_path.iterdir()) == [folder]
