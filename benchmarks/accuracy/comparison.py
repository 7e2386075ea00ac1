"""The comparison of one set, in a worker process of benchmarks.accuracy."""

from __future__ import annotations

import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

from benchmarks.accuracy.evaluate import compare, error_of, ratios, regrets, summarize
from benchmarks.accuracy.rows import RowSet, load_set
from benchmarks.accuracy.trainer import NotYet
from benchmarks.accuracy.vtrain_single import vtrain_single

VTRAIN = "vtrain_single"  # the set that is not in benchmarks/published
MODEL = ("virtualgpu", "layout_estimator", "minimegatron")  # folders of code


def compare_set(name: str, vtrain: str | None) -> tuple[str, dict]:
    """Return a set's name and its results.

    Args:
        name: of the set.
        vtrain: vTrain's file of runs on one node; None if it was not named.
    """
    begin = time.perf_counter()
    found = ({**stamp(), **vtrain_single(vtrain)} if name == VTRAIN else evaluate(load_set(name)))
    print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    return name, found


def evaluate(rows: RowSet) -> dict:
    """Return a set's results, or why it was skipped."""
    outcomes = []
    try:
        for number, outcome in enumerate(compare(rows)):
            outcomes.append({"row": number, **outcome})
            error = error_of(outcome)
            print(f"{rows.name} {number}: {outcome['name']}, {outcome['layout']}: "
                  f"{outcome['predicted']:.4g} s, "
                  + (f"{error:+.1%}" if error is not None else "no time was published"
                     if outcome["published_fits"] else "out of memory"), flush=True)
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
    command = ["git", "log", "-1", "--format=%h", "--", *(f":/code/{name}" for name in MODEL)]
    commit = subprocess.run(command, cwd=Path(__file__).parent, text=True, capture_output=True,
                            check=True).stdout.strip()
    return {"date": datetime.now(UTC).date().isoformat(), "commit": commit}
