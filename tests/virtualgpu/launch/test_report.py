"""virtualrun's output and files, from data and from a program."""

import json
import os
import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

from virtualgpu.core.cards import CARDS
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.measures import VERSION, measure
from virtualgpu.launch import command, report
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.result import Rank

from .test_processes import started

pytestmark = pytest.mark.slow  # ranks that run whole programs

PROGRAM = Path(__file__).with_name("reported.py")


@pytest.fixture(scope="module")
def account():
    with VirtualGpu(CARDS["a100-80gb"]) as gpu:
        ledger = Ledger(gpu)
        ledger.start()
        model = nn.Sequential(nn.Embedding(512, 256), nn.Linear(256, 512)).to("meta")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(3):
            model(torch.zeros(4, 32, dtype=torch.int64, device="meta")).cumsum(0).sum().backward()
            optimizer.step()
        gpu.assumptions.note("the loss is finite", "train.py", 12)
        gpu.unknown["aten.odd"], gpu.busy["aten.odd"] = 3, 1e-6
        ledger.stop()
    return measure(ledger)


def with_rank(account, rank, seconds=None, peak=None):
    other = deepcopy(account)
    other["rank"] = rank
    if seconds is not None:
        other["step"]["seconds"] = seconds
    if peak is not None:
        other["memory"]["peak_allocated_bytes"] = peak
    return Rank(rank, account=other)


def test_the_slowest_and_the_fullest_rank_are_reported(account, capsys):
    report.show(parse("a100:3"), [with_rank(account, 0), with_rank(account, 1, seconds=2.5),
                                  with_rank(account, 2, peak=7 * 2**30)])
    said = capsys.readouterr().err
    assert "rank 1, the slowest of 3:" in said and "step           2,500.000 ms" in said
    assert "rank 2, the highest peak memory of 3:" in said and "7.00 GiB allocated" in said
    assert "found by optimizer steps (AdamW)" in said and "tokens/s" in said
    assert re.search(r"ms, the median of 2 steps \(excluding the first, \S+ ms\), \S+ ms to", said)
    assert re.search(r"exposed comm\.  0\.000 ms per step, 0\.0% of the step\n", said)
    assert re.search(r"MFU +\d+\.\d% of 19.5 TFLOP/s fp32", said)
    assert re.search(r"optimizer state \d+\.\d\d MiB", said)
    assert "aten.odd (3 calls, 0.001 ms)" in said
    assert "train.py:12: the loss is finite" in said and "not measured" in said


def test_a_run_without_steps_says_how_to_mark_them(account, capsys):
    lost = {**deepcopy(account), "step": None, "tokens": None, "flops": None, "communication": None}
    report.show(parse("a100"), [Rank(account=lost)])
    assert "virtualgpu.mark_step()" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "words"), [
    (1, "the only step"), (2, "the second of 2 steps (excluding the first, 9.000 ms)"),
    (4, "the median of 3 steps (excluding the first, 9.000 ms), 1.000 ms to 2.000 ms")])
def test_the_first_step_is_left_out(count, words):
    step = {"count": count, "first_seconds": 9e-3, "shortest_seconds": 1e-3,
            "longest_seconds": 2e-3}
    assert report.spread(step) == words


def test_json_has_every_rank_and_is_replaced_in_one_step(account, tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    path.write_text("old")
    ranks = [with_rank(account, 0), Rank(1, error="Killed: by SIGKILL", status=137)]
    report.write(str(path), parse("a100:2"), ranks)
    data = json.loads(path.read_text())
    assert (data["schema"], data["version"]) == ("virtualgpu.report", VERSION)
    assert (data["world_size"], data["slowest_rank"]) == (2, 0)
    assert data["ranks"][0] == ranks[0].account
    assert data["ranks"][1] == {"rank": 1, "error": "Killed: by SIGKILL"}
    before = path.read_text()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space left"):
        report.write(str(path), parse("a100:2"), ranks[:1])
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_ddp_on_two_virtual_gpus(tmp_path):
    """Gradients are views of DDP's buckets: they count once, as gradients."""
    path = tmp_path / "report.json"
    pid = started(tmp_path, "--gpus", "a100:2", "--json", str(path),
                  "--trace", str(tmp_path / "traces"), str(PROGRAM), "views")
    status, said = os.waitpid(pid, 0)[1], (tmp_path / "out").read_text()
    assert status == 0, said
    assert "2 x virtual a100-80gb" in said
    assert "Time stats" not in said  # a warning of DDP's about devices it does not know
    ranks = json.loads(path.read_text())["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    parameters = 4 * (1024 * 512 + 512 * 2048 + 2048 + 2048 * 512 + 512)
    for rank in ranks:
        parts = rank["memory"]["at_peak"]
        assert parts["parameters"] == parts["gradients"] == parameters
        assert parts["optimizer_state"] == 2 * parameters
        assert rank["step"]["count"] == 4 and rank["tokens"]["per_step"] == 256
        assert rank["communication"]["exposed_seconds"] > 0 and rank["memory"]["nccl_bytes"] > 0
        chakra = json.loads((tmp_path / f"traces/rank{rank['rank']}.chakra.json").read_text())
        sums = [node for node in chakra["nodes"] if node["type"] == "COMM_COLL_NODE"]
        assert sums and all(node["data_deps"] for node in sums[-2:])
    assert len(list((tmp_path / "traces").iterdir())) == 8


@pytest.mark.parametrize(("flag", "value"), [("--json", "nowhere/report.json"),
                                             ("--trace", str(PROGRAM))])
def test_a_place_that_cannot_be_written_to_is_refused_first(flag, value, capsys):
    assert command.main(["--gpus", "a100", flag, value, str(PROGRAM)]) == command.USAGE
    assert f"{flag} {value}: " in capsys.readouterr().err
