"""Supervise the cluster as PID 1 of its PID namespace, or as a subreaper in loopback mode.

    python -m slurmbox.init STATE-FOLDER REPORT-FD LOCK-FD

The supervisor reads running.json, builds the namespaces, starts the daemons in order, reaps their
children, restarts daemons that end, and serves the control socket. When it ends for any reason, the
kernel kills everything else.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time
from functools import partial
from pathlib import Path

from slurmbox import daemons as daemons_
from slurmbox import namespaces, requests
from slurmbox import syscalls as sys_
from slurmbox.addresses import ClusterNetwork
from slurmbox.clients import LOGIN_MOUNTS
from slurmbox.config import put
from slurmbox.daemon import Daemon
from slurmbox.install import Slurm, require_slurm
from slurmbox.layout import Layout
from slurmbox.processes import kill_descendants, start_time
from slurmbox.profile import ClusterProfile, from_json

MAX_FAILURES = 5  # in a row; then a daemon is not restarted
STABLE_AFTER = 10.0  # seconds; a daemon that ran longer starts with a clean record


class Supervisor:
    """Starts and restarts the daemons of one cluster."""

    def __init__(self, layout: Layout, profile: ClusterProfile, network: ClusterNetwork) -> None:
        slurm = require_slurm()
        self.layout, self.profile, self.network = layout, profile, network
        self.spaces: dict[str, namespaces.NodeNamespaces] = {}
        self.link = profile.link
        self.ending = False
        self.environment = daemons_.base_environment(layout, network, slurm)
        self.daemons = self.make_daemons(slurm)
        self.selector = selectors.DefaultSelector()

    def make_daemons(self, slurm: Slurm) -> list[Daemon]:
        return daemons_.all_daemons(self.layout, self.profile, self.network, slurm)

    def build_namespaces(self) -> None:
        layout = self.layout
        namespaces.build_root(layout.run / "root", layout.home, layout.short / "etc" / "hosts",
                              layout.run.name)
        login = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        os.dup2(login, LOGIN_MOUNTS, inheritable=False)
        os.close(login)
        # A second mount namespace, so that the login node keeps the machine's /proc: a process that
        # enters it is not in our PID namespace.
        sys_.unshare(sys_.CLONE_NEWNS)
        namespaces.mount_proc()
        namespaces.set_up_login()
        self.spaces = namespaces.make_nodes(self.profile)
        self.set_link(self.link)

    def set_link(self, rate: str) -> None:
        for space in self.spaces.values():
            space.set_rate(rate)
        self.link = rate

    def start(self, daemon: Daemon) -> None:
        daemon.started_at = time.monotonic()
        try:
            daemon.pid = os.fork()
        except OSError as error:  # too many processes: try again later
            self.log(f"{daemon.name} cannot be started: {error.strerror}")
            daemon.failures += 1
            daemon.retry_at = time.monotonic() + 2.0
            return
        if daemon.pid:
            return
        try:
            self._exec(daemon)
        except BaseException as error:
            print(f"{daemon.name}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(127)

    def _exec(self, daemon: Daemon) -> None:
        """Enter the daemon's node and run its program; called in the child."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP,
                       signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if self.network.loopback:  # without a PID namespace, this ends the daemon with us
            sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
        if daemon.node and self.spaces:
            self.spaces[daemon.node].enter()
        null = os.open("/dev/null", os.O_RDONLY)
        out = os.open(self.layout.log(f"{daemon.name}.out"),
                      os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(self.layout.state)
        os.execve(daemon.command[0], daemon.command, self.environment | daemon.environment)

    def start_in_order(self, limit: float = 30.0) -> None:
        for daemon in self.daemons:
            if daemon.pid is None:
                self.start(daemon)
            deadline = time.monotonic() + limit
            while daemon.is_up and not daemon.is_up():
                self.reap(restart=False)
                if daemon.pid is None:
                    raise OSError(f"{daemon.name} ended at once: {self.last_message(daemon)}")
                if time.monotonic() > deadline:
                    raise OSError(f"{daemon.name} does not respond: {self.last_message(daemon)}")
                time.sleep(0.005)
            if daemon.prepare:
                daemon.prepare()

    def last_message(self, daemon: Daemon) -> str:
        """Return the last error in a daemon's log, or else its last line."""
        for log in (self.layout.log(f"{daemon.name}.out"),
                    self.layout.log(daemon.name.removeprefix("slurmd."))):
            with contextlib.suppress(OSError):
                lines = log.read_text(errors="replace").strip().splitlines()
                errors = [line for line in lines if "error" in line or "fatal" in line]
                if errors or lines:
                    return (errors or lines)[-1]
        return "it left no message"

    def reap(self, restart: bool = True) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.on_child_exit(pid, status)
            for daemon in self.daemons:
                if daemon.pid == pid:
                    self.on_daemon_exit(daemon, restart)

    def on_child_exit(self, pid: int, status: int) -> None:
        """Handle the end of any child; for subclasses that start more than daemons."""

    def on_daemon_exit(self, daemon: Daemon, restart: bool) -> None:
        now = time.monotonic()
        daemon.pid = None
        daemon.failures = 1 if now - daemon.started_at > STABLE_AFTER else daemon.failures + 1
        daemon.retry_at = now + min(0.1 * 2 ** daemon.failures, 2.0)
        if restart and not daemon.stopped:
            self.log(f"{daemon.name} ended: {self.last_message(daemon)}")
        if daemon.name.startswith("munged"):  # a socket left by kill -9 would stop the next one
            self.layout.munge_socket.unlink(missing_ok=True)

    def log(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the cluster
            print(text, flush=True)

    def daemons_to_restart(self) -> list[Daemon]:
        return [daemon for daemon in self.daemons if daemon.pid is None and not daemon.stopped
                and daemon.failures <= MAX_FAILURES and not self.ending]

    def heal(self) -> None:
        """Restart all daemons and restore all links, including those stopped or cut on purpose."""
        for daemon in self.daemons:
            daemon.stopped, daemon.failures, daemon.retry_at = False, 0, 0.0
        for space in self.spaces.values():
            space.set_cut(False)
        self.restart_ended()

    def restart_ended(self) -> None:
        for daemon in self.daemons_to_restart():
            if daemon.retry_at <= time.monotonic():
                self.start(daemon)

    def mark_ready(self) -> None:
        """Tell the wrappers whether Slurm can answer, so that no command hangs."""
        controller = next(d for d in self.daemons if d.name == "slurmctld")
        given_up = controller.pid is None and controller.failures > MAX_FAILURES
        if given_up or self.ending:
            self.layout.ready.unlink(missing_ok=True)
        elif not self.layout.ready.exists():
            with contextlib.suppress(OSError):
                self.layout.ready.touch()

    def serve(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        listener = requests.listen(self.layout.control_socket)
        self.selector.register(wake_read, selectors.EVENT_READ)
        self.selector.register(listener, selectors.EVENT_READ)
        while not self.ending:
            self.mark_ready()
            waiting = [d.retry_at for d in self.daemons_to_restart()]
            timeout = max(0.0, min(waiting) - time.monotonic()) if waiting else None
            for key, _ in self.selector.select(timeout):
                if key.fileobj is listener:
                    requests.serve_one(listener, partial(handle, self))
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
            self.reap()
            self.restart_ended()

    def end(self) -> None:
        """Stop the daemons in an order that saves their state; the rest dies with this process."""
        self.ending = True
        self.mark_ready()
        for name, timeout in (("slurmctld", 2.0), ("slurmdbd", 2.0), ("mariadbd", 5.0)):
            for daemon in self.daemons:
                if daemon.name == name and daemon.pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(daemon.pid, signal.SIGTERM)
                    self._wait_for(daemon, timeout)
        if self.network.loopback:
            kill_descendants(os.getpid())

    def _wait_for(self, daemon: Daemon, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while daemon.pid and time.monotonic() < deadline:
            self.reap(restart=False)
            time.sleep(0.005)


def handle(supervisor: Supervisor, request: dict) -> dict:
    """Do what a request asks for, and return the cluster's state. Raises an error of any kind."""
    action = request["do"]
    if action == "heal":
        supervisor.heal()
    elif action == "end":
        supervisor.end()
    elif action == "link":
        supervisor.set_link(request["rate"])
    elif action == "node":
        _change_node(supervisor, request["name"], request["action"])
    elif action != "report":
        raise ValueError(f"unknown request {action!r}")
    return _report(supervisor)


def _change_node(supervisor: Supervisor, name: str, action: str) -> None:
    daemon = next(d for d in supervisor.daemons if d.node == name)
    if action in ("cut", "heal"):
        supervisor.spaces[name].set_cut(action == "cut")
    elif action == "kill":
        daemon.stopped = True
        if daemon.pid:
            os.kill(daemon.pid, signal.SIGKILL)
    elif action == "start":
        daemon.stopped, daemon.failures = False, 0
        if daemon.pid is None:
            supervisor.start(daemon)
    else:
        raise ValueError(f"unknown action {action!r}")


def _report(supervisor: Supervisor) -> dict:
    return {
        "daemons": {d.name: {"running": d.pid is not None, "stopped": d.stopped,
                             "failures": d.failures} for d in supervisor.daemons},
        "cut": [name for name, space in supervisor.spaces.items() if space.cut],
        "link": supervisor.link,
    }


def describe(error: Exception) -> str:
    """Return an error's message without its number, which tells the user nothing."""
    words = error.strerror if isinstance(error, OSError) and error.errno else str(error)
    return words or type(error).__name__


def report(descriptor: int, **facts: object) -> None:
    with contextlib.suppress(OSError):  # `up` was interrupted, so nobody reads this
        os.write(descriptor, (json.dumps(facts) + "\n").encode())


def detach(layout: Layout, loopback: bool) -> None:
    """Become the supervisor process, and record its PID for `down`."""
    if loopback:
        sys_.prctl(sys_.PR_SET_CHILD_SUBREAPER, 1)
        put(layout.init_pid, f"{os.getpid()} {start_time(os.getpid())}\n")
        return
    namespaces.enter_new(user=os.getuid() != 0)
    read, write = os.pipe()
    child = os.fork()
    if child:  # only the parent sees the PID that is valid outside the namespace
        os.close(read)
        put(layout.init_pid, f"{child} {start_time(child)}\n")
        os.write(write, b"+")
        os._exit(0)
    os.close(write)
    if not os.read(read, 1):  # the parent was killed before it could record the PID
        os._exit(1)
    os.close(read)


def main() -> None:
    state, descriptor, lock = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(descriptor, False)
    layout = Layout(state.parent)
    record = json.loads(layout.record.read_text())
    profile = from_json(record["profile"])
    addresses = record["place"] | {"node_ports": tuple(record["place"]["node_ports"])}
    network = ClusterNetwork(**addresses)
    os.umask(0o022)
    stage = "namespaces"
    try:
        detach(layout, network.loopback)
        os.close(lock)  # `down` can now find this process by its PID, even if `up` was killed
        supervisor = Supervisor(layout, profile, network)
        if not network.loopback:
            supervisor.build_namespaces()
        stage = "daemons"
        supervisor.start_in_order()
    except Exception as error:
        report(descriptor, stage=stage, error=describe(error))
        if network.loopback:
            kill_descendants(os.getpid())
        raise
    signal.signal(signal.SIGTERM, lambda *_: supervisor.end() or os._exit(0))
    supervisor.mark_ready()
    report(descriptor, stage="ready")
    os.close(descriptor)
    supervisor.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
