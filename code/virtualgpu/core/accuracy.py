"""How far off modeled figures were on published results that were not used for fitting.

Everything that states an error takes it from here, and tests/accuracy recomputes these figures from
benchmarks/results/virtual_accuracy.json. docs/virtual-gpus.md has the comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from virtualgpu.core.card import Card


class MeanError(NamedTuple):
    """The mean relative error on published runs, and their number."""

    error: float
    runs: int

    def __str__(self) -> str:
        return f"{self.error:.0%} ({self.runs} run{'s' * (self.runs != 1)})"


# Errors of a training step's time, by software stack (stacks.py) and GPU model.
TIME: Mapping[str, Mapping[str, MeanError]] = {
    "megatron-2021": {"a10": MeanError(0.052, 1), "a100-80gb": MeanError(0.04, 18),
                      "v100-sxm2-16gb": MeanError(0.068, 1)},
    "megatron-deepspeed": {"a100-80gb": MeanError(0.093, 67)},
    "transformer-engine": {"h100-80gb": MeanError(0.095, 23)},
    "composer-2023": {"a100-40gb": MeanError(0.029, 19), "a100-80gb": MeanError(0.071, 16),
                      "h100-80gb": MeanError(0.028, 17)},
    "torch-eager-fsdp": {"a100-80gb": MeanError(0.04, 22), "h100-80gb": MeanError(0.056, 7),
                         "h200": MeanError(0.092, 1), "rtx3090": MeanError(0.095, 23)},
}
# Those of programs whose every layer is compiled, by GPU model; they are not in TIME.
COMPILED: Mapping[str, MeanError] = {
    "h100-80gb": MeanError(0.151, 8), "h200": MeanError(0.168, 5)}
# Errors of a training run's peak memory, by GPU model.
MEMORY: Mapping[str, MeanError] = {
    "a10": MeanError(0.032, 1), "a100-80gb": MeanError(0.05, 22), "h100-80gb": MeanError(0.056, 10),
    "h200": MeanError(0.062, 6), "v100-sxm2-16gb": MeanError(0.092, 1)}

# Errors of the time per output token of eager inference, by GPU model
# (benchmarks/results/inference.md).
DECODING: Mapping[str, MeanError] = {
    "a100-80gb": MeanError(0.134, 1), "h100-80gb": MeanError(0.24, 6), "l4": MeanError(0.085, 1),
    "t4": MeanError(0.099, 3)}

# Largest relative error of the memory that a program's own tensors allocate, by GPU model: in fp32
# runs of the trainer. In 16 bits, it was 0.01% (docs/virtual-gpus.md, "Compared with a real H100").
ALLOCATED: Mapping[str, float] = {"h100-80gb": 0.033}


def expected_error(cards: Iterable[Card]) -> float | None:
    """Return the mean relative error of modeled step times on published results.

    Args:
        cards: GPU models under their software stacks; the largest error counts.

    Returns:
        The error, or None if there is no published run on one of the GPU models.
    """
    return _largest(TIME.get(card.stack, {}).get(card.name) for card in cards)


def memory_error(cards: Iterable[Card]) -> float | None:
    """Return the mean relative error of modeled peak memory; otherwise as expected_error."""
    return _largest(MEMORY.get(card.name) for card in cards)


def _largest(errors: Iterable[MeanError | None]) -> float | None:
    found = list(errors)
    return None if None in found else max(one.error for one in found)


def allocated_error(card: Card) -> float | None:
    """Return the largest relative error of the memory that a program's own tensors allocate.

    Returns:
        The error, or None if it was not measured on this GPU model.
    """
    return ALLOCATED.get(card.name)


def margin(error: float | None) -> str:
    """Return an expected error in a few words."""
    return "error unknown" if error is None else f"mean error {error:.0%}"


def describe_compiled(card: Card) -> str:
    """Return a phrase about the error on published steps of compiled programs on a GPU model."""
    found = COMPILED.get(card.name)
    if found is None:
        return f"no published compiled step on {card.name} to compare with"
    return f"mean error on published compiled steps on {card.name}: {found}"


def describe(card: Card) -> str:
    """Return a phrase about the errors on published runs of a GPU model under its stack."""
    time, memory = TIME.get(card.stack, {}).get(card.name), MEMORY.get(card.name)
    if time is None and memory is None:
        return f"no published run on {card.name} to compare with"
    errors = [f"{what} {found}" for what, found in (("step time", time), ("peak memory", memory))
              if found is not None]
    unknown = "" if time else "; no step time to compare with"
    return f"mean error on published runs on {card.name}: {', '.join(errors)}{unknown}"
