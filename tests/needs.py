"""Things that some tests need and a machine may lack. The last lines of a run name every test that
was skipped, grouped by reason, with the command that enables it.

    @needs("podman")            on a test, or in a file's pytestmark
    require("useradd")          in a fixture
    pytest.skip(because("namespaces"))    where only the test itself can tell
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

PREFIX = "Skipped: "  # pytest puts it in front of a reason
NAMES_SHOWN = 5  # tests of one reason; a longer list says how many more there are
RUN_BEFORE = "skipped/tests"  # in pytest's cache


@dataclass(frozen=True)
class Need:
    """One thing that tests need.

    Attributes:
        problem: completes "tests were skipped because ...".
        remedy: the command, or the step, that enables these tests.
        is_met: whether this machine has it; None where only the test itself can tell.
    """

    problem: str
    remedy: str
    is_met: Callable[[], bool] | None = None


def has(*programs: str) -> bool:
    return all(map(shutil.which, programs))


def collapses() -> bool:
    """Return whether this Linux can move a process's pages into huge ones."""
    major, minor, *_ = os.uname().release.split(".")
    return (int(major), int(minor)) >= (6, 1) and os.path.exists(
        "/sys/kernel/mm/transparent_hugepage")


NEEDS = {
    "podman": Need("podman is not installed", "sudo apt-get install podman",
                   partial(has, "podman")),
    "useradd": Need("useradd or runuser is not installed",
                    "sudo apt-get install passwd util-linux", partial(has, "useradd", "runuser")),
    "apt-get": Need("apt-get is not installed", "use Debian or Ubuntu", partial(has, "apt-get")),
    "root": Need("only root can act for several users", "run them as root, as in a container",
                 lambda: os.geteuid() == 0),
    "chromium": Need("Chromium is not installed", "sudo apt-get install chromium"),
    "slurm": Need("Slurm is not installed", "lab install-slurm"),
    "accounting": Need("slurmdbd or MariaDB is not installed", "lab install-slurm --accounting"),
    "packages": Need("Debian's packages cannot be downloaded", "connect to the network"),
    "package index": Need("pip does not reach a package index", "connect to the network"),
    "namespaces": Need("nodes cannot have networks of their own here (only loopback mode was "
                       "tested)", "allow unprivileged user namespaces"),
    "huge pages": Need("Linux does not collapse pages here", "use Linux 6.1 or newer, with "
                       "transparent huge pages", collapses),
    "cgroups": Need("control groups cannot be created here",
                    "run them as root with a writable /sys/fs/cgroup"),
}


def because(name: str) -> str:
    """Return the reason for which a test that needs `name` is skipped."""
    return f"{NEEDS[name].problem}; to run such tests: {NEEDS[name].remedy}"


def missing(*names: str) -> list[str]:
    return [name for name in names if not NEEDS[name].is_met()]


def require(*names: str) -> None:
    """Skip the test that is being set up unless all of `names` are here."""
    for name in missing(*names):
        pytest.skip(because(name))


def needs(*names: str) -> pytest.MarkDecorator:
    """Return the mark of a test that runs only where all of `names` are here."""
    reasons = [because(name) for name in missing(*names)]
    return pytest.mark.skipif(bool(reasons), reason=reasons[0] if reasons else "")


class Skipped:
    """Collects the skipped tests of a run, and prints them at its very end."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = str(report.longrepr[2]).removeprefix(PREFIX)
            self.tests[reason].append(report.nodeid)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        cache = getattr(config, "cache", None)
        if config.getoption("with_run_before") and cache:
            for reason, names in cache.get(RUN_BEFORE, {}).items():
                self.tests[reason] = names + self.tests[reason]
        if cache:
            cache.set(RUN_BEFORE, self.tests)
        for line in lines(self.tests):
            print(line)


def lines(tests: dict[str, list[str]]) -> list[str]:
    """Return the report on skipped tests: for each reason a line, then the first of its tests."""
    made = []
    for reason, names in tests.items():
        count = "1 test was" if len(names) == 1 else f"{len(names)} tests were"
        made.append(f"!!! {count} skipped because {reason}")
        made += [f"!!!   {name}" for name in names[:NAMES_SHOWN]]
        if len(names) > NAMES_SHOWN:
            made.append(f"!!!   and {len(names) - NAMES_SHOWN} more")
    return ["", *made] if made else []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--with-run-before", action="store_true",
                     help="name the tests that the last run skipped, too: make test is two runs")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers report to the one that prints
        config.pluginmanager.register(Skipped(), "skipped")
