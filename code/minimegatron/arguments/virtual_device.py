"""--device virtual and --virtual-network: which GPU and which network are modeled."""

from __future__ import annotations

import os

from minimegatron.arguments.flags import Config
from minimegatron.errors import UserError
from virtualgpu.core import cards, stacks
from virtualgpu.core.card import Card
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net import network


def virtual_names() -> set[str]:
    """Return the names of all GPU models, and their aliases."""
    return {*cards.CARDS, *cards.ALIASES}


def virtual_card(config: Config, name: str, source: str = "") -> Card:
    """Return a GPU model under the software stack of the flags.

    Args:
        config: the flags; the GPU must be able to compute in their precision.
        name: its name or an alias.
        source: what named it, for error messages; by default, --device.

    Raises UserError if there is none, if it lacks the precision, or if there is no such stack.
    """
    precision, source = config.precision, source or f"--device virtual:{name}"
    try:
        card = cards.find(name)
        source = "--software-stack"
        card = stacks.under(card, stacks.find_stack(config.software_stack or stacks.usual(card)))
    except VirtualGpuError as error:
        raise UserError(f"{source}: {error}") from error
    if precision not in card.tflops:
        raise UserError(f"--{precision} on a virtual {card.name}: this GPU has no {precision} "
                        f"arithmetic, only {', '.join(card.tflops)}; nearest: --fp16")
    return card


def virtual_link(config: Config) -> str | None:
    """Return the network between nodes of virtual GPUs.

    It is the one that --virtual-network names, else the one that VIRTUAL_NETWORK declares, else
    None (the usual one for the GPU).

    Raises:
        UserError: VIRTUAL_NETWORK is needed and is not a network.
    """
    if config.virtual_network is not None:
        return config.virtual_network
    declared = os.environ.get("VIRTUAL_NETWORK")
    if declared:
        check_network(declared, "VIRTUAL_NETWORK")
    return declared or None


def check_network(text: str, source: str = "--virtual-network") -> None:
    """Raise UserError, which names the source, if the text is not a network."""
    try:
        network.parse(text)
    except VirtualGpuError as error:
        raise UserError(f"{source}: {error}") from error
