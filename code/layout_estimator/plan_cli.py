"""`lab plan`: the fastest and the cheapest ways to train a model on a cluster of unlike GPUs.

It searches layouts, placements of GPU models on pipeline stages, partitions of the layers,
micro-batch sizes, recomputation, schedules, and whether data-parallel ranks shard the optimizer
state, and prints the plans that no other beats in both time and dollars. Nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labcore.errors import LabError
from layout_estimator.cli import pop_figure_path

if TYPE_CHECKING:
    from cluster_planner.plans import ClusterPlan
    from cluster_planner.profiles import ModelSpec
    from cluster_planner.search import Search

EXAMPLE = """\
  lab plan --cluster a100:4x2,a10:4x4 --model gpt2-xl --global-batch 64
"""
PLANNERS = ("exact", "fasop", "amp", "even")
SUBMITTED = "code/plan.toml"  # in the workspace: the file of --submit without --conf
QUIET = ["--timing-log-level", "0"]  # timers of every pass would keep sends from overlapping


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("plan", help="the best plan for a cluster of unlike GPUs",
                                   description=__doc__, epilog=EXAMPLE,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", required=True, metavar="KIND:GPUSxNODES,...",
                        help="its nodes: a100:4x2,a10:4x4 has two of four A100, four of four A10")
    parser.add_argument("--model", metavar="NAME", help="such as gpt2-xl; it trains in fp16")
    parser.add_argument("--flags", metavar="FLAGS",
                        help="the trainer's flags of any other model and precision, in quotes")
    parser.add_argument("--global-batch", type=int, required=True, metavar="N",
                        help="samples per step")
    parser.add_argument("--network", metavar="NETWORK", help="between nodes, such as "
                        "ethernet:25gbit; default: the slowest that one of them comes with")
    parser.add_argument("--profiles", metavar="FILE", help="read a table of layer times")
    parser.add_argument("--write-profiles", metavar="FILE", help="write the table that was used")
    parser.add_argument("--price", action="append", default=[], metavar="KIND=DOLLARS",
                        help="dollars per GPU-hour of a GPU model")
    parser.add_argument("--deadline", type=float, metavar="SECONDS",
                        help="of a step: marks the cheapest plan that is this fast")
    parser.add_argument("--planner", choices=PLANNERS, default="exact",
                        help="how layers are split over stages, and plans ranked (default: exact)")
    parser.add_argument("--unequal-replicas", action="store_true",
                        help="add plans whose replicas take different numbers of micro-batches, "
                        "which the trainer cannot run")
    parser.add_argument("--data-parallel-sharding-strategy", metavar="STRATEGY",
                        help="no_shard or optim (default: both); unlike nodes cannot shard "
                        "gradients or parameters")
    parser.add_argument("--json", action="store_true", help="print all plans as JSON")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw time and dollars")
    parser.add_argument("--conf", metavar="FILE.toml", type=Path,
                        help="write the plan as a configuration file of lab submit")
    parser.add_argument("--submit", action="store_true",
                        help="submit the plan (with --conf, or as code/plan.toml)")
    parser.set_defaults(run=run, submit_file=None)  # lab.submit, which is above, sets the latter


def run(arguments: argparse.Namespace) -> None:
    """Print the plans; LabError if the input is wrong or no plan fits."""
    from cluster_planner import partition
    from cluster_planner.profiles import read_table, write_table
    from cluster_planner.search import Search
    from layout_estimator.layer_profiles import VirtualProfiles
    from layout_estimator.plan_report import check_conf

    if arguments.plot is not None:
        pop_figure_path(["--plot", arguments.plot], "--plot")  # checks it
    if (path := _conf(arguments)) is not None:
        check_conf(path, arguments.model)
        if arguments.unequal_replicas:
            raise LabError(f"--unequal-replicas: the trainer cannot run such plans, so {path} is "
                           "not written; leave out --submit and --conf")
    groups, flags = _groups(arguments), _flags(arguments)
    model = _model(flags, arguments.global_batch)
    profiles = (read_table(arguments.profiles, model) if arguments.profiles else
                VirtualProfiles(flags, {group.card.name: group.per_node for group in groups}))
    search = Search(model, groups, profiles, _prices(arguments), _network(arguments),
                    partitioner={"exact": partition.best, "even": partition.even,
                                 "fasop": partition.fasop, "amp": partition.amp}[
                        arguments.planner], varied=arguments.planner == "exact",
                    unequal=arguments.unequal_replicas, sharded=_sharded(arguments))
    front = search.front()
    if arguments.write_profiles:
        write_table(arguments.write_profiles, model, profiles.known)
    if not front:
        raise LabError(f"--cluster {arguments.cluster}: no plan of this model fits these GPUs with "
                       f"--global-batch {arguments.global_batch}"
                       + (f" and the rows of {arguments.profiles}" if arguments.profiles else ""))
    _print(arguments, search, front, flags)


def _sharded(arguments: argparse.Namespace) -> tuple[bool, ...]:
    """Return whether the optimizer state is sharded; both by default. Raises LabError."""
    from layout_estimator.strategies import CHOICE
    from minimegatron.arguments.sharding import SHARDING_STRATEGIES
    from virtualgpu.core.cards import nearest

    name, modeled = arguments.data_parallel_sharding_strategy, SHARDING_STRATEGIES[:2]
    if name is None:
        return (False, True)
    if name in SHARDING_STRATEGIES[2:]:
        raise LabError(f"{CHOICE} {name}: on unlike nodes, fast ranks would wait for slow ones in "
                       f"every layer, which is not modeled; nearest: {CHOICE} optim, or lab "
                       "estimate for nodes of one kind")
    if name not in modeled:
        raise LabError(f"{CHOICE} {name}: no such strategy; nearest: {CHOICE} "
                       f"{nearest(name, modeled)[0]}")
    return (name == "optim",)


def _conf(arguments: argparse.Namespace) -> Path | None:
    """Return the path of the configuration file to write, or None."""
    from labcore import workspace

    return arguments.conf or (workspace.home() / SUBMITTED if arguments.submit else None)


def _hand_over(arguments: argparse.Namespace, plan: ClusterPlan) -> None:
    """Write the plan's configuration file, and submit it. Raises LabError."""
    from layout_estimator.plan_report import write_conf

    path = _conf(arguments)
    groups = zip(_groups(arguments), arguments.cluster.split(","), strict=True)
    kinds = {group.card.name: part.partition(":")[0].strip() for group, part in groups}
    write_conf(path, plan, arguments.model, kinds, arguments.global_batch)
    print(f"written: {path}", file=sys.stderr)
    if arguments.submit:
        arguments.submit_file(path)


