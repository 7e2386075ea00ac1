"""Runs of the trainer in forks of one process that has imported it: a second sooner per process.

They are what pretrain_gpt.py does after its imports. Ranks meet without an agent; when one fails,
the others are ended as by torchrun. How users start the program: test_pretrain.py.

python -m tests.minimegatron.forks      a request a line on stdin, an exit code a line on stdout
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minimegatron.imports import quick_imports

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30  # seconds that torchrun leaves ranks between SIGTERM and SIGKILL


class Forks:
    """The side of the tests. Raises subprocess.TimeoutExpired for a run that takes too long."""

    def __init__(self) -> None:
        self.server = subprocess.Popen([sys.executable, "-m", "tests.minimegatron.forks"], cwd=ROOT,
                                       text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, words: list[str], ranks: int, env: dict[str, str], timeout: float
            ) -> subprocess.CompletedProcess:
        """Run the trainer with this command line on `ranks` processes; 0: one, as without a
        launcher. Its exit code is the first that is not 0."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = (Path(folder) / name for name in ("out", "err"))
            request = {"words": words, "ranks": ranks, "env": env, "timeout": timeout,
                       "out": str(out), "err": str(err)}
            self.server.stdin.write(json.dumps(request) + "\n")
            self.server.stdin.flush()
            code = json.loads(self.server.stdout.readline())
            if code is None:
                raise subprocess.TimeoutExpired(words, timeout, out.read_text(), err.read_text())
            return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())

    def close(self) -> None:
        self.server.terminate()
        self.server.communicate()


@functools.cache
def forks() -> Forks:
    """One for all tests of this process, until its end."""
    made = Forks()
    atexit.register(made.close)
    return made


def be(request: dict[str, Any], more: dict[str, str]) -> None:
    """In a fork: be a process of the trainer, until its end."""
    from minimegatron.main import leave, main

    for number, name in enumerate((os.devnull, request["out"], request["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"] | more)
    sys.argv[1:] = request["words"]
    try:
        main()
    except SystemExit as end:
        leave(end.code)
    except BaseException:
        traceback.print_exc()
        leave(1)


def ranks_of(request: dict[str, Any]) -> Iterator[dict[str, str]]:
    """What each process has in its environment besides, as torchrun gives it."""
    from tests.ports import free_port

    count = request["ranks"]
    if not count:
        yield {}
        return
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    if count > 1:
        common["OMP_NUM_THREADS"] = request["env"].get("OMP_NUM_THREADS", "1")
    for rank in range(count):
        yield common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}


def launch(request: dict[str, Any]) -> int | None:
    """Run it; the first exit code that is not 0. None: it was ended, since it took too long."""
    running, code, deadline = set(), 0, time.monotonic() + request["timeout"]
    try:
        for more in ranks_of(request):
            pid = os.fork()
            if not pid:
                be(request, more)
            running.add(pid)
        while running:
            ended, status = os.waitpid(-1, os.WNOHANG)
            running.discard(ended)
            if ended and not code:
                code = os.waitstatus_to_exitcode(status)
                if code:
                    send(running, signal.SIGTERM)
                    deadline = min(deadline, time.monotonic() + PATIENCE)
            if running and time.monotonic() > deadline:
                return code or None
            time.sleep(0 if ended else 0.01)
        return code
    finally:
        send(running, signal.SIGKILL)
        for pid in running:
            os.waitpid(pid, 0)


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def serve() -> None:
    with quick_imports():  # before the forks: once for all
        import minimegatron.planner
        import minimegatron.training  # noqa: F401

    # All that runs ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for line in sys.stdin:
        print(json.dumps(launch(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
