"""Drivers on virtual GPUs: figures come from the record, and forged records are no verdict."""

from __future__ import annotations

import base64
import json
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grader.run.proxies import Function
from grader.run.remote import SandboxLost
from labkit import check
from labkit.check import on_gpus, wire
from labkit.check.checks import Failed
from labkit.check.kernel import KernelSide
from labkit.check.modeled import ModeledCost
from labkit.check.sides import SimulatedCluster, checking_on
from virtualgpu.core.accuracy import ALLOCATED

from .test_ranks import InProcess, remote

STUDENT = """
import torch
import torch.distributed as dist

def model(width, layers):
    return torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False, device="cuda")
                                 for _ in range(layers)])

def backward(width, layers, overlap):
    made, works = model(width, layers), []
    if overlap:
        for parameter in made.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda one: works.append(dist.all_reduce(one.grad, async_op=True)))
    made(torch.randn(2048, width, device="cuda")).square().mean().backward()
    if not overlap:
        for parameter in made.parameters():
            dist.all_reduce(parameter.grad)
    for work in works:
        work.wait()

def idle(width, layers, overlap):
    model(width, layers)

def nothing():
    pass

def too_large():
    torch.empty(2**40, device="cuda")

def unanswered():
    raise NotImplementedError

def misspelled():
    model(8, 1)[0].wieght

def scaled(reads):
    x = torch.empty(4096, 4096, device="cuda")
    x @ x  # the least that a driver does
    for _ in range(20):
        amax = x.abs().amax()
        if reads:
            assert not amax == 0
            x * (448 / amax.item())
        else:
            x * (448 / amax)

def undecided():
    x = torch.randn(4096, 4096, device="cuda")
    if torch.allclose(x, x + 1):
        raise ValueError("equal")

def second_rank_fails():
    if dist.get_rank() == 1:
        raise ValueError("no rank 1")
    dist.barrier()
"""
WIDTH, LAYERS = 4096, 8
GEMM, GRADIENTS = 2 * 2048 * WIDTH**2, 4 * WIDTH**2 * LAYERS
LEAST = {"flops": (3 * LAYERS - 1) * GEMM, "communicated": GRADIENTS}


@pytest.fixture(scope="module")
def student() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(STUDENT, "<cell 1>", "exec"), names)
    return names


def cost(student: dict, overlap: bool) -> ModeledCost:
    return check.gpus(student["backward"], (WIDTH, LAYERS, overlap), "h100:8", nodes=4,
                      present=[0], least=LEAST)


@pytest.mark.slow
def test_overlap_shows_in_exposed_communication(student, capsys):
    late, soon = cost(student, False), cost(student, True)
    assert "exposed communication" in capsys.readouterr().out
    assert late.ranks[0].flops == soon.ranks[0].flops == LEAST["flops"]
    assert late.ranks[0].communicated == soon.ranks[0].communicated == GRADIENTS
    assert soon.milliseconds < late.milliseconds and soon.exposed < late.exposed / 3
    assert 2 * GRADIENTS / 2**30 <= late.peak_memory < 2.2 * GRADIENTS / 2**30 + 0.1
    assert late.mfu(LEAST["flops"], "tf32") == pytest.approx(
        LEAST["flops"] / (late.milliseconds / 1000 * 494.7e12), rel=0.01)


def test_the_error_of_memory_is_stated_only_for_the_gpu_model_that_it_was_measured_on():
    def on(gpus: str) -> ModeledCost:
        return ModeledCost(SimulatedCluster(gpus, 1, None, (0,)), ())

    assert on("h100:8").memory_error == ALLOCATED["h100-80gb"]
    for gpus in ("v100-32gb:1", "a100:8", "h200:8"):
        assert on(gpus).memory_error is None


@pytest.mark.slow
def test_a_number_of_a_large_tensor_can_be_read_and_the_wait_for_it_costs_time(student):
    apart, read = (check.gpus(student["scaled"], (reads,), "h100:1", least={"flops": 1})
                   for reads in (False, True))
    assert read.ranks[0].bytes == pytest.approx(apart.ranks[0].bytes, rel=1e-6)
    assert 1.05 < read.milliseconds / apart.milliseconds < 2
    assert (apart.reads, read.reads) == (0, 40)


@pytest.mark.slow
@pytest.mark.parametrize(("driver", "case", "words"), [
    ("idle", (512, 2, False), ["0 FLOPs in fp32 or higher precision, at least 10 are needed",
                               "Where is the work?"]),
    ("nothing", (), ["nothing() on 1 x h100:2: it does nothing on the GPUs", "Where is the work?"]),
    ("too_large", (), ["CUDA out of memory", "in too_large", "Shard it."]),
    ("unanswered", (), ["NotImplementedError"]),
    ("second_rank_fails", (), ["rank 1 raised ValueError: no rank 1", "<cell 1>"]),
    ("undecided", (), ["line 50 needs a tensor", "no values of large tensors",
                       "torch.where(condition, a, b)"]),
    ("misspelled", (), ["Linear has no `wieght`", "in misspelled"])])
