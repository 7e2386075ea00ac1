"""Which layers every (virtual) stage has, and which schedules fit them.

--pipeline-model-parallel-layout describes the stages by a string:

    E|(t|)*3,tt|L

E is the embedding, t a transformer layer, and L the output layer with the loss. | ends a stage, *n
repeats the letter or the parentheses before it, and commas and spaces are ignored.

A schedule's file is only named here: reading it may run it, and the parser runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from minimegatron.arguments.flag import alternatives, spelled
from minimegatron.arguments.table import Config
from minimegatron.errors import UserError, near_divisors, near_multiples, require
from pipeline_schedules import V_SHAPED, ScheduleError, empty_stage, load

LAYOUT = "--pipeline-model-parallel-layout"
REPEATED = re.compile(r"\(([^()*]*)\)(?:\*([0-9]{1,6}))?|([EtL|])\*([0-9]{1,6})")
MAX_LENGTH = 10_000  # characters of a layout written out
LARGEST_FIX = 1000  # layers that are added or removed one by one, to suggest a split


def split_layers(config: Config) -> tuple[int, ...]:
    """Return the number of layers of every virtual stage, in the order of the model.

    Raises:
        UserError: the layers do not fit the stages; it names the nearest split that does.
    """
    given = split_flags(vars(config))
    require(len(given) < 2, f"{' and '.join(given)}: each assigns the layers to stages; nearest: "
            f"{given[-1] if given else ''} alone")
    layers, stages = config.num_layers, config.pipeline_model_parallel_size
    if config.pipeline_model_parallel_layout is not None:
        return parse_layout(config.pipeline_model_parallel_layout, layers, stages)
    if config.balance is not None:
        return parse_balance(config)
    require(layers % stages == 0,
            f"num_layers ({layers}) must be divisible by pipeline_model_parallel_size ({stages}); "
            f"nearest: --num-layers {near_multiples(layers, stages)}, or --balance "
            f"{dashes(even_split(layers, stages))}")
    size = config.num_layers_per_virtual_pipeline_stage
    if size is None:
        return (layers // stages,) * stages
    check_chunks(config, size, layers // stages)
    return (size,) * (layers // size)


def split_flags(flags: Mapping[str, object]) -> list[str]:
    """Return the flags that assign layers to stages, as written on the command line.

    Args:
        flags: values by field name; None for a flag that is not given.
    """
    return [f"{spelled(name)} {flags[name]}" for name in alternatives(Config)["layers_per_chunk"]
            if flags.get(name) is not None]


def check_schedule(config: Config, name: str) -> None:
    """Raise UserError if there is no such schedule, or if it does not fit the micro-batches or the
    chunks."""
    stages, batches = config.pipeline_model_parallel_size, config.num_micro_batches
    require(name not in V_SHAPED,
            f"--schedule {name} places its chunks in a V, which the trainer does not support; "
            "nearest: --schedule zb-h1")
    require(name != "interleaved" or config.chunks > 1,
            "--schedule interleaved needs --num-layers-per-virtual-pipeline-stage, smaller than a "
            f"stage's {config.layers_per_chunk[0]} layer(s); nearest: --schedule 1f1b")
    per_step = stages * config.micro_batch_size * config.data_parallel_size
    require(name != "interleaved" or batches % stages == 0,
            f"number of microbatches ({batches}) is not divisible by pipeline-parallel size "
            f"({stages}) when using interleaved schedule; nearest: --global-batch-size "
            f"{near_multiples(config.global_batch_size, per_step)}")
    if Path(name).suffix not in (".py", ".json"):
        try:
            load(name, 1, 1, config.chunks)  # what can be wrong with a name depends on no size
        except ScheduleError as error:
            raise UserError(str(error)) from error


def parse_balance(config: Config) -> tuple[int, ...]:
    """Return --balance as numbers. Raises UserError if they do not fit the stages and layers."""
    text, layers, stages = config.balance, config.num_layers, config.pipeline_model_parallel_size
    even = dashes(even_split(layers, stages))
    require(bool(re.fullmatch(r"[0-9]{1,6}(-[0-9]{1,6})*", text)),
            f"--balance {text}: give the layers of every stage joined by dashes; nearest: "
            f"--balance {even}")
    split = tuple(map(int, text.split("-")))
    require(len(split) == stages,
            f"--balance {text} is for {len(split)} stage(s), but --pipeline-model-parallel-size is "
            f"{stages}; nearest: --balance {even}")
    require(sum(split) == layers,
            f"--balance {text} adds up to {sum(split)} layers, but --num-layers is {layers}; "
            f"nearest: --balance {dashes(nearest_split(split, layers))}")
    require(empty_stage(split) is None,
            f"--balance {text}: only the first stage (embedding alone) and the last one (head "
            f"alone) may have no layer; nearest: --balance {even}")
    return split


def check_chunks(config: Config, size: int, per_stage: int) -> None:
    """Refuse chunks of `size` layers that do not divide the layers of a stage."""
    flag, stages = f"--num-layers-per-virtual-pipeline-stage {size}", config.num_layers // per_stage
    require(stages > 1, f"{flag} divides the layers of several stages; nearest: "
            "--pipeline-model-parallel-size 2")
    require(per_stage % size == 0, "number of layers is not divisible by number of layers per "
            f"virtual pipeline stage: {flag} with {per_stage} layers per stage; nearest: "
            f"{near_divisors(size, per_stage)}")
    require(size < per_stage,
            f"{flag} is the whole stage: there is nothing to interleave; nearest: "
            + (f"{near_divisors(size, per_stage)}" if per_stage > 1 else
               f"--num-layers {2 * stages}"))


def nearest_split(split: tuple[int, ...], layers: int) -> list[int]:
    """Return `split` with layers added to short stages or taken from long ones until they fit."""
    near = list(split)
    if abs(sum(near) - layers) > LARGEST_FIX:
        return even_split(layers, len(near))
    while sum(near) < layers:
        near[near.index(min(number or layers for number in near)) if any(near) else 0] += 1
    while sum(near) > layers:
        near[near.index(max(near))] -= 1
    return near


def dashes(split: list[int]) -> str:
    return "-".join(map(str, split))


def parse_layout(text: str, layers: int, stages: int) -> tuple[int, ...]:
    """Return the number of layers of every virtual stage, in the order of the model.

    Args:
        text: the layout.
        layers: the model's number of layers.
        stages: pipeline stages; a layout with a multiple of them is interleaved.

    Raises:
        UserError: the layout does not fit; it names the nearest one that does.
    """
    near = f"nearest: {LAYOUT} '{write_layout(even_split(layers, stages))}'"
    given = f"{LAYOUT} {text!r}"
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
