"""Software stacks: the efficiency that training software achieves on a GPU.

A GPU model has the efficiency of single kernels in short runs. Training runs achieve less,
and how much less depends on the software: on clocks that drop under the power limit after minutes
of GEMMs, on how well elementwise kernels are fused, on the version of the attention kernels, and on
the host's overhead per launch and per step. The last holds on every GPU. The others were fitted to
runs on certain GPU models and hold on these alone: an A10 has the A100's architecture, but 150 W
instead of 400.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from virtualgpu.core import accuracy, cards
from virtualgpu.core.card import CUDNN, FLASH, Card
from virtualgpu.core.errors import VirtualGpuError

HALF, NARROWER = ("fp16", "bf16"), ("fp8", "fp4")
MEGATRON_CORE = ("hopper", "blackwell")  # architectures that Megatron Core is the default for


@dataclass(frozen=True)
class StackEfficiency:
    """Efficiency of training runs on one GPU model; None where the model's own applies.

    Attributes:
        half: share of the 16-bit peak that large GEMMs achieve. Those in FP8 and FP4 lose as much
            to dropping clocks, so their shares shrink in proportion.
        vector: share of the memory bandwidth that elementwise kernels achieve.
        attention: share of the peak that fused attention achieves (Efficiency.attention).
    """

    half: float | None = None
    vector: float | None = None
    attention: float | None = None


@dataclass(frozen=True, eq=False)  # hashable, by identity
class SoftwareStack:
    """A software stack.

    Attributes:
        name: its name on the command line.
        summary: one line of description.
        attention: its fused attention kernel, for programs that leave the choice open.
        dispatch: time that the host takes to launch a kernel, in seconds.
        step: host time per training step during which the GPU is idle, in seconds.
        eager_loading: whether all kernels are loaded at startup, which needs more memory: without
            CUDA 11.7 and its lazy loading, which PyTorch uses since 1.13.
        efficiency: efficiency by GPU model (Card.name); other GPUs have that of their own file.
        sources: where the figures come from, and which were fitted.
        pace: seconds from one kernel to the next if the host does not run ahead of the GPU
            (Efficiency.pace).
    """

    name: str
    summary: str
    attention: str
    dispatch: float
    step: float
    eager_loading: bool
    efficiency: Mapping[str, StackEfficiency]
    sources: tuple[str, ...]
    pace: float = 0.0


# GPU models with the same chip and the same power limit, of which the first was fitted to.
A100, H100 = ("a100-80gb", "a100-40gb"), ("h100-80gb", "h200")
MEGATRON_A100 = StackEfficiency(half=0.78, vector=0.68)
EAGER_A100 = StackEfficiency(half=0.7, vector=0.88)
EAGER_H100 = StackEfficiency(half=0.575, vector=0.745)
LAUNCH = "launch: x.add_(1) on the host of an H100 (benchmarks/results/gpu_h100.md)"
STACKS: dict[str, SoftwareStack] = {stack.name: stack for stack in (
    SoftwareStack(
        "megatron-2021", "Megatron-LM of 2021",
        attention=FLASH, dispatch=5e-6, step=0.0, eager_loading=True,
        efficiency=dict.fromkeys(A100, MEGATRON_A100),
        sources=(
            "A100: fitted to 28 of vTrain's measured iterations on 64 to 512 A100 "
            "(VIA-Research/vTrain)",
            "loading: PyTorch 1.8 to 1.10 of its time have CUDA 10.2 to 11.3",
        ),
    ),
    SoftwareStack(
        "megatron-deepspeed", "Megatron-DeepSpeed of 2021 and 2022",
        attention=FLASH, dispatch=42e-6, step=0.0, pace=27e-6, eager_loading=True,
        efficiency=dict.fromkeys(A100, MEGATRON_A100),
        sources=(
            "A100: as in megatron-2021",
            "dispatch, pace: fitted to 720 of vTrain's measured iterations on 2 to 8 A100 "
            "(benchmarks/virtual_calibration.py)",
            "loading: as in megatron-2021",
        ),
    ),
    SoftwareStack(
        "megatron-core", "Megatron Core in bf16, without Transformer Engine",
        attention=CUDNN, dispatch=5e-6, step=0.01, eager_loading=False,
        efficiency={**dict.fromkeys(A100, MEGATRON_A100),
                    **dict.fromkeys(H100, StackEfficiency(half=0.75, vector=0.78))},
        sources=(
            "H100: fitted to nine runs of this trainer (benchmarks/results/gpu_h100.md), whose "
            "mean error is then 3%",
            "A100: as in megatron-2021",
        ),
    ),
    SoftwareStack(
        "transformer-engine", "Megatron Core with Transformer Engine in bf16",
        attention=CUDNN, dispatch=5e-6, step=0.0, eager_loading=False,
        efficiency={**dict.fromkeys(A100, MEGATRON_A100),
                    **dict.fromkeys(H100, StackEfficiency(half=0.76, vector=0.82))},
        sources=(
            "H100: chosen with NVIDIA's published step times of GPT-3 175B in view "
            "(NVIDIA/dgxc-benchmarking), three of which calibrate",
            "A100: as in megatron-2021",
        ),
    ),
    SoftwareStack(
        "composer-2023", "Composer's FSDP of 2023, with the first FlashAttention",
        attention=FLASH, dispatch=7.5e-6, step=0.0, eager_loading=False,
        efficiency={**dict.fromkeys(A100, replace(EAGER_A100, attention=0.32)),
                    **dict.fromkeys(H100, replace(EAGER_H100, attention=0.19))},
        sources=(
            "A100, H100: fitted to 53 published runs on A100 and H100 (mosaicml/llm-foundry), "
            "whose script chooses PyTorch 1.13 and FlashAttention's first Triton kernels",
            "loading: github.com/pytorch/pytorch pull request 86509, for PyTorch 1.13",
            LAUNCH,
        ),
    ),
    SoftwareStack(
        "torch-eager-fsdp", "plain PyTorch",
        attention=FLASH, dispatch=7.5e-6, step=0.0, eager_loading=False,
        efficiency={**dict.fromkeys(A100, EAGER_A100), **dict.fromkeys(H100, EAGER_H100)},
        sources=(
            "A100, H100: half and vector as fitted in composer-2023; attention is PyTorch's "
            "own since 2.2, FlashAttention-2, as in the GPU model",
            LAUNCH,
        ),
    ),
)}
DEFAULT = "torch-eager-fsdp"  # for programs that are not Megatron-LM


def find_stack(name: str) -> SoftwareStack:
    """Return the software stack with a name. Raises VirtualGpuError if there is none."""
    stack = STACKS.get(name.strip().lower())
    if stack is None:
        near = difflib.get_close_matches(name.lower(), STACKS, n=1, cutoff=0.0)[0]
        raise VirtualGpuError(f"no software stack is called {name!r}; nearest: {near}. "
                              f"All: {', '.join(STACKS)}")
    return stack


def default_megatron(card: Card) -> str:
    """Return the name of the Megatron-LM version that matches a GPU model's generation."""
    return "megatron-core" if card.architecture in MEGATRON_CORE else "megatron-2021"


