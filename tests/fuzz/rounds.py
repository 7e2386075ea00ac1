"""Runs a target on many seeds, and remembers what should not have happened."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.fuzz.targets import TARGETS

SLOWEST = 2.0  # seconds of processor time for one input


@dataclass
class Found:
    """`bugs`: by kind and place, the first seed and what it did."""

    inputs: int = 0
    refused: int = 0
    slowest: float = 0.0
    bugs: dict[str, tuple[int, str]] = field(default_factory=dict)


def fuzz(name: str, seeds: Iterable[int]) -> Found:
    target, result = TARGETS[name], Found()
    for seed in seeds:
        value = target.make(seed)
        begun = time.process_time()
        result.inputs += 1
        try:
            target.run(value)
        except target.declared as error:
            result.refused += 1
            if not str(error):
                result.bugs.setdefault("an error without a word", (seed, repr(error)))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {place.filename}:{place.lineno}"
            result.bugs.setdefault(kind, (seed, "".join(traceback.format_exception(error))[-1500:]))
        seconds = time.process_time() - begun
        result.slowest = max(result.slowest, seconds)
        if seconds > SLOWEST:
            result.bugs.setdefault("too slow", (seed, f"{seconds:.1f} s"))
    return result
