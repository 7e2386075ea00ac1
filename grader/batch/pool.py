"""A monitored pool of trusted worker processes. A worker that dies, hangs, or uses too much memory
is replaced, and its task is retried once.

Tasks and answers are JSON lines. Any idle worker gets the next task, so one slow submission does
not delay the others.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from grader.batch.forks import Fork, can_fork
from labcore.errors import LabError

LARGEST_MEMORY = 500_000_000  # bytes, resident, of one worker
LARGEST_IDLE_MEMORY = 350_000_000  # after a task: what is left over from earlier ones
LARGEST_ANSWER = 1_000_000  # bytes of a line
SECONDS_TO_START = 120.0
SECONDS_TO_STOP = 2.0
TICK = 0.2  # seconds between checks of deadlines and memory
MOST_TRIES = 2
TOO_LATE = "did not answer in time"


@dataclass
class Task:
    """A task for a worker.

    Attributes:
        seconds: time limit.
        number: the worker's answer repeats it.
        tries: how many workers have started it.
    """

    body: dict[str, Any]
    seconds: float
    number: int
    tries: int = 0


@dataclass(frozen=True)
class FinishedTask:
    """A finished task. `answer` is None if workers failed at it; then `fault` says why."""

    body: dict[str, Any]
    answer: dict[str, Any] | None
    fault: str = ""


class Worker:
    """One worker process. Its first line of output means that it is ready for tasks."""

    def __init__(self, process: subprocess.Popen | Fork) -> None:
        self.process = process
        os.set_blocking(self.process.stdout.fileno(), False)
        self.task: Task | None = None
        self.ready = False
        self.deadline = time.monotonic() + SECONDS_TO_START
        self._unread, self._closed = b"", False

    def give(self, task: Task) -> None:
        self.task, task.tries = task, task.tries + 1
        self.deadline = time.monotonic() + task.seconds
        with contextlib.suppress(BrokenPipeError):  # it died, which the next check notices
            question = {**task.body, "task": task.number}
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()

    def answers(self) -> list[dict[str, Any]]:
        """Return the complete lines that arrived. Raises ValueError for anything but our JSON
        objects."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.process.stdout.fileno(), 65536):
                self._unread += piece
                if len(self._unread) > LARGEST_ANSWER:
                    raise ValueError("its answer is too long")
            self._closed = True
        *lines, self._unread = self._unread.split(b"\n")
        answers = [json.loads(line) for line in lines]
        if not all(isinstance(one, dict) for one in answers):
            raise ValueError("its answer is not a JSON object")
        return answers

    def memory(self) -> int:
        """Return the resident memory in bytes."""
        try:
            return psutil.Process(self.process.pid).memory_info().rss
        except psutil.Error:
            return 0

    def fault(self) -> str:
        """Return why the worker cannot continue; empty while it can."""
        code = self.process.poll()
        if code is None and self._closed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.process.wait(1)
            if code is None:
                return "closed its pipe"
        if code is not None:
            return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if (self.task or not self.ready) and time.monotonic() > self.deadline:
            return TOO_LATE
        if self.memory() > LARGEST_MEMORY:
            return f"took more than {LARGEST_MEMORY / 1e6:.0f} MB of memory"
        return ""

    def stop(self) -> None:
        """End the process."""
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


