"""What --device may say."""

from __future__ import annotations

import difflib
import os

from minimegatron.arguments.flags import Config
from minimegatron.errors import UserError
from virtualgpu.core import cards
from virtualgpu.core.card import Card
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.core.slots import INSTEAD_OF_CPU
from virtualgpu.net import network

REAL = ("auto", "cpu", "cuda")


def check_device(config: Config) -> None:
    """Raises UserError."""
    kind, colon, name = config.device.partition(":")
    if kind == "virtual" and name:
        virtual_card(name, config.precision)
    elif kind not in (*REAL, "virtual") or colon:
        near = difflib.get_close_matches(kind, [*REAL, "virtual"], n=1) or ["auto"]
        nearest = "virtual:v100-sxm2-16gb" if near[0] == "virtual" else near[0]
        if kind.lower() in {*cards.CARDS, *cards.ALIASES}:
            nearest = f"virtual:{kind}"
        raise UserError(f"--device {config.device}: one of {', '.join(REAL)}, virtual (the card "
                        f"that the node declares) or virtual:CARD; nearest: --device {nearest}")
    if config.virtual_network is not None:
        try:
            network.parse(config.virtual_network)
        except VirtualGpuError as error:
            raise UserError(f"--virtual-network: {error}") from error


def virtual_link(config: Config) -> str | None:
    """Return the network between nodes of virtual GPUs: the one that --virtual-network names, else
    the one that VIRTUAL_NETWORK declares, else None (what is usual for the GPU).

    Raises:
        UserError: VIRTUAL_NETWORK is needed and is not a network.
    """
    if config.virtual_network is not None:
        return config.virtual_network
    declared = os.environ.get("VIRTUAL_NETWORK")
    if not declared:
        return None
    try:
        network.parse(declared)
    except VirtualGpuError as error:
        raise UserError(f"VIRTUAL_NETWORK: {error}") from error
    return declared


def instead_of_cpu(cuda: bool) -> bool:
    """Whether this cluster's jobs use CUDA where their scripts say --device cpu. Raises UserError
    for another device, and where there is none."""
    wanted = os.environ.get(INSTEAD_OF_CPU)
    if wanted not in (None, "", "cuda"):
        raise UserError(f"{INSTEAD_OF_CPU}={wanted}: only cuda can stand in for --device cpu; "
                        f"nearest: {INSTEAD_OF_CPU}=cuda")
    if wanted and not cuda:
        raise UserError(f"--device cpu: this cluster's jobs use CUDA instead "
                        f"({INSTEAD_OF_CPU}=cuda), and torch finds no CUDA device here; nearest: "
                        f"ask Slurm for GPUs, or unset {INSTEAD_OF_CPU}")
    return bool(wanted)


def virtual_card(name: str, precision: str, source: str = "") -> Card:
    """The card, if it has arithmetic of this precision. source: who names it, if not --device.
    Raises UserError."""
    try:
        card = cards.find(name)
    except VirtualGpuError as error:
        raise UserError(f"{source or f'--device virtual:{name}'}: {error}") from error
    if precision not in card.tflops:
        raise UserError(f"--{precision} on a virtual {card.name}: the card has no {precision} "
                        f"arithmetic, only {', '.join(card.tflops)}; nearest: --fp16")
    return card
