"""Test the pieces of the student's trainer, and measure what they gain: `lab mytrainer`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from lab.mytrainer import pieces
from lab.mytrainer.pieces import EXTENDED, NEW, PIECES, Piece
from labcore import workspace
from labcore.colors import bad, good
from labcore.errors import LabError

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
    parser.add_argument("--force", action="store_true",
                        help="let --worked replace your own file, which is kept as a backup")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return 1 if a piece is broken. Raises LabError for bad arguments."""
    if arguments.force and arguments.worked is None:
        raise LabError("--force is only for --worked, which is not given")
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
        return 0
    show_gain(arguments.gpus, arguments.nodes, results["ddp"].works)
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
    print(f"  {piece.shown:<26} {piece.purpose:<18} {state}", flush=True)
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
          f"{gain.TITLE}")
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
