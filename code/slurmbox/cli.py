"""`lab cluster`: a real multi-node Slurm cluster on this machine."""

from __future__ import annotations

import argparse

from labcore import workspace
from labcore.errors import LabError
from slurmbox import (
    clients,
    config,
    containers,
    control,
    health,
    requests,
    serve,
    site_clients,
    status,
)
from slurmbox.layout import Layout
from slurmbox.profile import MODES, from_json, parse_link

GPUS_HELP = (
    "GPUs of the nodes, all virtual: v100:2 (the default) gives every node two V100. "
    "a100:4,a10:4 gives the first half of the nodes four A100 each and the second half four A10 "
    "each, and makes a partition of each kind beside the default one. 3xa100:4,1xa10:2 says how "
    "many nodes of each kind. none: no GPUs. The types are what lab devices lists.")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    text = "run a real multi-node Slurm cluster on this machine"
    cluster = subparsers.add_parser("cluster", help=text, description=text)
    leaves = cluster.add_subparsers(metavar="ACTION", required=True)
    _add_up(leaves)
    for name, run, text in (
            ("down", run_down, "cancel the jobs, stop the cluster"),
            ("status", run_status, "nodes, links, queue; exit code 0 healthy, 1 damaged, 3 down"),
            ("env", run_env, 'print what a shell needs: eval "$(lab cluster env)"')):
        leaf = leaves.add_parser(name, help=text, description=text)
        leaf.set_defaults(run=run)
    link = leaves.add_parser("link", help="change the rate of the links between nodes, live")
    link.add_argument("rate", help="25gbit, 1gbit, 100mbit, ..., or unlimited")
    link.set_defaults(run=run_link)
    node = leaves.add_parser("node", help="break a node and mend it, for lessons on failure")
    node.add_argument("name")
    node.add_argument("action", choices=("cut", "heal", "kill", "start"),
                      help="cut, heal: its network cable; kill, start: its slurmd")
    node.set_defaults(run=run_node)
    use = leaves.add_parser("use", help="this machine's cluster (local) or the site's own (site)")
    use.add_argument("which", choices=("local", "site"))
    use.set_defaults(run=run_use)
    serve.add_parser(leaves)


def _add_up(leaves: argparse._SubParsersAction) -> None:
    text = "start the cluster, or mend a damaged one"
    up = leaves.add_parser("up", help=text, description=text)
    up.add_argument("--nodes", type=int, metavar="N", help="how many nodes (default: 2)")
    up.add_argument("--gpus", metavar="SPEC", help=GPUS_HELP)
    up.add_argument("--link", metavar="RATE",
                    help="rate of the links between nodes, as in 25gbit (default: unlimited)")
    up.add_argument("--accounting", action="store_true", default=None,
                    help="run slurmdbd and a private MariaDB: all of sacct, with steps and memory")
    up.add_argument("--mode", choices=MODES,
                    help="namespaces: each node has an address and a host name of its own; "
                         "loopback: all on 127.0.0.1; auto (default): the first that works")
    up.set_defaults(run=run_up)


def run_up(arguments: argparse.Namespace) -> None:
    control.up(workspace.home(), control.Options(
        arguments.nodes, arguments.gpus, arguments.link, arguments.accounting, arguments.mode))


def run_down(arguments: argparse.Namespace) -> None:
    control.down(workspace.home())


def run_status(arguments: argparse.Namespace) -> int:
    control.refuse_inside()
    return status.show(workspace.home())


def run_env(arguments: argparse.Namespace) -> None:
    layout = Layout(workspace.home())
    layout.prepare()
    if layout.site.exists():
        site_clients.refresh(layout)
    elif not containers.here(layout):
        clients.write_stubs(layout)
    print(clients.exports(layout.home), end="")


def _running(layout: Layout) -> dict:
    """The record of a cluster that is up."""
    control.refuse_inside()
    if layout.site.exists():
        raise LabError("this workspace uses the site's own Slurm, whose links and nodes are not "
                       "ours to change")
    record = health.read_record(layout)
    if record is None or health.supervisor(layout) is None:
        raise LabError(clients.NOT_RUNNING)
    return record


def _ask(layout: Layout, **request: str) -> None:
    try:
        requests.ask(layout.control_socket, **request)
    except OSError as error:
        raise LabError(f"the supervisor does not answer ({error}): lab cluster up") from error


def run_link(arguments: argparse.Namespace) -> None:
    rate = parse_link(arguments.rate)
    layout = Layout(workspace.home())
    if containers.here(layout):
        containers.refuse_link(rate)
    with control.locked_if_there(layout):
        record = _running(layout)
        if record["place"]["mode"] == "loopback":
            raise LabError("link: in loopback mode the nodes share this machine's network, there "
                           "is no link to shape; it needs --mode namespaces")
        _ask(layout, do="link", rate=rate)
        config.write_network(layout, rate)
        record["profile"]["link"] = rate
        control.write_record(layout, record)
    print(f"links between nodes: {rate}")


def run_node(arguments: argparse.Namespace) -> None:
    layout = Layout(workspace.home())
    record = _running(layout)
    names = from_json(record["profile"]).node_names
    if arguments.name not in names:
        raise LabError(f"no node is called {arguments.name!r}: {', '.join(names)}")
    if containers.here(layout):
        containers.refuse_node(arguments.name, arguments.action)
    loopback = record["place"]["mode"] == "loopback"
    if loopback and arguments.action in ("cut", "heal"):
        raise LabError(f"node {arguments.name} {arguments.action}: in loopback mode a node has no "
                       "network cable of its own; kill and start work, cut and heal need "
                       "--mode namespaces")
    _ask(layout, do="node", name=arguments.name, action=arguments.action)
    done = {"cut": "cut off from the network", "heal": "connected again",
            "kill": "slurmd killed", "start": "slurmd started"}[arguments.action]
    print(f"{arguments.name}: {done}")


def run_use(arguments: argparse.Namespace) -> None:
    layout = Layout(workspace.home())
    control.refuse_containers(layout, f"use {arguments.which}", "down")
    layout.prepare()
    if arguments.which == "local":
        layout.site.unlink(missing_ok=True)
        print("this workspace uses a cluster on this machine: lab cluster up")
        return
    if health.supervisor(layout):
        raise LabError("use site: this workspace's own cluster is up: lab cluster down first")
    site_clients.use(layout)
