"""The page of results: errors of the first and of the last comparison, and every row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, median

from benchmarks.accuracy.evaluate import error_of, errors, pair_errors
from benchmarks.accuracy.rows import CALIBRATION, TEST, RowSet

HEAD = """# Virtual GPUs against published measurements

`python -m benchmarks.accuracy` recomputes this page and virtual_accuracy.json from the rows in
benchmarks/published; docs/virtual-gpus.md explains it.

- The error is predicted / published - 1 of a step's time, so a negative error means that the model
  is too fast. Bias is its mean, and "within 15%" is the share of rows with a smaller error.
- Constants of the model may be fitted to **calibration** rows only. **Test** rows are compared
  after that. Rows that were seen while the model was changed are no blind test; each set's notes
  say so. **Inferred** rows have settings that their source does not state, and no stated error
  includes them.
- "First" is the set's first comparison with these programs, before anything was changed because of
  it (virtual_accuracy_first.json, which is never overwritten)."""


def table(head: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table.

    Args:
        head: names of the columns, separated by |.
        rows: the cells.
    """
    names = head.split("|")
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def signed(error: float | None) -> str:
    return "-" if error is None else f"{error:+.1%}"


def overview(sets: Sequence[RowSet], last: Mapping, first: Mapping) -> list[str]:
    """Return the table of all sets.

    Args:
        sets: the sets of benchmarks/published.
        last: the results by set.
        first: the first comparisons by set.
    """
    rows = []
    for name, title in titles(sets, last):
        if "skipped" in last.get(name, {}):
            rows.append([title, "-", f"not compared yet: {last[name]['skipped']}", *["-"] * 6])
            continue
        for split, now in last.get(name, {}).get("summary", {}).items():
            if split != "all":
                rows.append([title, split, *cells(now, first.get(name, {}).get("summary", {})
                                                  .get(split, {}))])
    return table("set|rows are|rows|first: mean absolute error|first: bias|mean absolute error|bias"
                 "|within 15%|worst", rows)


def by_gpu(sets: Sequence[RowSet], last: Mapping) -> list[str]:
    """Return the table of all test rows of each GPU, whatever their memory.

    Args:
        sets: the sets of benchmarks/published.
        last: the results by set.
    """
    found = defaultdict(list)
    for rows in sets:
        for one in last.get(rows.name, {}).get("outcomes", ()):
            if one["split"] == TEST:
                found[rows.rows[one["row"]]["gpu"].split("-")[0].upper()].append(one)
    lines = []
    for gpu, outcomes in sorted(found.items()):
        now = errors(outcomes)
        memory = ([f"{now['memory_rows']}", f"{now['memory_error']:.1%}"] if "memory_rows" in now
                  else ["-", "-"])
        lines.append([gpu, f"{now['rows']}", f"{now['error']:.1%}", signed(now["bias"]),
                      f"{now['within']:.0%}", *memory])
    return table("all test rows of these sets on|rows|mean absolute error|bias|within 15%"
                 "|rows with memory|mean absolute error of the memory", lines)


def of_pairs(sets: Sequence[RowSet], last: Mapping) -> list[str]:
    """Return the table of the errors of ratios of two settings of one job.

    Args:
        sets: the sets of benchmarks/published.
        last: the results by set.
    """
    found: dict[bool, list[float]] = {True: [], False: []}
    for rows in sets:
        for alike, ratios in pair_errors(rows, last.get(rows.name, {}).get("outcomes", ())).items():
            found[alike] += map(abs, ratios)
    lines = [[title, f"{len(some)}", f"{mean(some):.1%}", f"{median(some):.1%}", f"{max(some):.1%}"]
             for title, some in (("nothing but recomputation", found[True]),
                                 ("anything", found[True] + found[False]))]
    return table("ratios of every two test rows of one job (model, GPUs, batch) that differ in"
                 "|pairs|mean absolute error|median|worst", lines)


def titles(sets: Sequence[RowSet], last: Mapping) -> list[tuple[str, str]]:
    """Return every set's name and title, those of benchmarks/published before the others."""
    named = [(one.name, one.facts["title"]) for one in sets]
    known = {name for name, _ in named}
    return named + [(name, found["title"]) for name, found in last.items()
                    if name not in known and "title" in found]


def cells(now: Mapping, before: Mapping) -> list[str]:
    """Return a summary's cells.

    Args:
        now: the last comparison.
        before: the first one.
    """
    earlier = [f"{before['error']:.1%}", signed(before["bias"])] if before else ["-", "-"]
    return [str(now["rows"]), *earlier, f"{now['error']:.1%}", signed(now["bias"]),
            f"{now['within']:.0%}", signed(now["worst"])]


def section(rows: RowSet, found: Mapping, first: Mapping) -> list[str]:
    """Return a set's part of the page.

    Args:
        rows: the set.
        found: its results.
        first: its first comparison.
    """
    facts = rows.facts
    lines = [f"## {facts['title']}", "", f"Source: {facts['source']} ({facts['date']}).", "",
             facts["about"], ""]
    if "history" in facts:
        lines += [facts["history"], ""]
    if "skipped" in found:
        return [*lines, f"Not compared yet: {found['skipped']}.", ""]
    lines += [f"Compared on {found['date']} with the model of commit {found['commit']}, and first "
              f"on {first['date']} with that of {first['commit']}.", ""]
    lines += [f"- {split}: {sentence(one)}" for split, one in found["summary"].items()
              if split != "all" or CALIBRATION in found["summary"]]
    lines += [f"- {text}" for text in found.get("more", ())]
    before = {one["row"]: one["predicted"] for one in first["outcomes"]}
    return [*lines, "", *table("row|layout|rows are|predicted s|published s|error|first|memory",
                               [row_cells(one, before) for one in found["outcomes"]])]


def sentence(found: Mapping) -> str:
    text = (f"{found['rows']} rows, mean absolute error {found['error']:.1%}, bias "
            f"{found['bias']:+.1%}, {found['within']:.0%} within 15%; worst {found['worst']:+.1%} "
            f"({found['worst_row']}); {found['fits_as_published']} of {found['all_rows']} fit or "
            "run out of memory as published")
    if "memory_rows" in found:
        text += (f"; memory of {found['memory_rows']} rows: mean absolute error "
                 f"{found['memory_error']:.1%}, bias {found['memory_bias']:+.1%}")
    return text


def row_cells(outcome: Mapping, before: Mapping[int, float]) -> list[str]:
    """Return the cells of one row.

    Args:
        outcome: the row's outcome.
        before: the first predictions, by the row's number.
    """
    missing = "out of memory"
    published, earlier = outcome["published"], before.get(outcome["row"])
    memory = "-"
    if "memory" in outcome:
        memory = (f"{outcome['memory'] / 1e9:.1f} of {outcome['published_memory'] / 1e9:.1f} GB "
                  f"({signed(outcome['memory'] / outcome['published_memory'] - 1)})")
    return [outcome["name"], outcome["layout"], outcome["split"],
            f"{outcome['predicted']:.4g}" if outcome["fits"] else missing,
            f"{published:.4g}" if published else "-" if outcome["published_fits"] else missing,
            signed(error_of(outcome)),
            signed(earlier / published - 1 if published and earlier else None), memory]
