"""The command `lab cluster`, which runs a multi-node Slurm cluster on this machine."""

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
from slurmbox.profile import CPUS, MODES, from_json, parse_link

GPUS_HELP = (
    "virtual GPUs of the nodes. v100:2 (the default) gives every node two V100 GPUs. "
    "a100:4,a10:4 gives the first half of the nodes four A100 GPUs each and the second half four "
    "A10 GPUs each, and adds a partition per type to the default one. 3xa100:4,1xa10:2 also gives "
    "the number of nodes of each type. none: no GPUs. lab devices lists the types")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    text = "run a real multi-node Slurm cluster on this machine"
    cluster = subparsers.add_parser("cluster", help=text, description=text)
    leaves = cluster.add_subparsers(metavar="ACTION", required=True)
    _add_up(leaves)
    for name, run, text in (
            ("down", run_down, "cancel all jobs and stop the cluster"),
            ("status", run_status,
             "show nodes, links, and queue; exit code 0: healthy, 1: damaged, 3: down"),
            ("env", run_env, 'print the variables that a shell needs: eval "$(lab cluster env)"')):
        leaf = leaves.add_parser(name, help=text, description=text)
        leaf.set_defaults(run=run)
    text = "change the rate of the links between nodes while the cluster runs"
    link = leaves.add_parser("link", help=text, description=text)
    link.add_argument("rate", help="25gbit, 1gbit, 100mbit, ..., or unlimited")
    link.set_defaults(run=run_link)
    text = "break or repair a node, for exercises on failures"
    node = leaves.add_parser("node", help=text, description=text)
    node.add_argument("name", help="the node's name")
    node.add_argument("action", choices=("cut", "heal", "kill", "start"),
                      help="cut or heal its network link; kill or start its slurmd")
    node.set_defaults(run=run_node)
    text = "choose between a cluster on this machine (local) and the site's own (site)"
    use = leaves.add_parser("use", help=text, description=text)
    use.add_argument("which", choices=("local", "site"))
    use.set_defaults(run=run_use)
    serve.add_parser(leaves)


def _add_up(leaves: argparse._SubParsersAction) -> None:
    text = "start the cluster, or repair a damaged one"
    up = leaves.add_parser("up", help=text, description=text)
    up.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: 2)")
    up.add_argument("--gpus", metavar="SPEC", help=GPUS_HELP)
    up.add_argument("--cpus", type=int, metavar="N",
                    help=f"CPUs of a node (default: {CPUS}); they are virtual, like its memory")
    up.add_argument("--memory", type=int, metavar="GIB",
                    help="memory of a node, in GiB (default: 4 to 8 per CPU)")
    up.add_argument("--link", metavar="RATE",
                    help="rate of the links between nodes, such as 25gbit (default: unlimited)")
    up.add_argument("--accounting", action="store_true", default=None,
                    help="run slurmdbd and a private MariaDB: a full sacct, with steps and memory")
    up.add_argument("--mode", choices=MODES,
                    help="namespaces: each node has its own address and host name; "
                         "loopback: all nodes are on 127.0.0.1; auto (default): the first that "
                         "works")
    up.set_defaults(run=run_up)


def run_up(arguments: argparse.Namespace) -> None:
    control.up(workspace.home(), control.UpOptions(
        arguments.nodes, arguments.gpus, arguments.link, arguments.accounting, arguments.mode,
        arguments.cpus, arguments.memory))


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
    elif not containers.in_container(layout):
        clients.write_stubs(layout)
    print(clients.exports(layout.home), end="")


def _require_running(layout: Layout) -> dict:
    """Return the record of the running cluster. Raises LabError if there is none."""
    control.refuse_inside()
    if layout.site.exists():
        raise LabError("this workspace uses the site's own Slurm, whose links and nodes `lab "
                       "cluster` does not manage")
    record = health.read_record(layout)
    if record is None or health.supervisor(layout) is None:
        raise LabError(clients.NOT_RUNNING)
    return record


def _send(layout: Layout, **request: str) -> None:
    try:
        requests.send(layout.control_socket, **request)
    except OSError as error:
        raise LabError(f"the supervisor does not respond ({error}): lab cluster up") from error


def run_link(arguments: argparse.Namespace) -> None:
    rate = parse_link(arguments.rate)
    layout = Layout(workspace.home())
    if containers.in_container(layout):
        containers.refuse_link(rate)
    with control.locked_if_used(layout):
        record = _require_running(layout)
        if record["place"]["mode"] == "loopback":
            raise LabError(f"link {rate}: in loopback mode, the nodes share this machine's "
                           "network, so there is no link to shape; this needs --mode namespaces")
        _send(layout, do="link", rate=rate)
        config.write_virtual_network(layout, rate)
        record["profile"]["link"] = rate
        health.write_record(layout, record)
    print(f"links between nodes: {rate}")


def run_node(arguments: argparse.Namespace) -> None:
    layout = Layout(workspace.home())
    record = _require_running(layout)
    names = from_json(record["profile"]).node_names
    if arguments.name not in names:
        raise LabError(f"node {arguments.name}: no such node; the nodes are {', '.join(names)}")
    if containers.in_container(layout):
        containers.refuse_node(arguments.name, arguments.action)
    loopback = record["place"]["mode"] == "loopback"
    if loopback and arguments.action in ("cut", "heal"):
        raise LabError(f"node {arguments.name} {arguments.action}: in loopback mode, a node has no "
                       "network link of its own; use kill and start, or --mode namespaces")
    _send(layout, do="node", name=arguments.name, action=arguments.action)
    done = {"cut": "network link cut", "heal": "network link restored",
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
        raise LabError("use site: this workspace's own cluster is up: run lab cluster down first")
    site_clients.use(layout)
