"""--pipeline-model-parallel-layout: what every (virtual) stage holds, as a text.

    E|(t|)*3,tt|L

E embedding, t a transformer layer, L the loss with the output matrix; | ends a stage, *n repeats
the letter or the brackets before it, commas and blanks mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from minimegatron.arguments.require import near_multiples, require

FLAG = "--pipeline-model-parallel-layout"
REPEATED = re.compile(r"\(([^()*]*)\)(?:\*([0-9]{1,6}))?|([EtL|])\*([0-9]{1,6})")
LONGEST = 10_000  # characters of a layout written out


def parse_layout(text: str, layers: int, stages: int) -> tuple[int, ...]:
    """Layers of every virtual stage, in the model's order; several per stage is interleaving.

    Raises UserError, with the nearest layout that `stages` stages and `layers` layers allow.
    """
    near = f"nearest: {FLAG} '{write_layout(spread(layers, stages))}'"
    told = f"{FLAG} {text!r}"
    require("m" not in text, f"{told}: this trainer has no m (multi-token prediction) layers; "
            f"{near}")
    plain = write_out(re.sub(r"[,\s]", "", text))
    require(plain is not None and not set(plain) - set("EtL|"),
            f"{told}: give E, t and L with | between stages, *n and brackets; {near}")
    parts = plain.split("|")
    require(stages > 1 or len(parts) == 1,
            f"{told} has {len(parts)} stages, but --pipeline-model-parallel-size is 1; nearest: "
            f"--pipeline-model-parallel-size {len(parts)}")
    require(len(parts) % stages == 0,
            f"{told} has {len(parts)} stages, which is not divisible by "
            f"--pipeline-model-parallel-size {stages}; nearest: "
            f"{near_multiples(len(parts), stages)} stages, such as "
            f"'{write_layout(spread(layers, stages))}'")
    require(re.fullmatch(r"E[t|]*L", plain) is not None,
            f"{told}: one E (embedding) begins the first stage, and one L (loss) ends the last; "
            f"{near}")
    require(plain.count("t") == layers,
            f"{told} has {plain.count('t')} layers, but --num-layers is {layers}; {near}")
    split = tuple(part.count("t") for part in parts)
    empty = next((stage for stage in range(1, stages - 1) if not any(split[stage::stages])), None)
    require(empty is None, f"{told}: stage {empty} would hold nothing at all; {near}")
    return split


def write_out(text: str) -> str | None:
    """The layout without repetitions; None for one that is too long."""
    while match := REPEATED.search(text):
        inside, times = match[1] if match[3] is None else match[3], match[2] or match[4] or "1"
        if len(text) + len(inside) * int(times) > LONGEST:
            return None
        text = text[:match.start()] + inside * int(times) + text[match.end():]
    return text


def write_layout(split: Sequence[int]) -> str:
    return "E" + "|".join("t" if n == 1 else f"t*{n}" if n else "" for n in split) + "L"


def spread(layers: int, stages: int) -> list[int]:
    """As even as can be; the first stages have one more."""
    return [layers // stages + (stage < layers % stages) for stage in range(stages)]
