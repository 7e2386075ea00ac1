"""`lab cluster status`: one screen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from slurmbox import containers, health, site
from slurmbox.layout import Layout
from slurmbox.place import COMPOSE, Place
from slurmbox.profile import from_json

HEALTHY, DAMAGED, DOWN = 0, 1, 3


def show(home: Path) -> int:
    layout = Layout(home)
    if layout.site.exists():
        profile = site.read(home)
        print(f"this workspace uses the site's own Slurm: sinfo, squeue\n{profile.path} asks for "
              f"{profile}")
        return HEALTHY
    record = health.read_record(layout)
    if record is None:
        print("the cluster is down: lab cluster up")
        return DOWN
    found = health.examine(layout)
    if not found.alive:
        print("the cluster is down; it was not stopped by `lab cluster down`: lab cluster up")
        return DOWN
    print("\n".join(_lines(layout, record, found)))
    return DAMAGED if found.problems else HEALTHY


def _lines(layout: Layout, record: dict, found: health.Health) -> list[str]:
    profile = from_json(record["profile"])
    place = Place(**record["place"])
    link = (containers.links(layout, profile) if place.containers
            else found.report.get("link", "?"))
    lines = [f"cluster of {layout.home}",
             f"mode {place.mode}   link {link}   "
             f"accounting {'slurmdbd' if profile.accounting else 'light (finished jobs only)'}",
             "", f"{'NODE':<14}{'STATE':<10}{'ADDRESS':<20}GPUS"]
    for index, node in enumerate(profile.nodes):
        where = place.node_address(index, node.name)
        if place.loopback:
            where += f":{place.node_port(index)}"
        kind = node.gpu_type if node.real else f"{node.gpu_type} (virtual)"
        gpus = f"{node.gpus} x {kind}" if node.gpus else "none"
        lines.append(f"{node.name:<14}{found.states.get(node.name, '?'):<10}{where:<20}{gpus}")
    lines.append("")
    lines.append("partitions: " + ", ".join(
        f"{name}{' (default)' if i == 0 else ''}" for i, name in enumerate(profile.partitions())))
    if found.states:
        queue = health.client(layout, "squeue", "-h", "-o", "%T").stdout.split()
        counts = Counter(word.lower() for word in queue)
        lines.append("queue: " + (", ".join(f"{n} {word}" for word, n in sorted(counts.items()))
                                  or "empty"))
    if found.problems:
        lines += ["", "damaged:", *(f"  {problem}" for problem in found.problems),
                  f"mend it: {f'{COMPOSE} up -d' if place.containers else 'lab cluster up'}"]
    return lines
