"""The flags of --estimate, which trains nothing."""

from __future__ import annotations

import dataclasses
import os

from minimegatron.arguments.flags import Config
from minimegatron.arguments.table.flag import table_of
from minimegatron.arguments.table.planning import Planning
from minimegatron.errors import UserError


def complete_for_estimate(config: Config) -> Config:
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
