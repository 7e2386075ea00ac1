"""The command line: NVIDIA's options, as far as there is something modeled to show."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from job_monitor.nvidia_smi import cards, query, table
from job_monitor.nvidia_smi.cards import Gpu
from labcore.errors import LabError
from virtualgpu.core.cards import nearest

# As the real one's.
INVALID, NOT_FOUND, NO_DRIVER = 2, 6, 9
PERIOD = 5.0  # seconds of a --loop that says none
SHORTEST = 0.02
FORMATS = ("csv", "noheader", "nounits")
HELP = "Please run 'nvidia-smi -h' for help."
INSTEAD = {"-q": "--query-gpu", "--query": "--query-gpu", "dmon": "--query-gpu with -l 1",
           "pmon": "--query-compute-apps with -l 1"}
QUERIES = {"query_gpu": (query.GPU_FIELDS, query.ALIASES),
           "query_compute_apps": (query.APP_FIELDS, query.APP_ALIASES)}


class Stop(Exception):
    """End with a message and an exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Stop(INVALID, f"ERROR: {message}. {HELP}")


def parser() -> Parser:
    top = Parser(prog="nvidia-smi", allow_abbrev=False, description=(
        "The cluster's virtual GPUs: modeled, no hardware. `nvidia-smi topo -m` shows how the GPUs "
        "of a node are connected."))
    add = top.add_argument
    add("-L", "--list-gpus", action="store_true", help="one line for each GPU")
    add("-i", "--id", metavar="ID", action="append", default=[],
        help="only these GPUs: index, UUID, or bus, separated by commas")
    add("--node", metavar="NAME", help="only this node's (the real nvidia-smi has no such option)")
    add("-f", "--filename", metavar="FILE", help="write to a file, not to the terminal")
    add("-l", "--loop", metavar="SECONDS", nargs="?", const=str(PERIOD),
        help=f"again and again, until ^C; every {PERIOD:g} s if nothing else is said")
    add("-lms", "--loop-ms", metavar="MS", help="the same, in milliseconds")
    add("--query-gpu", metavar="FIELDS", help="values of each card, with --format")
    add("--query-compute-apps", metavar="FIELDS", help="values of each process, with --format")
    add("--format", metavar="csv[,noheader][,nounits]")
    add("--help-query-gpu", action="store_true", help="the fields")
    add("--help-query-compute-apps", action="store_true", help="the fields")
    return top


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Raises Stop."""
    argv = list(argv)
    topology = argv[:1] == ["topo"]
    if topology and not {"-m", "--matrix"} & set(argv):
        raise Stop(INVALID, f"ERROR: topo {' '.join(argv[1:])}: nearest: nvidia-smi topo -m")
    words = [word for word in argv[1:] if word not in ("-m", "--matrix")] if topology else argv
    options, unknown = parser().parse_known_args(words)
    if unknown:
        names = ["topo -m", *(name for action in parser()._actions for name in
                              action.option_strings)]
        near = INSTEAD.get(unknown[0]) or " or ".join(nearest(unknown[0], names))
        raise Stop(INVALID, f"ERROR: Option {unknown[0]} is not recognized, or nothing of it is "
                            f"modeled; nearest: {near}. {HELP}")
    options.topology = topology
    options.wait = period(options)
    options.id = [word.strip() for text in options.id for word in text.split(",")]
    check_query(options)
    return options


def period(options: argparse.Namespace) -> float | None:
    """Seconds between two looks; None: one look. Raises Stop."""
    if options.loop is not None and options.loop_ms is not None:
        raise Stop(INVALID, "ERROR: --loop and --loop-ms: give one of them")
    text, flag, unit = (options.loop, "-l", 1.0) if options.loop_ms is None else (
        options.loop_ms, "-lms", 1e-3)
    if text is None:
        return None
    try:
        seconds = float(text) * unit
    except ValueError:
        seconds = -1.0
    if not SHORTEST <= seconds < 1e6:
        raise Stop(INVALID, f"ERROR: {flag} {text}: not a time to wait between two looks; nearest: "
                            f"{flag} {max(1, round(SHORTEST / unit))}")
    return seconds


def check_query(options: argparse.Namespace) -> None:
    """Put the query's columns and formats into the options. Raises Stop."""
    asked = [name for name in QUERIES if getattr(options, name) is not None]
    options.columns = None
    if len(asked) > 1:
        raise Stop(INVALID, "ERROR: --query-gpu and --query-compute-apps: give one of them")
    if not asked:
        if options.format is not None:
            raise Stop(INVALID, f"ERROR: --format {options.format} belongs to a query; nearest: "
                                f"--query-gpu=index,memory.used --format={options.format}")
        return
    flag = asked[0].replace("_", "-")
    formats = [word.strip() for word in (options.format or "").split(",")]
    if "csv" not in formats or not {*formats} <= {*FORMATS}:
        near = ",".join(word for word in FORMATS if word == "csv" or word in formats)
        raise Stop(INVALID, f"ERROR: --{flag} with --format={options.format or ''}: nearest: "
                            f"--format={near}")
    try:
        options.columns = query.fields(getattr(options, asked[0]), *QUERIES[asked[0]])
    except query.BadField as error:
        raise Stop(INVALID, f"{error}. See nvidia-smi --help-{flag}") from error
    options.apps, options.formats = asked[0] == "query_compute_apps", formats


