"""The GPUs of one `virtualrun`, which its ranks describe in a folder of files."""

from __future__ import annotations

import json
from pathlib import Path

from virtualgpu.core.card import Card
from virtualgpu.core.cards import CARDS, nearest
from virtualgpu.core.errors import UnknownCard
from virtualgpu.smi.cli import NO_DRIVER, NOT_FOUND, SmiExit
from virtualgpu.smi.gpus import Gpu, GpuProcess

CLUSTER = "cluster.json"


def node_name(number: int) -> str:
    """Return the name of a node of the modeled cluster, from its number from 0."""
    return f"node{number}"


def rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def gpus(folder: Path, own: int, node: str | None) -> dict[str, list[Gpu]]:
    """Return the GPUs of a node. A rank that is no process does what the nearest lower one does.

    Args:
        folder: the run's folder.
        own: number of the node that the program runs on.
        node: name of the node to show; None for the program's own.

    Raises:
        SmiExit: the run has ended, or there is no such node.
    """
    try:
        nodes = json.loads((folder / CLUSTER).read_text())
        models = [[CARDS[name] for name in names] for names in nodes]
    except (OSError, ValueError, KeyError, UnknownCard) as error:
        raise SmiExit(NO_DRIVER, "nvidia-smi: error: the program that virtualrun started has ended"
                      ) from error
    names = [node_name(number) for number in range(len(models))]
    wanted = names[own] if node is None else node
    if wanted not in names:
        raise SmiExit(NOT_FOUND, f"ERROR: --node {wanted}: no such node; nearest: "
                                 f"{nearest(wanted, names)[0]}")
    number = names.index(wanted)
    first = sum(map(len, models[:number]))
    return {wanted: [
        Gpu(wanted, slot, slot, card, process(folder, first + slot, slot, wanted, card), True,
            len(models[number]))
        for slot, card in enumerate(models[number])]}


def process(folder: Path, rank: int, slot: int, node: str, card: Card) -> GpuProcess | None:
    """Return the process on a GPU.

    Args:
        folder: the run's folder.
        rank: the rank that the GPU belongs to.
        slot: number of the GPU on its node.
        node: the node's name.
        card: the GPU model.
    """
    for present in range(rank, -1, -1):
        try:
            fields = json.loads(rank_file(folder, present).read_text())
        except OSError:
            continue
        return GpuProcess(node, 0, slot, slot, fields["pid"], card, fields["used"],
                          fields["total"], fields["utilization"])
    return None
