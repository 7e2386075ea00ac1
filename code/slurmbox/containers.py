"""The cluster of docker/compose.yml: its controller, its nodes and JupyterLab in a container each.

They share the workspace, and beside it munge's key. What cannot be done from inside of them names
the command for the machine outside.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from labcore.errors import LabError
from slurmbox import config, health
from slurmbox.healing import wait_for_nodes
from slurmbox.layout import Layout
from slurmbox.place import COMPOSE, CONTROLLER, Place
from slurmbox.profile import Profile, from_json

RUN = Path("/tmp/lab-cluster")  # the same in all of them, so that one slurm.conf fits all
KEY = Path("/run/lab-key/munge.key")
PATIENCE = 120.0  # seconds for the controller
EVERY = 10.0  # seconds between two words to who waits
PLACE = Place("containers")

Say = Callable[[str], None]


def here(layout: Layout) -> bool:
    """Return whether this is one of the containers; each creates that folder when it starts."""
    return layout.run == RUN and layout.run_is_ours()


def refuse(what: str, command: str) -> NoReturn:
    raise LabError(f"{what}: the cluster's parts are containers, out of reach from in here. On the "
                   f"machine itself, in the checkout: {command}")


NODE_COMMANDS = {"kill": "kill {}", "start": "up -d {}", "cut": "pause {}", "heal": "unpause {}"}


def refuse_node(name: str, action: str) -> NoReturn:
    refuse(f"node {name} {action}", f"{COMPOSE} {NODE_COMMANDS[action].format(name)}")


def refuse_link(rate: str) -> NoReturn:
    refuse(f"link {rate}", f"LINK={rate} {COMPOSE} up -d")


def controller_answers() -> str | None:
    """None: it does. Else why not."""
    try:
        socket.create_connection((CONTROLLER, PLACE.controller_port), timeout=2).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def wait_for_controller(layout: Layout, say: Say, wanted: Profile | None = None,
                        patience: float = PATIENCE) -> dict:
    """The record of the cluster that it started, of the shape `wanted` if that is given. Raises
    LabError."""
    began = told = time.monotonic()
    while True:
        reason = controller_answers()
        record = health.read_record(layout)
        if not reason and record and record["place"]["mode"] == PLACE.mode:
            if wanted is None or record["profile"] == wanted.to_json():
                return record
            reason = "it was started with other options"
        now = time.monotonic()
        if now - began > patience:
            raise LabError(f"{CONTROLLER}:{PLACE.controller_port} does not answer: "
                           f"{reason or 'it starts'}; see {COMPOSE} logs {CONTROLLER}")
        if now - told > EVERY:
            told = now
            say(f"waiting for {CONTROLLER}: {reason or 'it starts'}")
        time.sleep(0.1)


def ensure_up(layout: Layout, say: Say) -> bool:
    """Wait for the nodes; without them the lab is of some use all the same."""
    try:
        record = wait_for_controller(layout, say, patience=2.0)
        profile = from_json(record["profile"])
        began = time.monotonic()
        wait_for_nodes(layout, profile)
    except LabError as error:
        say(f"{error}; on the machine itself: {COMPOSE} up -d")
        return False
    say(f"the cluster is up: {len(profile.nodes)} nodes, a container each"
        + (f", after {waited:.1f} s" if (waited := time.monotonic() - began) > 1 else ""))
    return False


def links_folder(layout: Layout) -> Path:
    """Return the folder in which each node records how its link is shaped."""
    return layout.state / "links"


def note_link(layout: Layout, node: str, rate: str, problem: str | None) -> None:
    """problem: why the link is as fast as it can be, not `rate`; jobs must not be told otherwise.
    """
    links_folder(layout).mkdir(exist_ok=True)
    config.put(links_folder(layout) / node,
               f"unlimited ({rate} is not possible: {problem})" if problem else rate)
    if problem:
        config.write_network(layout, "unlimited")


def links(layout: Layout, profile: Profile) -> str:
    """Return the links of all nodes, on one line."""
    said = set()
    for name in profile.node_names:
        try:
            said.add((links_folder(layout) / name).read_text())
        except OSError:
            said.add(f"{name} has not said")
    return ", ".join(sorted(said)) or "?"


def become(uid: int, gid: int, folders: tuple[Path, ...]) -> None:
    """Give empty volumes, which are root's, to that user, and go on as that user. As another user
    than root this does nothing."""
    if os.getuid():
        return
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid != uid:
            os.chown(folder, uid, gid)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