def look(state: Path, proc: Path, node: str | None) -> dict[str, list[Gpu]]:
    """{node: cards to show} now. Raises Stop."""
    try:
        record = json.loads((state / "running.json").read_text())
        declared, fabric = cards.nodes_of(record), cards.has_fabric(record)
    except (OSError, ValueError) as error:
        raise Stop(NO_DRIVER, "nvidia-smi: error: the cluster is not running: lab cluster up"
                   ) from error
    except (LabError, KeyError, TypeError) as error:
        raise Stop(NO_DRIVER, "nvidia-smi: error: the cluster was started by another version, with "
                   f"what is unknown here ({error}): lab cluster down first, then lab cluster up"
                   ) from error
    inside = os.environ.get("SLURMD_NODENAME")
    wanted = node or inside
    if wanted is not None and wanted not in declared:
        raise Stop(NOT_FOUND, f"ERROR: --node {wanted}: no such node; nearest: "
                              f"{nearest(wanted, declared)[0]}")
    shown = cards.place(declared, cards.running(state / "ranks", proc), fabric)
    if wanted is not None:
        shown = {wanted: shown[wanted]}
    if inside is not None and wanted == inside:
        shown[inside] = cards.of_job(shown[inside], dict(os.environ))
    return shown


def text(options: argparse.Namespace, shown: dict[str, list[Gpu]], first: bool) -> str:
    """Return the output of one query. Raises Stop if there is no such GPU."""
    shown = {node: list(cards.chosen(gpus, options.id)) for node, gpus in shown.items()}
    if not any(shown.values()):
        raise Stop(NOT_FOUND, "No devices were found")
    if options.columns is not None:
        gpus = [gpu for row in shown.values() for gpu in row if gpu.rank or not options.apps]
        units = "nounits" not in options.formats
        lines = [] if "noheader" in options.formats or not first else [
            query.header(options.columns)]
        return "".join(f"{line}\n" for line in lines + query.rows(options.columns, gpus, units))
    parts = []
    for node, gpus in shown.items():
        title = f"{node}:\n" if len(shown) > 1 else ""
        if not gpus and options.id:
            continue
        if not gpus:
            parts.append(f"{node}: no GPUs\n")
        elif options.topology:
            parts.append(title + table.matrix(gpus, gpus[0].fabric))
        elif options.list_gpus:
            parts.append(title + table.listing(gpus))
        else:
            parts.append(table.table(node, gpus))
    return "\n".join(parts) if options.topology else "".join(parts)


def watch(state: Path, proc: Path, options: argparse.Namespace, out: TextIO) -> None:
    """Print one look, or look again and again. Raises Stop."""
    first = True
    while True:
        shown = look(state, proc, options.node)
        said = text(options, shown, first)
        if first and (options.columns is not None or len(shown) > 1):
            about = f"nvidia-smi: {table.MODELED}"
            if len(shown) > 1:
                about += f"; of {', '.join(shown)} in turn (--node NAME selects one)"
            print(about, file=sys.stderr, flush=True)
        out.write(said)
        out.flush()
        if options.wait is None:
            return
        first = False
        time.sleep(options.wait)


def main(state: Path, proc: Path, argv: Sequence[str]) -> int:
    """The exit code. state: the cluster's folder. proc: see cards.running."""
    try:
        options = parse(argv)
        for name, (fields, aliases) in QUERIES.items():
            if getattr(options, f"help_{name}"):
                print(query.help_text(name.replace("_", "-"), fields, aliases))
                return 0
        if options.filename is None:
            watch(state, proc, options, sys.stdout)
            return 0
        try:
            out = open(options.filename, "w")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise Stop(INVALID, f"ERROR: -f {options.filename}: {error.strerror}; nearest: a file "
                                f"in {os.getcwd()}") from error
        with out:
            watch(state, proc, options, out)
    except Stop as stop:
        print(stop, file=sys.stderr)
        return stop.code
    return 0
