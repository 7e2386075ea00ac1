"""A plan as a configuration file of `lab submit`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from labcore.atomic import write_atomic
from labcore.errors import LabError
from layout_estimator.cli import RECOMPUTE
from layout_estimator.cluster_planner.plans import ClusterPlan
from layout_estimator.cluster_planner.report import balance, chunk_flags

GPT2 = "gpt2-"  # `lab submit` names its models without it


def check(path: Path, model: str | None) -> None:
    """Check that a plan can be written there.

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


def write(path: Path, plan: ClusterPlan, model: str, kinds: Mapping[str, str], global_batch: int
          ) -> None:
    """Write the file.

    Args:
        path: the file, which `check` accepts.
        plan: the plan to write.
        model: its name.
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