def _print(arguments: argparse.Namespace, search: Search, front: Sequence[ClusterPlan],
           flags: Sequence[str]) -> None:
    from layout_estimator.layer_profiles import VirtualProfiles
    from layout_estimator.plan_report import as_dict, nodes, table, trainer_flags

    chosen = _within(arguments, search, front)
    best, batch = chosen or front[0], arguments.global_batch
    if arguments.json:
        print(json.dumps([{**as_dict(plan, flags, batch), "chosen": plan is best}
                          for plan in front], indent=2))
    else:
        print(table(search, front, chosen))
        if isinstance(search.profiles, VirtualProfiles):
            for text in search.profiles.software:
                print(f"software stack {text}")
        print("the trainer cannot run it: every replica takes the same number of micro-batches"
              if best.shares else f"run on {nodes(best)}, in this order:\n  pretrain_gpt.py "
              + shlex.join(trainer_flags(best, flags, batch)))
    if arguments.plot is not None:
        from layout_estimator.figure import save_front

        save_front([(plan.seconds, plan.dollars or 0.0, f"{plan.gpus} GPUs") for plan in front],
                   arguments.cluster, arguments.plot)
    if arguments.conf or arguments.submit:
        _hand_over(arguments, best)


def _within(arguments: argparse.Namespace, search: Search, front: Sequence[ClusterPlan]
            ) -> ClusterPlan | None:
    """Return the cheapest plan within the deadline, if there is one. Raises LabError."""
    if arguments.deadline is None:
        return None
    if not search.has_prices:
        missing = next(group.card.name for group in search.groups
                       if group.card.name not in search.prices)
        raise LabError(f"--deadline {arguments.deadline:g}: {missing} has no price; add --price "
                       f"{missing}=DOLLARS")
    fast = [plan for plan in front if plan.seconds <= arguments.deadline]
    if not fast:
        raise LabError(f"--deadline {arguments.deadline:g}: the fastest plan takes "
                       f"{front[0].seconds:.4g} s; nearest: --deadline {front[0].seconds:.4g}")
    return min(fast, key=lambda plan: plan.dollars)


