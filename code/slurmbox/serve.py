"""Run the containers of docker/compose.yml: `lab cluster serve`.

    lab cluster serve controller      runs munged and slurmctld, and writes the shared slurm.conf
    lab cluster serve node            runs munged and slurmd; the node has the container's name
    lab cluster serve login COMMAND   runs munged and COMMAND, from which jobs are submitted

Each waits for what it needs, restarts what ends, and stops in order on SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import asdict

from labcore import workspace
from labcore.errors import LabError
from slurmbox import clients, config, containers, daemons, healing, namespaces
from slurmbox.addresses import INTERFACE
from slurmbox.containers import KEY, NETWORK, RUN
from slurmbox.daemon import Daemon, listening
from slurmbox.health import write_record
from slurmbox.init import Supervisor
from slurmbox.install import Slurm, require_slurm
from slurmbox.layout import Layout
from slurmbox.processes import start_time
from slurmbox.profile import CUDA_NODE, ClusterProfile, from_json, make

ROLES = ("controller", "node", "login")
USER, GROUP = 1000, 100  # jovyan
SLURMD_TIMEOUT, COMMAND_TIMEOUT = 1.0, 9  # seconds; Docker kills after ten


def add_parser(leaves: argparse._SubParsersAction) -> None:
    text = "run one of the containers of docker/compose.yml"
    serve = leaves.add_parser("serve", help=text, description=text)
    roles = serve.add_subparsers(metavar="ROLE", required=True)
    for name, run, help_text in (
            ("controller", run_controller, "run munged and slurmctld, and write slurm.conf"),
            ("node", run_node, "run munged and slurmd")):
        role = roles.add_parser(name, help=help_text, description=help_text)
        role.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: 2)")
        role.add_argument("--gpus", metavar="SPEC", help="see lab cluster up")
        role.add_argument("--link", metavar="RATE",
                          help="rate at which nodes send, such as 1gbit (default: unlimited)")
        role.add_argument("--cuda", type=int, default=0, metavar="N",
                          help=f"number of GPUs of a further node {CUDA_NODE}, which has real GPUs")
        role.set_defaults(run=run)
    text = "run munged and a command, from which jobs are submitted"
    login = roles.add_parser("login", help=text, description=text)
    login.add_argument("command", nargs=argparse.REMAINDER,
                       help="the command to run, such as lab start --port 8888")
    login.set_defaults(run=run_login)


def notify(line: str) -> None:
    print(f"{socket.gethostname()}: {line}", flush=True)


def requested_profile(arguments: argparse.Namespace) -> ClusterProfile:
    """Return the requested cluster. An empty value, from an unset variable, is no value."""
    return make(arguments.nodes, arguments.gpus, arguments.link, cuda=arguments.cuda)


class ContainerSupervisor(Supervisor):
    """Supervises the daemons of one container."""

    def __init__(self, layout: Layout, profile: ClusterProfile,
                 choose: Callable[[Slurm], list[Daemon]]) -> None:
        """Create the supervisor; `choose` returns its daemons other than munged."""
        self.choose = choose
        super().__init__(layout, profile, NETWORK)

    def make_daemons(self, slurm: Slurm) -> list[Daemon]:
        munged = daemons.munged(self.layout, slurm, KEY, socket.gethostname())
        return [munged, *self.choose(slurm)]

    def mark_ready(self) -> None:
        """Do nothing: only the controller knows whether Slurm can answer."""

    def run(self, message: str) -> None:
        """Run until the container ends. Raises OSError if a daemon does not start."""
        signal.signal(signal.SIGTERM, lambda *_: self.end() or os._exit(0))
        self.start_in_order()
        self.mark_ready()
        notify(message)
        self.serve()


class ControllerSupervisor(ContainerSupervisor):
    mark_ready = Supervisor.mark_ready

    def end(self) -> None:
        """Cancel all jobs, which would otherwise be orphaned, and stop the daemons."""
        from slurmbox.shutdown import cancel_jobs

        if cancelled := cancel_jobs(self.layout):
            notify(f"jobs cancelled: {cancelled}")
        super().end()
        self.layout.record.unlink(missing_ok=True)


class NodeSupervisor(ContainerSupervisor):
    def end(self) -> None:
        self.ending = True
        daemon = self.daemons[-1]
        if daemon.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon.pid, signal.SIGTERM)
            self._wait_for(daemon, SLURMD_TIMEOUT)


class LoginSupervisor(ContainerSupervisor):
    """Runs a command, and ends when the command does."""

    command: list[str]
    child = 0
    code = 1

    def mark_ready(self) -> None:
        """Start the command, now that the loop will notice its end."""
        if not self.child:
            self.child = os.posix_spawnp(self.command[0], self.command, os.environ,
                                         setsigdef=[signal.SIGPIPE])

    def on_child_exit(self, pid: int, status: int) -> None:
        if pid == self.child:
            self.code, self.ending = os.waitstatus_to_exitcode(status), True

    def end(self) -> None:
        os.kill(self.child, signal.SIGTERM)
        signal.alarm(COMMAND_TIMEOUT)  # ends this process if the command does not end


def run_controller(arguments: argparse.Namespace) -> None:
    profile = requested_profile(arguments)
    home = workspace.home()
    containers.drop_root(USER, GROUP, (home, KEY.parent))
    layout = Layout(home)
    layout.prepare()
    layout.ready.unlink(missing_ok=True)
    layout.record.unlink(missing_ok=True)
    layout.adopt_run(RUN)
    layout.munge_socket.unlink(missing_ok=True)
    shutil.rmtree(containers.links_folder(layout), ignore_errors=True)
    slurm = require_slurm()
    config.write(layout, profile, NETWORK, slurm, clients.program_folders(layout), KEY)
    clients.write_wrappers(layout, slurm, profile, NETWORK)
    write_record(layout, {"profile": profile.to_json(), "place": asdict(NETWORK)})
    controller = ControllerSupervisor(layout, profile,
                                      lambda _: [daemons.slurmctld(layout, NETWORK)])
    controller.run(f"slurmctld responds; nodes {', '.join(profile.node_names)}, GPUs per node "
                   f"{profile.gpus}, link {profile.link}")


def run_node(arguments: argparse.Namespace) -> None:
    profile = requested_profile(arguments)
    name = node_name(profile)
    problem = shape(profile.link)
    containers.drop_root(USER, GROUP, ())
    layout = Layout(workspace.home())
    containers.wait_for_controller(layout, notify, profile)
    layout.adopt_run(RUN)
    layout.munge_socket.unlink(missing_ok=True)
    containers.record_link(layout, name, profile.link, problem)
    node = NodeSupervisor(layout, profile, lambda _: [daemons.slurmd(layout, name)])
    lost: list[str] = []
    munged, slurmd = node.daemons
    munged.prepare = lambda: lost.extend(fail_lost_jobs(layout, name))
    slurmd.is_up = lambda: listening(NETWORK.node_port(0))
    slurmd.prepare = lambda: healing.start_requeued(layout, lost)
    node.run(f"slurmd responds; link {profile.link}"
             + (f" is not possible, so unlimited: {problem}" if problem else ""))


def fail_lost_jobs(layout: Layout, name: str) -> list[str]:
    """Fail the jobs that ran here when the previous container ended, and return their IDs."""
    lost = healing.fail_node(layout, name, containers.CONTROLLER_TIMEOUT)
    if lost:
        notify(f"jobs that ended with the previous container: {', '.join(lost)}")
    return lost


def node_name(profile: ClusterProfile) -> str:
    """Return the container's host name. Raises LabError if it is not the name of a node."""
    name = socket.gethostname()
    if name not in profile.node_names:
        near = difflib.get_close_matches(name, profile.node_names, n=1, cutoff=0)
        raise LabError(f"hostname {name!r}: no node has this name; nearest: {near[0]}")
    return name


def shape(rate: str) -> str | None:
    """Limit the rate at which this node sends. Returns None, or why that is not possible."""
    try:
        namespaces.shape(INTERFACE, rate)
    except OSError as error:
        return f"{error} (it needs cap_add: [NET_ADMIN] and user root)"
    return None


def run_login(arguments: argparse.Namespace) -> int:
    command = arguments.command
    if not command or not shutil.which(command[0]):
        raise LabError(f"serve login {' '.join(command) or '(nothing)'}: no such command is "
                       "installed here; nearest: serve login lab start --ip 0.0.0.0 --port 8888")
    containers.drop_root(USER, GROUP, ())
    layout = Layout(workspace.home())
    record = containers.wait_for_controller(layout, notify)
    layout.adopt_run(RUN)
    layout.munge_socket.unlink(missing_ok=True)
    config.put(layout.init_pid, f"{os.getpid()} {start_time(os.getpid())}\n")
    login = LoginSupervisor(layout, from_json(record["profile"]), lambda _: [])
    login.command = command
    login.start_in_order()
    signal.signal(signal.SIGTERM, lambda *_: login.end())
    login.serve()
    return login.code if login.code >= 0 else 128 - login.code
