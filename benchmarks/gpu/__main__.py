"""Run everything that needs CUDA: python -m benchmarks.gpu [--out DIR] [--parts a,b] [--quick]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import machine, page
from benchmarks.gpu.parts import UnknownPart, choose, find_parts
from benchmarks.gpu.runner import run_parts


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts and write their results.

    Returns:
        0 on success or without a GPU, 1 if a part failed, 2 for invalid options.
    """
    parts = find_parts()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), metavar="DIR",
                        help=f"folder for {page.JSON}, {page.PAGE}, and each part's log; results "
                        "of other parts from the same machine are kept (default: %(default)s)")
    parser.add_argument("--parts", metavar="A,B",
                        help=f"run only these of the parts {', '.join(parts)}")
    parser.add_argument("--quick", action="store_true",
                        help="fewer cases in every part that takes more than a few seconds")
    given = parser.parse_args(argv)
    try:
        chosen = choose(parts, given.parts)
    except UnknownPart as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    problem = machine.cuda_problem()
    if problem is not None:
        print(f"make gpu: nothing to do without a GPU ({problem})")
        return 0
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"error: --out {given.out}: cannot create this folder ({error.strerror}); "
              "nearest: --out gpu-results", file=sys.stderr)
        return 2
    header = machine.describe()
    outcomes = {}
    for part in chosen:  # written after each part, so an interrupted run keeps what it measured
        outcomes |= run_parts([part], given.out, given.quick)
        page.write(given.out, header, page.merged(given.out, header, outcomes))
    print(f"results: {given.out / page.JSON}, {given.out / page.PAGE}")
    return 1 if any(outcome.result.failures for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
