"""`lab estimate`: find the layouts of a model on a cluster that are fastest, or that fit.

It estimates every layout whose tensor-parallel ranks stay within a node, each with several
micro-batch sizes and with and without activation recomputation, on virtual GPUs. Nothing is
trained.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from labcore.errors import LabError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from layout_estimator.planner import RunPlan
    from minimegatron.arguments.table import EstimateConfig

HELP = """\
The flags are those of pretrain_gpt.py --estimate. These are varied unless you give them:
--tensor-model-parallel-size, --pipeline-model-parallel-size, --micro-batch-size,
--recompute-granularity. --cluster a100:4x2,a10:4x4 describes nodes of several kinds.

  lab estimate --device virtual:a100-80gb --world-size 64 --num-layers 48 --hidden-size 6144 \\
      --num-attention-heads 48 --seq-length 2048 --max-position-embeddings 2048 \\
      --global-batch-size 512 --fp16 --plot pareto.svg
"""
MAX_ROWS = 20  # of the table, besides the Pareto front


class EstimatedLayout(NamedTuple):
    """A layout with its estimate.

    Attributes:
        plan: its time, memory, and cost.
        micro_batch: samples per micro-batch.
        recompute: its recomputation, a key of RECOMPUTE.
    """

    plan: RunPlan
    micro_batch: int
    recompute: str

    @property
    def gib(self) -> float:
        """Return the memory of the fullest rank, in GiB."""
        return max(memory.total for memory in self.plan.memory) / 2**30


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("estimate", help="the fastest layouts of a model on a cluster",
                                   description=__doc__, epilog=HELP, add_help=False,
                                   prefix_chars="+",  # what begins with - is the trainer's
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flags", nargs="*", metavar="FLAGS")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the estimates; LabError if no layout is possible."""
    flags = split_flags(arguments.flags)
    if not flags or {"-h", "--help"} & set(flags):
        print(arguments.parser.format_help())
        return
    as_json = "--json" in flags
    flags = [flag for flag in flags if flag != "--json"]
    plot = pop_figure_path(flags, "--plot")
    tried, choices = 0, []
    for tried, choice in enumerate(sweep(flags), 1):
        if sys.stderr.isatty():
            print(f"\r{tried} layouts", end="", file=sys.stderr, flush=True)
        choices.append(choice)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    choices.sort(key=lambda choice: (not choice.plan.fits, choice.plan.seconds_per_iteration))
    best = pareto(choices)
    print(json.dumps([record(choice, choice in best) for choice in choices], indent=2) if as_json
          else table(choices, best))
    if plot is not None:
        draw(choices, best, plot)


