"""Five submissions made to be slow at most double what a class of thirty costs."""

from __future__ import annotations

import resource

import nbformat
import pytest

from tests.grader.conftest import new_course, run, submit, table
from tests.grader.small_lab import NAME, RIGHT, answered

SHOWN = "from IPython.display import HTML, display\ndisplay(HTML({}))\n" + RIGHT
BOMBS = [SHOWN.format("'<a ' * 600_000"), SHOWN.format("'<div>' * 360_000"),
         SHOWN.format("'&' * 1_800_000"), "%pwd\n" * 20_000 + RIGHT,
         r"print('\x1b[1mx\x1b[31my' * 200_000)" + "\n" + RIGHT]


def cpu_seconds(course) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run(course, "grade", NAME).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_a_class_of_thirty_with_five_slow_pages_takes_at_most_twice_as_long(tmp_path):
    seconds = []
    for slow in ([], BOMBS):
        course = new_course(tmp_path / str(len(slow)))
        release = nbformat.read(course.notebook("release", NAME), as_version=4)
        for number in range(30):
            answer = slow[number] if number < len(slow) else RIGHT
            submit(course, f"s{number:02}", answered(release, answer))
        seconds.append(cpu_seconds(course))
        rows = table(course.root / "grades.csv")
        assert {row["state"] for row in rows.values()} == {"graded"}
        assert sum(row["score"] == "5.0" for row in rows.values()) >= 29
    print(f"CPU seconds: {seconds[0]:.1f} without, {seconds[1]:.1f} with slow pages")
    assert seconds[1] <= 2 * seconds[0]
