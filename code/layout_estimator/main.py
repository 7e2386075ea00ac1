"""`pretrain_gpt.py --estimate`: print what a layout costs, without starting any ranks."""

from __future__ import annotations

import sys
from typing import NoReturn

from labcore.imports import imports_without_gc
from minimegatron.errors import UserError, emit
from minimegatron.main import leave


def main() -> NoReturn:
    """Print the estimate and end the process: 0, or 1 after a message on stderr."""
    from layout_estimator.requests import EstimateError, estimate, read_flags

    try:
        config = read_flags(sys.argv[1:])
        with imports_without_gc():  # slow, so only after the command line is known to be right
            from layout_estimator.planner import report
        emit(report(config, estimate(config, with_reserved=not config.json).plan))
    except (EstimateError, UserError) as error:
        emit(f"error: {error}", sys.stderr)
        leave(1)
    leave(0)
