"""Start, heal, and stop the cluster: everything between the user's command and the supervisor."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from labcore.errors import LabError
from slurmbox import (
    Notify,
    accounting,
    clients,
    config,
    containers,
    dli,
    health,
    jobfolders,
    loopback,
    requests,
    site_clients,
)
from slurmbox.addresses import COMPOSE, ClusterNetwork
from slurmbox.healing import finish_completing, requeue_orphaned_jobs, wait_for_nodes
from slurmbox.install import Slurm, ensure_slurm
from slurmbox.layout import Layout
from slurmbox.namespaces import MARKER
from slurmbox.profile import CPUS, ClusterProfile, from_json, make
from slurmbox.shutdown import cancel_jobs, end_supervisor, kill_leftovers


@dataclass(frozen=True)
class UpOptions:
    """Options of `lab cluster up`; None for an option that is not given."""

    nodes: int | None = None
    gpus: str | None = None
    link: str | None = None
    accounting: bool | None = None
    mode: str | None = None
    cpus: int | None = None
    memory: int | None = None

    def given(self) -> dict:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def profile(self) -> ClusterProfile:
        return make(**self.given())


@contextlib.contextmanager
def locked(layout: Layout, notify: Notify = print) -> Iterator[int]:
    """Hold the workspace's lock, so that its commands run one at a time.

    Yields the lock's descriptor, which the supervisor inherits while it starts.
    """
    descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notify("another `lab cluster` command is running in this workspace: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def locked_if_used(layout: Layout) -> contextlib.AbstractContextManager:
    """Hold the lock if the workspace ever had a cluster."""
    return locked(layout) if layout.state.exists() else contextlib.nullcontext()


def ensure_up(home: Path, profile: ClusterProfile | None = None, notify: Notify = print) -> bool:
    """Start or heal the cluster, and return True if this call started it.

    Args:
        home: the workspace.
        profile: the cluster to start; None if any running cluster will do.
        notify: receives lines about the progress.

    Raises:
        LabError: it cannot be started, or a different one is running.
    """
    layout = Layout(home)
    if layout.site.exists():
        site_clients.refresh(layout)
        jobfolders.prune(layout)
        return False
    if containers.in_container(layout):
        jobfolders.prune(layout)
        return containers.ensure_up(layout, notify)
    options = UpOptions()
    if profile:
        options = UpOptions(len(profile.nodes), profile.gpus, None, profile.accounting or None,
                            None if profile.mode == "auto" else profile.mode,
                            None if profile.cpus == CPUS else profile.cpus, profile.memory)
    return up(home, options, notify)


def up(home: Path, options: UpOptions, notify: Notify = print) -> bool:
    """Start or heal the cluster, and return True if this call started it. Raises LabError."""
    refuse_inside()
    layout = Layout(home)
    refuse_site(layout)
    refuse_containers(layout, "up", "up -d")
    profile = options.profile()  # report a bad command line before anything else
    slurm = ensure_slurm(notify)
    layout.prepare()
    with locked(layout, notify) as lock:
        layout.prepare_run()
        jobfolders.prune(layout)
        record = health.read_record(layout)
        if record and health.supervisor(layout):
            check_agreement(record, options)
            if keep_running(layout, record, notify):
                return False
        if from_containers(record):  # these containers no longer exist
            record = None
        if record and not options.given():  # after a crash, start the same cluster again
            profile = from_json(record["profile"])
        began = time.monotonic()
        start(layout, profile, slurm, lock, notify, crashed=record is not None)
        announce(layout, profile, time.monotonic() - began, notify)
        return True


def refuse_inside() -> None:
    """Refuse to run inside a cluster's namespaces, where the recorded PIDs are not valid."""
    if Path(MARKER).exists():
        raise LabError("this shell is inside the cluster (a job or salloc): run this command "
                       "outside")


def refuse_site(layout: Layout) -> None:
    if layout.site.exists():
        raise LabError("this workspace uses the site's own Slurm, which `lab cluster` cannot "
                       "start; for a cluster on this machine: lab cluster use local")


def refuse_containers(layout: Layout, action: str, command: str) -> None:
    if containers.in_container(layout):
        containers.refuse(action, f"{COMPOSE} {command}")


def from_containers(record: dict | None) -> bool:
    return bool(record) and record["place"]["mode"] == containers.NETWORK.mode


def check_agreement(record: dict, options: UpOptions) -> None:
    """Raise LabError if the options contradict the running cluster, rather than restart it."""
    running = from_json(record["profile"])
    wanted = UpOptions(**{"gpus": running.gpus} | options.given()).profile()
    words = []
    if len(wanted.nodes) != len(running.nodes) and options.nodes is not None:
        words.append(f"--nodes {options.nodes} (running: {len(running.nodes)})")
    if options.gpus is not None and options.gpus.lower() != running.gpus:
        words.append(f"--gpus {options.gpus} (running: {running.gpus})")
    words += [f"--{name} {value} (running: {getattr(running, name) or 'the default'})"
              for name in ("cpus", "memory")
              if (value := getattr(options, name)) not in (None, getattr(running, name))]
    if options.accounting and not running.accounting:
        words.append("--accounting (running: without)")
    mode = record["place"]["mode"]
    if options.mode not in (None, "auto", mode):
        words.append(f"--mode {options.mode} (running: {mode})")
    if options.link and wanted.link != running.link:
        raise LabError(f"--link {options.link}: the cluster is up with link {running.link}; change "
                       f"it while it runs: lab cluster link {options.link}")
    if words:
        raise LabError(f"a different cluster is up, and you requested {', '.join(words)}: "
                       "run lab cluster down first")


