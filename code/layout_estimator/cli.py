"""`lab estimate`: find the layouts of a model on a cluster that are fastest, or that fit.

It estimates every layout whose tensor-parallel ranks stay within a node, each with several
micro-batch sizes, with and without activation recomputation, and with the sharding strategies of
data parallelism, on virtual GPUs. Nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from labcore.errors import LabError
from layout_estimator.search import EstimatedLayout, Search, pareto

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HELP = """\
The flags are those of pretrain_gpt.py --estimate. These are varied unless you give them:
--tensor-model-parallel-size, --pipeline-model-parallel-size, --micro-batch-size,
--recompute-granularity, --data-parallel-sharding-strategy (or --use-distributed-optimizer), and
--num-distributed-optimizer-instances. Communication overlaps with computation only if you give
--overlap-grad-reduce and --overlap-param-gather. --cluster a100:4x2,a10:4x4 describes nodes of
several kinds.

  lab estimate --device virtual:a100-80gb --world-size 64 --num-layers 48 --hidden-size 6144 \\
      --num-attention-heads 48 --seq-length 2048 --max-position-embeddings 2048 \\
      --global-batch-size 512 --fp16 --plot pareto.svg
"""
MAX_ROWS = 20  # of the table, besides the Pareto front
QUIET = 20.0  # seconds between two lines of progress that are not written to a terminal


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
    search = Search(flags)
    estimate_all(search)
    choices = sorted(search.found, key=lambda choice: (
        not choice.plan.fits, choice.plan.seconds_per_iteration))
    best = pareto(choices)
    print(json.dumps([as_dict(choice, choice in best) for choice in choices], indent=2) if as_json
          else table(search, choices, best))
    if plot is not None:
        draw(choices, best, plot)


def estimate_all(search: Search) -> None:
    """Run a search. Print its progress on stderr: on a terminal before every estimate, and
    elsewhere, such as in a notebook or a log, every QUIET seconds."""
    terminal, told = sys.stderr.isatty(), time.monotonic()
    if terminal:
        print("estimating the first layout", end="", file=sys.stderr, flush=True)
    for tried, _ in enumerate(search, 1):
        text = f"layouts estimated: {tried}"
        if terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - told >= QUIET:
            told = time.monotonic()
            print(text, file=sys.stderr, flush=True)
    if terminal:
        print("\r\033[K", end="", file=sys.stderr)


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


def as_dict(choice: EstimatedLayout, best: bool) -> dict:
    from layout_estimator.planner import as_json

    return {"micro_batch": choice.micro_batch, "recompute": choice.recompute,
            "sharding": choice.strategy.name, "instances": choice.strategy.instances,
            "pareto": best, "flags": choice.flags, **as_json(choice.plan)}


def table(search: Search, choices: Sequence[EstimatedLayout], best: Sequence[EstimatedLayout]
          ) -> str:
    """Return a table of the fastest layouts that fit and of the Pareto front, marked with stars,
    and the flags of the fastest."""
    first = choices[0].plan
    fitting = [choice for choice in choices if choice.plan.fits]
    gpus = " + ".join(f"virtual {name} x {count}" for name, count in first.gpus.items())
    sizes = dict.fromkeys(f"{size / 2**30:.2f}" for size in first.capacities.values())
    lines = [f"{gpus}, {first.network}: {len(choices)} layouts, {len(fitting)} fit into "
             f"{' and '.join(sizes)} GiB; modeled, nothing was run",
             f"software stack {first.software}",
             "   tensor pipeline data sharding               micro recompute   s/iteration TFLOP/s "
             " peak  bubble collectives    GiB"]
    shown = fitting[:MAX_ROWS] + [choice for choice in best if choice not in fitting[:MAX_ROWS]]
    for choice in shown or choices[:MAX_ROWS]:
        plan = choice.plan
        lines.append(
            f" {'*' if choice in best else ' '} {plan.tensor:6d} {plan.pipeline:8d} "
            f"{plan.data:4d} {choice.strategy!s:<22} {choice.micro_batch:5d} "
            f"{choice.recompute:<11} {plan.seconds_per_iteration:11.4g} "
            f"{plan.teraflops_per_gpu:7.1f} {plan.share_of_peak:5.1%} {plan.bubble:7.1%} "
            f"{plan.communication:11.1%} {choice.gib:6.1f}"
            + ("" if plan.fits else "  does not fit"))
    lines += [" * no other that fits is faster and smaller", *notes(search, choices)]
    if fitting:
        lines += [f"the fastest, on {first.world_size} GPUs:",
                  f"  pretrain_gpt.py {shlex.join(choices[0].flags)}"]
    return "\n".join(lines)


def notes(search: Search, choices: Sequence[EstimatedLayout]) -> Iterator[str]:
    """Yield remarks on the strategies in the table, and on those that are not."""
    if any(choice.strategy.instances > 1 for choice in choices):
        yield " / N: N instances of the sharded state, each within a node (hybrid sharding)"
    if search.skipped:
        yield (f"   {search.skipped} more strategies of these layouts were not estimated: bounds "
               "show that they do not fit, or that another layout is as fast and as small")
    if len(choices[0].plan.gpus) > 1 and search.searched.name is None:
        yield ("   optim_grads and optim_grads_params were not tried: on unlike nodes, fast ranks "
               "would wait for slow ones in every layer, which is not modeled")




def draw(choices: Sequence[EstimatedLayout], best: Sequence[EstimatedLayout], path: str
         ) -> None:
    """Plot the layouts' time against their memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    figure, (axes, legend) = pyplot.subplots(1, 2, figsize=(10.5, 4.4), width_ratios=(3, 2),
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
    lines = ["   tensor pipe data micro recompute sharding"]
    lines += [f"{number:2d} {choice.plan.tensor:6d} {choice.plan.pipeline:4d} "
              f"{choice.plan.data:4d} {choice.micro_batch:5d} {choice.recompute:9} "
              f"{choice.strategy}"
              for number, choice in enumerate(best, 1)]
    axes.text(0, 1, "\n".join(lines), va="top", fontsize=7, family="monospace",
              in_layout=False)
