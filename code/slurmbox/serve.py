"""`lab cluster serve`: what the containers of docker/compose.yml run.

    lab cluster serve controller      munged and slurmctld, and everybody's slurm.conf
    lab cluster serve node            munged and slurmd; its name is the container's
    lab cluster serve login COMMAND   munged and COMMAND, where jobs are submitted

Each waits for what it needs, starts again what dies, and ends in order on SIGTERM.
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
from slurmbox.containers import KEY, PLACE, RUN
from slurmbox.control import write_record
from slurmbox.daemon import Daemon, listening
from slurmbox.init import Supervisor
from slurmbox.install import Slurm, require_slurm
from slurmbox.layout import Layout
from slurmbox.place import INTERFACE
from slurmbox.processes import start_time
from slurmbox.profile import CUDA_NODE, Profile, from_json, make

ROLES = ("controller", "node", "login")
USER, GROUP = 1000, 100  # jovyan
SLURMD_PATIENCE, COMMAND_PATIENCE = 1.0, 9  # seconds; Docker kills after ten


def add_parser(leaves: argparse._SubParsersAction) -> None:
    text = "what the containers of docker/compose.yml run"
    serve = leaves.add_parser("serve", help=text, description=text)
    roles = serve.add_subparsers(metavar="ROLE", required=True)
    for name, run in (("controller", run_controller), ("node", run_node)):
        role = roles.add_parser(name)
        role.add_argument("--nodes", type=int, metavar="N", help="how many nodes (default: 2)")
        role.add_argument("--gpus", metavar="SPEC", help="as in lab cluster up")
        role.add_argument("--link", metavar="RATE",
                          help="rate at which nodes send, as in 1gbit (default: unlimited)")
        role.add_argument("--cuda", type=int, default=0, metavar="N",
                          help=f"GPUs of a further node {CUDA_NODE}, which has real ones")
        role.set_defaults(run=run)
    login = roles.add_parser("login")
    login.add_argument("command", nargs=argparse.REMAINDER, help="as in lab start --port 8888")
    login.set_defaults(run=run_login)


def say(line: str) -> None:
    print(f"{socket.gethostname()}: {line}", flush=True)


def profile_of(arguments: argparse.Namespace) -> Profile:
    """Raises LabError for a bad value. An empty one, of a variable that is not set, is none."""
    return make(arguments.nodes, arguments.gpus, arguments.link, cuda=arguments.cuda)


class Role(Supervisor):
    """One container's daemons."""

    def __init__(self, layout: Layout, profile: Profile,
                 choose: Callable[[Slurm], list[Daemon]]) -> None:
        self.choose = choose
        super().__init__(layout, profile, PLACE)

    def make_daemons(self, slurm: Slurm) -> list[Daemon]:
        munged = daemons.munged(self.layout, slurm, KEY, socket.gethostname())
        return [munged, *self.choose(slurm)]

    def mark_ready(self) -> None:
        """The controller alone knows."""

    def run(self, said: str) -> None:
        """For as long as the container lives. Raises OSError where a daemon does not start."""
        signal.signal(signal.SIGTERM, lambda *_: self.end() or os._exit(0))
        self.start_in_order()
        self.mark_ready()
        say(said)
        self.serve()


class Controller(Role):
    mark_ready = Supervisor.mark_ready

    def end(self) -> None:
        """Jobs that outlive their cluster would come back as ghosts."""
        from slurmbox.ending import cancel_jobs

        if cancelled := cancel_jobs(self.layout):
            say(f"jobs cancelled: {cancelled}")
        super().end()
        self.layout.record.unlink(missing_ok=True)


class Node(Role):
    def end(self) -> None:
        self.ending = True
        daemon = self.daemons[-1]
        if daemon.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon.pid, signal.SIGTERM)
            self._wait_for(daemon, SLURMD_PATIENCE)


