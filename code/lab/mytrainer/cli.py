"""Test the pieces of the student's trainer, and measure what they gain: `lab mytrainer`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.mytrainer import pieces
from lab.mytrainer.pieces import EXTENDED, NEW, PIECES, Piece
from labcore import workspace
from labcore.atomic import write_atomic
from labcore.colors import bad, good, strong
from labcore.errors import LabError

WIDTHS = [max(map(len, column)) for column in zip(
    *((piece.shown, piece.purpose) for piece in PIECES.values()), strict=True)]
UNFINISHED = "NotImplementedError: Your turn"  # the error of an exercise's stub


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    text = "test the pieces of your own trainer, and measure what they gain"
    parser = subparsers.add_parser(
        "mytrainer", help=text, description="Test the files that you have written in mytrainer/ on "
        "two ranks, then run code/my_trainer.py with them on virtual GPUs.")
    parser.add_argument("--gpus", default="h100:8", metavar="MODEL:N",
                        help="GPU model and number of virtual GPUs per node, or several kinds of "
                        "nodes, such as a100:4x2,a10:4x4 (default: h100:8)")
    parser.add_argument("--nodes", type=int, default=1, metavar="N",
                        help="number of nodes (default: 1)")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--worked", metavar="PIECE",
                        help="install the course's version of a piece: "
                        + ", ".join([*PIECES, *EXTENDED]))
    chosen.add_argument("--adopt", metavar="PIECE",
                        help="replace a piece by your extended version in mytrainer/new/, if that "
                        "works: " + ", ".join(name.removeprefix(NEW) for name in EXTENDED))
    parser.add_argument("--html", metavar="FILE",
                        help="also write the map of your trainer as a page")
    parser.add_argument("--force", action="store_true",
                        help="let --worked replace your own file, which is kept as a backup")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return 1 if a piece is broken. Raises LabError for bad arguments."""
    if arguments.force and arguments.worked is None:
        raise LabError("--force is only for --worked, which is not given")
    if arguments.html is not None and (arguments.worked or arguments.adopt):
        raise LabError(f"--html {arguments.html}: --worked and --adopt draw no map; leave it out")
    if arguments.html is not None and not Path(arguments.html).absolute().parent.is_dir():
        raise LabError(f"--html {arguments.html}: {Path(arguments.html).absolute().parent} is no "
                       f"folder; nearest: --html {Path(arguments.html).name}")
    if arguments.adopt is not None:
        from lab.mytrainer import worked

        print("\n".join(worked.adopt(extended(arguments.adopt))))
        return 0
    if arguments.worked is not None:
        from lab.mytrainer import worked

        print("\n".join(worked.install(pieces.find(arguments.worked), arguments.force)))
        return 0
    from virtualgpu import VirtualGpuError
    from virtualgpu.launch.cluster import parse

    try:
        parse(arguments.gpus, arguments.nodes, None)
    except VirtualGpuError as error:
        raise LabError(str(error)) from error
    print(f"Your trainer: {workspace.home() / pieces.FOLDER}\n", flush=True)
    results = {piece.name: test(piece) for piece in PIECES.values()}
    if broken := [f"  {result.problem}" for result in results.values() if result.problem]:
        print("\nFix these first; then `lab mytrainer` also measures what they gain:\n")
        print("\n".join(broken), file=sys.stderr)
        return 1
    if results["ddp"].unfinished:
        print("\nOnce mytrainer/ddp.py is written, `lab mytrainer` also measures what it gains.")
        if arguments.html is not None:
            raise LabError(f"--html {arguments.html}: the map needs mytrainer/ddp.py to be "
                           "written, or to be absent")
        return 0
    show_gain(arguments.gpus, arguments.nodes, results["ddp"].works)
    show_journey({name for name, result in results.items() if result.works}, arguments.html)
    return 0


def extended(name: str) -> Piece:
    """Return the extended version of the piece with this name. Raises LabError if none has it."""
    piece = pieces.find(name).target
    if NEW + piece.name not in EXTENDED:
        raise LabError(f"--adopt {name}: no lab extends {piece.shown}; nearest: --adopt "
                       + ", ".join(name.removeprefix(NEW) for name in EXTENDED))
    return EXTENDED[NEW + piece.name]


@dataclass(frozen=True)
class TestResult:
    """The result of testing a piece.

    Attributes:
        works: whether the piece passed.
        unfinished: whether its file still contains an exercise's stub.
        problem: the error of a piece that is written but broken; otherwise None.
    """

    works: bool
    unfinished: bool
    problem: str | None


