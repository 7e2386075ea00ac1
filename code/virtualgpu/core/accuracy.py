"""How far off modeled figures were on published results that were not used for fitting.

Everything that states an error takes it from here, and tests/accuracy recomputes these figures from
benchmarks/results/virtual_accuracy.json. docs/virtual-gpus.md has the comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from virtualgpu.core.card import Card

# Mean relative error of a training step's time, by software stack (stacks.py) and architecture.
TIME: Mapping[str, Mapping[str, float]] = {
    "megatron-2021": {"ampere": 0.04, "volta": 0.074},
    "megatron-deepspeed": {"ampere": 0.093},
    "transformer-engine": {"hopper": 0.058},
    "composer-2023": {"ampere": 0.049, "hopper": 0.028},
    "torch-eager-fsdp": {"ampere": 0.03, "hopper": 0.056},
}
# Mean relative error of a training run's peak memory, by architecture.
MEMORY: Mapping[str, float] = {"ampere": 0.05, "hopper": 0.043, "volta": 0.092}

# Largest relative error of the memory that a program's own tensors allocate, on an H100: in fp32
# runs of the trainer. In 16 bits, it was 0.01% (docs/virtual-gpus.md, "Compared with a real H100").
ALLOCATED = 0.033


def expected_error(cards: Iterable[Card]) -> float | None:
    """Return the mean relative error of modeled step times on published results.

    Args:
        cards: GPU models under their software stacks; the largest error counts.

    Returns:
        The error, or None if a GPU model's generation was not compared.
    """
    return _largest(TIME.get(card.stack, {}).get(card.architecture) for card in cards)


def memory_error(cards: Iterable[Card]) -> float | None:
    """Return the mean relative error of modeled peak memory; otherwise as expected_error."""
    return _largest(MEMORY.get(card.architecture) for card in cards)


def _largest(errors: Iterable[float | None]) -> float | None:
    found = list(errors)
    return None if None in found else max(found)


def margin(error: float | None) -> str:
    """Return an expected error in a few words."""
    return "error unknown" if error is None else f"mean error {error:.0%}"


def describe(card: Card) -> str:
    """Return a phrase about the expected errors of a GPU model under its software stack."""
    gpus = f"on {card.architecture.capitalize()} GPUs"
    time, memory = expected_error([card]), memory_error([card])
    if time is None:
        said = f"no published step times {gpus} were compared"
        return said if memory is None else (
            f"{said}; published peak memory was predicted with a mean error of {memory:.0%}")
    said = f"published step times {gpus} were predicted with a mean error of {time:.0%}"
    return said if memory is None else f"{said}, and peak memory with {memory:.0%}"
