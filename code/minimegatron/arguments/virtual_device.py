"""--device and --virtual-network: which GPU and which network are modeled."""

from __future__ import annotations

import difflib
import os

from minimegatron.arguments.table import Config
from minimegatron.errors import UserError
from virtualgpu.core import cards, stacks
from virtualgpu.core.card import Card
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net import network

REAL_DEVICES = ("auto", "cpu", "cuda")


def virtual_card(config: Config, name: str, source: str = "") -> Card:
    """Return a GPU model under the software stack of the flags.

    Args:
        config: the flags; the GPU must be able to compute in their precision.
        name: its name or an alias.
        source: what named it, for error messages; by default, --device.

    Raises UserError if there is none, if it lacks the precision, or if there is no such stack.
    """
    precision = config.precision
    try:
        card = cards.find(name)
    except VirtualGpuError as error:
        raise UserError(f"{source or f'--device virtual:{name}'}: {error}") from error
    if precision not in card.tflops:
        raise UserError(f"--{precision} on a virtual {card.name}: this GPU has no {precision} "
                        f"arithmetic, only {', '.join(card.tflops)}; nearest: --fp16")
    if config.fp8_format is not None:
        from virtualgpu.core import precisions

        try:
            precisions.require_recipe(card, config.fp8_recipe)
        except VirtualGpuError as error:
            raise UserError(f"--fp8-recipe {config.fp8_recipe}: {error}") from error
    if config.software_stack:
        software_stack(config.software_stack)
    return stacks.under_megatron(card, config.software_stack)


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


def check_device(config: Config) -> None:
    """Raise UserError for a device, virtual network, or software stack that does not exist."""
    kind, colon, name = config.device.partition(":")
    if kind == "virtual" and name:
        virtual_card(config, name)
    elif kind not in (*REAL_DEVICES, "virtual") or colon:
        near = difflib.get_close_matches(kind, [*REAL_DEVICES, "virtual"], n=1) or ["auto"]
        nearest = "virtual:v100-sxm2-16gb" if near[0] == "virtual" else near[0]
        if kind.lower() in {*cards.CARDS, *cards.ALIASES}:
            nearest = f"virtual:{kind}"
        raise UserError(f"--device {config.device}: one of {', '.join(REAL_DEVICES)}, virtual (the "
                        "GPU that the node declares) or virtual:GPU; nearest: --device "
                        f"{nearest}")
    if config.virtual_network is not None:
        check_network(config.virtual_network, "--virtual-network")
    if config.software_stack is not None:
        software_stack(config.software_stack)


def software_stack(name: str) -> stacks.SoftwareStack:
    """Return the software stack with a name. Raises UserError."""
    try:
        return stacks.find_stack(name)
    except VirtualGpuError as error:
        raise UserError(f"--software-stack: {error}") from error


def check_network(text: str, source: str) -> None:
    """Raise UserError, which names the source, if the text is not a network."""
    try:
        network.parse(text)
    except VirtualGpuError as error:
        raise UserError(f"{source}: {error}") from error