def keep_running(layout: Layout, record: dict, notify: Notify) -> bool:
    """Heal a running cluster, and return True; or stop it if that fails, and return False."""
    problems = health.examine(layout).problems
    if not problems:
        finish_completing(layout)
        notify("the cluster is already up (lab cluster status shows it; lab cluster down stops it)")
        return True
    notify("healing: " + "; ".join(problems))
    try:
        requests.send(layout.control_socket, do="heal")
        wait_for_nodes(layout, from_json(record["profile"]))
        finish_completing(layout)
    except (OSError, LabError) as error:
        notify(f"could not heal it ({error}): starting it again")
        end_supervisor(layout)
        return False
    notify("the cluster is up again")
    return True


def start(layout: Layout, profile: ClusterProfile, slurm: Slurm, lock: int, notify: Notify,
          crashed: bool) -> None:
    kill_leftovers(layout)
    if profile.accounting:
        accounting.require_installed(slurm)
    reason = None
    if profile.mode != "loopback":
        reason = launch(layout, profile, ClusterNetwork("namespaces"), slurm, lock)
        if reason and profile.mode == "namespaces":
            layout.record.unlink(missing_ok=True)
            raise LabError(f"--mode namespaces: this machine does not allow it ({reason}); "
                           "use --mode auto or --mode loopback")
    if profile.mode == "loopback" or reason:
        notify("loopback mode: all nodes share this machine's network and host name"
               + (f" (this machine does not allow namespaces: {reason})" if reason else ""))
        loopback_notes(layout, profile, slurm, notify)
        reason = launch(layout, profile, loopback.choose_network(len(profile.nodes)), slurm, lock)
        if reason:
            raise LabError(f"the cluster did not start: {reason}")
    wait_for_nodes(layout, profile)
    if crashed:
        requeue_orphaned_jobs(layout)


def loopback_notes(layout: Layout, profile: ClusterProfile, slurm: Slurm, notify: Notify) -> None:
    if profile.link != "unlimited":
        raise LabError(f"--link {profile.link}: loopback mode has no links to shape; leave it out, "
                       "or use --mode namespaces")
    if slurm.nss_wrapper is None:
        notify("node names will not resolve in jobs: install libnss-wrapper, or add to "
               f"/etc/hosts: 127.0.0.1 {' '.join(profile.node_names)}")
    missing = dli.link_dli(layout.home)
    if missing:
        notify(f"/dli is not available to jobs: {missing}")


def launch(layout: Layout, profile: ClusterProfile, network: ClusterNetwork, slurm: Slurm,
           lock: int) -> str | None:
    """Start the supervisor, and wait until Slurm responds.

    Returns None, or the reason why namespaces cannot be created. Raises LabError for other
    failures.
    """
    programs = clients.program_folders(layout)
    config.write(layout, profile, network, slurm, programs)
    if profile.accounting:
        accounting.write(layout, network, slurm)
    clients.write_wrappers(layout, slurm, profile, network)
    health.write_record(layout, {"profile": profile.to_json(), "place": asdict(network)})
    read, write = os.pipe()
    with open(layout.log("init"), "w") as log:
        child = subprocess.Popen(
            [sys.executable, "-I", "-m", "slurmbox.init",
             str(layout.state), str(write), str(lock)],
            pass_fds=(write, lock), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            start_new_session=True)
    os.close(write)
    with os.fdopen(read) as replies:
        answer = json.loads(replies.readline() or "{}")
    if not network.loopback:
        child.wait()
    stage = answer.get("stage")
    if stage == "ready":
        return None
    end_supervisor(layout)
    reason = answer.get("error") or f"the supervisor died; see {layout.log('init')}"
    if stage == "namespaces":
        return reason
    layout.record.unlink(missing_ok=True)
    raise LabError(f"the cluster did not start: {reason} (logs: {layout.state / 'log'})")


def announce(layout: Layout, profile: ClusterProfile, seconds: float, notify: Notify) -> None:
    record = health.read_record(layout) or {}
    mode = record.get("place", {}).get("mode", "")
    gpus = "no GPUs" if profile.gpus == "none" else f"virtual GPUs {profile.gpus} per node"
    notify(f"the cluster is up: {len(profile.nodes)} nodes ({mode}), {gpus}, in {seconds:.1f} s")
    if str(layout.bin) not in os.environ.get("PATH", "").split(":"):
        notify('in this shell: eval "$(lab cluster env)"    then: sinfo')


def down(home: Path, notify: Notify = print) -> None:
    refuse_inside()
    layout = Layout(home)
    refuse_containers(layout, "down", "down")
    if not layout.state.exists():
        notify("the cluster is not running")
        return
    with locked(layout, notify):
        running = health.supervisor(layout) is not None
        if running:
            cancelled = cancel_jobs(layout)
            end_supervisor(layout)
        killed = kill_leftovers(layout)
        dli.unlink_dli(layout.home)
        layout.record.unlink(missing_ok=True)
        layout.remove_run()
    if not running:
        notify("the cluster is not running" + (f"; killed {killed} processes that a crash left "
                                               "behind" if killed else ""))
    else:
        notify("the cluster is down" + (f"; jobs cancelled: {cancelled}" if cancelled else ""))