class Login(Role):
    """Its command ends it."""

    command: list[str]
    child = 0
    code = 1

    def mark_ready(self) -> None:
        """The loop runs, and hears of a child's end."""
        if not self.child:
            self.child = os.posix_spawnp(self.command[0], self.command, os.environ,
                                         setsigdef=[signal.SIGPIPE])

    def note_child(self, pid: int, status: int) -> None:
        if pid == self.child:
            self.code, self.ending = os.waitstatus_to_exitcode(status), True

    def end(self) -> None:
        os.kill(self.child, signal.SIGTERM)
        signal.alarm(COMMAND_PATIENCE)  # if it does not obey, this ends us


def run_controller(arguments: argparse.Namespace) -> None:
    profile = profile_of(arguments)
    home = workspace.home()
    containers.become(USER, GROUP, (home, KEY.parent))
    layout = Layout(home)
    layout.prepare()
    layout.ready.unlink(missing_ok=True)
    layout.record.unlink(missing_ok=True)
    layout.adopt_run(RUN)
    layout.munge_socket.unlink(missing_ok=True)
    shutil.rmtree(containers.links_folder(layout), ignore_errors=True)
    slurm = require_slurm()
    config.write(layout, profile, PLACE, slurm, clients.program_folders(layout), KEY)
    clients.write_wrappers(layout, slurm, profile, PLACE)
    write_record(layout, {"profile": profile.to_json(), "place": asdict(PLACE)})
    controller = Controller(layout, profile, lambda _: [daemons.slurmctld(layout, PLACE)])
    controller.run(f"slurmctld answers; nodes {', '.join(profile.node_names)}, GPUs per node "
                   f"{profile.gpus}, link {profile.link}")


def run_node(arguments: argparse.Namespace) -> None:
    profile = profile_of(arguments)
    name = node_name(profile)
    problem = shape(profile.link)
    containers.become(USER, GROUP, ())
    layout = Layout(workspace.home())
    containers.wait_for_controller(layout, say, profile)
    layout.adopt_run(RUN)
    layout.munge_socket.unlink(missing_ok=True)
    containers.note_link(layout, name, profile.link, problem)
    node = Node(layout, profile, lambda _: [daemons.slurmd(layout, name)])
    lost: list[str] = []
    munged, slurmd = node.daemons
    munged.prepare = lambda: lost.extend(bury(layout, name))
    slurmd.is_up = lambda: listening(PLACE.node_port(0))
    slurmd.prepare = lambda: healing.start_requeued(layout, lost)
    node.run(f"slurmd answers; link {profile.link}"
             + (f" is not possible, so unlimited: {problem}" if problem else ""))


def bury(layout: Layout, name: str) -> list[str]:
    """Fail the jobs that ran here when the container ended, and return them."""
    lost = healing.fail_node(layout, name, containers.PATIENCE)
    if lost:
        say(f"jobs that ended with the container before: {', '.join(lost)}")
    return lost


def node_name(profile: Profile) -> str:
    """The container's. Raises LabError where it is no node's."""
    name = socket.gethostname()
    if name not in profile.node_names:
        near = difflib.get_close_matches(name, profile.node_names, n=1, cutoff=0)
        raise LabError(f"hostname {name!r}: no node is called that; nearest: {near[0]}")
    return name


def shape(rate: str) -> str | None:
    """Why it is not possible; None: it is so now."""
    try:
        namespaces.shape(INTERFACE, rate)
    except OSError as error:
        return f"{error} (it needs cap_add: [NET_ADMIN] and user root)"
    return None


def run_login(arguments: argparse.Namespace) -> int:
    command = arguments.command
    if not command or not shutil.which(command[0]):
        raise LabError(f"serve login {' '.join(command) or '(nothing)'}: not a command that is "
                       "installed here; nearest: serve login lab start --ip 0.0.0.0 --port 8888")
    containers.become(USER, GROUP, ())
    layout = Layout(workspace.home())
    record = containers.wait_for_controller(layout, say)
    layout.adopt_run(RUN)
    layout.munge_socket.unlink(missing_ok=True)
    config.put(layout.init_pid, f"{os.getpid()} {start_time(os.getpid())}\n")
    login = Login(layout, from_json(record["profile"]), lambda _: [])
    login.command = command
    login.start_in_order()
    signal.signal(signal.SIGTERM, lambda *_: login.end())
    login.serve()
    return login.code if login.code >= 0 else 128 - login.code