def test_a_wrong_answer_is_told_what_is_wrong(student, driver, case, words, capfd):
    with pytest.raises(Failed) as caught:
        check.gpus(student[driver], case, "h100:2", least={"flops": 10},
                   hints={"Where is the work?": "little", "Shard it.": "memory"})
    for word in words:
        assert word in str(caught.value)
    assert "--assume" not in str(caught.value) and "--values" not in str(caught.value)
    assert "on_gpus.py" not in str(caught.value) and "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_what_only_looks_fast_is_refused():
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("""
import time
import torch
import torch.distributed as dist

def sleeps(seconds):
    torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
    time.sleep(seconds)

def waits_on_the_side(then=lambda side: None):
    x = torch.ones(1024, device="cuda")
    work, side = dist.all_reduce(x, async_op=True), torch.cuda.Stream()
    with torch.cuda.stream(side):
        work.wait()
        x /= 2
    then(side)

def waits_through_the_side():
    waits_on_the_side(lambda side: torch.cuda.current_stream().wait_stream(side))

def alone():
    group = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    dist.all_reduce(torch.ones(1000, device="cuda"), group=group)
""", "<cell 1>", "exec"), names)
    with pytest.raises(Failed, match=r"it sleeps for 3 s. Leave out time.sleep"):
        check.gpus(names["sleeps"], (3,), "h100:2")
    with pytest.raises(Failed, match="the default stream never waits for 1 of the collectives"):
        check.gpus(names["waits_on_the_side"], (), "h100:2", present=[0])
    check.gpus(names["waits_through_the_side"], (), "h100:2", present=[0])
    with pytest.raises(Failed, match="0 bytes communicated in groups of at least 2"):
        check.gpus(names["alone"], (), "h100:2", least={"communicated": 4000})


@pytest.mark.slow
def test_a_baseline_is_the_checks_own_and_computed_once(monkeypatch):
    def gemm(width):
        import torch

        x = torch.empty(width, width, device="cuda")
        for _ in range(3):
            x = x @ x

    with checking_on(remote(None)):  # nothing is asked of the sandbox
        one = check.baseline(gemm, {"width": 4096}, "h100:2")
        monkeypatch.setattr(KernelSide, "gpus", None)
        assert check.baseline(gemm, {"width": 4096}, "h100:2") is one
    assert one.ranks[0].flops == 3 * 2 * 4096**3
    with pytest.raises(ValueError, match="is no function of the check's own"):
        check.baseline(object(), (), "h100:2")


@pytest.mark.parametrize(("options", "words"), [
    ({"gpus": "h100:8", "nodes": 4}, "at most 8"), ({"gpus": "h10:8"}, "--gpus h10:8"),
    ({"present": []}, "0 ranks")])
def test_gpus_that_do_not_exist_are_an_error_of_the_author(student, options, words):
    with pytest.raises(Exception, match=words):
        check.gpus(student["unanswered"], **options)


@pytest.fixture(scope="module")
def recorded(student) -> dict[str, Any]:
    """A sandbox's answer for `idle`."""
    return on_gpus.record(student["idle"], SimulatedCluster("h100:2"), (256, 1, False), {},
                          100)


def changed(packed: str, change: Any) -> str:
    """A record in which `change` was applied to the JSON."""
    made = json.loads(on_gpus.unpack(packed))
    change(made)
    return on_gpus.pack(json.dumps(made))


def unequal(record: dict[str, Any]) -> None:
    """Name an operation with which torch reads past the end of a list."""
    one = {"tensor": [[4], [1], "float32"], "host": False}
    record["operations"].append({"name": "aten._foreach_copy.default", "kwargs": {}, "fresh": [],
                                 "args": [{"list": [one]}, {"list": [one] * 1000}]})


def forged(first: str) -> list[Any]:
    bomb = base64.b64encode(zlib.compress(b" " * (on_gpus.MOST_UNPACKED + 1))).decode()
    return [bomb, "!", 7, base64.b64encode(b"not compressed").decode(),
            changed(first, lambda one: one.update(rank=1)),
            changed(first, lambda one: one.update(world=4)),
            changed(first, lambda one: one["entries"].append(["f", 999])),
            changed(first, unequal),
            changed(first, lambda one: one["entries"].append(["a", -5]))]


