"""Set up and start everything, from Slurm's packages to JupyterLab: `lab start`."""

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
    text = "set the lab up, and start the cluster and JupyterLab"
    start = subparsers.add_parser("start", help=text, description=text)
    start.add_argument("--port", type=jupyter_port, metavar="PORT",
                       help="JupyterLab's port (default: the first free one from 8888)")
    start.add_argument("--ip", type=ipv4_address, default=LOOPBACK, metavar="ADDRESS",
                       help=f"address at which JupyterLab listens (default: {LOOPBACK}, for this "
                       "machine only; 0.0.0.0: everybody who has the token can connect)")
    start.add_argument("--hub", nargs=argparse.REMAINDER, metavar="ARGUMENT",
                       help="start jupyterhub-singleuser with these arguments, for a JupyterHub")
    start.set_defaults(run=run)
    text = "install Slurm if this user may"
    install = subparsers.add_parser("install-slurm", help=text, description=text)
    install.add_argument("--accounting", action="store_true",
                         help="also install what `lab cluster up --accounting` needs")
    install.set_defaults(run=run_install)


def jupyter_port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else 0
    if not 1024 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 1024 to 65535; nearest: 8888")
    return port


def ipv4_address(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not an IPv4 address; use {LOOPBACK} for this "
                                         "machine only, or 0.0.0.0 for all its addresses"
                                         ) from error


def notify(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone, but stopping must go on
        print(f"==> {line}", flush=True)


def run_install(arguments: argparse.Namespace) -> None:
    from slurmbox import accounting
    from slurmbox.install import ensure_slurm, install_accounting

    slurm = ensure_slurm(notify)
    missing = accounting.missing_programs(slurm) if arguments.accounting else []
    if missing and not install_accounting(notify):
        notify(f"not installed, because only root may install them: {', '.join(missing)}")


@contextlib.contextmanager
def only_once(home: Path, *, shared: bool = False) -> Iterator[None]:
    """Lock the workspace while the lab runs in it.

    Args:
        home: the workspace, or a course folder.
        shared: allow other holders that also pass `shared`.

    Raises:
        LabError: the lab already runs there; the message has its URL.
    """
    path = home / ".cluster" / "start.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise LabError(f"the lab is already running in {home}: {lock.read().strip()}"
                           ) from error
        lock.truncate(0)
        yield


def run(arguments: argparse.Namespace) -> int:
    home = workspace.home()
    for folder in (home, home / ".cluster"):
        workspace.require_writable(folder)
    # A closed terminal or a `kill` stops everything in the same order as Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with only_once(home):
        try:
            if arguments.hub is not None:
                from lab.hub import HubServer, address_from

                hub_address = address_from(os.environ)
                return serve(home, lambda environment: HubServer(home, environment, hub_address,
                                                                 arguments.hub))
            return serve(home, lambda environment: Jupyter(home, environment, arguments.port,
                                                           arguments.ip))
        except KeyboardInterrupt:
            return 130


def serve(home: Path, start_jupyter: Callable[[dict[str, str]], Jupyter]) -> int:
    """Set up what is missing, start the cluster and JupyterLab, and wait; then stop both.

    Args:
        home: the workspace.
        start_jupyter: starts the server, given the variables with which notebooks find the cluster.
    """
    import slurmbox as cluster
    from slurmbox.dli import unlink_dli
    from slurmbox.health import supervisor
    from slurmbox.layout import Layout

    layout = Layout(home)
    _set_up(home, layout.site.exists())
    with contextlib.ExitStack() as cleanup:
        if problem := cluster.link_dli(home):
            notify(f"in notebooks and terminals: {problem}")
        cleanup.callback(unlink_dli, home)
        servers: list[Jupyter] = []
        cleanup.callback(lambda: [server.stop() for server in servers])
        if not supervisor(layout) and not layout.site.exists():
            cleanup.callback(stop_cluster, home)  # before it is up, because Ctrl-C may interrupt
        cluster.ensure_up(home, notify=notify)
        if job := cluster.leave_job(home):
            notify(f"this is job {job}; the jobs of notebooks are queued like any others")
        notify("Starting JupyterLab")
        jupyter = start_jupyter(cluster.environment(home))
        servers.append(jupyter)
        cleanup.callback(jupyter.ask_to_stop)  # so that it stops while the cluster does
        cleanup.callback(ignore_signals)
        jupyter.wait_until_ready()
        (home / ".cluster" / "start.lock").write_text(jupyter.address)
        try:
            notify("The lab is ready. Ctrl-C stops everything.\n")
            print(f"    {jupyter.address}\n", flush=True)
            code = jupyter.process.wait()
        except KeyboardInterrupt:  # the way to stop it, which `make` must not call an error
            return 0
        if code == 0:  # the user shut it down from its menu
            return 0
        raise LabError(f"JupyterLab ended by itself (exit code {code}): see {jupyter.log}")


def _set_up(home: Path, uses_site: bool) -> None:
    """Make what is missing: Slurm, the workspace, and its data."""
    from corpus_tools import cli as data
    from slurmbox.install import ensure_slurm

    if not uses_site:  # a site's login node has Slurm's commands, but not its daemons
        ensure_slurm(notify)
    shipping.make_workspace(home, notify)
    data.ensure(home, notify)


def ignore_signals() -> None:
    """Ignore signals, because a second Ctrl-C must not interrupt the cleanup."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def stop_cluster(home: Path) -> None:
    import slurmbox as cluster

    ignore_signals()
    notify("Stopping the cluster")
    cluster.down(home, notify)
