"""Recompute the comparison of virtual GPUs with published measurements.

    python -m benchmarks.accuracy [SET ...] [--vtrain ground_truth_single.csv]

Writes benchmarks/results/virtual_accuracy.json and virtual_accuracy.md. Sets that are not named
keep their last results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

from benchmarks.accuracy import paper
from benchmarks.accuracy.evaluate import compare, error_of, ratios, regrets, summarize
from benchmarks.accuracy.report import HEAD, overview, section, sentence
from benchmarks.accuracy.rows import RowSet, load_sets
from benchmarks.accuracy.trainer import NotYet
from benchmarks.accuracy.vtrain_single import vtrain_single

RESULTS = Path(__file__).parents[1] / "results"
LAST, FIRST = RESULTS / "virtual_accuracy.json", RESULTS / "virtual_accuracy_first.json"
PAGE = RESULTS / "virtual_accuracy.md"
MODEL = ("virtualgpu", "layout_estimator", "minimegatron")  # folders of code


def evaluate(rows: RowSet) -> dict:
    """Return a set's results, or why it was skipped."""
    outcomes = []
    try:
        for number, outcome in enumerate(compare(rows)):
            outcomes.append({"row": number, **outcome})
            error = error_of(outcome)
            print(f"{rows.name} {number}: {outcome['name']}, {outcome['layout']}: "
                  f"{outcome['predicted']:.4g} s, "
                  + ("out of memory" if error is None else f"{error:+.1%}"), flush=True)
    except NotYet as reason:
        print(f"{rows.name}: skipped: {reason}", flush=True)
        return {"skipped": f"{reason}"}
    more = []
    if rows.facts.get("plans") and (found := regrets(rows, outcomes)):
        more.append(f"choosing the plan that is predicted to be the fastest costs {mean(found):.1%}"
                    f" on average over {len(found)} jobs, {max(found):.1%} at worst")
    if rows.facts.get("ratios"):
        found = ratios(outcomes)
        more.append("ratio of each pair of rows: mean absolute error "
                    f"{mean(map(abs, found)):.1%}, at worst {max(found, key=abs):+.1%}")
    return {**stamp(), "summary": summarize(outcomes), "more": more, "outcomes": outcomes}


def stamp() -> dict[str, str]:
    """Return the date of a comparison and the last commit that changed the model."""
    command = ["git", "log", "-1", "--format=%h", "--", *(f"code/{name}" for name in MODEL)]
    commit = subprocess.run(command, cwd=RESULTS.parents[1], text=True, capture_output=True,
                            check=True).stdout.strip()
    return {"date": datetime.now(UTC).date().isoformat(), "commit": commit}


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
    lines = [*HEAD.splitlines(), "", *overview(sets, last, first)]
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
    chosen = [rows for rows in sets if rows.name in (given.sets or names)]
    work = {rows.name: lambda rows=rows: evaluate(rows) for rows in chosen}
    if given.vtrain:
        work["vtrain_single"] = lambda: {**stamp(), **vtrain_single(given.vtrain)}
    for name, run in work.items():
        begin = time.perf_counter()
        found = run()
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
        save(LAST, {**load(LAST), name: found})
        keep_first(name, found)
    PAGE.write_text(page(sets, load(LAST), load(FIRST)))


if __name__ == "__main__":
    main()