@pytest.mark.slow
def test_a_forged_record_is_no_verdict(recorded):
    cluster = SimulatedCluster("h100:2")
    assert len(on_gpus.read(recorded, cluster).priced) == 2
    first, second = recorded["records"]
    answers = [{"records": [one, second]} for one in forged(first)]
    large, too = (on_gpus.pack(on_gpus.unpack(one) + " " * (on_gpus.MOST_UNPACKED // 2))
                  for one in (first, second))
    assert on_gpus.read(recorded | {"records": [large, second]}, cluster).priced
    answers += [{"records": [large, too]}, {"records": [first]}, {"records": None},
                {"state": "passed"}, {"state": np.zeros(2)}, {"state": ["late"]},
                {"records": np.zeros(2)}, {"records": [first, np.zeros(2)]},
                {"records": [changed(first, lambda one: one["entries"].append(["z", 10**400])),
                             second]}]
    for answer in answers:
        with pytest.raises(on_gpus.BadRecords):
            on_gpus.read(recorded | answer, cluster)
    side = remote(lambda do, **fields: {"value": wire.dumps(recorded | answers[0]).decode()})
    with pytest.raises(SandboxLost):
        side.gpus(Function("driver", side), cluster, (), {}, 10)


def test_what_is_left_for_the_second_record_is_counted_in_bytes(monkeypatch):
    """With nothing left, zlib would unpack without a limit."""
    read = []
    monkeypatch.setattr("virtualgpu.replay.read_record", read.append)
    cluster = SimulatedCluster("h100:2")
    for first in (" " * on_gpus.MOST_UNPACKED, "é" * (on_gpus.MOST_UNPACKED // 2)):
        records = [on_gpus.pack(first), on_gpus.pack(" " * (on_gpus.MOST_UNPACKED // 2))]
        with pytest.raises(on_gpus.BadRecords, match="too long"):
            on_gpus.read({"state": "returned", "records": records}, cluster)
    assert list(map(len, read)) == [on_gpus.MOST_UNPACKED, on_gpus.MOST_UNPACKED // 2]


def test_whatever_breaks_the_reader_is_no_verdict(monkeypatch):
    def breaks(text: str) -> None:
        raise KeyError("a bug in the reader")

    monkeypatch.setattr("virtualgpu.replay.read_record", breaks)
    with pytest.raises(on_gpus.BadRecords, match="KeyError: 'a bug in the reader'"):
        on_gpus.read({"state": "returned", "records": [on_gpus.pack("{}")] * 2},
                     SimulatedCluster("h100:2"))


def test_a_lack_of_memory_is_not_the_students(monkeypatch):
    def breaks(text: str) -> None:
        raise MemoryError

    monkeypatch.setattr("virtualgpu.replay.read_record", breaks)
    with pytest.raises(MemoryError):
        on_gpus.read({"state": "returned", "records": [on_gpus.pack("{}")] * 2},
                     SimulatedCluster("h100:2"))


def test_a_refused_record_says_why():
    sent = {"state": "returned", "records": ["!\033[31m", "!"]}
    side = remote(lambda do, **fields: {"value": wire.dumps(sent).decode()})
    with pytest.raises(SandboxLost):
        side.gpus(Function("driver", side), SimulatedCluster("h100:2"), (), {}, 10)
    assert str(side.lost).startswith("its response does not have the expected form: "
                                     "a record is not packed text: ")


def test_too_large_a_record_is_the_drivers_error(monkeypatch):
    def ran(*_: Any, **__: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(error="", record="\u00e9" * (size // 4)) for _ in range(2)]

    monkeypatch.setattr("virtualgpu.run", ran)
    size = on_gpus.MOST_UNPACKED
    assert len(on_gpus._recorded(len, SimulatedCluster("h100:2"), (), {}, ())) == 2
    size += 4
    assert on_gpus._recorded(len, SimulatedCluster("h100:2"), (), {}, ()).startswith(
        "it does too much to be recorded: ")


@pytest.mark.slow
def test_the_same_figures_come_through_a_guest(student):
    here = KernelSide().gpus(student["idle"], SimulatedCluster("h100:2"), (256, 1, False),
                             {}, 100)
    other = remote(InProcess(student))
    with checking_on(other):
        there = check.gpus(Function("idle", other), (256, 1, False), "h100:2")
    assert there.ranks == here.priced


def test_a_driver_that_was_too_slow_is_no_verdict_when_graded():
    late = {"state": "late", "text": "rank 0 of 1 did not finish within 50 s"}
    side = remote(lambda do, **fields: {"value": wire.dumps(late).decode()})
    with pytest.raises(SandboxLost):
        side.gpus(Function("driver", side), SimulatedCluster("h100:2"), (), {}, 50)
    assert side.unmeasured == "out of time on virtual GPUs (50 s)"
