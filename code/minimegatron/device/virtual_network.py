"""Tell every rank which virtual GPU and which node each of the others has."""

from __future__ import annotations

import os
import socket

import torch.distributed as dist

from minimegatron.console import emit
from virtualgpu.core import stacks
from virtualgpu.core.card import Card
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.memory import amount
from virtualgpu.net import network
from virtualgpu.net.backend import register
from virtualgpu.net.topology import Topology


def connect(gpu: VirtualGpu, link: str, slot: int | None) -> list[str]:
    """Exchange GPU models, nodes, and links, and register the backend that models their links.

    Every rank must call it, with the network of its node and, if Slurm assigned one, the number of
    its GPU there. Returns lines that describe the GPUs and the links.
    """
    places: list[tuple] = [()] * dist.get_world_size()
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    dist.all_gather_object(places, (node, gpu.card.name, gpu.card.stack, link, slot))
    nodes, names, software, links, slots = zip(*places, strict=True)
    # Between nodes with different networks, communication is as fast as the slower one.
    slowest = min(map(network.parse, dict.fromkeys(links)), key=lambda one: one.effective)
    models = tuple(map(stacks.card_under, names, software))
    topology = Topology(nodes, models, slowest, slots)
    register(gpu, topology, emit if nccl_debug() else None)
    return [f"{title(card)} on rank(s) {ranks_of(card, models)}"
            for card in dict.fromkeys(models)
            ] + [f"software stack {text}" for text in dict.fromkeys(map(stacks.describe, models))
            ] + [f"virtual links: {topology.describe()}; times and memory are modeled; "
                 "no training happens: tensors have shapes but no values"]


def nccl_debug() -> bool:
    """Return whether NCCL_DEBUG asks for NCCL's lines about its communicators."""
    return os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE")


def title(card: Card) -> str:
    """Return the line that introduces a GPU model in the log."""
    return (f"using virtual {card.name} ({card.product}, {amount(card.memory)}, "
            f"{card.bandwidth / 1e9:g} GB/s)")


def ranks_of(card: Card, models: tuple[Card, ...]) -> str:
    """Return the ranks with this GPU model, separated by commas, from the model of each rank."""
    return ",".join(str(rank) for rank, other in enumerate(models) if other is card)
