"""Fixtures that all tests share: a real cluster in a temporary workspace."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psutil
import pytest

from labkit.check import on_gpus
from slurmbox import control
from slurmbox.install import locate
from slurmbox.layout import Layout
from warmranks import preload
from warmranks.server import TORCH

from . import choosing, sharing

if TYPE_CHECKING:
    from .labs.warm.launch import Warm

# Where bytecode is not kept, every worker rewrites the assertions of every file again (half of what
# importing the tests costs), and every program that a test starts compiles our code again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
FOLDER = os.getcwd()
pytest_plugins = ["tests.needs", "tests.browser.fixtures", "tests.labs.report"]

# Before torch is imported: threads that spin while they wait take the cores from the other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")
preload(*TORCH, "minimegatron.training", "layout_estimator.planner", *on_gpus.IMPORTED)
hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("untimed")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell's background jobs ignore ^C, and every program that a test starts would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist: with -n
def pytest_xdist_make_scheduler(config, log):
    return sharing.scheduler(config, log) if config.getvalue("dist") == "load" else None


def pytest_ignore_collect(collection_path: Path, config) -> bool | None:
    return choosing.skips(config.option.markexpr, collection_path) or None


def pytest_collection_modifyitems(config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # in a worker of -n
        items.sort(key=lambda item: sharing.turn(item.nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """All tests are imported without the garbage collector, whose walks would be a third of it."""
    if session.config.getoption("dist", "no") == "no":  # else only the workers import them
        gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(10_000)  # labs that were read are a million objects: 10% of some files' cost
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    """A test that leaves another working directory behind fails itself, not those after it."""
    try:
        return (yield)
    finally:
        is_same = os.path.samestat(os.stat("."), os.stat(FOLDER))
        os.chdir(FOLDER)
        assert is_same, "the test changed the working directory (use monkeypatch.chdir)"


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that is up, and a shell in its workspace."""

    home: Path

    @property
    def layout(self) -> Layout:
        return Layout(self.home)

    def run(self, command: str | list[str], timeout: float = 60, **environment: str
            ) -> subprocess.CompletedProcess:
        """Run in the workspace with the environment of `lab cluster env`."""
        import slurmbox as cluster

        words = ["bash", "-c", command] if isinstance(command, str) else command
        return subprocess.run(words, cwd=self.home, text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=timeout,
                              env=cluster.environment(self.home) | environment)

    def batch(self, words: str, seconds: float = 120) -> str:
        """Submit a batch job, and return its state once it has ended.

        `sbatch --wait` does the same, but looks after 2 and 10 seconds, and then every 10.

        Args:
            words: what follows `sbatch`.
            seconds: how long to wait for its end.
        """
        submitted = self.run(f"sbatch --parsable {words}")
        assert submitted.returncode == 0, submitted.stderr
        query = f"squeue -h -t all -j {submitted.stdout.strip()} -o %T"
        ended: list[str] = []

        def done() -> bool:
            ended[:] = set(self.run(query).stdout.split()) - {
                "PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}
            return bool(ended)

        assert self.until(done, seconds), self.run("squeue").stdout
        return ended[0]

    def until(self, done: Callable[[], object], seconds: float = 20) -> bool:
        """Return True as soon as `done()` is true, and False after `seconds`.

        It asks less and less often, down to every half second: asking Slurm costs as much CPU
        time as a job's client.
        """
        begin = time.monotonic()
        while not done():
            passed = time.monotonic() - begin
            if passed > seconds:
                return False
            time.sleep(min(0.1 + passed / 10, 0.5))
        return True


def cluster_processes(home: Path) -> list[str]:
    """Whatever still runs of the cluster in this workspace."""
    from slurmbox import processes

    run, left = str(Layout(home).run), []
    for pid in {*processes.pids_in_cluster(Path(run).name),
                *processes.pids_with_variable(f"LAB_CLUSTER_RUN={run}")}:
        left.append(command_line(pid))
    left += [line for line in map(command_line, psutil.pids())
             if "slurmbox.init" in line and f"{home}/" in line]
    return [line for line in left if line]


def command_line(pid: int) -> str:
    """Return a process's command line; it is empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(
            errors="replace")
    except OSError:
        return ""


@pytest.fixture(scope="session")
def make_cluster(tmp_path_factory) -> Iterator[Callable[..., RunningCluster]]:
    """Start clusters with any options; all are down, without a process left, at the end."""
    from .needs import because

    if locate() is None:
        pytest.skip(because("slurm"))
    homes = []

    def make(**options) -> RunningCluster:
        home = tmp_path_factory.mktemp("workspace")
        homes.append(home)
        control.up(home, control.UpOptions(**options))
        return RunningCluster(home)

    yield make
    for home in homes:
        run = Layout(home).run
        control.down(home)
        assert not cluster_processes(home)
        assert not run.exists()
        shutil.rmtree(home, ignore_errors=True)
        if os.path.islink("/dli") and os.readlink("/dli") == str(home):  # loopback mode made it
            os.unlink("/dli")


@pytest.fixture(scope="session")
def cluster(make_cluster) -> RunningCluster:
    """The default cluster: two nodes with two virtual V100 each. Shared by the whole session."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        del os.environ[name]
    return make_cluster()


@pytest.fixture(scope="session")
def course_data(tmp_path_factory) -> Path:
    """A folder with (less) data in `data`: the first worker that needs it makes it for all."""
    from corpus_tools import cli as data

    base = tmp_path_factory.getbasetemp()  # a worker's own, in that of the run
    made = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "course-data"
    (made / "data").mkdir(parents=True, exist_ok=True)
    data.make(made, lambda line: None, data.DataOptions(size_mb=2, gpt2_entries=8192))
    return made


@pytest.fixture(scope="session")
def course(cluster, course_data: Path) -> RunningCluster:
    """The default cluster with a laid-out workspace and (less) data in it."""
    from labcore import shipping

    shipping.make_workspace(cluster.home)
    shutil.copytree(course_data / "data", cluster.home / "data", dirs_exist_ok=True)
    return cluster


@pytest.fixture(scope="session")
def warm_nodes(course: RunningCluster) -> Iterator[Warm]:
    """Servers on the default cluster's nodes that have imported torch; jobs can fork from them."""
    from .labs.warm.launch import servers

    with servers(course) as started:
        yield started


@pytest.fixture(scope="module")
def warm(warm_nodes: Warm) -> Iterator[Warm]:
    """Fork the ranks of a file's jobs from `warm_nodes`."""
    with warm_nodes.commands():
        yield warm_nodes