def test(piece: Piece) -> TestResult:
    """Test a piece, and print the result."""
    from lab.mytrainer import selfcheck

    try:
        exists, problem = pieces.load(piece.name) is not None, None
    except pieces.PieceError as error:
        exists, problem = True, str(error)
    if exists and problem is None:
        problem = selfcheck.problem(piece)
    # A stub in another file makes this piece fail, but it does not make it unfinished.
    unfinished = bool(problem) and problem.startswith(piece.shown) and UNFINISHED in problem
    state = (f"not written yet: {piece.lab} has the exercise" if not exists or unfinished else
             bad("does not work") if problem else good(f"works on {selfcheck.RANKS} ranks"))
    shown, purpose = WIDTHS
    print(f"  {piece.shown:<{shown}} {piece.purpose:<{purpose}}  {state}", flush=True)
    return TestResult(exists and problem is None, unfinished, None if unfinished else problem)


def show_gain(gpus: str, nodes: int, parallel: bool) -> None:
    """Run the training loop on virtual GPUs, and print a table of its throughput and memory.

    Args:
        gpus: the GPU model and the number per node, or several kinds of nodes.
        nodes: the number of nodes.
        parallel: whether ddp.py works; without it, only one GPU is measured.
    """
    from lab.mytrainer import gain
    from virtualgpu.core import stacks
    from virtualgpu.launch.cluster import parse

    kinds = list(dict.fromkeys(part.partition(":")[0].strip() for part in gpus.split(",")))
    print(f"\ncode/my_trainer.py on virtual {' and '.join(kinds)} GPUs (modeled, not measured):\n"
          f"{gain.TITLE}, fp32")
    for card in parse(gpus, nodes).kinds:
        print(f"software stack {stacks.describe(card)}")
    if len(kinds) > 1:
        print(f"speedup over one {kinds[0]}; all GPUs train on equally many samples")
    print(flush=True)
    gains = [gain.measure(kinds[0])]
    if parallel:
        gains.append(gain.measure(gpus, nodes))
    print("\n".join(gain.table(gains)))
    if not parallel:
        print("\nMore than one GPU needs mytrainer/ddp.py.")


def show_journey(working: set[str], html: str | None) -> None:
    """Print the map: the stations of a step, the losses on ranks, and the figures of each lab.

    Args:
        working: the names of the pieces that work.
        html: the file for the map as a page, if any.
    """
    from lab.mytrainer import journey
    from lab.mytrainer.selfcheck import RANKS

    print("\nThe path of a batch through your trainer:\n")
    for text, file, works in journey.stations(working):
        owner = good(f"yours, {file}") if works else "the course's"
        print(f"  {strong(f'{text:<22}') if works else f'{text:<22}'} {owner}")
    difference, legs = None, journey.noted()
    if working:
        ranks = RANKS if "ddp" in working else 1
        difference = journey.loss_difference(ranks)
        print(f"\nFive losses on {ranks} rank(s) and those of pretrain_gpt.py "
              f"{shown_difference(difference)}.", flush=True)
    if "ddp" in working:
        legs = journey.note(journey.measure(journey.latest_lab(working)))
        print("\nWhat each lab has brought (modeled):\n", *journey.table(legs), sep="\n")
    if working.issuperset(journey.LLAMA_FILES):
        show_llama()
    if html is not None:
        write_atomic(Path(html), journey.page(working, difference, legs).encode())
        print(f"\nThe map as a page: {html}")


def shown_difference(difference: float) -> str:
    """Return how far losses are apart, as the end of a sentence."""
    return (f"differ by at most {difference:.1e}, relatively" if difference else
            "agree in all digits of the log")


def show_llama() -> None:
    """Print the losses of the student's Llama on ranks that share it, and what it reaches."""
    from lab.mytrainer import gain, journey
    from lab.mytrainer.flags import llama_flags
    from lab.mytrainer.selfcheck import RANKS

    difference = journey.loss_difference(RANKS, f"--tensor-model-parallel-size {RANKS}",
                                         llama_flags())
    print(f"\nFive losses of your Llama on {RANKS} tensor-parallel ranks and those of "
          f"pretrain_gpt.py {shown_difference(difference)}.", flush=True)
    gained = gain.measure("h100:8", flags=journey.LLAMA)
    print("\nLlama 3 8B, sequences of 8,192 tokens, on 8 virtual H100s that share it (modeled): "
          f"{gained.tokens:,.0f} tok/s, {gained.mfu:.1%} MFU, {gained.peak / 2**30:.1f} GiB peak "
          "memory")
