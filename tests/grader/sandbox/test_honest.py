"""What honest code does that comes close to what a sandbox refuses still works in it."""

from __future__ import annotations

import sys

import pytest

from grader.sandbox.interface import Limits
from grader.sandbox.podman import Podman
from tests.grader.sandbox.conftest import finish
from tests.grader.sandbox.test_neighbors import BACKENDS

# Four ranks on the loopback, forked after one import of torch.
RANKS = """
import os, sys, torch
import torch.distributed as dist
port = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False).port
for rank in range(4):
    if os.fork() == 0:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port + 1}", rank=rank,
                                world_size=4)
        ranks = torch.full([3], float(rank))
        dist.all_reduce(ranks)
        gathered = [torch.empty(1) for _ in range(4)]
        dist.all_gather(gathered, torch.tensor([rank ** 2.0]))
        dist.barrier()
        os.write(1, f"{ranks.tolist()} {[one.item() for one in gathered]}\\n".encode())
        os._exit(0)
[os.wait() for _ in range(4)]
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
def test_four_ranks_meet_and_reduce(backend):
    ended = finish(backend, [sys.executable, "-I", "-c", RANKS], Limits())
    assert ended.out.splitlines() == ["[6.0, 6.0, 6.0] [0.0, 1.0, 4.0, 9.0]"] * 4, ended.noise


@pytest.mark.parametrize("kind", BACKENDS)
def test_libraries_do_without_locks(kind, backend):
    ended = finish(backend if kind == "bubblewrap" else Podman(),
                   [sys.executable, "-I", "-c", LIBRARIES], Limits())
    assert ended.out.splitlines() == [
        "flock: Function not implemented", f"lockf: {LOCKF[kind]}", "filelock: held",
        "sqlite: [(3,)]", "sqlite: [(3,)]", "queue: 42", "shell: 2",
        "memory: 2048 True True True"], ended.noise
