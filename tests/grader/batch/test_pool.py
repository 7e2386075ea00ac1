"""Workers that die, hang, grow or babble are replaced, and no task is lost or done twice."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from grader.batch import pool as pool_module
from grader.batch.pool import FinishedTask, WorkerPool
from labcore.errors import LabError
from tests.conftest import command_line

pytestmark = pytest.mark.slow

WORKER = """
import json, os, sys, time
print(json.dumps({"ready": os.getpid()}), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    act = task["act"]
    if act == "once" and not os.path.exists(task["mark"]):
        open(task["mark"], "w").close()
        os._exit(3)
    if act == "die":
        os.kill(os.getpid(), 9)
    if act == "meet":  # until the other worker has one, too
        open(f"{task['mark']}{os.getpid()}", "w").close()
        while len(os.listdir(os.path.dirname(task["mark"]))) < 2:
            time.sleep(0.01)
    if act == "hang":
        time.sleep(60)
    if act == "grow":
        held = bytearray(120_000_000)
        time.sleep(60)
    if act == "close":
        os.close(1)
        time.sleep(60)
    if act == "babble":
        print("not JSON", flush=True)
    if act == "flood":
        print("x" * 2_000_000, flush=True)
    if act == "twice":
        print(json.dumps({"task": task["task"], "n": "forged"}))
    print(json.dumps({"task": task["task"], "pid": os.getpid(), "n": task["n"]}), flush=True)
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "LARGEST_MEMORY", 100_000_000)
    monkeypatch.setattr(pool_module, "TICK", 0.02)

    def make(count: int = 2, program: str = WORKER) -> WorkerPool:
        return WorkerPool(count, [sys.executable, "-c", program], tmp_path / "log")

    return make


def all_of(pool: WorkerPool) -> list[FinishedTask]:
    collected = []
    while ended := pool.next():
        collected.append(ended)
    return collected


def test_every_task_is_answered_once_and_all_workers_work(make, tmp_path):
    (tmp_path / "met").mkdir()
    with make() as pool:
        for n in range(40):
            pool.add({"do": "grade", "act": "meet" if n < 2 else "ok", "n": n,
                      "mark": str(tmp_path / "met" / "worker")}, 20)
        done = all_of(pool)
    assert sorted(one.answer["n"] for one in done) == list(range(40))
    assert len({one.answer["pid"] for one in done}) == 2


@pytest.mark.parametrize("act, fault", [
    ("die", "ended by signal 9"), ("hang", "did not answer in time"),
    ("grow", "took more than 100 MB of memory"), ("close", "closed its pipe"),
    ("babble", "gave an invalid answer"), ("flood", "its answer is too long"),
])
def test_a_worker_that_fails_is_replaced_and_its_task_tried_twice(make, act, fault):
    with make() as pool:
        pool.add({"do": "grade", "act": act, "n": 0}, 0.5 if act == "hang" else 20)
        for n in range(1, 9):
            pool.add({"do": "grade", "act": "ok", "n": n}, 20)
        done = {one.body["n"]: one for one in all_of(pool)}
        assert len(pool.workers) == 2
    assert done[0].answer is None and fault in done[0].fault
    assert [done[n].answer["n"] for n in range(1, 9)] == list(range(1, 9))


def test_a_second_try_counts(make, tmp_path):
    with make(1) as pool:
        pool.add({"do": "grade", "act": "once", "mark": str(tmp_path / "mark"), "n": 7}, 20)
        done = all_of(pool)
    assert [one.answer["n"] for one in done] == [7]


def test_an_answer_to_no_question_is_no_answer_to_the_next(make):
    with make(1) as pool:
        pool.add({"do": "grade", "act": "twice", "n": 0}, 20)
        pool.add({"do": "grade", "act": "ok", "n": 1}, 20)
        done = all_of(pool)
    assert {one.body["n"]: one.answer["n"] for one in done} == {0: "forged", 1: 1}


def test_what_comes_first_is_done_first(make):
    with make(1) as pool:
        for n in range(3):
            pool.add({"do": "grade", "act": "ok", "n": n}, 20)
        pool.add({"do": "feedback", "act": "ok", "n": 9}, 20, first=True)
        order = [one.body["n"] for one in all_of(pool)]
    assert order.index(9) <= 1


def test_workers_that_do_not_start_are_said(make):
    with pytest.raises(LabError, match=r"do not start .one ended with exit code 5.*log"), \
            make(1, "raise SystemExit(5)") as pool:
        pool.add({"do": "grade", "act": "ok", "n": 0}, 20)
        all_of(pool)


def test_the_end_leaves_no_process(make):
    with make() as pool:
        pids = [worker.process.pid for worker in pool.workers]
        pool.add({"do": "grade", "act": "hang", "n": 0}, 60)
        pool.finished()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_worker_of_ours_ends_when_its_parent_is_killed(tmp_path):
    """The real one: SIGKILL leaves no time to tidy up."""
    program = ("import subprocess, sys, time\n"
               "w = subprocess.Popen([sys.executable, '-P', '-c', 'import time;"
               " import grader.batch.worker as w;"
               " w.guard(); print(1, flush=True); time.sleep(60)'], stdout=subprocess.PIPE)\n"
               "w.stdout.readline(); print(w.pid, flush=True); time.sleep(60)")
    parent = pool_module.subprocess.Popen([sys.executable, "-c", program], text=True,
                                          stdout=pool_module.subprocess.PIPE)
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while command_line(worker) and time.monotonic() < deadline:  # a zombie has none
        time.sleep(0.02)
    assert time.monotonic() < deadline, os.kill(worker, 9)
