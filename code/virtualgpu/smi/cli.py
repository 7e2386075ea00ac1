"""The command line of `nvidia-smi`: those of NVIDIA's options for which something is modeled."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TextIO

from virtualgpu.core.cards import nearest
from virtualgpu.smi import query, table
from virtualgpu.smi.gpus import Gpu, select

Find = Callable[[str | None], dict[str, list[Gpu]]]  # the GPUs by node, or those of one node

# Exit codes of the real nvidia-smi.
INVALID, NOT_FOUND, NO_DRIVER = 2, 6, 9
DEFAULT_PERIOD = 5.0  # seconds
MIN_PERIOD = 0.02  # seconds
FORMATS = ("csv", "noheader", "nounits")
HELP = "Please run 'nvidia-smi -h' for help."
ALTERNATIVES = {
    "-q": "--query-gpu", "--query": "--query-gpu", "dmon": "--query-gpu with -l 1",
    "pmon": "--query-compute-apps with -l 1"}
QUERIES = {"query_gpu": (query.GPU_FIELDS, query.ALIASES),
           "query_compute_apps": (query.APP_FIELDS, query.APP_ALIASES)}


class SmiExit(Exception):
    """Raised to exit with a message and an exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class SmiParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SmiExit(INVALID, f"ERROR: {message}. {HELP}")


