"""Software stacks: what the training software of a certain time makes of a GPU.

A GPU model's file has what single kernels reach in short runs. Whole training runs reach less, and
how much less depends on the software: on clocks that drop under the power limit after minutes of
GEMMs, on how well elementwise kernels are fused, on the version of the attention kernels, and on
the time that the host needs for a launch and for a step.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from virtualgpu.core import cards
from virtualgpu.core.attention import CUDNN, FLASH
from virtualgpu.core.card import Card
from virtualgpu.core.errors import VirtualGpuError

HALF, NARROWER = ("fp16", "bf16"), ("fp8", "fp4")
MODERN = ("hopper", "blackwell")  # architectures of Megatron Core's time


@dataclass(frozen=True)
class Reach:
    """What whole training runs reach on one generation of GPUs; None: what the GPU's file says.

    Attributes:
        half: share of the 16-bit peak that large GEMMs reach. Those in FP8 and FP4 lose as much
            to dropping clocks, so their shares shrink in proportion.
        vector: share of the memory bandwidth that elementwise kernels reach.
        attention: share of the peak that fused attention reaches (Efficiency.attention).
    """

    half: float | None = None
    vector: float | None = None
    attention: float | None = None


@dataclass(frozen=True, eq=False)  # hashable, by identity
class Stack:
    """A software stack.

    Attributes:
        name: its name on the command line.
        summary: what it stands for.
        attention: its kernel of fused attention, for programs that leave the choice open.
        dispatch: time that the host takes to launch a kernel, in seconds.
        step: time of the host per training step during which the GPU is idle, in seconds.
        reach: by generation of GPUs (Card.architecture).
        error: mean error of modeled step times on published rows that nothing was fitted to, by
            generation of GPUs.
        sources: where the figures come from, and which were fitted.
    """

    name: str
    summary: str
    attention: str
    dispatch: float
    step: float
    reach: Mapping[str, Reach]
    error: Mapping[str, float]
    sources: tuple[str, ...]


MEGATRON_A100 = Reach(half=0.78, vector=0.68)
STACKS: dict[str, Stack] = {stack.name: stack for stack in (
    Stack(
        "megatron-2021", "Megatron-LM of 2021",
        attention=FLASH, dispatch=5e-6, step=0.0,
        reach={"ampere": MEGATRON_A100},
        error={"ampere": 0.103, "volta": 0.074},
        sources=(
            "ampere: fitted to 28 of vTrain's measured iterations on 64 to 512 A100 "
            "(VIA-Research/vTrain)",
        ),
    ),
    Stack(
        "megatron-core", "Megatron Core in bf16, without Transformer Engine",
        attention=CUDNN, dispatch=5e-6, step=0.01,
        reach={"ampere": MEGATRON_A100, "hopper": Reach(half=0.75, vector=0.78)},
        error={},
        sources=(
            "hopper: fitted to nine runs of this trainer (benchmarks/results/gpu_h100.md), whose "
            "mean error is then 3%",
            "ampere: as in megatron-2021",
        ),
    ),
    Stack(
        "transformer-engine", "Megatron Core with Transformer Engine in bf16",
        attention=CUDNN, dispatch=5e-6, step=0.0,
        reach={"ampere": MEGATRON_A100, "hopper": Reach(half=0.76, vector=0.82)},
        error={"hopper": 0.058},
        sources=(
            "hopper: chosen with NVIDIA's published step times of GPT-3 175B in view "
            "(NVIDIA/dgxc-benchmarking), three of which calibrate",
            "ampere: as in megatron-2021",
        ),
    ),
    Stack(
        "torch-eager-fsdp", "plain PyTorch without torch.compile",
        attention=FLASH, dispatch=7.5e-6, step=0.0,
        reach={"ampere": Reach(half=0.7, vector=0.88, attention=0.32),
               "hopper": Reach(half=0.575, vector=0.745, attention=0.19)},
        error={"ampere": 0.058, "hopper": 0.044},
        sources=(
            "ampere, hopper: fitted to 53 published runs on A100 and H100 (mosaicml/llm-foundry)",
            "launch: x.add_(1) on the host of an H100 (benchmarks/results/gpu_h100.md)",
        ),
    ),
)}
PLAIN = "torch-eager-fsdp"


def find_stack(name: str) -> Stack:
    """Return the software stack with a name. Raises VirtualGpuError if there is none."""
    stack = STACKS.get(name.strip().lower())
    if stack is None:
        near = difflib.get_close_matches(name.lower(), STACKS, n=1, cutoff=0.0)[0]
        raise VirtualGpuError(f"no software stack is called {name!r}; nearest: {near}. "
                              f"All: {', '.join(STACKS)}")
    return stack


def usual(card: Card) -> str:
    """Return the name of the Megatron-LM of a GPU model's time."""
    return "megatron-core" if card.architecture in MODERN else "megatron-2021"


def card_under(name: str, stack: str) -> Card:
    """Return the GPU model with a name, under the software stack with a name, if that is not
    empty. Raises VirtualGpuError if there is none."""
    card = cards.find(name)
    return under(card, find_stack(stack)) if stack else card


@cache
def under(card: Card, stack: Stack) -> Card:
    """Return a GPU model with what training runs reach on it.

    Args:
        card: the GPU model, as cards.find returns it.
        stack: the software.
    """
    best, reach = card.efficiency, stack.reach.get(card.architecture, Reach())
    matmul = dict(best.matmul)
    if reach.half:
        matmul |= {dtype: share * reach.half / best.matmul["bf16"]
                   for dtype, share in matmul.items() if dtype in NARROWER}
        matmul |= {dtype: reach.half for dtype in HALF if dtype in matmul}
    return replace(card, stack=stack.name, efficiency=replace(
        best, matmul=matmul, vector=reach.vector or best.vector,
        attention=reach.attention or best.attention, dispatch=stack.dispatch, step=stack.step,
        fused=stack.attention))


def describe(card: Card) -> str:
    """Return what the software stack of a GPU model stands for, and how large the error of modeled
    step times is expected to be."""
    if not card.stack:
        return "none; what single kernels reach in short runs"
    stack = STACKS[card.stack]
    error = stack.error.get(card.architecture)
    known = (f"published step times on {card.architecture.capitalize()} GPUs were predicted with a "
             f"mean error of {error:.0%}" if error is not None else
             f"no published step times on {card.architecture.capitalize()} GPUs were compared")
    return f"{stack.name} ({stack.summary}); {known}"
