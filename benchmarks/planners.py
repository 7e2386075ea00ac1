"""Planners on random mixed clusters: the modeled step of each one's plan, and the optimum.

    python -m benchmarks.planners            # 200 clusters, and 40 small ones; about three minutes
    python -m benchmarks.planners --write    # also writes benchmarks/results/planners.md

The clusters are those of `lab contest plans` (two or three kinds of GPUs), with 8 to 32 GPUs. The
optimum of small ones is found by trying all plans that a lower bound does not rule out.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from cluster_planner.case_model import InvalidPlan, step
from cluster_planner.case_planners import (
    amp,
    even,
    fasop,
    lower_bound,
    proportional,
    search,
)
from cluster_planner.placement import orders
from labkit.contest.contests.plans import CONTEST

RESULTS = Path(__file__).parent / "results" / "planners.md"
PLANNERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "even split": even, "in proportion to speed": proportional, "AMP": amp, "FASOP": fasop,
    "ours": search}


def clusters(seed: int) -> Iterator[dict[str, Any]]:
    """Yield cases of the contest with 8 to 32 GPUs, of each group in turn."""
    random = Random(seed)
    while True:
        for group in CONTEST.groups:
            case = group.draw(random)
            if 8 <= sum(spec["gpus"] for spec in case["kinds"].values()) <= 32:
                yield case


def small_clusters(seed: int) -> Iterator[dict[str, Any]]:
    """Yield cases with at most four GPUs and eight layers, whose optimum can be found."""
    random = Random(seed)
    while True:
        for group in CONTEST.groups:
            case = {**group.draw(random), "layers": 8, "replicas": [1],
                    "global_batch": random.randint(3, 10)}
            for spec in case["kinds"].values():
                spec["gpus"] = random.randint(1, 2) if len(case["kinds"]) < 3 else 1
            yield case


def optimum(case: dict[str, Any]) -> float:
    """Return the ms of the fastest of all plans."""
    fastest = float("inf")
    for replicas in case["replicas"]:
        for counts in product(*(range(spec["gpus"] // replicas + 1)
                                for spec in case["kinds"].values())):
            for kinds in orders(dict(zip(case["kinds"], counts, strict=True))):
                for layers in product(range(case["layers"] + 1), repeat=len(kinds)):
                    plan = {"replicas": replicas, "stages": list(zip(kinds, layers, strict=True))}
                    if kinds and sum(layers) == case["layers"] and lower_bound(
                            case, plan) < fastest:
                        with contextlib.suppress(InvalidPlan):
                            fastest = min(fastest, step(case, plan).milliseconds)
    return fastest


def milliseconds(case: dict[str, Any], planner: Callable[[dict[str, Any]], dict[str, Any]]
                 ) -> float:
    """Return the step of a planner's plan in ms, or infinity if the plan does not fit."""
    try:
        return step(case, planner(case)).milliseconds
    except InvalidPlan:
        return float("inf")


def table(number: int, small: int) -> list[str]:
    """Return the report's lines, for a number of clusters and of small ones."""
    drawn, few = clusters(24), small_clusters(24)
    times, spent = {name: [] for name in PLANNERS}, dict.fromkeys(PLANNERS, 0.0)
    for _ in range(number):
        case = next(drawn)
        for name, planner in PLANNERS.items():
            began = time.process_time()
            times[name].append(milliseconds(case, planner))
            spent[name] += time.process_time() - began
    ours = np.array(times["ours"])
    lines = [f"{number} clusters with 8 to 32 GPUs, modeled. Step over that of our plan:", "",
             "| planner | median | mean | largest | faster than ours | plan does not fit | "
             "CPU-s per plan |", "|---|---|---|---|---|---|---|"]
    for name, found in times.items():
        ratios = np.array(found) / ours
        fitting = ratios[np.isfinite(ratios)]
        lines.append(f"| {name} | {np.median(fitting):.3f} | {fitting.mean():.3f} | "
                     f"{fitting.max():.3f} | {int((ratios < 1 - 1e-9).sum())} | "
                     f"{len(ratios) - len(fitting)} | {spent[name] / number:.2f} |")
    gaps = []
    for _ in range(small):
        case = next(few)
        gaps.append(milliseconds(case, search) / optimum(case) - 1)
    exact = sum(gap < 1e-9 for gap in gaps)
    return [*lines, "", f"On {small} small clusters (up to 4 GPUs, 8 layers), ours is the optimum "
            f"of all plans on {exact}; the largest gap is {100 * max(gaps):.2f}%."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=200)
    parser.add_argument("--small", type=int, default=40)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    lines = table(arguments.clusters, arguments.small)
    print("\n".join(lines))
    if arguments.write:
        command = (f"python -m benchmarks.planners --clusters {arguments.clusters} --small "
                   f"{arguments.small} --write")
        RESULTS.write_text(f"# Planners on mixed clusters\n\n`{command}`\n\n"
                           + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
