"""Check --device."""

from __future__ import annotations

import difflib
import os

from minimegatron.arguments.flags import Config
from minimegatron.errors import UserError
from virtualgpu.core.slots import INSTEAD_OF_CPU

REAL = ("auto", "cpu", "cuda")


def check_device(config: Config) -> None:
    """Raise UserError for a device, virtual network, or software stack that does not exist."""
    kind, colon, name = config.device.partition(":")
    if config.device not in REAL or {config.virtual_network, config.software_stack} != {None}:
        from minimegatron.arguments import virtual_device

        if kind == "virtual" and name:
            virtual_device.virtual_card(config, name)
        elif kind not in (*REAL, "virtual") or colon:
            near = difflib.get_close_matches(kind, [*REAL, "virtual"], n=1) or ["auto"]
            nearest = "virtual:v100-sxm2-16gb" if near[0] == "virtual" else near[0]
            if kind.lower() in virtual_device.virtual_names():
                nearest = f"virtual:{kind}"
            raise UserError(f"--device {config.device}: one of {', '.join(REAL)}, virtual (the "
                            "GPU that the node declares) or virtual:GPU; nearest: --device "
                            f"{nearest}")
        virtual_device.check_flags(config)


def instead_of_cpu(cuda: bool) -> bool:
    """Return whether this cluster's jobs use CUDA where their scripts say --device cpu.

    Args:
        cuda: whether torch finds a CUDA device.

    Raises:
        UserError: the cluster names another device, or there is no CUDA device.
    """
    wanted = os.environ.get(INSTEAD_OF_CPU)
    if wanted not in (None, "", "cuda"):
        raise UserError(f"{INSTEAD_OF_CPU}={wanted}: only cuda can stand in for --device cpu; "
                        f"nearest: {INSTEAD_OF_CPU}=cuda")
    if wanted and not cuda:
        raise UserError(f"--device cpu: this cluster's jobs use CUDA instead "
                        f"({INSTEAD_OF_CPU}=cuda), and torch finds no CUDA device here; nearest: "
                        f"ask Slurm for GPUs, or unset {INSTEAD_OF_CPU}")
    return bool(wanted)
