"""Records are priced in a process that holds no secret; no record ends anything else."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from grader.run.proxies import Function
from grader.run.remote import SandboxLost
from labkit.check import on_gpus, pricing, wire
from labkit.check.on_gpus import BadRecords
from labkit.check.pricing import PricingFailed, PricingProcess, priced
from labkit.check.sides import SimulatedCluster
from virtualgpu.replay import Priced

from .test_ranks import remote

CLUSTER = SimulatedCluster("h100:1")
RECORD = on_gpus.pack(json.dumps({
    "format": "virtualgpu record", "version": 1, "rank": 0, "world": 1, "streams": ["compute"],
    "groups": [], "operations": [{"name": "aten.mm.default", "kwargs": {}, "args": [
        {"tensor": [[64, 64], [64, 1], "float32"], "host": False}] * 2,
        "fresh": [[[64, 64], [64, 1], "float32"]]}],
    "entries": [["a", 2**14]] * 3 + [["k", 0, 0, [0, 0, 1, 0, 2, 0]]]}))
FIGURES = Priced(0, 1.0, {"compute": 0.5}, {}, {}, 1, 2, 3, {"fp32": 4}, 5, {"2": 6},
                 {"pinned": 7}, 0.0, 0, {}, 0)
REQUEST = json.dumps({"records": [RECORD], "cluster": asdict(CLUSTER)}).encode()


def asked(monkeypatch: pytest.MonkeyPatch, work: Any) -> dict[str, Any]:
    """The answer of a child that does `work` in place of pricing."""
    monkeypatch.setattr(pricing, "priced_here", lambda records, cluster: [work()])
    return json.loads(pricing._in_a_child(REQUEST))


def ends_itself() -> None:
    faulthandler.disable()  # pytest's would print the stack
    os.kill(os.getpid(), signal.SIGSEGV)


def takes_memory() -> None:
    bytearray(1 << 40)


def takes_time() -> None:
    while True:
        pass


def fails() -> None:
    raise KeyError("no such thing")


@pytest.mark.parametrize(("work", "words"), [
    (ends_itself, "ends the process"), (takes_memory, "too much memory"), (fails, "ends the"),
    (takes_time, "takes too long")])
def test_a_record_that_ends_the_child_is_refused(monkeypatch, work, words):
    monkeypatch.setitem(pricing.LIMITS, pricing.resource.RLIMIT_CPU, 1)
    assert words in asked(monkeypatch, work)["refused"]


def test_a_child_that_waits_is_ended(monkeypatch):
    monkeypatch.setattr(pricing, "DEADLINE", 0.2)
    assert "takes too long" in asked(monkeypatch, lambda: time.sleep(100))["refused"]


def test_the_child_opens_neither_files_nor_sockets(monkeypatch):
    def look() -> None:
        for opened in (Path(__file__).read_text, socket.socket, lambda: os.listdir("/")):
            with pytest.raises(OSError, match="Too many open files"):
                opened()
        raise BadRecords("all refused")

    assert asked(monkeypatch, look) == {"refused": "all refused"}


@pytest.fixture(scope="module")
def process():
    os.environ["SOME_TOKEN"] = "secret"
    found = PricingProcess()
    yield found
    found.close()
    del os.environ["SOME_TOKEN"]


@pytest.mark.slow
def test_another_process_gives_the_same_figures(process):
    assert process.price([RECORD], CLUSTER) == on_gpus.priced_here([RECORD], CLUSTER)
    variables = Path(f"/proc/{process.process.pid}/environ").read_bytes()
    assert b"PATH=" in variables and b"SOME_TOKEN" not in variables
    for bad, words in ((RECORD[:-8], "packed"), (on_gpus.pack("{}"), "missing"),
                       (on_gpus.pack("[" * 10**5), "not JSON")):
        with pytest.raises(BadRecords, match=words):
            process.price([bad], CLUSTER)
    sharded = json.loads(on_gpus.unpack(RECORD))
    sharded["operations"] += [{"name": "fsdp.chunk_cat.default", "args": [], "kwargs": {},
                               "fresh": []}]
    with pytest.raises(BadRecords, match=r"fsdp.chunk_cat.*: the operation has no tensors"):
        process.price([on_gpus.pack(json.dumps(sharded))], CLUSTER)
    first = process.process.pid
    assert process.price([RECORD], CLUSTER) and process.process.pid == first
    process.process.kill()
    process.process.wait()
    assert process.price([RECORD], CLUSTER) and process.process.pid != first


def test_no_record_is_to_blame_for_a_process_that_does_not_start(monkeypatch):
    monkeypatch.setattr(pricing.sys, "executable", "/bin/false")
    process = PricingProcess()
    with pytest.raises(PricingFailed, match="does not start"):
        process.price([RECORD], CLUSTER)
    assert process.process is None
    monkeypatch.setattr("grader.run.remote.PRICING", process)
    sent = {"state": "returned", "records": [RECORD]}
    side = remote(lambda do, **fields: {"value": wire.dumps(sent).decode()})
    with pytest.raises(SandboxLost):
        side.gpus(Function("driver", side), CLUSTER, (), {}, 10)
    assert side.unmeasured and side.lost is None


@pytest.mark.parametrize("change", [
    {"seconds": -1.0}, {"seconds": float("nan")}, {"seconds": float("inf")}, {"seconds": "1"},
    {"seconds": True}, {"rank": 1.5}, {"rank": None}, {"rank": 1}, {"busy": []}, {"busy": 5},
    {"busy": {"a": "b"}},
    {"busy": {"a": {}}}, {"flops_by_dtype": {"fp31": 1}}, {"flops_by_dtype": {"fp32": 1.5}},
    {"peak": 10**40}, {"more": 1}])
def test_figures_that_another_process_sent_are_validated(change):
    sent = json.loads(json.dumps(asdict(FIGURES)))
    assert priced([sent], [0]) == [FIGURES]
    with pytest.raises(BadRecords, match=r"pricing (this|these) records? gave"):
        priced([sent | change], [0])
    for other in (None, {}, [], [sent, sent], ["x"], [{}]):
        with pytest.raises(BadRecords, match="gave"):
            priced(other, [0])