def build_parser() -> SmiParser:
    top = SmiParser(prog="nvidia-smi", allow_abbrev=False, description=(
        "Show virtual GPUs, which are modeled, not hardware. `nvidia-smi topo -m` "
        "shows how the GPUs of a node are connected."))
    add = top.add_argument
    add("-L", "--list-gpus", action="store_true", help="print one line per GPU")
    add("-i", "--id", metavar="ID", action="append", default=[],
        help="show only these GPUs: indices, UUIDs, or bus IDs, separated by commas")
    add("--node", metavar="NAME",
        help="show only the GPUs of this node (the real nvidia-smi has no such option)")
    add("-f", "--filename", metavar="FILE", help="write to a file instead of the terminal")
    add("-l", "--loop", metavar="SECONDS", nargs="?", const=str(DEFAULT_PERIOD),
        help=f"repeat until Ctrl-C, every SECONDS (default: {DEFAULT_PERIOD:g})")
    add("-lms", "--loop-ms", metavar="MS", help="repeat until Ctrl-C, every MS milliseconds")
    add("--query-gpu", metavar="FIELDS", help="print values of each GPU; needs --format")
    add("--query-compute-apps", metavar="FIELDS",
        help="print values of each process; needs --format")
    add("--format", metavar="csv[,noheader][,nounits]", help="the format of a query's values")
    add("--help-query-gpu", action="store_true", help="list the fields of --query-gpu")
    add("--help-query-compute-apps", action="store_true",
        help="list the fields of --query-compute-apps")
    return top


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the options. Raises SmiExit."""
    argv = list(argv)
    topology = argv[:1] == ["topo"]
    if topology and not {"-m", "--matrix"} & set(argv):
        raise SmiExit(INVALID, f"ERROR: topo {' '.join(argv[1:])}: nearest: nvidia-smi topo -m")
    words = [word for word in argv[1:] if word not in ("-m", "--matrix")] if topology else argv
    options, unknown = build_parser().parse_known_args(words)
    if unknown:
        names = ["topo -m", *(name for action in build_parser()._actions for name in
                              action.option_strings)]
        near = ALTERNATIVES.get(unknown[0]) or " or ".join(nearest(unknown[0], names))
        raise SmiExit(INVALID, f"ERROR: Option {unknown[0]} is not recognized, or not modeled; "
                               f"nearest: {near}. {HELP}")
    options.topology = topology
    options.period = period(options)
    options.id = [word.strip() for text in options.id for word in text.split(",")]
    check_query(options)
    return options


def period(options: argparse.Namespace) -> float | None:
    """Return the seconds between two queries, or None to query once. Raises SmiExit."""
    if options.loop is not None and options.loop_ms is not None:
        raise SmiExit(INVALID, "ERROR: --loop and --loop-ms exclude each other: pass one of them")
    text, flag, unit = (options.loop, "-l", 1.0) if options.loop_ms is None else (
        options.loop_ms, "-lms", 1e-3)
    if text is None:
        return None
    try:
        seconds = float(text) * unit
    except ValueError:
        seconds = -1.0
    if not MIN_PERIOD <= seconds < 1e6:
        raise SmiExit(INVALID, f"ERROR: {flag} {text}: not a valid period; nearest: "
                               f"{flag} {max(1, round(MIN_PERIOD / unit))}")
    return seconds


def check_query(options: argparse.Namespace) -> None:
    """Set the columns and formats of a query in the options. Raises SmiExit."""
    queries = [name for name in QUERIES if getattr(options, name) is not None]
    options.columns = None
    if len(queries) > 1:
        raise SmiExit(INVALID, "ERROR: --query-gpu and --query-compute-apps exclude each other: "
                               "pass one of them")
    if not queries:
        if options.format is not None:
            raise SmiExit(INVALID, f"ERROR: --format {options.format} needs a query; nearest: "
                                   f"--query-gpu=index,memory.used --format={options.format}")
        return
    flag = queries[0].replace("_", "-")
    formats = [word.strip() for word in (options.format or "").split(",")]
    if "csv" not in formats or not {*formats} <= {*FORMATS}:
        near = ",".join(word for word in FORMATS if word == "csv" or word in formats)
        raise SmiExit(INVALID, f"ERROR: --{flag} with --format={options.format or ''}: nearest: "
                               f"--format={near}")
    try:
        options.columns = query.fields(getattr(options, queries[0]), *QUERIES[queries[0]])
    except query.UnknownField as error:
        raise SmiExit(INVALID, f"{error}. See nvidia-smi --help-{flag}") from error
    options.apps, options.formats = queries[0] == "query_compute_apps", formats


def render(options: argparse.Namespace, shown: dict[str, list[Gpu]], with_header: bool) -> str:
    """Return the output of one query.

    Args:
        shown: the GPUs to show, by node.
        with_header: whether a CSV file begins with its header.

    Raises:
        SmiExit: no GPU matches --id.
    """
    shown = {node: list(select(gpus, options.id)) for node, gpus in shown.items()}
    if not any(shown.values()):
        raise SmiExit(NOT_FOUND, "No devices were found")
    if options.columns is not None:
        gpus = [gpu for row in shown.values() for gpu in row if gpu.process or not options.apps]
        units = "nounits" not in options.formats
        lines = [] if "noheader" in options.formats or not with_header else [
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


def query_repeatedly(find: Find, options: argparse.Namespace, out: TextIO, labeled: bool) -> None:
    """Print the GPUs once, or every period if --loop was given. Raises SmiExit.

    Args:
        find: as for main.
        out: where the table is printed.
        labeled: as for main.
    """
    first = True
    while True:
        shown = find(options.node)
        output = render(options, shown, first)
        if labeled and first and (options.columns is not None or len(shown) > 1):
            notice = f"nvidia-smi: {table.MODELED}"
            if len(shown) > 1:
                notice += f"; nodes {', '.join(shown)} (--node NAME selects one)"
            print(notice, file=sys.stderr, flush=True)
        out.write(output)
        out.flush()
        if options.period is None:
            return
        first = False
        time.sleep(options.period)


def main(find: Find, argv: Sequence[str], labeled: bool = True) -> int:
    """Run the command and return its exit code.

    Args:
        find: returns the GPUs to show, by node, for the value of --node; may raise SmiExit.
        argv: the command-line arguments.
        labeled: whether values without a table come with a line on stderr that says that the GPUs
            are modeled. A program under virtualrun has its report, which says so.
    """
    try:
        options = parse(argv)
        for name, (fields, aliases) in QUERIES.items():
            if getattr(options, f"help_{name}"):
                print(query.help_text(name.replace("_", "-"), fields, aliases))
                return 0
        if options.filename is None:
            query_repeatedly(find, options, sys.stdout, labeled)
            return 0
        try:
            out = open(options.filename, "w")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise SmiExit(INVALID, f"ERROR: -f {options.filename}: {error.strerror}; nearest: a "
                                   f"file in {os.getcwd()}") from error
        with out:
            query_repeatedly(find, options, out, labeled)
    except SmiExit as stop:
        print(stop, file=sys.stderr)
        return stop.code
    return 0
