"""Timers, --timeline, and --profile-execution: which steps and ranks are timed."""

from __future__ import annotations

import re
from dataclasses import replace

from minimegatron.arguments.flags import Config
from minimegatron.arguments.require import require


def derive_profiling(config: Config) -> Config:
    """Fill in the other timing flag if only one is given.

    Raises:
        UserError: the run does not have the rank or step to report on, or --profile-name is bad.
    """
    for rank in config.profile_ranks or ():
        require(0 <= rank < config.world_size,
                f"--profile-ranks {rank}: there are ranks 0 to {config.world_size - 1}; nearest: "
                f"--profile-ranks {min(max(rank, 0), config.world_size - 1)}")
    require(config.timeline is None or config.timeline_iteration <= config.train_iters,
            f"--timeline-iteration {config.timeline_iteration}: the run has {config.train_iters} "
            f"iteration(s); nearest: --timeline-iteration {config.train_iters}")
    require(bool(re.fullmatch(r"[\w.+-]+", config.profile_name)),
            f"--profile-name {config.profile_name!r} becomes part of a folder's name: "
            "letters, digits and . _ + - only")
    level, option = config.timing_log_level, config.timing_log_option
    if level is None and option is None:
        return config
    return replace(config, timing_log_level=level or 0, timing_log_option=option or "minmax")
