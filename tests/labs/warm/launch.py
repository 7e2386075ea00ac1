"""Start the servers of a test cluster, and put the commands that use them on its PATH."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ipykernel_launcher
import psutil

from labcore.workspace import CHECKOUT
from slurmbox import processes
from tests.conftest import RunningCluster
from tests.labs.warm.client import Fork, command

PATIENCE = 300  # seconds until a server must have imported torch
KEPT = ("HOME", "LANG", "USER")
ROOM = {"ROOM": 65536 * " "}  # in a server's environment, for those of its forks

PYTHON = """\
#!/bin/sh
case "$1 $2 $3" in "-u -m torch.distributed.launch") shift 3; exec {client} launch "$@" ;; esac
case $1 in -u) file=$2 ;; *) file=$1 ;; esac
case $file in *.py) exec {client} python "$@" ;; esac
exec {python} "$@"
"""
TORCHRUN = """\
#!/bin/sh
echo >>{folder}/launched
exec {client} torchrun "$@"
"""
VIRTUALRUN = """\
#!/bin/sh
exec {client} python {virtualrun} "$@"
"""


@dataclass(frozen=True)
class Warm:
    """The running servers of a cluster.

    Attributes:
        folder: has their sockets.
        bin: the folder of the cluster's commands.
    """

    folder: Path
    bin: Path

    @property
    def kernel(self) -> list[str]:
        """The words that start a notebook's kernel, before its own flags."""
        return [*command(self.folder), "python", ipykernel_launcher.__file__]

    def forget(self) -> None:
        """Count launches from 0 again."""
        (self.folder / "launched").unlink(missing_ok=True)

    def launched(self) -> int:
        """Return how many times torchrun started, once per node and job."""
        path = self.folder / "launched"
        return path.read_text().count("\n") if path.exists() else 0

    @contextlib.contextmanager
    def commands(self) -> Iterator[Warm]:
        """Have `torchrun`, `python`, and `virtualrun` among the cluster's commands, which come
        first on its PATH."""
        names = {"folder": shlex.quote(str(self.folder)), "python": shlex.quote(sys.executable),
                 **{name: shlex.quote(str(Path(sys.executable).with_name(name)))
                    for name in ("torchrun", "virtualrun")},
                 "client": shlex.join(command(self.folder))}
        texts = {"python": PYTHON, "torchrun": TORCHRUN, "virtualrun": VIRTUALRUN}
        paths = [self.bin / name for name in texts]
        for path, text in zip(paths, texts.values(), strict=True):
            path.write_text(text.format(**names))
            path.chmod(0o755)
        try:
            yield self
        finally:
            for path in paths:
                path.unlink()


def nodes(cluster: RunningCluster) -> dict[str, int]:
    """Return the process ID of every node's slurmd, by the node's name.

    A slurmd forks for moments; only the oldest process of a node lasts.
    """
    daemons: dict[str, psutil.Process] = {}
    for pid in processes.pids_in_cluster(cluster.layout.run.name):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            words = process.cmdline()
            if words and Path(words[0]).name == "slurmd" and "-N" in words:
                name = words[words.index("-N") + 1]
                daemons[name] = min(daemons.get(name, process), process,
                                    key=psutil.Process.create_time)
    return {name: process.pid for name, process in daemons.items()}


def environment(cluster: RunningCluster) -> dict[str, str]:
    """Return the environment of a cluster's servers."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | ROOM | {
        "LAB_HOME": str(cluster.home), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}


def wait_for(folder: Path, hosts: list[str], alive: Callable[[], bool]) -> None:
    """Wait until every host's server listens.

    Args:
        folder: receives their sockets.
        hosts: the hosts' names.
        alive: whether the process that starts the servers still runs.
    """
    deadline = time.monotonic() + PATIENCE
    while missing := [name for name in hosts if not (folder / name).is_socket()]:
        assert alive() and time.monotonic() < deadline, f"no warm server on {missing}"
        time.sleep(0.1)


@contextlib.contextmanager
def more_servers(warm: Warm, cluster: RunningCluster, modules: str = "") -> Iterator[Warm]:
    """Run a server inside each node of a cluster, without importing torch again.

    Args:
        warm: the servers of any cluster.
        cluster: where to run more.
        modules: what they import, too; separated by spaces.
    """
    folder, there = Path(tempfile.mkdtemp(prefix="warm-")), nodes(cluster)
    server = Fork(str(warm.folder), ["nodes", str(folder), modules, *map(str, there.values())],
                  environment(cluster))
    try:
        wait_for(folder, [*there], lambda: psutil.pid_exists(server.pid))
        yield Warm(folder, cluster.layout.bin)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
        shutil.rmtree(folder)


@contextlib.contextmanager
def servers(cluster: RunningCluster) -> Iterator[Warm]:
    """Run a server on this machine and one inside each node of a cluster, outside of jobs."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    there = nodes(cluster)
    server = subprocess.Popen([sys.executable, "-m", "tests.labs.warm.server", str(folder),
                               *map(str, there.values())], env=environment(cluster))
    try:
        wait_for(folder, [os.uname().nodename, *there], lambda: server.poll() is None)
        yield Warm(folder, cluster.layout.bin)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(server.pid).children(recursive=True):
                process.kill()
        server.kill()
        server.wait()
        shutil.rmtree(folder)
