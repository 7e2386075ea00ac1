"""The `virtualrun` command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.core.stacks import DEFAULT, STACKS
from virtualgpu.launch import cluster as clusters
from virtualgpu.launch import host, launchers
from virtualgpu.packages.finder import REMOVABLE

TERMINATED, USAGE = 143, 2
AUTO = "auto"  # value of --present
HOST_COSTS = EAGER, _ = "eager", "launches"  # values of --host-cost


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="virtualrun", description="Run a PyTorch program on GPUs that you do not have: its "
        "time, memory, and communication are modeled, on the CPU.")
    result.add_argument("--gpus", default="h100", metavar="MODEL:N",
                        help="GPU model and how many each node has, such as h100:8, or several "
                        "kinds of nodes, such as a100:4x2,a10:4x4 (default: h100)")
    result.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes (default: 1)")
    result.add_argument("--link", metavar="NETWORK", help="network between nodes, such as "
                        "infiniband:8x400gbit (default: the usual one for these GPUs)")
    result.add_argument("--stack", default=DEFAULT, metavar="NAME",
                        help="software whose efficiency "
                        f"is modeled: {', '.join(STACKS)} (default: {DEFAULT})")
    alone = result.add_mutually_exclusive_group()
    alone.add_argument("--solo", action="store_true", help="one process stands for all ranks of a "
                       "symmetric program")
    alone.add_argument("--present", metavar="RANKS", help="ranks to run as processes, such "
                       "as 0,128; each other rank mirrors the nearest lower one of these; auto: "
                       "one rank per pipeline stage")
    result.add_argument("--values", default="1MiB", metavar="SIZE", help="largest tensor whose "
                        "values are computed; all, none (default: 1MiB)")
    result.add_argument("--assume", action="append", default=[], metavar="FILE:LINE=ANSWER",
                        help="True, False, or a number to assume where a line needs an unknown "
                        "value")
    result.add_argument("--fuse-pointwise", action=argparse.BooleanOptionalAction, default=None,
                        help="model torch.compile: fuse elementwise operations and reductions, and "
                        "recompute them in the backward pass (default: on)")
    result.add_argument("--json", metavar="FILE", help="write every figure of every rank")
    result.add_argument("--trace", metavar="DIR", help="write each rank's Chrome trace, Chakra "
                        "execution trace, and memory timeline")
    result.add_argument("--steps", type=int, metavar="N", help="end the program after its N-th "
                        "step, which is a step of its first optimizer, or one that mark_step ends")
    result.add_argument("--without", action="append", default=[], metavar="NAME",
                        help="do not model this package, or this kernel of attention: "
                        f"{', '.join(REMOVABLE)}")
    result.add_argument("--output-tokens", type=int, metavar="N", help="in inference, the N-th "
                        "output token of a sequence is the end-of-text token (default: none is, so "
                        "the program's own maximum counts)")
    result.add_argument("--host-cost", choices=HOST_COSTS, default=EAGER, help="what the host is "
                        "charged for in inference: eager operations, views, and calls of modules, "
                        f"or launches of kernels only (default: {EAGER})")
    result.add_argument("-m", dest="is_module", action="store_true", help="run a module, as "
                        "python -m does, instead of a file")
    result.add_argument("script", help="the program")
    result.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        return start(options)
    except VirtualGpuError as error:
        print(f"virtualrun: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("virtualrun: interrupted; no rank is left running", file=sys.stderr)
        return 128 + signal.SIGINT


def start(options: argparse.Namespace) -> int:
    """Check every option, then run the program; return the exit status."""
    cluster = clusters.parse(options.gpus, options.nodes, options.link, options.stack)
    if options.is_module:
        sys.path.insert(0, os.getcwd())
        if not _is_module(options.script):
            raise VirtualGpuError(f"-m {options.script}: no such module")
    elif not Path(options.script).is_file():
        raise VirtualGpuError(f"{options.script}: no such file")
    if options.steps is not None and options.steps < 1:
        raise VirtualGpuError(f"--steps {options.steps}: expected at least 1")
    if options.output_tokens is not None and options.output_tokens < 1:
        raise VirtualGpuError(f"--output-tokens {options.output_tokens}: expected at least 1")
    if options.json and not Path(options.json).absolute().parent.is_dir():
        raise VirtualGpuError(f"--json {options.json}: the folder "
                              f"{Path(options.json).absolute().parent} does not exist")
    if options.trace and Path(options.trace).exists() and not Path(options.trace).is_dir():
        raise VirtualGpuError(f"--trace {options.trace}: expected a folder, but this is a file")
    present = present_ranks(options, cluster.world)
    try:
        cluster.require_representatives(present)
    except VirtualGpuError as error:
        flag = "--solo" if options.solo else f"--present {options.present}"
        raise VirtualGpuError(f"{flag}: {error}") from None
    launchers.adopt_slurm(os.environ)
    own = launchers.own_rank(cluster)
    if options.present == AUTO and own is not None:
        raise VirtualGpuError("--present auto: torchrun or srun has already started the ranks; "
                              "run virtualrun without it")
    processes = cluster.world if present is None else len(present)
    if own is None and processes > 1 and options.present != AUTO:
        print(f"virtualrun: {host.check(processes)}", file=sys.stderr)
    return run(options, cluster, present, own)


def _is_module(name: str) -> bool:
    """Return whether a module exists, without importing its package: that is for the program."""
    whole, path = "", None
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        spec = PathFinder.find_spec(whole, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations or []
    return True


def present_ranks(options: argparse.Namespace, world: int) -> list[int] | None:
    """Return the ranks that are processes, or None for all. Raises VirtualGpuError."""
    if options.solo:
        return [0]
    if options.present in (None, AUTO):
        return None
    try:
        ranks = sorted({int(word) for word in options.present.split(",")})
    except ValueError:
        ranks = [-1]
    if ranks[0] != 0 or ranks[-1] >= world:
        raise VirtualGpuError(f"--present {options.present}: expected ranks from 0 to {world - 1}, "
                              "including 0, such as --present 0,1, or auto")
    return ranks


def run(options: argparse.Namespace, cluster: clusters.Cluster, present: list[int] | None,
        own: int | None) -> int:
    """Run the program on the ranks and print the report. This function imports torch."""
    from virtualgpu.launch import failures, nvidia_smi, process, ranks, report, stages
    from virtualgpu.launch.settings import Settings, parse_size
    from virtualgpu.pytorch import assumptions

    answers = tuple(map(assumptions.parse, options.assume))
    program = process.script(options.script, options.arguments, options.is_module)
    with nvidia_smi.folder_for(cluster) as folder:
        settings = Settings(parse_size(options.values), answers, trace=options.trace,
                            fuse=options.fuse_pointwise, steps=options.steps, smi=folder,
                            output_tokens=options.output_tokens,
                            eager_host=options.host_cost == EAGER, without=tuple(options.without))
        if options.present == AUTO and cluster.world > 1:
            results = stages.run(cluster, settings, program)
        elif own is None and (cluster.world if present is None else len(present)) > 1:
            results = ranks.run_ranks(cluster, settings, program, present)
        else:
            rank = own or 0
            gpu = process.become(cluster, rank, settings, present)
            results = [process.execute(gpu, rank, program)]
            if results[0].error:
                failures.show([(rank, results[0].message or results[0].error)])
    if own in (None, 0):
        if any(rank.seconds for rank in results):
            failed = [(rank.rank, rank.error) for rank in results if rank.error]
            if failed:
                stopped = all(rank.status == process.INTERRUPTED for rank in results)
                report.say(f"{failures.INTERRUPTED if stopped else failures.headline(failed)}; the "
                           "figures cover the run up to there")
            report.show(cluster, results)
        elif any(rank.error and rank.status != process.INTERRUPTED for rank in results):
            report.say("there are no figures: nothing had run on a virtual GPU")
        if options.json:
            report.write(options.json, cluster, results)
    return next((rank.status or 1 for rank in results if rank.error), 0)