def _groups(arguments: argparse.Namespace) -> tuple:
    from virtualgpu.core.errors import VirtualGpuError
    from virtualgpu.net.cluster_spec import parse_cluster

    try:
        groups = parse_cluster(arguments.cluster)
    except VirtualGpuError as error:
        raise LabError(f"--cluster: {error}") from error
    sizes: dict[str, int] = {}  # a profile belongs to a GPU model on one kind of node
    for group in groups:
        if sizes.setdefault(group.card.name, group.per_node) != group.per_node:
            raise LabError(f"--cluster {arguments.cluster}: nodes of {sizes[group.card.name]} and "
                           f"of {group.per_node} {group.card.name}; a plan takes one number of "
                           f"GPUs per node for each kind; nearest: {group.card.name}:"
                           f"{sizes[group.card.name]}x{group.nodes}")
    return groups


def _network(arguments: argparse.Namespace) -> str | None:
    from virtualgpu.core.errors import VirtualGpuError
    from virtualgpu.net import network

    if arguments.network is not None:
        try:
            network.parse(arguments.network)
        except VirtualGpuError as error:
            raise LabError(f"--network: {error}") from error
    return arguments.network


def _flags(arguments: argparse.Namespace) -> list[str]:
    """Return the trainer's flags of the model. Raises LabError."""
    from layout_estimator.requests import model_flags

    if (arguments.model is None) == (arguments.flags is None):
        raise LabError("plan: give either --model NAME or --flags FLAGS; nearest: --model gpt2-xl")
    if arguments.global_batch < 1:
        raise LabError(f"--global-batch {arguments.global_batch}: nearest: --global-batch 1")
    try:
        words = ([*model_flags(arguments.model), "--fp16"] if arguments.flags is None
                 else shlex.split(arguments.flags))
    except ValueError as error:
        raise LabError(f"--flags {arguments.flags}: {error}") from error
    varied = [word for word in words if word.startswith(
        ("--tensor-model", "--pipeline-model", "--micro-batch", "--global-batch", "--balance",
         "--recompute", "--schedule", "--use-distributed", "--use-megatron-fsdp",
         "--data-parallel-sharding", "--num-distributed", "--world-size", "--device"))]
    if varied:
        raise LabError(f"--flags: the planner chooses {varied[0]}; leave it out")
    return words if "--timing-log-level" in words else [*words, *QUIET]


def _model(flags: Sequence[str], batch: int) -> ModelSpec:
    from cluster_planner.profiles import ModelSpec
    from layout_estimator.planner import padded_vocabulary
    from layout_estimator.requests import read_flags

    config = read_flags([*flags, "--device", "virtual:a100", "--micro-batch-size", "1",
                         "--global-batch-size", str(batch)])
    return ModelSpec(config.num_layers, config.hidden_size, config.seq_length,
                 padded_vocabulary(config), config.precision, batch,
                 not config.untie_embeddings_and_output_weights, config.software_stack)


def _prices(arguments: argparse.Namespace) -> dict[str, float]:
    """Return dollars per GPU-hour by GPU model. Raises LabError."""
    from layout_estimator.prices import DOLLARS_PER_HOUR
    from virtualgpu.core import cards
    from virtualgpu.core.errors import VirtualGpuError

    prices = dict(DOLLARS_PER_HOUR)
    for text in arguments.price:
        kind, _, value = text.partition("=")
        try:
            dollars = float(value)
            if not 0 < dollars < float("inf"):
                raise ValueError(f"{value} is not a price above 0")
            prices[cards.find(kind).name] = dollars
        except (VirtualGpuError, ValueError) as error:
            raise LabError(f"--price {text}: {error}; nearest: --price a10=2.036") from error
    return prices
