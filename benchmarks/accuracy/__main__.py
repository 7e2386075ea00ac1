"""Recompute the comparison of virtual GPUs with published measurements.

    python -m benchmarks.accuracy [SET ...] [--vtrain ground_truth_single.csv]

Writes benchmarks/results/virtual_accuracy.json and virtual_accuracy.md. Sets that are not named
keep their last results. Each processor compares one set at a time.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.accuracy import paper
from benchmarks.accuracy.comparison import VTRAIN, compare_set
from benchmarks.accuracy.report import HEAD, by_gpu, of_pairs, overview, section, sentence
from benchmarks.accuracy.rows import RowSet, load_sets

RESULTS = Path(__file__).parents[1] / "results"
LAST, FIRST = RESULTS / "virtual_accuracy.json", RESULTS / "virtual_accuracy_first.json"
PAGE = RESULTS / "virtual_accuracy.md"


def load(path: Path) -> dict[str, dict]:
    return json.loads(path.read_text()) if path.exists() else {}


def save(path: Path, sets: dict[str, dict]) -> None:
    """Write results: one row to a line.

    Args:
        path: the file.
        sets: results by set.
    """
    parts = []
    for name, found in sorted(sets.items()):
        head = json.dumps({key: value for key, value in found.items() if key != "outcomes"})
        rows = ",\n  ".join(json.dumps(one) for one in found.get("outcomes", ()))
        parts.append(f'"{name}": {head[:-1]}, "outcomes": [\n  {rows}]}}' if rows
                     else f'"{name}": {head}')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def keep_first(name: str, found: dict) -> None:
    """Keep a set's results if they are its first ones.

    Args:
        name: of the set.
        found: its results.
    """
    first = load(FIRST)
    if name not in first and "skipped" not in found:
        save(FIRST, {**first, name: found})


def page(sets: list[RowSet], last: dict, first: dict) -> str:
    """Return the page of results.

    Args:
        sets: the sets of benchmarks/published.
        last: the results by set.
        first: the first comparisons by set.
    """
    lines = [*HEAD.splitlines(), "", *overview(sets, last, first), *by_gpu(sets, last),
             *of_pairs(sets, last)]
    for rows in sets:
        if rows.name in last:
            lines += section(rows, last[rows.name], first.get(rows.name, {}))
    for found in last.values():
        if "about" in found:
            lines += [f"## {found['title']}", "", found["about"], "",
                      *(f"- {split}: {sentence(one)}" for split, one in found["summary"].items()),
                      *(f"- {text}" for text in found["more"]), ""]
    return "\n".join([*lines, *paper.activations(), *paper.formulas()])


def main() -> None:
    sets = load_sets()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help="files of benchmarks/published")
    parser.add_argument("--vtrain", metavar="FILE", help="VIA-Research/vTrain's "
                        "ground_truth_single.csv, which is not part of this repository")
    given = parser.parse_args()
    names = [rows.name for rows in sets]
    if unknown := set(given.sets) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: expected sets among {', '.join(names)}")
    work = [name for name in names if name in (given.sets or names)]
    work += [VTRAIN] if given.vtrain else []
    # Workers start anew, because a fork of a process with PyTorch's threads can hang.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for name, found in pool.map(partial(compare_set, vtrain=given.vtrain), work):
            if "skipped" in found and name in load(LAST):
                continue  # it keeps its last results
            save(LAST, {**load(LAST), name: found})
            keep_first(name, found)
    PAGE.write_text(page(sets, load(LAST), load(FIRST)))


if __name__ == "__main__":
    main()
