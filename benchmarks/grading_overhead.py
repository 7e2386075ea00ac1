"""Overhead of the sandbox: one small notebook graded in isolation, compared with nbgrader's own
execution of it in a plain kernel; and how long an exceeded budget takes to stop a run.

    python benchmarks/grading_overhead.py [--repeats 10]
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from nbgrader.preprocessors import Execute

from grader.course import Course, Submission
from grader.run import attempt, lab_plan
from grader.run.settings import Grading
from grader.sandbox import choice
from labkit.build.release import release
from tests.grader import small_lab


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        stock = seconds(repeats, bench.stock)
        ours = seconds(repeats, bench.ours)
        print(f"nbgrader's execution in a plain kernel  {stock:.2f} s (median of {repeats})")
        print(f"ours, isolated ({bench.backend.name})          {ours:.2f} s, "
              f"{ours / stock:.2f} x as long")
        for name, answer in {"an endless loop": "while True: pass",
                             "a loop that ignores signals": IGNORING}.items():
            late = seconds(3, lambda answer=answer: bench.ours(answer, 1.0)) - 1.0
            print(f"{name}: result {late:.2f} s after its budget, with the other cells run again")
        before = memory()
        bench.ours("print('x' * 60_000_000)\n" + small_lab.RIGHT)
        print(f"memory of the trusted process: {before:.0f} MB, "
              f"{memory():.0f} MB after a line of 60 MB")


IGNORING = """import signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True: pass"""


class Bench:
    """A course folder with the tests' small lab, and an answer to it."""

    def __init__(self, folder: Path) -> None:
        self.course, name = Course(folder / "course"), small_lab.NAME
        self.course.make()
        self.source = small_lab.source()
        small_lab.put(self.source, self.course.notebook("source", name))
        self.released = release(self.source)
        small_lab.put(self.released, self.course.notebook("release", name))
        self.plan = lab_plan.read(self.course, name)
        self.backend = choice.choose()

    def ours(self, answer: str = small_lab.RIGHT, limit: float = 60) -> None:
        small_lab.put(small_lab.answered(self.released, answer),
                      self.course.notebook("submitted", small_lab.NAME, "ada"))
        attempt.grade(Submission(self.course, small_lab.NAME, "ada"), self.plan, self.backend,
                      Grading(seconds_per_cell=limit))

    def stock(self) -> None:
        notebook = copy.deepcopy(small_lab.answered(self.plan.skeleton))
        with workspace() as home:
            step = Execute(timeout=60, skip_cells_with_tag="explore")
            step.preprocess(notebook, {"metadata": {"path": home}})


@contextlib.contextmanager
def workspace() -> Iterator[str]:
    from labcore.shipping import make_workspace

    with tempfile.TemporaryDirectory() as home:
        make_workspace(Path(home), lambda line: None)
        os.environ["LAB_HOME"] = home
        yield home
        del os.environ["LAB_HOME"]


def seconds(repeats: int, work: Callable[[], object]) -> float:
    """The median."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
