"""Steps of the tests of forks, each in its own single-threaded process."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from grader.batch import worker
from grader.batch.forks import Fork
from grader.batch.pool import WorkerPool
from grader.run import timing

PROGRAM = """
import json, sys
print(json.dumps({"ready": 1}), flush=True)
for line in sys.stdin:
    print(json.dumps({"task": json.loads(line)["task"], "by": "program"}), flush=True)
"""


def talks() -> int:
    """Say what a fork finds, then end with a code."""
    question = sys.stdin.readline()
    opened = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
              if os.path.lexists(f"/proc/self/fd/{name}")]
    print(json.dumps({"question": question, "session": os.getsid(0), "open": opened,
                      "interrupt": signal.getsignal(signal.SIGINT) is not signal.SIG_IGN}))
    print("noise", file=sys.stderr)
    raise SystemExit(3)


def talk(log: str) -> dict[str, Any]:
    """Ask a fork one question, while a file of ours is open."""
    with open(log, "ab") as file, open(f"{log}.ours", "w"):
        fork = Fork(talks, file)
        fork.stdin.write(b"who?\n")
        fork.stdin.flush()
        data = json.loads(fork.stdout.readline())
        code = fork.wait(60)
    return data | {"pid": fork.pid, "code": code, "noise": Path(log).read_text()}


def signaled(log: str, how: str) -> int:
    """Return the exit code of a fork that is signaled while it waits.

    Args:
        log: takes the fork's standard error.
        how: the method of Fork that sends the signal.
    """
    def waits() -> None:
        print("waiting", flush=True)
        signal.pause()

    with open(log, "ab") as file:
        fork = Fork(waits, file)
    assert fork.stdout.readline() == b"waiting\n"  # by now its signal handlers are installed
    getattr(fork, how)()
    return fork.wait(60)


class Interrupted:
    """A desk whose every task an alarm interrupts."""

    def grade(self, task: dict[str, Any]) -> dict[str, Any]:
        timing._interrupted = True
        return {"by": "fork"}

    feedback = grade


def renew(log: str) -> tuple[list[str], bool]:
    """Who answered two questions to a fork that goes on as a program after the first; and whether
    both have one process."""
    program = [sys.executable, "-c", "import os, sys\nfor line in sys.stdin: "
               "print(os.getpid(), flush=True)"]
    with open(log, "ab") as file:
        fork = Fork(lambda: worker.serve(Interrupted, program), file)
    said = []
    for _ in range(2):
        fork.stdin.write(b'{"do": "grade"}\n')
        fork.stdin.flush()
        said.append(fork.stdout.readline())
        if len(said) == 1:
            said.append(fork.stdout.readline())
    fork.stdin.close()
    fork.wait(60)
    return [json.loads(said[1])["by"], Path(log).read_text().strip()], int(said[2]) == fork.pid


def works() -> int:
    """A worker that dies at the task "die"."""
    print(json.dumps({"ready": 1}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        if task["act"] == "die":
            os._exit(5)
        print(json.dumps({"task": task["task"], "by": "fork"}), flush=True)
    return 0


def pool(log: str, acts: list[str], with_thread: bool) -> list[str]:
    """Who did each of these tasks.

    Args:
        log: takes the workers' standard error.
        acts: the tasks, one after the other.
        with_thread: whether this process has another thread.
    """
    over = threading.Event()
    if with_thread:
        threading.Thread(target=over.wait).start()
    done = []
    with WorkerPool(1, [sys.executable, "-c", PROGRAM], Path(log), works) as workers:
        for act in acts:
            workers.add({"do": "grade", "act": act}, 60)
            done.append(workers.next().answer["by"])
    over.set()
    return done
