"""Compare a set's rows with the model, and summarize the errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import mean

from benchmarks.accuracy import direct, fsdp, trainer
from benchmarks.accuracy.rows import (
    CALIBRATION,
    INFERRED,
    TEST,
    Prediction,
    RowSet,
    card_of,
    published_memory,
    published_seconds,
)
from virtualgpu.core.card import Card

PROGRAMS = {"mpt_fsdp": fsdp.mpt_fsdp, "llama_fsdp": fsdp.llama_fsdp}
CLOSE = 0.15  # "within 15%"

Outcome = dict  # one row, as the results' JSON has it


def predict(rows: RowSet, row: Mapping, card: Card | None = None) -> Prediction:
    """Return the prediction for a row.

    Args:
        rows: the row's set.
        row: the row.
        card: the GPU model; None for the repository's.

    Raises:
        NotYet: the trainer does not know one of the row's flags.
    """
    facts = rows.facts
    card = card or card_of(facts, row)
    if facts["program"] == "trainer":
        return trainer.predict(row, card)
    if facts["program"] in direct.PROGRAMS:
        return direct.predict(facts["program"], row, card)
    return fsdp.predict(PROGRAMS[facts["program"]], row, card)


def compare(rows: RowSet) -> Iterator[Outcome]:
    """Yield every row's outcome. Raises NotYet."""
    for index, row in enumerate(rows.rows):
        found = predict(rows, row)
        outcome = {"name": row.get("name") or row["model"], "split": rows.split(index),
                   "layout": layout(row), "published": published_seconds(row),
                   "predicted": found.seconds, "fits": found.fits,
                   "published_fits": row.get("fits", True)}
        measured = published_memory(row)
        if measured and found.fits:
            modeled = found.memory(rows.facts["memory_counts"])
            outcome |= {"memory": modeled, "published_memory": measured}
        yield outcome


def layout(row: Mapping) -> str:
    """Return a row's configuration in a few words."""
    parts = [f"{row['gpus']} {row['gpu']}"]
    if "tp" in row:
        parts += [f"TP {row['tp']}", f"PP {row['pp']}", f"batch {row['batch']}"]
    else:
        parts.append(f"sequence {row['sequence']}")
    parts.append(f"micro-batch {row['micro_batch']}")
    if row.get("accumulation", 1) > 1:
        parts.append(f"x {row['accumulation']}")
    if row.get("options"):
        parts.append(row["options"])
    if row.get("checkpointing"):
        mode = row["checkpointing"]
        parts.append("recomputation" if mode is True else f"recomputation: {mode}")
    return ", ".join(parts)


def error_of(outcome: Outcome) -> float | None:
    """Return predicted / published - 1, or None for a row without a published time."""
    if outcome["published"] is None:
        return None
    return outcome["predicted"] / outcome["published"] - 1


def summarize(outcomes: Sequence[Outcome]) -> dict[str, dict]:
    """Return the errors by split; "all" are the calibration rows and the test rows."""
    splits = {CALIBRATION: [], TEST: [], INFERRED: [],
              "all": [one for one in outcomes if one["split"] != INFERRED]}
    for outcome in outcomes:
        splits[outcome["split"]].append(outcome)
    return {split: summary for split, chosen in splits.items() if (summary := errors(chosen))}


def errors(outcomes: Sequence[Outcome]) -> dict:
    """Return the number of rows, and the mean absolute error, bias, and worst error of the time."""
    found = {at: error for at, outcome in enumerate(outcomes)
             if (error := error_of(outcome)) is not None}
    if not found:
        return {}
    worst = max(found, key=lambda at: abs(found[at]))
    memory = [outcome["memory"] / outcome["published_memory"] - 1 for outcome in outcomes
              if "memory" in outcome]
    summary = {
        "rows": len(found), "error": mean(map(abs, found.values())), "bias": mean(found.values()),
        "within": mean(abs(error) <= CLOSE for error in found.values()), "worst": found[worst],
        "worst_row": f"{outcomes[worst]['name']}, {outcomes[worst]['layout']}",
        "fits_as_published": sum(one["fits"] == one["published_fits"] for one in outcomes),
        "all_rows": len(outcomes)}
    if memory:
        summary |= {"memory_rows": len(memory), "memory_error": mean(map(abs, memory)),
                    "memory_bias": mean(memory)}
    return summary


def regrets(rows: RowSet, outcomes: Sequence[Outcome]) -> list[float]:
    """Return how much slower than the fastest plan the chosen one is, for each job with several.

    Args:
        rows: the set; its rows with the same model, GPUs, and batch are plans for one job.
        outcomes: of its rows.
    """
    jobs = defaultdict(list)
    for row, outcome in zip(rows.rows, outcomes, strict=True):
        if outcome["published"] is not None:
            job = tuple(row[key] for key in ("layers", "hidden", "heads", "gpus", "batch"))
            jobs[job].append((outcome["predicted"], outcome["published"]))
    return [min(plans)[1] / min(real for _, real in plans) - 1
            for plans in jobs.values() if len(plans) > 1]


RECOMPUTATION = ("checkpointing", "more_flags")
JOB = ("model", "gpu", "gpus", "layers", "hidden", "heads", "batch", "sequence", "accumulation")
SETTINGS = ("tp", "pp", "micro_batch", "sharding", *RECOMPUTATION)


def pair_errors(rows: RowSet, outcomes: Sequence[Outcome]) -> dict[bool, list[float]]:
    """Return the errors of the ratios of every two test rows of one job.

    Args:
        rows: the set; its rows with the same model, GPUs, and batch are settings of one job.
        outcomes: of its rows.

    Returns:
        {whether the two differ in nothing but recomputation: errors}.
    """
    found: dict[bool, list[float]] = {True: [], False: []}
    timed = [(rows.rows[one["row"]], one) for one in outcomes
             if one["split"] == TEST and one["published"] is not None]
    for (row, first), (other, second) in combinations(timed, 2):
        if all(row.get(key) == other.get(key) for key in JOB):
            differs = {key for key in SETTINGS if row.get(key) != other.get(key)}
            found[bool(differs) and differs <= {*RECOMPUTATION}] += ratios([first, second])
    return found


def ratios(outcomes: Sequence[Outcome]) -> list[float]:
    """Return the errors of the ratio of each two rows that follow each other."""
    return [first["predicted"] / second["predicted"] / (first["published"] / second["published"])
            - 1 for first, second in zip(outcomes[::2], outcomes[1::2], strict=True)]
