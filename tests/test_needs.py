"""Tests that did not run are named at the end of a run, with the command that enables them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import NAMES_SHOWN, NEEDS

ROOT = Path(__file__).parents[1]
FILE = """\
import pytest
from tests.needs import because, needs, require

@pytest.mark.parametrize("number", range({many}))
@needs("podman")
def test_containers(number):
    raise AssertionError("this ran without podman")

def test_users():
    require("useradd")

def test_jobs():
    pytest.skip(because("slurm"))

def test_alone():
    pass
"""


@pytest.fixture
def pytest_without_programs(tmp_path):
    """Run pytest on FILE where no program is on the PATH; returns the lines that it prints."""
    (tmp_path / "test_file.py").write_text(FILE.format(many=NAMES_SHOWN + 1))

    def run(*options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.needs", "-c", "/dev/null",
                   f"--rootdir={tmp_path}", "-o", f"cache_dir={tmp_path}/cache", *options,
                   str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=120,
                              env={"PATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


PODMAN = "podman is not installed; to run such tests: sudo apt-get install podman"
LAST_LINES = [
    f"!!! {NAMES_SHOWN + 1} tests were skipped because {PODMAN}",
    *(f"!!!   test_file.py::test_containers[{number}]" for number in range(NAMES_SHOWN)),
    "!!!   and 1 more",
    "!!! 1 test was skipped because useradd or runuser is not installed; to run such tests: "
    "sudo apt-get install passwd util-linux",
    "!!!   test_file.py::test_users",
    "!!! 1 test was skipped because Slurm is not installed; to run such tests: lab install-slurm",
    "!!!   test_file.py::test_jobs"]


@pytest.mark.slow
def test_skipped_tests_are_the_last_lines_of_the_last_run_of_several(pytest_without_programs):
    assert pytest_without_programs("-k", "not alone")[-len(LAST_LINES):] == LAST_LINES
    assert pytest_without_programs("-k", "alone", "--with-run-before")[-len(LAST_LINES):] == (
        LAST_LINES)
    assert pytest_without_programs("-k", "alone")[-1].startswith("1 passed")


def test_every_need_names_its_remedy():
    for need in NEEDS.values():
        assert need.problem and need.remedy and not need.problem.endswith(".")


def test_no_test_makes_up_a_mark_of_its_own():
    own = [path.name for path in (ROOT / "tests").rglob("test_*.py")
           if path != Path(__file__) and "mark.skipif(" in path.read_text()]
    assert own == []
