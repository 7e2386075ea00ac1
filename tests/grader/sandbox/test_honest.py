"""Honest code that comes close to what a sandbox refuses still works in it."""

from __future__ import annotations

import sys

import pytest

from grader.run.channel import Channel
from grader.run.session import GUEST
from grader.sandbox.interface import Limits
from grader.sandbox.podman import Podman
from labkit.check.on_ranks import CaseBroker, read
from labkit.check.sides import DEADLOCK, RanksRun
from labkit.guest.serving import RANKS
from tests.grader.sandbox.conftest import finish
from tests.grader.sandbox.test_neighbors import BACKENDS

# A driver of four ranks.
DRIVER = """
import torch
import torch.distributed as dist

scale = 2.0

def exchange(x):
    rank = dist.get_rank()
    ranks = torch.full([3], x * rank)
    dist.all_reduce(ranks)
    gathered = [torch.empty(1) for _ in range(4)]
    dist.all_gather(gathered, torch.tensor([rank ** scale]))
    dist.barrier()
    if x < 0:
        raise ValueError(f"rank {rank} dislikes {x}")
    if x > 1:
        dist.recv(ranks, (rank - 1) % 4)
    return ranks.tolist(), [one.item() for one in gathered]
"""
LIBRARIES = """
import fcntl, multiprocessing, os, pathlib, shutil, sqlite3, subprocess, tempfile, zipfile
with open("own", "w") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        print("flock:", error.strerror)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX)
    except OSError as error:
        print("lockf:", error.strerror)
import filelock
try:
    with filelock.FileLock("own.lock", timeout=1): print("filelock: held")
except (NotImplementedError, filelock.Timeout) as error:
    print("filelock:", type(error).__name__)
for name in (":memory:", "file:own.db?nolock=1"):
    with sqlite3.connect(name, uri=True) as base:
        base.execute("create table t (x)"), base.execute("insert into t values (3)")
        print("sqlite:", base.execute("select x from t").fetchall())
shutil.copy2("own", "copy"), os.utime("copy"), shutil.make_archive("all", "zip", ".", "own")
lock, queue = multiprocessing.Lock(), multiprocessing.Queue()
child = multiprocessing.Process(target=lambda: (lock.acquire(), queue.put(42)))
child.start(), print("queue:", queue.get()), child.join()
print("shell:", subprocess.run("echo x >/dev/null; head -c2 /dev/zero | wc -c", shell=True,
                               capture_output=True, text=True).stdout.strip())
import psutil
print("memory:", psutil.virtual_memory().total >> 20, psutil.Process().memory_info().rss > 0,
      len(psutil.cpu_times(percpu=True)) == os.cpu_count(), psutil.boot_time() > 1e9)
"""

# What podman's own profile does not name, it answers so.
LOCKF = {"bubblewrap": "Operation not permitted", "podman": "Function not implemented"}


@pytest.mark.slow
def test_a_driver_runs_on_warm_ranks_inside_the_sandbox(backend):
    """The guest has the fork server from its start, as a fork of itself."""
    guest = Channel(backend.start((*GUEST, RANKS), Limits()))

    def ranks(x: float) -> RanksRun:
        broker = CaseBroker(4, (x,), {})
        answer = guest.request("ranks", 120, broker.exchange, name="exchange", ranks=4, limit=100)
        return read(answer["outcome"], broker)

    try:
        assert guest.request("cell", 120, source=DRIVER)["error"] is None
        for x in (1.0, 0.5):
            done = ranks(x)
            assert done.values == [([6.0 * x] * 3, [0.0, 1.0, 4.0, 9.0])] * 4, done.text
            assert [call.op for call in done.calls(2)] == ["all_reduce", "all_gather", "barrier"]
        assert "raised ValueError: rank " in ranks(-1.0).text
        waits = ranks(9.0)
        assert waits.state == DEADLOCK and "rank 1 waits in recv from rank 0" in waits.text
    finally:
        guest.close()


@pytest.mark.parametrize("kind", BACKENDS)
def test_libraries_do_without_locks(kind, backend):
    ended = finish(backend if kind == "bubblewrap" else Podman(),
                   [sys.executable, "-I", "-c", LIBRARIES], Limits())
    assert ended.out.splitlines() == [
        "flock: Function not implemented", f"lockf: {LOCKF[kind]}", "filelock: held",
        "sqlite: [(3,)]", "sqlite: [(3,)]", "queue: 42", "shell: 2",
        "memory: 2048 True True True"], ended.noise
