"""Use the cluster of docker/compose.yml, with a container for the controller and each node.

The containers share the workspace and munge's key. For what cannot be done from inside a container,
errors name the command to run on the host.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import NoReturn

from labcore.errors import LabError
from slurmbox import Notify, config, health
from slurmbox.addresses import COMPOSE, CONTROLLER, ClusterNetwork
from slurmbox.healing import wait_for_nodes
from slurmbox.layout import Layout
from slurmbox.profile import ClusterProfile, from_json

RUN = Path("/tmp/lab-cluster")  # the same path in all containers, so one slurm.conf fits all
KEY = Path("/run/lab-key/munge.key")
CONTROLLER_TIMEOUT = 120.0  # seconds
NOTICE_INTERVAL = 10.0  # seconds between two progress messages
NETWORK = ClusterNetwork("containers")


def in_container(layout: Layout) -> bool:
    """Return whether this process is in one of the containers, which create this folder first."""
    return layout.run == RUN and layout.run_is_ours()


def refuse(action: str, command: str) -> NoReturn:
    raise LabError(f"{action}: the cluster's nodes are containers, which cannot be managed from "
                   f"inside. On the host, in the checkout: {command}")


NODE_COMMANDS = {"kill": "kill {}", "start": "up -d {}", "cut": "pause {}", "heal": "unpause {}"}


def refuse_node(name: str, action: str) -> NoReturn:
    refuse(f"node {name} {action}", f"{COMPOSE} {NODE_COMMANDS[action].format(name)}")


def refuse_link(rate: str) -> NoReturn:
    refuse(f"link {rate}", f"LINK={rate} {COMPOSE} up -d")


def controller_problem() -> str | None:
    """Return why the controller does not respond, or None if it does."""
    try:
        socket.create_connection((CONTROLLER, NETWORK.controller_port), timeout=2).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def wait_for_controller(layout: Layout, notify: Notify, wanted: ClusterProfile | None = None,
                        timeout: float = CONTROLLER_TIMEOUT) -> dict:
    """Wait for the controller, and return the record of the cluster that it started.

    Args:
        layout: the cluster's folders.
        notify: receives a line while waiting.
        wanted: the profile that the cluster must have; None for any.
        timeout: in seconds.

    Raises:
        LabError: the controller did not respond in time, or has another profile.
    """
    began = notified = time.monotonic()
    while True:
        reason = controller_problem()
        record = health.read_record(layout)
        if not reason and record and record["place"]["mode"] == NETWORK.mode:
            if wanted is None or record["profile"] == wanted.to_json():
                return record
            reason = "it was started with other options"
        now = time.monotonic()
        if now - began > timeout:
            raise LabError(f"{CONTROLLER}:{NETWORK.controller_port} does not respond: "
                           f"{reason or 'it is starting'}; see {COMPOSE} logs {CONTROLLER}")
        if now - notified > NOTICE_INTERVAL:
            notified = now
            notify(f"waiting for {CONTROLLER}: {reason or 'it is starting'}")
        time.sleep(0.1)


def ensure_up(layout: Layout, notify: Notify) -> bool:
    """Wait for the nodes. Without them, print a warning, because the lab still runs."""
    try:
        record = wait_for_controller(layout, notify, timeout=2.0)
        profile = from_json(record["profile"])
        began = time.monotonic()
        wait_for_nodes(layout, profile)
    except LabError as error:
        notify(f"{error}; on the host: {COMPOSE} up -d")
        return False
    notify(f"the cluster is up: {len(profile.nodes)} nodes in one container each"
        + (f", after {waited:.1f} s" if (waited := time.monotonic() - began) > 1 else ""))
    return False


def links_folder(layout: Layout) -> Path:
    """Return the folder in which each node records how its link is shaped."""
    return layout.state / "links"


def record_link(layout: Layout, node: str, rate: str, problem: str | None) -> None:
    """Record the rate of a node's link.

    Args:
        layout: the cluster's folders.
        node: the node's name.
        rate: the requested rate.
        problem: why the link could not be shaped; jobs then model an unlimited network, too.
    """
    links_folder(layout).mkdir(exist_ok=True)
    config.put(links_folder(layout) / node,
               f"unlimited ({rate} is not possible: {problem})" if problem else rate)
    if problem:
        config.write_virtual_network(layout, "unlimited")


def links(layout: Layout, profile: ClusterProfile) -> str:
    """Return the rates of all nodes' links in one line."""
    rates = set()
    for name in profile.node_names:
        try:
            rates.add((links_folder(layout) / name).read_text())
        except OSError:
            rates.add(f"{name} has not reported")
    return ", ".join(sorted(rates)) or "?"


def drop_root(uid: int, gid: int, folders: tuple[Path, ...]) -> None:
    """Continue as another user, who then owns the folders; without root, do nothing.

    Args:
        uid: the user's ID.
        gid: the group's ID.
        folders: folders to give to the user; new volumes belong to root.
    """
    if os.getuid():
        return
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid != uid:
            os.chown(folder, uid, gid)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
