"""What must hold between the flags of a pipeline. Wording in front is Megatron-LM's.

A schedule's file is only named here: reading it may run it, and the parser runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from minimegatron.arguments.flags import Config
from minimegatron.arguments.layout import parse_layout, spread
from minimegatron.arguments.require import near_divisors, near_multiples, require
from minimegatron.arguments.table.flag import alternatives, spelled
from minimegatron.errors import UserError
from pipeline_schedules import ScheduleError, load

FEW = 1000  # layers that are added or taken one by one


def derive_pipeline(config: Config) -> Config:
    """Fill in the layers of every chunk and the name of the schedule."""
    ways = ways_said(vars(config))
    require(len(ways) < 2, f"{' and '.join(ways)}: each says how layers are dealt out; nearest: "
            f"{ways[-1] if ways else ''} alone")
    config = replace(config, layers_per_chunk=deal_out(config))
    return replace(config, schedule=choose_schedule(config))


def ways_said(flags: Mapping[str, object]) -> list[str]:
    """Those of `flags` (by name) that say how layers are dealt out, as one writes them."""
    return [f"{spelled(name)} {flags[name]}" for name in alternatives(Config)["layers_per_chunk"]
            if flags.get(name) is not None]


def deal_out(config: Config) -> tuple[int, ...]:
    """Layers of every virtual stage, in the model's order."""
    stages = config.pipeline_model_parallel_size
    if config.pipeline_model_parallel_layout is not None:
        return parse_layout(config.pipeline_model_parallel_layout, config.num_layers, stages)
    if config.balance is not None:
        return parse_balance(config)
    whole = even_split(config)
    size = config.num_layers_per_virtual_pipeline_stage
    if size is None:
        return (whole,) * stages
    check_chunks(config, size, whole)
    return (size,) * (config.num_layers // size)


def even_split(config: Config) -> int:
    layers, stages = config.num_layers, config.pipeline_model_parallel_size
    require(layers % stages == 0,
            f"num_layers ({layers}) must be divisible by pipeline_model_parallel_size ({stages}); "
            f"nearest: --num-layers {near_multiples(layers, stages)}, or --balance "
            f"{dashes(spread(layers, stages))}")
    return layers // stages


def parse_balance(config: Config) -> tuple[int, ...]:
    """--balance as numbers, which fit the stages and the layers."""
    text, layers, stages = config.balance, config.num_layers, config.pipeline_model_parallel_size
    even = dashes(spread(layers, stages))
    require(bool(re.fullmatch(r"[0-9]{1,6}(-[0-9]{1,6})*", text)),
            f"--balance {text}: give the layers of every stage joined by dashes; nearest: "
            f"--balance {even}")
    split = tuple(map(int, text.split("-")))
    require(len(split) == stages,
            f"--balance {text} is for {len(split)} stage(s), but --pipeline-model-parallel-size is "
            f"{stages}; nearest: --balance {even}")
    require(sum(split) == layers,
            f"--balance {text} adds up to {sum(split)} layers, but --num-layers is {layers}; "
            f"nearest: --balance {dashes(adjusted(split, layers))}")
    require(0 not in split[1:-1],
            f"--balance {text}: only the first stage (embedding alone) and the last one (head "
            f"alone) may have no layer; nearest: --balance {even}")
    return split


def check_chunks(config: Config, size: int, whole: int) -> None:
    """Chunks of `size` layers in stages of `whole`."""
    flag, stages = f"--num-layers-per-virtual-pipeline-stage {size}", config.num_layers // whole
    require(stages > 1, f"{flag} deals layers out to several stages; nearest: "
            "--pipeline-model-parallel-size 2")
    require(whole % size == 0, f"number of layers is not divisible by number of layers per virtual "
            f"pipeline stage: {flag} with {whole} layers per stage; nearest: "
            f"{near_divisors(size, whole)}")
    require(size < whole, f"{flag} is the whole stage: there is nothing to interleave; nearest: "
            + (f"{near_divisors(size, whole)}" if whole > 1 else
               f"--num-layers {2 * stages}"))


def choose_schedule(config: Config) -> str:
    """The schedule's name or file. Raises UserError for a name that is none, or that does not
    know chunks."""
    name = config.schedule or ("1f1b" if config.chunks == 1 else "interleaved")
    stages, batches = config.pipeline_model_parallel_size, config.num_micro_batches
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
    return name


def adjusted(split: tuple[int, ...], layers: int) -> list[int]:
    """`split` with layers added where few are, or taken where many are, until they add up."""
    near = list(split)
    if abs(sum(near) - layers) > FEW:
        return spread(layers, len(near))
    while sum(near) < layers:
        near[near.index(min(number or layers for number in near)) if any(near) else 0] += 1
    while sum(near) > layers:
        near[near.index(max(near))] -= 1
    return near


def dashes(split: list[int]) -> str:
    return "-".join(map(str, split))