class WorkerPool:
    """A pool of `count` workers. Use it in a `with` statement, which stops them at its end."""

    def __init__(self, count: int, command: Sequence[str], log: Path,
                 main: Callable[[], int | None] | None = None) -> None:
        """Start the workers.

        Args:
            count: their number.
            command: the program of a worker, for those that replace others.
            log: takes their standard error.
            main: what that program calls; the first workers are forks of this process, if it
                has one thread, and call it there.
        """
        self.command, self.log_path = list(command), log
        self.log = log.open("ab")
        self.numbers = itertools.count()
        self.waiting: deque[Task] = deque()
        self.done: deque[FinishedTask] = deque()
        self.selector = selectors.DefaultSelector()
        self.workers: list[Worker] = []
        self.failed_starts = 0
        try:
            for _ in range(count):
                self._add(Fork(main, self.log) if main and can_fork() else self._program())
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def add(self, body: dict[str, Any], seconds: float, *, first: bool = False) -> None:
        """Queue a task for the next idle worker.

        Args:
            body: the task.
            seconds: its time limit.
            first: whether to put it before all queued tasks.
        """
        (self.waiting.appendleft if first else self.waiting.append)(
            Task(body, seconds, next(self.numbers)))
        self._hand_out()

    def under_way(self, kind: str) -> list[tuple[str, str]]:
        """Return (lab, student) of the tasks of this kind that are running."""
        return [(worker.task.body["lab"], worker.task.body["student"]) for worker in self.workers
                if worker.task and worker.task.body["do"] == kind]

    def finished(self) -> list[FinishedTask]:
        """Return the tasks that finished since the last call, without waiting."""
        self._look(0.0)
        finished = list(self.done)
        self.done.clear()
        return finished

    def next(self) -> FinishedTask | None:
        """Wait for the next finished task; None when nothing is left. Raises LabError when workers
        do not start."""
        while True:
            self._look(0.0)
            if self.done:
                return self.done.popleft()
            if not self.waiting and not any(worker.task for worker in self.workers):
                return None
            self._look(TICK)

    def stop(self) -> None:
        for worker in self.workers:  # all at once, then one after the other
            with contextlib.suppress(OSError):
                worker.process.terminate()
        while self.workers:
            self._remove(self.workers[-1])
        self.selector.close()
        self.log.close()

    def _program(self) -> subprocess.Popen:
        # A session of its own: Ctrl-C reaches the parent alone, which stops things in order.
        return subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=self.log, start_new_session=True)

    def _add(self, process: subprocess.Popen | Fork) -> None:
        worker = Worker(process)
        self.workers.append(worker)
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    def _remove(self, worker: Worker) -> None:
        self.selector.unregister(worker.process.stdout)
        worker.stop()
        self.workers.remove(worker)

    def _hand_out(self) -> None:
        for worker in self.workers:
            if self.waiting and worker.ready and worker.task is None:
                worker.give(self.waiting.popleft())

    def _look(self, seconds: float) -> None:
        """Read the answers that arrive within `seconds`, check all workers, and hand out queued
        tasks."""
        for key, _ in self.selector.select(seconds):
            self._take(key.data)
        for worker in list(self.workers):
            if fault := worker.fault():
                self._take(worker)  # it may have answered before it ended
                self._replace(worker, fault)
            elif worker.ready and not worker.task and worker.memory() > LARGEST_IDLE_MEMORY:
                self._replace(worker, "")
        self._hand_out()

    def _take(self, worker: Worker) -> None:
        if worker not in self.workers:
            return
        try:
            for answer in worker.answers():
                if not worker.ready:
                    worker.ready, self.failed_starts = True, 0
                elif worker.task is None or answer.get("task") != worker.task.number:
                    raise ValueError("it answered without a task")
                else:
                    self.done.append(FinishedTask(worker.task.body, answer))
                    worker.task = None
        except (ValueError, RecursionError) as error:
            self._replace(worker, f"gave an invalid answer: {error}")

    def _replace(self, worker: Worker, fault: str) -> None:
        if worker not in self.workers:
            return
        task, was_ready = worker.task, worker.ready
        self._remove(worker)
        if not was_ready:
            self.failed_starts += 1
            if self.failed_starts > MOST_TRIES:
                raise LabError(f"the grader's worker processes do not start (one {fault}): see "
                               f"{self.log_path}")
        if task and task.tries < MOST_TRIES and fault != TOO_LATE:  # it would hang again
            self.waiting.appendleft(task)
        elif task:
            self.done.append(FinishedTask(task.body, None, fault))
        self._add(self._program())
