"""--pipeline-model-parallel-layout: a string that describes every (virtual) stage.

    E|(t|)*3,tt|L

E is the embedding, t a transformer layer, and L the output layer with the loss. | ends a stage, *n
repeats the letter or the parentheses before it, and commas and spaces are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from minimegatron.arguments.require import near_multiples, require
from pipeline_schedules import empty_stage

FLAG = "--pipeline-model-parallel-layout"
REPEATED = re.compile(r"\(([^()*]*)\)(?:\*([0-9]{1,6}))?|([EtL|])\*([0-9]{1,6})")
MAX_LENGTH = 10_000  # characters of a layout written out


def parse_layout(text: str, layers: int, stages: int) -> tuple[int, ...]:
    """Return the number of layers of every virtual stage, in the order of the model.

    Args:
        text: the layout.
        layers: the model's number of layers.
        stages: pipeline stages; a layout with a multiple of them is interleaved.

    Raises:
        UserError: the layout does not fit; it names the nearest one that does.
    """
    near = f"nearest: {FLAG} '{write_layout(even_split(layers, stages))}'"
    given = f"{FLAG} {text!r}"
    require("m" not in text, f"{given}: this trainer has no m (multi-token prediction) layers; "
            f"{near}")
    written_out = write_out(re.sub(r"[,\s]", "", text))
    require(written_out is not None and not set(written_out) - set("EtL|"),
            f"{given}: give E, t, and L, with | between stages, *n, and parentheses; {near}")
    parts = written_out.split("|")
    require(stages > 1 or len(parts) == 1,
            f"{given} has {len(parts)} stages, but --pipeline-model-parallel-size is 1; nearest: "
            f"--pipeline-model-parallel-size {len(parts)}")
    require(len(parts) % stages == 0,
            f"{given} has {len(parts)} stages, which is not divisible by "
            f"--pipeline-model-parallel-size {stages}; nearest: "
            f"{near_multiples(len(parts), stages)} stages, such as "
            f"'{write_layout(even_split(layers, stages))}'")
    require(re.fullmatch(r"E[t|]*L", written_out) is not None,
            f"{given}: one E (embedding) begins the first stage, and one L (loss) ends the last; "
            f"{near}")
    require(written_out.count("t") == layers,
            f"{given} has {written_out.count('t')} layers, but --num-layers is {layers}; {near}")
    split = tuple(part.count("t") for part in parts)
    empty = empty_stage([sum(split[stage::stages]) for stage in range(stages)])
    require(empty is None, f"{given}: stage {empty} would be empty; {near}")
    return split


def write_out(text: str) -> str | None:
    """Return the layout without repetitions, or None if that would be too long."""
    while match := REPEATED.search(text):
        inside, times = match[1] if match[3] is None else match[3], match[2] or match[4] or "1"
        if len(text) + len(inside) * int(times) > MAX_LENGTH:
            return None
        text = text[:match.start()] + inside * int(times) + text[match.end():]
    return text


def write_layout(split: Sequence[int]) -> str:
    """Return the layout of stages with these numbers of layers."""
    return "E" + "|".join("t" if n == 1 else f"t*{n}" if n else "" for n in split) + "L"


def even_split(layers: int, stages: int) -> list[int]:
    """Return the most even split of the layers; the first stages have one more."""
    return [layers // stages + (stage < layers % stages) for stage in range(stages)]
