"""Grading a class, side by side: stock nbgrader, then ours with one worker and with two.

python benchmarks/grading.py [--submissions 24] [--rounds 3]

A trivial lab of five cells, honest submissions. Stock runs `nbgrader autograde` and then
`nbgrader generate_feedback`, plain configuration, once for the whole class; ours `lab regrade`,
feedback pages included. Rounds take turns, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from nbformat import v4

from grader.course import Course

LAB = "91_trivial"
PROGRAMS = Path(sys.executable).parent


def marks(name: str, **more: object) -> dict:
    return {"nbgrader": {"grade_id": name, "grade": False, "solution": False, "locked": False,
                         "task": False, "schema_version": 3, **more}}


def trivial() -> nbformat.NotebookNode:
    """Two answers and their tests, which run on both sides."""
    cells = [v4.new_markdown_cell("# Trivial")]
    for n in (1, 2):
        cells.append(v4.new_code_cell(
            f"def times{n}(x):\n    ### BEGIN SOLUTION\n    return {n} * x\n    ### END SOLUTION",
            metadata=marks(f"times{n}", solution=True)))
        cells.append(v4.new_code_cell(
            f"assert times{n}(2) == {2 * n}\n### BEGIN HIDDEN TESTS\nassert times{n}(5) == {5 * n}"
            "\n### END HIDDEN TESTS", metadata=marks(f"times{n}-test", grade=True, points=1,
                                                     locked=True)))
    notebook = v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    return notebook


def put(notebook: nbformat.NotebookNode, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


@dataclass(frozen=True)
class Cost:
    """Cost of one command.

    Attributes:
        seconds: elapsed time.
        cpu: CPU time of all its processes, in seconds.
        memory: bytes of the largest trusted process that was seen.
    """

    seconds: float
    cpu: float
    memory: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.cpu + other.cpu,
                    max(self.memory, other.memory))


def cpu() -> float:
    """Seconds that children took, which ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(folder: Path, *words: str) -> Cost:
    environment = {**os.environ, "LAB_COURSE": str(folder), "OMP_NUM_THREADS": "1",
                   "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    start, before, most = time.perf_counter(), cpu(), 0
    log = folder / "benchmark.log"
    with log.open("w") as output:
        running = subprocess.Popen([PROGRAMS / words[0], *words[1:]], cwd=folder, env=environment,
                                   stdout=output, stderr=subprocess.STDOUT)
        while running.poll() is None:
            most = max(most, *memory(running.pid), 0)
            time.sleep(0.05)
    if running.returncode:
        raise SystemExit(f"{' '.join(words)}: {log.read_text()[-2000:]}")
    return Cost(time.perf_counter() - start, cpu() - before, most)


def memory(pid: int) -> list[int]:
    """Resident bytes of a program and of its workers; not of what runs in sandboxes."""
    found = []
    try:
        parent = psutil.Process(pid)
        for one in [parent, *parent.children()]:
            found.append(one.memory_info().rss)
    except psutil.Error:
        pass
    return found or [0]


def classes(root: Path, count: int) -> tuple[Path, Path]:
    """Two course folders with the same class: a stock one and ours."""
    stock, ours = root / "stock", root / "ours"
    course = Course(ours)
    course.make()
    stock.mkdir()
    (stock / "nbgrader_config.py").write_text(
        "c = get_config()\nc.CourseDirectory.course_id = 'stock'\n")
    for folder in (stock, ours):
        put(trivial(), folder / "source" / LAB / f"{LAB}.ipynb")
        answer = trivial()
        for cell in answer.cells[1::2]:
            cell.source = cell.source.replace("    ### BEGIN SOLUTION\n", "").replace(
                "\n    ### END SOLUTION", "")
        for n in range(count):
            put(answer, folder / "submitted" / f"student{n:03}" / LAB / f"{LAB}.ipynb")
    timed(stock, "nbgrader", "generate_assignment", LAB, "--create")
    timed(ours, "lab", "release", LAB)
    return stock, ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--submissions", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grading-") as root:
        stock, ours = classes(Path(root), arguments.submissions)
        costs: dict[str, list[Cost]] = {"stock": [], "one": [], "two": []}
        for _ in range(arguments.rounds):
            costs["stock"].append(
                timed(stock, "nbgrader", "autograde", LAB, "--create", "--force")
                + timed(stock, "nbgrader", "generate_feedback", LAB, "--force"))
            for name, workers in (("one", "1"), ("two", "2")):
                costs[name].append(timed(ours, "lab", "regrade", LAB, "--workers", workers))
        report(costs, arguments.submissions)


def report(costs: dict[str, list[Cost]], count: int) -> None:
    titles = {"stock": "stock nbgrader, serial", "one": "ours, 1 worker", "two": "ours, 2 workers"}
    wall = {name: statistics.median(one.seconds for one in found) for name, found in costs.items()}
    print(f"{count} submissions, medians of {len(costs['stock'])} rounds, feedback included; the "
          f"machine's load was {os.getloadavg()[0]:.1f}:")
    for name, title in titles.items():
        used = statistics.median(one.cpu for one in costs[name])
        print(f"  {title:24} {wall[name]:6.1f} s  {3600 * count / wall[name]:6.0f} an hour  "
              f"{wall['stock'] / wall[name]:.2f}x  {used / count:.2f} s of CPU each")
    print(f"  two workers against one: {wall['one'] / wall['two']:.2f}x")
    print(f"  largest trusted process: {max(one.memory for one in costs['two']) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
