"""Grading a class, side by side: stock nbgrader, then ours with one worker and with two.

python benchmarks/grading.py [--submissions 24] [--rounds 3]

A trivial lab of five cells, honest submissions. Stock runs `nbgrader autograde` and then
`nbgrader generate_feedback`, plain configuration, once for the whole class; ours `lab regrade`,
feedback pages included. Rounds take turns, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
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


def timed(folder: Path, *words: str) -> tuple[float, int]:
    """Seconds of wall clock; bytes of the largest trusted process that was seen."""
    environment = {**os.environ, "LAB_COURSE": str(folder), "OMP_NUM_THREADS": "1",
                   "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    start, most = time.perf_counter(), 0
    log = folder / "benchmark.log"
    with log.open("w") as output:
        running = subprocess.Popen([PROGRAMS / words[0], *words[1:]], cwd=folder, env=environment,
                                   stdout=output, stderr=subprocess.STDOUT)
        while running.poll() is None:
            most = max(most, *memory(running.pid), 0)
            time.sleep(0.05)
    if running.returncode:
        raise SystemExit(f"{' '.join(words)}: {log.read_text()[-2000:]}")
    return time.perf_counter() - start, most


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
        seconds: dict[str, list[float]] = {"stock": [], "one": [], "two": []}
        most = 0
        for _ in range(arguments.rounds):
            graded, _ = timed(stock, "nbgrader", "autograde", LAB, "--create", "--force")
            pages, _ = timed(stock, "nbgrader", "generate_feedback", LAB, "--force")
            seconds["stock"].append(graded + pages)
            for name, workers in (("one", "1"), ("two", "2")):
                taken, held = timed(ours, "lab", "regrade", LAB, "--workers", workers)
                seconds[name].append(taken)
                most = max(most, held)
        report(seconds, arguments.submissions, most)


def report(seconds: dict[str, list[float]], count: int, most: int) -> None:
    titles = {"stock": "stock nbgrader, serial", "one": "ours, 1 worker", "two": "ours, 2 workers"}
    middle = {name: statistics.median(found) for name, found in seconds.items()}
    print(f"{count} submissions, medians of {len(seconds['stock'])} rounds, feedback included:")
    for name, title in titles.items():
        print(f"  {title:24} {middle[name]:6.1f} s  {3600 * count / middle[name]:6.0f} an hour  "
              f"{middle['stock'] / middle[name]:.2f}x")
    print(f"  two workers against one: {middle['one'] / middle['two']:.2f}x")
    print(f"  largest trusted process: {most / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
