"""A search's plans as text, JSON, the trainer's flags, and a configuration file of `lab submit`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from cluster_planner.plans import ClusterPlan
from cluster_planner.profiles import RECOMPUTE
from cluster_planner.search import Search
from labcore.atomic import write_atomic
from labcore.errors import LabError

GPT2 = "gpt2-"  # `lab submit` names its models without it


def trainer_flags(plan: ClusterPlan, flags: Sequence[str], global_batch: int) -> list[str]:
    """Return the trainer's flags that run a plan.

    Args:
        plan: the plan to run.
        flags: of the model and its precision.
        global_batch: samples per step.
    """
    sizes, config = plan.placement.sizes, plan.config
    words = [*flags, "--tensor-model-parallel-size", str(sizes.tensor),
             "--pipeline-model-parallel-size", str(sizes.pipeline), "--micro-batch-size",
             str(config.micro_batch), "--global-batch-size", str(global_batch),
             *RECOMPUTE[config.recompute]]
    if config.chunks > 1:
        words += chunk_flags(plan)
    elif sizes.pipeline > 1:
        words += ["--schedule", config.schedule, "--balance", balance(plan)]
    return [*words, *(["--use-distributed-optimizer"] if config.sharded else [])]


def chunk_flags(plan: ClusterPlan) -> list[str]:
    """Return the flags of interleaved 1F1B."""
    return ["--num-layers-per-virtual-pipeline-stage",
            str(plan.partition.layers[0] // plan.config.chunks)]


def balance(plan: ClusterPlan) -> str:
    """Return the partition as --balance has it."""
    return "-".join(map(str, plan.partition.layers))


def nodes(plan: ClusterPlan) -> str:
    """Return the nodes in the order of the ranks, as --estimate --cluster takes them."""
    return ",".join(str(replace(group, nodes=len(list(run))))
                    for group, run in groupby(plan.placement.order))


def as_dict(plan: ClusterPlan, flags: Sequence[str], global_batch: int) -> dict:
    """Return a plan as a dictionary."""
    sizes, config, stages = plan.placement.sizes, plan.config, plan.stages
    memory = [float(stages.memory[stage, count] + min(card.memory for card in kinds))
              for stage, (count, kinds) in enumerate(
                  zip(plan.partition.layers, stages.kinds, strict=True))]
    return {
        "seconds_per_iteration": plan.seconds, "dollars_per_iteration": plan.dollars,
        "gpus": plan.gpus, "cluster": nodes(plan),
        "network": plan.placement.link, "tensor": sizes.tensor, "pipeline": sizes.pipeline,
        "data": sizes.data, **config._asdict(), "micro_batches": stages.micro_batches,
        "balance": balance(plan), "memory": memory, "replica_micro_batches": list(plan.shares),
        "stages": [[card.name for card in kinds] for kinds in stages.kinds],
        "flags": [] if plan.shares else trainer_flags(plan, flags, global_batch)}


def table(search: Search, front: Sequence[ClusterPlan], chosen: ClusterPlan | None) -> str:
    """Return the plans that no other beats, the fastest first.

    Args:
        search: the search that found them.
        chosen: the cheapest within a deadline, to be marked; None without a deadline.
    """
    lines = [f"{', '.join(map(str, search.groups))}: {search.branches} layouts, "
             f"{search.solved} partitioned; modeled, nothing was run",
             "sharding: no_shard or optim (sharded: yes); the others, in which fast ranks "
             "wait for slow ones in every layer, are not modeled",
             "   s/iteration  $/iteration GPUs tensor pipeline data micro recompute sharded "
             "schedule    balance, --cluster"]
    for plan in front:
        sizes, config = plan.placement.sizes, plan.config
        dollars = "-" if plan.dollars is None else f"{plan.dollars:.5f}"
        lines.append(
            f" {'*' if plan is chosen else ' '} {plan.seconds:11.4g} {dollars:>12} "
            f"{plan.gpus:4d} {sizes.tensor:6d} {sizes.pipeline:8d} {sizes.data:4d} "
            f"{config.micro_batch:5d} {config.recompute:<9} "
            f"{'yes' if config.sharded else 'no':<7} {config.schedule:<11} {balance(plan)} "
            f"{nodes(plan)}" + (f", micro-batches per replica {'+'.join(map(str, plan.shares))}"
                                if plan.shares else ""))
    if chosen is not None:
        lines.append(" * the cheapest within the deadline")
    if not search.has_prices:
        lines.append("   not every GPU has a price: give --price KIND=DOLLARS for the cheapest "
                     "plans")
    if not search.every_order:
        lines.append("   this many nodes have more orders than were tried: nodes of a kind stay "
                     "together")
    return "\n".join(lines)


def check_conf(path: Path, model: str | None) -> None:
    """Check that a plan can be written as a configuration file of `lab submit`.

    Args:
        path: the file.
        model: its name, such as gpt2-xl; None if flags describe it.

    Raises:
        LabError: `lab submit` has no such model, the file exists, or it is not a TOML file.
    """
    if model is None or not model.startswith(GPT2):
        raise LabError(f"--conf {path}: lab submit trains GPT-2 models, not "
                       f"{model or 'that of --flags'}; nearest: --model gpt2-xl")
    if path.suffix != ".toml":
        raise LabError(f"--conf {path}: a TOML file; nearest: --conf {path.with_suffix('.toml')}")
    if path.exists():
        raise LabError(f"--conf {path}: the file exists, and is not overwritten; nearest: --conf "
                       f"{path.with_stem(path.stem + '_2')}")


def write_conf(path: Path, plan: ClusterPlan, model: str, kinds: Mapping[str, str],
               global_batch: int) -> None:
    """Write a plan as a configuration file of `lab submit`.

    Args:
        path: the file, which check_conf accepts.
        model: the model's name.
        kinds: {GPU model's name: what to call it}.
        global_batch: samples per step.

    Raises:
        LabError: a stage has GPUs of several kinds.
    """
    for stage, cards in enumerate(plan.stages.kinds):
        if len(cards) > 1:
            raise LabError(f"--conf: stage {stage} of the plan is on "
                           f"{' and '.join(kinds[card.name] for card in cards)}, and lab submit "
                           "gives a stage one kind of GPU; nearest: a --cluster whose kinds all "
                           "have the same number of GPUs per node")
    sizes, config = plan.placement.sizes, plan.config
    totals = {group: plan.placement.order.count(group) for group in plan.placement.order}
    keys: dict[str, object] = {
        "model": model.removeprefix(GPT2),
        "cluster": ",".join(f"{kinds[group.card.name]}:{group.per_node}x{count}"
                            for group, count in totals.items()),
        "stages": [kinds[cards[0].name] for cards in plan.stages.kinds],
        "tensor-parallel": sizes.tensor, "pipeline-parallel": sizes.pipeline,
        "data-parallel": sizes.data,
        # Interleaved 1F1B has equal stages, and its flag names the schedule.
        **({} if config.chunks > 1 else {"partition": balance(plan), "schedule": config.schedule}),
        "global-batch-size": global_batch, "micro-batch-size": config.micro_batch,
        "precision": "fp16", "network": plan.placement.link,
        "flags": [*RECOMPUTE[config.recompute], *(chunk_flags(plan) if config.chunks > 1 else []),
                  *(["--use-distributed-optimizer"] if config.sharded else []),
                  "--timing-log-level", "0"]}
    heading = f"# {plan.seconds:.4g} s per step on virtual GPUs, as lab plan models it.\n"
    text = heading + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    write_atomic(path, text.encode())
