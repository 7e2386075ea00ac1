"""Check that the running cluster has the nodes that a run needs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from job_monitor.slurm import run_command
from lab.submit.layout import RunLayout
from labcore import workspace
from labcore.errors import LabError
from virtualgpu.core import cards
from virtualgpu.core.errors import VirtualGpuError

UNUSABLE = re.compile(r"down|drain|fail|maint|unk|inval|not_resp", re.I)
GRES = re.compile(r"gpu:([A-Za-z][\w.-]*):(\d+)")


class SlurmNode(NamedTuple):
    """A node of the running cluster, with the GRES type and the number of its GPUs."""

    name: str
    kind: str
    gpus: int


def slurm(*words: str) -> str:
    """Return the output of one of Slurm's commands. Raises LabError with its message."""
    done = run_command(*words, folder=workspace.home())
    if done.returncode:
        raise LabError(done.stderr.strip() or f"{words[0]}: exit code {done.returncode}")
    return done.stdout


def usable_nodes() -> list[SlurmNode]:
    """Return the cluster's usable nodes with GPUs. Raises LabError without a cluster."""
    return parse(slurm("sinfo", "--noheader", "--Node", "--format=%N|%G|%T"))


def parse(text: str) -> list[SlurmNode]:
    """Return the nodes in `sinfo --Node --format=%N|%G|%T`, each of them once."""
    nodes = {}
    for line in text.splitlines():
        name, gres, state = [*line.strip().split("|"), "", ""][:3]
        match = GRES.search(gres)
        if match and not UNUSABLE.search(state):
            nodes[name] = SlurmNode(name, match[1], int(match[2]))
    return list(nodes.values())


def match(layout: RunLayout, available: list[SlurmNode]) -> RunLayout:
    """Return the layout with Slurm's own names of the GPU types.

    Args:
        available: the cluster's usable nodes.

    Raises:
        LabError: the cluster has too few nodes of a kind.
    """
    needed: Counter[tuple[str, int]] = Counter()
    components = []
    for component in layout.components:
        card, per_node = component.card.name, component.per_node
        kinds = [node.kind for node in available
                 if node.gpus >= per_node and _card(node.kind) == card]
        needed[card, per_node] += component.nodes
        if needed[card, per_node] > len(kinds):
            running = ", ".join(f"{count} of {gpus} x {kind}" for (kind, gpus), count in
                                Counter((node.kind, node.gpus) for node in available).items())
            raise layout.conf.error(
                "cluster", f"the run needs {_total(layout, card, per_node)} node(s) of {per_node} "
                f"x {component.kind}, but the running cluster has nodes {running or 'none'}"
                " with GPUs", f"lab cluster down; {up_command(layout)}")
        components.append(replace(component, kind=kinds[0]))
    return replace(layout, components=tuple(components))


def up_command(layout: RunLayout) -> str:
    """Return the command that starts a cluster with the layout's nodes."""
    counts: Counter[tuple[str, int]] = Counter()
    for one in layout.components:
        counts[one.kind, one.per_node] += one.nodes
    return "lab cluster up --gpus " + ",".join(
        f"{count}x{kind}:{gpus}" for (kind, gpus), count in counts.items())


def _total(layout: RunLayout, card: str, per_node: int) -> int:
    return sum(one.nodes for one in layout.components
               if (one.card.name, one.per_node) == (card, per_node))

def _card(kind: str) -> str | None:
    """Return the GPU model of a GRES type, or None if no model has this name."""
    try:
        return cards.find(kind).name
    except VirtualGpuError:
        return None
