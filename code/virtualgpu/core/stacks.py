"""Software stacks: what training software of a certain kind and time makes of a GPU.

A GPU model's file has what single kernels reach in short runs. Whole training runs reach less, and
how much less depends on the software: on clocks that drop under the power limit of minutes of
GEMMs, on how well elementwise kernels are fused, on the time that the host needs for a launch and
for a step, and on how much memory the allocator loses to fragmentation. A stack says so, for each
generation of GPUs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from virtualgpu.core.card import Card
from virtualgpu.core.errors import VirtualGpuError


@dataclass(frozen=True)
class Reach:
    """What training runs reach on one generation of GPUs, where it differs from the GPU's file.

    Attributes:
        half: share of the 16-bit peak that large GEMMs reach.
        vector: share of the memory bandwidth that elementwise kernels reach; None for the GPU's.
    """

    half: float
    vector: float | None = None


@dataclass(frozen=True)
class Stack:
    """A software stack.

    Attributes:
        name: its name on the command line.
        summary: what it stands for.
        attention: the fused attention kernel of trainers that do not choose one (attention.py).
        dispatch: time that the host takes to launch a kernel, in seconds.
        step: time per training step in which the host keeps the GPU idle, in seconds.
        fragmentation: reserved memory that is lost to fragmentation, relative to the peak of the
            allocated memory.
        reach: by generation of GPUs (Card.architecture); others have what their file says.
        sources: where the figures come from, and which were fitted.
    """

    name: str
    summary: str
    attention: str
    dispatch: float
    step: float
    fragmentation: float
    reach: Mapping[str, Reach] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