def split_flags(flags: Sequence[str]) -> list[str]:
    """Split `--name=value` into two words, and expand the short name of a varied flag."""
    words = [word for flag in flags
             for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
    return ["--micro-batch-size" if word == "-b" else word for word in words]


def pop_figure_path(flags: list[str], name: str) -> str | None:
    """Remove `name PATH` from the flags; return the path, or None if the flag is absent.

    Args:
        flags: the command line, changed in place.
        name: a flag whose value is the path of a figure, such as --plot.

    Raises:
        LabError: the value is missing, or is not a path for a figure.
    """
    if name not in flags:
        return None
    index = flags.index(name)
    value = flags[index + 1] if index + 1 < len(flags) else ""
    if not value.endswith((".svg", ".png")):
        raise LabError(f"{name} {value}: a file that ends in .svg or .png")
    if not os.path.isdir(os.path.dirname(value) or "."):
        raise LabError(f"{name} {value}: there is no folder {os.path.dirname(value)}")
    del flags[index:index + 2]
    return value


def sweep(flags: Sequence[str]) -> Iterator[EstimatedLayout]:
    """Yield every layout that the trainer accepts; LabError with its reason if there is none."""
    from layout_estimator.requests import EstimateError, estimate, read_flags

    measured, first_error, any_accepted = {}, None, False
    for words, micro_batch, recompute in layouts(flags):
        try:
            config = read_flags([*flags, *words])
            keep_on_nodes(config)
            plan = estimate(config, measured).plan
        except EstimateError as error:
            first_error = first_error or error
            continue
        any_accepted = True
        yield EstimatedLayout(plan, micro_batch or config.micro_batch_size, recompute)
    if not any_accepted:
        raise LabError(f"estimate: {first_error or 'no layout is left to try'}")


def keep_on_nodes(config: EstimateConfig) -> None:
    """Raise EstimateError if a tensor-parallel group would not fit in one node."""
    from layout_estimator.requests import EstimateError
    from virtualgpu.net.cluster_spec import parse_nodes

    size, name = config.tensor_model_parallel_size, "--tensor-model-parallel-size"
    if config.cluster is None and size > config.gpus_per_node:
        raise EstimateError(f"{name} {size}: a tensor-parallel group stays on one node, and "
                            f"nodes have --gpus-per-node {config.gpus_per_node}; nearest: "
                            f"{name} {config.gpus_per_node}")
    for group in parse_nodes(config.cluster) if config.cluster else ():
        if group.per_node % size:
            raise EstimateError(f"{name} {size}: a tensor-parallel group stays on one node, and "
                                f"{group} in --cluster has {group.per_node} GPU(s) per node; "
                                f"nearest: {name} {gcd(size, group.per_node)}")


def layouts(flags: Sequence[str]) -> Iterator[tuple[list[str], int | None, str]]:
    """Yield (flags, micro-batch size, recomputation) of each combination of the varied flags.

    Raises:
        EstimateError: --cluster describes no cluster.
    """
    from layout_estimator.requests import with_cluster

    given = dict(pairwise(with_cluster(flags))).get("--world-size", "1")
    # The trainer's parser reports any other value.
    world = int(given) if given.isdecimal() and int(given) else 1
    divisors = [size for size in range(1, world + 1) if world % size == 0]

    from cluster_planner.profiles import MICRO_BATCHES, RECOMPUTE  # loads the GPU models

    def values(name: str, candidates: Sequence[int]) -> list[tuple[list[str], int | None]]:
        return ([([], None)] if name in flags
                else [([name, str(value)], value) for value in candidates])

    recompute = ({"as given": []} if any(flag.startswith(("--recompute", "--activations"))
                                         for flag in flags) else RECOMPUTE)
    for tensor, _ in values("--tensor-model-parallel-size", divisors):
        for pipeline, _ in values("--pipeline-model-parallel-size", divisors):
            for micro, size in values("--micro-batch-size", MICRO_BATCHES):
                for name, words in recompute.items():
                    yield [*tensor, *pipeline, *micro, *words], size, name


def pareto(choices: Sequence[EstimatedLayout]) -> list[EstimatedLayout]:
    """Return the Pareto front of the layouts that fit, in time and memory.

    Args:
        choices: layouts, the fastest first.
    """
    best: list[EstimatedLayout] = []
    for choice in choices:
        if choice.plan.fits and (not best or choice.gib < best[-1].gib):
            best.append(choice)
    return best


def record(choice: EstimatedLayout, best: bool) -> dict:
    from layout_estimator.planner import as_json

    return {"micro_batch": choice.micro_batch, "recompute": choice.recompute, "pareto": best,
            **as_json(choice.plan)}


def table(choices: Sequence[EstimatedLayout], best: Sequence[EstimatedLayout]) -> str:
    """Return a table of the fastest layouts that fit and of the Pareto front, marked with stars."""
    first = choices[0].plan
    fitting = [choice for choice in choices if choice.plan.fits]
    gpus = " + ".join(f"virtual {name} x {count}" for name, count in first.gpus.items())
    sizes = dict.fromkeys(f"{size / 2**30:.2f}" for size in first.capacities.values())
    lines = [f"{gpus}, {first.network}: {len(choices)} layouts, {len(fitting)} fit into "
             f"{' and '.join(sizes)} GiB; modeled, nothing was run",
             f"software stack {first.software}",
             "   tensor pipeline data micro recompute   s/iteration TFLOP/s  peak  bubble "
             "collectives    GiB"]
    shown = fitting[:MAX_ROWS] + [choice for choice in best if choice not in fitting[:MAX_ROWS]]
    for choice in shown or choices[:MAX_ROWS]:
        plan = choice.plan
        lines.append(
            f" {'*' if choice in best else ' '} {plan.tensor:6d} {plan.pipeline:8d} {plan.data:4d} "
            f"{choice.micro_batch:5d} {choice.recompute:<11} {plan.seconds_per_iteration:11.4g} "
            f"{plan.teraflops_per_gpu:7.1f} {plan.share_of_peak:5.1%} {plan.bubble:7.1%} "
            f"{plan.communication:11.1%} {choice.gib:6.1f}"
            + ("" if plan.fits else "  does not fit"))
    lines.append(" * no other that fits is faster and smaller")
    return "\n".join(lines)


def draw(choices: Sequence[EstimatedLayout], best: Sequence[EstimatedLayout], path: str
         ) -> None:
    """Plot the layouts' time against their memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    figure, (axes, legend) = pyplot.subplots(1, 2, figsize=(9, 4.4), width_ratios=(3, 1),
                                             layout="constrained")
    _draw_points(axes, choices, best)
    _list_front(legend, best)
    plan = choices[0].plan
    for capacity in plan.capacities.values():
        axes.axvline(capacity / 2**30, color="black", linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="GiB of the fullest rank at its peak",
             ylabel="seconds per iteration",
             title=f"{plan.world_size} {plan.card}, {plan.network}")
    decimal = FuncFormatter(lambda value, _: f"{value:g}")  # 20, not 2 x 10^1
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(decimal)
        axis.set_minor_formatter(NullFormatter())
    times = sorted(choice.plan.seconds_per_iteration for choice in choices)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_ylim(0.95 * times[0], 1.05 * times[-1])
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_points(axes: Axes, choices: Sequence[EstimatedLayout],
                 best: Sequence[EstimatedLayout]) -> None:
    """Draw one point per layout, and number those of the Pareto front."""
    for fits, color, label in ((True, "#3b6ea5", "fits"), (False, "#c0c0c0", "does not fit")):
        some = [choice for choice in choices if choice.plan.fits == fits]
        axes.scatter([choice.gib for choice in some],
                     [choice.plan.seconds_per_iteration for choice in some], s=14, color=color,
                     label=label)
    axes.plot([choice.gib for choice in best],
              [choice.plan.seconds_per_iteration for choice in best], color="#e39c37", marker="o",
              label="no other is faster and smaller")
    for number, choice in enumerate(best, 1):
        axes.annotate(str(number), (choice.gib, choice.plan.seconds_per_iteration), fontsize=8,
                      xytext=(-3, -13), textcoords="offset points")


def _list_front(axes: Axes, best: Sequence[EstimatedLayout]) -> None:
    """List the layouts of the Pareto front, with their numbers."""
    axes.axis("off")
    lines = ["   tensor pipe data micro recompute"]
    lines += [f"{number:2d} {choice.plan.tensor:6d} {choice.plan.pipeline:4d} "
              f"{choice.plan.data:4d} {choice.micro_batch:5d} {choice.recompute}"
              for number, choice in enumerate(best, 1)]
    axes.text(0, 1, "\n".join(lines), va="top", fontsize=7, family="monospace",
              in_layout=False)
