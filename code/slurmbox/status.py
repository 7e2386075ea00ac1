"""Print the cluster's state on one screen: `lab cluster status`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from slurmbox import containers, health, site
from slurmbox.addresses import COMPOSE, ClusterNetwork
from slurmbox.config import node_memory
from slurmbox.layout import Layout
from slurmbox.profile import from_json

HEALTHY, DAMAGED, DOWN = 0, 1, 3


def show(home: Path) -> int:
    """Print the state, and return HEALTHY, DAMAGED, or DOWN. Raises LabError for a bad profile."""
    layout = Layout(home)
    if layout.site.exists():
        profile = site.read(home)
        print(f"this workspace uses the site's own Slurm: sinfo, squeue\n{profile.path} requests "
              f"{profile}")
        return HEALTHY
    record = health.read_record(layout)
    if record is None:
        print("the cluster is down: lab cluster up")
        return DOWN
    state = health.examine(layout)
    if not state.alive:
        print("the cluster is down, but `lab cluster down` did not stop it: lab cluster up")
        return DOWN
    print("\n".join(_lines(layout, record, state)))
    return DAMAGED if state.problems else HEALTHY


def _lines(layout: Layout, record: dict, state: health.Health) -> list[str]:
    profile = from_json(record["profile"])
    network = ClusterNetwork(**record["place"])
    link = (containers.links(layout, profile) if network.containers
            else state.report.get("link", "?"))
    lines = [f"cluster of {layout.home}",
             f"mode {network.mode}   link {link}   "
             f"accounting {'slurmdbd' if profile.accounting else 'light (finished jobs only)'}",
             "", f"{'NODE':<14}{'STATE':<10}{'ADDRESS':<20}{'CPUS':<6}{'MEMORY':<10}GPUS"]
    memory = f"{node_memory(profile) // 1024} GiB"
    for index, node in enumerate(profile.nodes):
        address = network.node_address(index, node.name)
        if network.loopback:
            address += f":{network.node_port(index)}"
        kind = node.gpu_type if node.real else f"{node.gpu_type} (virtual)"
        gpus = f"{node.gpus} x {kind}" if node.gpus else "none"
        lines.append(f"{node.name:<14}{state.states.get(node.name, '?'):<10}{address:<20}"
                     f"{profile.cpus:<6}{memory:<10}{gpus}")
    lines.append("")
    lines.append("partitions: " + ", ".join(
        f"{name}{' (default)' if i == 0 else ''}" for i, name in enumerate(profile.partitions())))
    if state.states:
        queue = health.run_client(layout, "squeue", "-h", "-o", "%T").stdout.split()
        counts = Counter(word.lower() for word in queue)
        lines.append("queue: " + (", ".join(f"{n} {word}" for word, n in sorted(counts.items()))
                                  or "empty"))
    if state.problems:
        lines += ["", "damaged:", *(f"  {problem}" for problem in state.problems),
                  f"to fix it: {f'{COMPOSE} up -d' if network.containers else 'lab cluster up'}"]
    return lines
