"""The flags of a pipeline: which layers each stage has, and in which order it works.

A schedule's file is only named here: reading it may run it, and the parser runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from minimegatron.arguments.flags import Config
from minimegatron.arguments.require import near_multiples, require
from minimegatron.arguments.table.flag import alternatives, spelled
from minimegatron.errors import UserError
from pipeline_schedules import ScheduleError, load


def derive_pipeline(config: Config) -> Config:
    """Fill in the layers of every chunk and the name of the schedule."""
    split = split_flags(vars(config))
    require(len(split) < 2, f"{' and '.join(split)}: each assigns the layers to stages; nearest: "
            f"{split[-1] if split else ''} alone")
    config = replace(config, layers_per_chunk=split_layers(config))
    return replace(config, schedule=choose_schedule(config))


def split_flags(flags: Mapping[str, object]) -> list[str]:
    """Return the flags that assign layers to stages, as written on the command line.

    Args:
        flags: values by field name; None for a flag that is not given.
    """
    return [f"{spelled(name)} {flags[name]}" for name in alternatives(Config)["layers_per_chunk"]
            if flags.get(name) is not None]


def split_layers(config: Config) -> tuple[int, ...]:
    """Return the number of layers of every virtual stage, in the order of the model."""
    layers, stages = config.num_layers, config.pipeline_model_parallel_size
    if not split_flags(vars(config)) and layers % stages == 0:
        return (layers // stages,) * stages
    from minimegatron.arguments import uneven

    return uneven.split_layers(config)


def choose_schedule(config: Config) -> str:
    """Return the schedule's name or file.

    Raises:
        UserError: there is no such schedule, or it does not fit the micro-batches or the chunks.
    """
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