def under_megatron(card: Card, stack: str | None = None) -> Card:
    """Return a GPU model under the named software stack or, if it is empty or None, under the
    Megatron-LM of the GPU's time. Raises VirtualGpuError for an unknown name."""
    return under(card, find_stack(stack or default_megatron(card)))


def card_under(name: str, stack: str) -> Card:
    """Return the named GPU model with the efficiency of the named software stack, unless that is
    empty. Raises VirtualGpuError for an unknown name."""
    card = cards.find(name)
    return under(card, find_stack(stack)) if stack else card


@cache
def under(card: Card, stack: SoftwareStack) -> Card:
    """Return a GPU model with the efficiency of a software stack.

    Args:
        card: the GPU model, as cards.find returns it.
    """
    single, training = card.efficiency, stack.efficiency.get(card.name, StackEfficiency())
    matmul = dict(single.matmul)
    if training.half:
        matmul |= {dtype: share * training.half / single.matmul["bf16"]
                   for dtype, share in matmul.items() if dtype in NARROWER}
        matmul |= {dtype: training.half for dtype in HALF if dtype in matmul}
    full = stack.eager_loading and card.full_context
    return replace(card, stack=stack.name, context=full or card.context, efficiency=replace(
        single, matmul=matmul, vector=training.vector or single.vector,
        attention=training.attention or single.attention, dispatch=stack.dispatch, step=stack.step,
        pace=stack.pace, fused=stack.attention))


def describe(card: Card) -> str:
    """Return a description of a GPU model's software stack and of its expected modeling error."""
    if not card.stack:
        return "none; the efficiency of single kernels in short runs"
    stack = STACKS[card.stack]
    return f"{stack.name} ({stack.summary}); {accuracy.describe(card)}"
