"""up, down, heal: what happens between the user's command and the supervisor."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from labcore.errors import LabError
from slurmbox import (
    accounting,
    clients,
    config,
    containers,
    dli,
    health,
    keeping,
    loopback,
    requests,
    site_clients,
)
from slurmbox.ending import cancel_jobs, end_supervisor, sweep
from slurmbox.healing import finish_completing, revive_ghosts, wait_for_nodes
from slurmbox.install import Slurm, ensure_slurm
from slurmbox.layout import Layout
from slurmbox.namespaces import MARKER
from slurmbox.place import COMPOSE, Place
from slurmbox.profile import Profile, from_json, make

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """Options from the command line; None if an option is not given."""

    nodes: int | None = None
    gpus: str | None = None
    link: str | None = None
    accounting: bool | None = None
    mode: str | None = None

    def given(self) -> dict:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def profile(self) -> Profile:
        return make(**self.given())


@contextlib.contextmanager
def locked(layout: Layout, say: Say = print) -> Iterator[int]:
    """One command at a time on one workspace. The supervisor inherits the lock while it starts."""
    descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another `lab cluster` command is at work on this workspace: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def locked_if_there(layout: Layout) -> contextlib.AbstractContextManager:
    return locked(layout) if layout.state.exists() else contextlib.nullcontext()


def write_record(layout: Layout, record: dict) -> None:
    config.put(layout.record, json.dumps(record))


def ensure_up(home: Path, profile: Profile | None = None, say: Say = print) -> bool:
    """Up and healthy when this returns. Without a profile any running cluster will do.

    True: this call started it, so the caller may want to stop it.
    """
    layout = Layout(home)
    if layout.site.exists():
        site_clients.refresh(layout)
        keeping.prune(layout)
        return False
    if containers.here(layout):
        keeping.prune(layout)
        return containers.ensure_up(layout, say)
    options = Options()
    if profile:
        options = Options(len(profile.nodes), profile.gpus, None, profile.accounting or None,
                          None if profile.mode == "auto" else profile.mode)
    return up(home, options, say)


def up(home: Path, options: Options, say: Say = print) -> bool:
    """True: it was not running and does now."""
    refuse_inside()
    layout = Layout(home)
    refuse_site(layout)
    refuse_containers(layout, "up", "up -d")
    profile = options.profile()  # complain about the command line first
    slurm = ensure_slurm(say)
    layout.prepare()
    with locked(layout, say) as lock:
        layout.prepare_run()
        keeping.prune(layout)
        record = health.read_record(layout)
        if record and health.supervisor(layout):
            check_agreement(record, options)
            if keep_running(layout, record, say):
                return False
        if from_containers(record):  # which are gone
            record = None
        if record and not options.given():  # a crash: bring back what was there
            profile = from_json(record["profile"])
        began = time.monotonic()
        start(layout, profile, slurm, lock, say, crashed=record is not None)
        announce(layout, profile, time.monotonic() - began, say)
        return True


def refuse_inside() -> None:
    """In the namespaces of a cluster, processes have other numbers: we would not know our own."""
    if Path(MARKER).exists():
        raise LabError("this shell is inside the cluster (a job or salloc): type it outside")


def refuse_site(layout: Layout) -> None:
    if layout.site.exists():
        raise LabError("this workspace uses the site's own Slurm, which is not ours to start; "
                       "for a cluster on this machine: lab cluster use local")


def refuse_containers(layout: Layout, what: str, command: str) -> None:
    if containers.here(layout):
        containers.refuse(what, f"{COMPOSE} {command}")


def from_containers(record: dict | None) -> bool:
    return bool(record) and record["place"]["mode"] == containers.PLACE.mode


def check_agreement(record: dict, options: Options) -> None:
    """Options that contradict the running cluster are an error, not a silent restart."""
    running = from_json(record["profile"])
    wanted = Options(**{"gpus": running.gpus} | options.given()).profile()
    words = []
    if len(wanted.nodes) != len(running.nodes) and options.nodes is not None:
        words.append(f"--nodes {options.nodes} (running: {len(running.nodes)})")
    if options.gpus is not None and options.gpus.lower() != running.gpus:
        words.append(f"--gpus {options.gpus} (running: {running.gpus})")
    if options.accounting and not running.accounting:
        words.append("--accounting (running: without)")
    mode = record["place"]["mode"]
    if options.mode not in (None, "auto", mode):
        words.append(f"--mode {options.mode} (running: {mode})")
    if options.link and wanted.link != running.link:
        raise LabError(f"the cluster is up with link {running.link}, asked for {options.link}: "
                       f"change it live with lab cluster link {options.link}")
    if words:
        raise LabError(f"a different cluster is up, and you asked for {', '.join(words)}: "
                       "lab cluster down first")


def keep_running(layout: Layout, record: dict, say: Say) -> bool:
    """Heal where needed. False: it is beyond healing and has been ended."""
    found = health.examine(layout)
    if not found.problems:
        finish_completing(layout)
        say("the cluster is already up (see it: lab cluster status; stop it: lab cluster down)")
        return True
    say("healing: " + "; ".join(found.problems))
    try:
        requests.ask(layout.control_socket, do="heal")
        wait_for_nodes(layout, from_json(record["profile"]))
        finish_completing(layout)
    except (OSError, LabError) as error:
        say(f"not healed ({error}): starting again")
        end_supervisor(layout)
        return False
    say("the cluster is up again")
    return True


def start(layout: Layout, profile: Profile, slurm: Slurm, lock: int, say: Say,
          crashed: bool) -> None:
    sweep(layout)
    if profile.accounting:
        accounting.require_installed(slurm)
    reason = None
    if profile.mode != "loopback":
        reason = launch(layout, profile, Place("namespaces"), slurm, lock)
        if reason and profile.mode == "namespaces":
            layout.record.unlink(missing_ok=True)
            raise LabError(f"--mode namespaces: nodes of their own cannot be made here ({reason}); "
                           "use --mode auto or --mode loopback")
    if profile.mode == "loopback" or reason:
        say("loopback mode: all nodes share this machine's network and host name"
            + (f" (nodes of their own cannot be made here: {reason})" if reason else ""))
        loopback_notes(layout, profile, slurm, say)
        reason = launch(layout, profile, loopback.place(len(profile.nodes)), slurm, lock)
        if reason:
            raise LabError(f"the cluster did not start: {reason}")
    wait_for_nodes(layout, profile)
    if crashed:
        revive_ghosts(layout)


def loopback_notes(layout: Layout, profile: Profile, slurm: Slurm, say: Say) -> None:
    if profile.link != "unlimited":
        raise LabError(f"--link {profile.link}: loopback mode has no links to shape; leave it out")
    if slurm.nss_wrapper is None:
        say(f"node names will not resolve in jobs: install libnss-wrapper, or add to /etc/hosts: "
            f"127.0.0.1 {' '.join(profile.node_names)}")
    missing = dli.link_dli(layout.home)
    if missing:
        say(f"/dli is not available to jobs: {missing}")


def launch(layout: Layout, profile: Profile, place: Place, slurm: Slurm, lock: int) -> str | None:
    """Start the supervisor and wait until Slurm answers. A text: namespaces cannot be made."""
    programs = clients.program_folders(layout)
    config.write(layout, profile, place, slurm, programs)
    if profile.accounting:
        accounting.write(layout, place, slurm)
    clients.write_wrappers(layout, slurm, profile, place)
    write_record(layout, {"profile": profile.to_json(), "place": asdict(place)})
    read, write = os.pipe()
    with open(layout.log("init"), "w") as log:
        child = subprocess.Popen(
            [sys.executable, "-I", "-m", "slurmbox.init",
             str(layout.state), str(write), str(lock)],
            pass_fds=(write, lock), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            start_new_session=True)
    os.close(write)
    with os.fdopen(read) as reports:
        answer = json.loads(reports.readline() or "{}")
    if not place.loopback:
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


def announce(layout: Layout, profile: Profile, seconds: float, say: Say) -> None:
    record = health.read_record(layout) or {}
    mode = record.get("place", {}).get("mode", "")
    gpus = "no GPUs" if profile.gpus == "none" else f"virtual GPUs {profile.gpus} per node"
    say(f"the cluster is up: {len(profile.nodes)} nodes ({mode}), {gpus}, in {seconds:.1f} s")
    if str(layout.bin) not in os.environ.get("PATH", "").split(":"):
        say('in this shell: eval "$(lab cluster env)"    then: sinfo')


def down(home: Path, say: Say = print) -> None:
    refuse_inside()
    layout = Layout(home)
    refuse_containers(layout, "down", "down")
    if not layout.state.exists():
        say("the cluster is not running")
        return
    with locked(layout, say):
        running = health.supervisor(layout) is not None
        if running:
            cancelled = cancel_jobs(layout)
            end_supervisor(layout)
        swept = sweep(layout)
        dli.unlink_dli(layout.home)
        layout.record.unlink(missing_ok=True)
        layout.remove_run()
    if not running:
        say("the cluster is not running" + (f"; {swept} processes that a crash left behind "
                                            "have been ended" if swept else ""))
    else:
        say("the cluster is down" + (f"; jobs cancelled: {cancelled}" if cancelled else ""))
