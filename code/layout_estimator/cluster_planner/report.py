"""A search's plans as text and JSON, with the trainer's flags that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from layout_estimator.cli import RECOMPUTE
from layout_estimator.cluster_planner.search import Found, Search


def trainer_flags(found: Found, flags: Sequence[str], global_batch: int) -> list[str]:
    """Return the trainer's flags that run a plan.

    Args:
        found: the plan.
        flags: of the model and its precision.
        global_batch: samples per step.
    """
    grid, setting = found.placement.grid, found.setting
    words = [*flags, "--tensor-model-parallel-size", str(grid.tensor),
             "--pipeline-model-parallel-size", str(grid.pipeline), "--micro-batch-size",
             str(setting.micro_batch), "--global-batch-size", str(global_batch),
             *RECOMPUTE[setting.recompute]]
    if grid.pipeline > 1:
        words += ["--schedule", setting.schedule, "--balance", balance(found)]
    return [*words, *(["--use-distributed-optimizer"] if setting.sharded else [])]


def balance(found: Found) -> str:
    """Return the partition as --balance has it."""
    return "-".join(map(str, found.partition.layers))


def nodes(found: Found) -> str:
    """Return the nodes in the order of the ranks, as --estimate --cluster takes them."""
    return ",".join(str(replace(group, nodes=len(list(run))))
                    for group, run in groupby(found.placement.order))


def record(found: Found, flags: Sequence[str], global_batch: int) -> dict:
    """Return a plan as a dictionary."""
    grid, setting, stages = found.placement.grid, found.setting, found.stages
    memory = [float(stages.memory[stage, count] + min(card.memory for card in kinds))
              for stage, (count, kinds) in enumerate(
                  zip(found.partition.layers, stages.kinds, strict=True))]
    return {
        "seconds_per_iteration": found.seconds, "dollars_per_iteration": found.dollars,
        "gpus": found.gpus, "cluster": nodes(found),
        "network": found.placement.link, "tensor": grid.tensor, "pipeline": grid.pipeline,
        "data": grid.data, **setting._asdict(), "micro_batches": stages.micro_batches,
        "balance": balance(found), "memory": memory,
        "stages": [[card.name for card in kinds] for kinds in stages.kinds],
        "flags": trainer_flags(found, flags, global_batch)}


def table(search: Search, front: Sequence[Found], chosen: Found | None) -> str:
    """Return the plans that no other beats, the fastest first.

    Args:
        search: the search that found them.
        front: its plans.
        chosen: the cheapest within a deadline, to be marked; None without a deadline.
    """
    lines = [f"{', '.join(map(str, search.groups))}: {search.branches} layouts, "
             f"{search.solved} partitioned; modeled, nothing was run",
             "   s/iteration  $/iteration GPUs tensor pipeline data micro recompute sharded "
             "schedule balance, --cluster"]
    for found in front:
        grid, setting = found.placement.grid, found.setting
        dollars = "-" if found.dollars is None else f"{found.dollars:.5f}"
        lines.append(
            f" {'*' if found is chosen else ' '} {found.seconds:11.4g} {dollars:>12} "
            f"{found.gpus:4d} {grid.tensor:6d} {grid.pipeline:8d} {grid.data:4d} "
            f"{setting.micro_batch:5d} {setting.recompute:<9} "
            f"{'yes' if setting.sharded else 'no':<7} {setting.schedule:<8} {balance(found)} "
            f"{nodes(found)}")
    if chosen is not None:
        lines.append(" * the cheapest within the deadline")
    if not search.has_prices:
        lines.append("   not every GPU has a price: give --price KIND=DOLLARS for the cheapest "
                     "plans")
    if not search.every_order:
        lines.append("   this many nodes have more orders than were tried: nodes of a kind stay "
                     "together")
    return "\n".join(lines)
