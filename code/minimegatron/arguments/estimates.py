"""The flags of --estimate, which trains nothing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from minimegatron.arguments.checks import check
from minimegatron.arguments.flags import Config
from minimegatron.arguments.parse import parse_arguments, parse_unchecked
from minimegatron.arguments.table.flag import table_of
from minimegatron.arguments.table.planning import Planning
from minimegatron.errors import UserError


@dataclasses.dataclass(frozen=True)
class EstimateConfig(Planning, Config):
    """The command line of pretrain_gpt.py: the trainer's flags, and those of --estimate."""


def parse_estimate(argv: Sequence[str]) -> EstimateConfig:
    """Parse and check a command line with --estimate. Raises UserError."""
    config = complete_for_estimate(parse_unchecked(argv, require_all=True, config=EstimateConfig))
    return check(config, rank=0, world_size=config.world_size)


def parse_command_line(argv: Sequence[str], env: Mapping[str, str]) -> EstimateConfig:
    """Parse and check a command line of pretrain_gpt.py, with or without --estimate.

    `env` has the rank and the world size (RANK, WORLD_SIZE). Raises UserError.
    """
    if "--estimate" in argv:
        return parse_estimate(argv)
    return parse_arguments(argv, env, EstimateConfig)


def complete_for_estimate(config: EstimateConfig) -> EstimateConfig:
    """Fill in the flags that training needs and an estimate does not, and check its own flags.

    Raises:
        UserError: a flag of --estimate has a value that cannot be used.
    """
    table = table_of(type(config))
    for flag in (table[field.name] for field in dataclasses.fields(Planning)):
        value = getattr(config, flag.name)
        for bound in flag.bounds:
            if value is not None and not (bound.accepts(value) and value < float("inf")):
                raise UserError(f"{flag.spelling} {value}: must be a number of at least "
                                f"{bound.low}")
    if not config.device.startswith("virtual"):
        raise UserError(f"--estimate with --device {config.device}: only virtual GPUs "
                        "can be estimated; nearest: --device virtual:a100-80gb")
    if config.plot is not None and not config.plot.endswith((".svg", ".png")):
        raise UserError(f"--plot {config.plot}: a file that ends in .svg or .png; nearest: "
                        f"--plot {config.plot.rpartition('.')[0] or config.plot}.svg")
    if config.plot is not None and not os.path.isdir(os.path.dirname(config.plot) or "."):
        raise UserError(f"--plot {config.plot}: there is no folder {os.path.dirname(config.plot)}")
    fill = {flag.name: flag.estimate_with for flag in table.values()
            if flag.estimate_with is not None and getattr(config, flag.name) is None}
    if config.train_iters is None and config.train_samples is None:
        fill["train_iters"] = 1
    return dataclasses.replace(config, **fill)
