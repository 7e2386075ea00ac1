"""`pretrain_gpt.py --estimate`: print what a layout costs, without starting any ranks."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, NoReturn

from labcore.imports import imports_without_gc
from minimegatron.errors import UserError, emit
from minimegatron.main import leave

if TYPE_CHECKING:
    from layout_estimator.planner import RunPlan
    from minimegatron.arguments.table import EstimateConfig


def main() -> NoReturn:
    """Print the estimate and end the process: 0, or 1 after a message on stderr."""
    from layout_estimator.requests import EstimateError, estimate, read_flags

    try:
        config = read_flags(sys.argv[1:])
        with imports_without_gc():  # slow, so only after the command line is known to be right
            import layout_estimator.planner  # noqa: F401
        emit(report(config, estimate(config, with_reserved=not config.json).plan))
    except (EstimateError, UserError) as error:
        emit(f"error: {error}", sys.stderr)
        leave(1)
    leave(0)


def report(config: EstimateConfig, plan: RunPlan) -> str:
    """Return the plan as text, or as JSON with --json; write the figure of --plot."""
    from layout_estimator.planner import as_json, format_plan

    if config.plot is not None:
        from layout_estimator.figure import save  # matplotlib: slow to import

        save(plan, config.plot)
    return json.dumps(as_json(plan), indent=2) if config.json else format_plan(plan)
