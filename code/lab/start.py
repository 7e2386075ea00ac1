"""`lab start`, which `make lab` runs: everything from Slurm's packages to JupyterLab's address."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import ipaddress
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from lab.jupyter import LOOPBACK, Jupyter
from labcore import shipping, workspace
from labcore.errors import LabError


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    start = subparsers.add_parser("start", help="set up, start the cluster and JupyterLab")
    start.add_argument("--port", type=jupyter_port,
                       help="JupyterLab's port (the first free from 8888)")
    start.add_argument("--ip", type=address, default=LOOPBACK,
                       help=f"where JupyterLab listens ({LOOPBACK}: only this machine reaches it; "
                       "0.0.0.0: whoever reaches the machine and has the token)")
    start.add_argument("--hub", nargs=argparse.REMAINDER, metavar="ARGUMENT",
                       help="what a JupyterHub starts: jupyterhub-singleuser, with these arguments")
    start.set_defaults(run=run)
    install = subparsers.add_parser("install-slurm", help="install Slurm where that is allowed")
    install.add_argument("--accounting", action="store_true",
                         help="also what `lab cluster up --accounting` needs, where root may")
    install.set_defaults(run=run_install)


def jupyter_port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else 0
    if not 1024 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 1024 to 65535; nearest: 8888")
    return port


def address(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not an IPv4 address; {LOOPBACK}: this "
                                         "machine only, 0.0.0.0: all its addresses") from error


def say(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone: stopping must go on all the same
        print(f"==> {line}", flush=True)


def run_install(arguments: argparse.Namespace) -> None:
    from slurmbox import accounting
    from slurmbox.install import ensure_slurm, install_accounting

    slurm = ensure_slurm(say)
    missing = accounting.missing_programs(slurm) if arguments.accounting else []
    if missing and not install_accounting(say):
        say(f"not installed, and only root may: {', '.join(missing)}")


@contextlib.contextmanager
def only_once(home: Path, *, shared: bool = False) -> Iterator[None]:
    """Lock the workspace. Raises LabError with the URL of the server that already uses it.

    Args:
        home: the workspace, or a course folder.
        shared: allow other holders that also pass `shared`.
    """
    path = home / ".cluster" / "start.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise LabError(f"the lab already runs in {home}: {lock.read().strip()}") from error
        lock.truncate(0)
        yield


def run(arguments: argparse.Namespace) -> int:
    home = workspace.home()
    for folder in (home, home / ".cluster"):
        workspace.require_writable(folder)
    # A closed terminal or a `kill` stops things in the same order as Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with only_once(home):
        try:
            if arguments.hub is not None:
                from lab.hub import HubServer, place_from

                place = place_from(os.environ)
                return serve(home, lambda environment: HubServer(home, environment, place,
                                                                 arguments.hub))
            return serve(home, lambda environment: Jupyter(home, environment, arguments.port,
                                                           arguments.ip))
        except KeyboardInterrupt:
            return 130


def serve(home: Path, start_jupyter: Callable[[dict[str, str]], Jupyter]) -> int:
    """Set up what is missing, start both servers, wait; stop what was started here.

    `start_jupyter` gets the variables with which notebooks find the cluster."""
    import slurmbox as cluster
    from corpus_tools import cli as data
    from slurmbox.dli import unlink_dli
    from slurmbox.health import supervisor
    from slurmbox.install import ensure_slurm
    from slurmbox.layout import Layout

    layout = Layout(home)
    if not layout.site.exists():  # a site's login node has Slurm's commands, not its daemons
        ensure_slurm(say)
    shipping.make_workspace(home, say)
    data.ensure(home, say)
    with contextlib.ExitStack() as started:
        note = cluster.link_dli(home)
        if note:
            say(f"in notebooks and terminals: {note}")
        started.callback(unlink_dli, home)
        servers: list[Jupyter] = []
        started.callback(lambda: [server.stop() for server in servers])
        if not supervisor(layout) and not layout.site.exists():
            started.callback(stop_cluster, home)  # before it is up: Ctrl-C may come in between
        cluster.ensure_up(home, notify=say)
        if job := cluster.leave_job(home):
            say(f"this is job {job}; what notebooks submit goes to the queue as any other job")
        say("Starting JupyterLab")
        jupyter = start_jupyter(cluster.environment(home))
        servers.append(jupyter)
        started.callback(jupyter.ask_to_stop)  # it ends while the cluster does
        started.callback(undisturbed)
        jupyter.wait_until_ready()
        (home / ".cluster" / "start.lock").write_text(jupyter.address)
        say("The lab is ready. Ctrl-C stops all of it.\n")
        print(f"    {jupyter.address}\n", flush=True)
        code = jupyter.process.wait()
        if code == 0:  # shut down from its menu
            return 0
        raise LabError(f"JupyterLab ended by itself (exit code {code}): see {jupyter.log}")


def undisturbed() -> None:
    """A second Ctrl-C must not stop the stopping."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def stop_cluster(home: Path) -> None:
    import slurmbox as cluster

    undisturbed()
    say("Stopping the cluster")
    cluster.down(home, say)
