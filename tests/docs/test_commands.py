"""Every command of README, CONTRIBUTING and the guides is run as it stands there, or a comment
before it says why not. `pytest -s` prints what is not run, and how long each page took.
"""

from __future__ import annotations

import contextlib
import shutil
import time

import pytest

import slurmbox as lab_cluster
from tests.docs import session
from tests.docs.pages import ROOT, blocks, pages
from tests.jobs import small

READ = {str(path.relative_to(ROOT)): blocks(path.read_text(), str(path.relative_to(ROOT)))
        for path in pages()}
RUN = {name: found for name, found in READ.items()
       if any(block.orders.run and not block.orders.stress for block in found)}
TRAINING = ("docs/students.md", "docs/trainer.md")  # their ranks start warm
LONG = {name: found for name, found in READ.items()
        if any(block.orders.run and block.orders.stress for block in found)}


def follow(name, found, places, environment, tmp_path, course, seconds=280):
    """Run these blocks as who has run no job yet, and leave the cluster as it was."""
    start, logs = time.monotonic(), course.home / "megatron" / "logs"
    before = logs.rename(logs.with_name("logs-before"))
    logs.mkdir()
    try:
        wrong = session.run(found, places, environment, tmp_path / "steps", seconds)
    finally:
        course.run("scancel --me")
        shutil.rmtree(logs)
        before.rename(logs)
        if (places.new / ".cluster").exists():
            lab_cluster.down(places.new)
    print(f"{name}: {time.monotonic() - start:.0f} s")
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_page_is_followed_from_its_top_to_its_end(
        name, places, environment, tmp_path, course, warm_nodes):
    results = [block for block in RUN[name] if block.orders.run and not block.orders.stress]
    with contextlib.ExitStack() as stack:
        if name in TRAINING:
            stack.enter_context(warm_nodes.commands())
            stack.enter_context(small.scripts(course.home, "dp_two_nodes"))
        follow(name, results, places, environment, tmp_path, course)


@pytest.mark.cluster
@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LONG)
def test_a_page_is_followed_with_what_takes_long(name, places, environment, tmp_path, course):
    follow(name, [block for block in LONG[name] if block.orders.run], places, environment,
           tmp_path, course, seconds=840)


def test_the_guides_are_run_and_what_is_not_is_listed():
    """A block without a comment is run; `pytest -s` lists the others with their reasons."""
    excused = [block for found in READ.values() for block in found if not block.orders.run]
    for block in excused:
        print(f"{block.where}: {block.orders.excuse or 'run in ' + block.orders.elsewhere}")
    assert {"README.md", "docs/students.md", "docs/instructors.md", "docs/first-lab.md",
            "docs/trainer.md"} <= {*RUN, *LONG}
    assert sum(bool(block.orders.excuse) for block in excused) < len(excused)
