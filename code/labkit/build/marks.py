"""Expand short marks on cells, such as `answer="NAME"` or `check="NAME" points=2`.

nbgrader wants six keys of metadata for each graded cell. An author writes one or two words on the
cell's `# %%` line instead, and this module turns them into the six keys. jupytext keeps the short
marks when JupyterLab opens and saves the source as a notebook.
"""

from __future__ import annotations

from typing import Any

SCHEMA = 3  # version of nbgrader's metadata
# Each short mark, the type of cell that takes it, and an example of the whole line.
SHORT = {
    "answer": ("code", '# %% answer="global-batch"'),
    "check": ("code", '# %% check="global-batch" points=2'),
    "written": ("markdown", '# %% [markdown] written="why" points=3'),
    "rubric": ("markdown", '# %% [markdown] rubric="why"'),
    "mutant": ("raw", '# %% [raw] mutant="global-batch" hint="..."'),
}


def spelled_out(kind: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's metadata with its short mark in nbgrader's form.

    Args:
        kind: the cell's type: code, markdown, or raw.
        metadata: what the author wrote on the cell's line.

    Raises ValueError if the marks contradict each other or belong on another type of cell.
    """
    given = [mark for mark in SHORT if mark in metadata]
    if kind == "raw" and given == ["answer"]:  # the long form of a mutant
        return metadata
    if not given:
        if kind != "markdown" and "points" in metadata:
            raise ValueError(f"points without a check: write {SHORT['check'][1]}")
        return metadata
    if len(given) > 1 or "nbgrader" in metadata:
        rest = "nbgrader={...}" if "nbgrader" in metadata else f"{given[1]}="
        raise ValueError(f"{given[0]}= and {rest} on one cell: a cell has one mark")
    mark = given[0]
    wanted, example = SHORT[mark]
    name = metadata[mark]
    if kind != wanted:
        raise ValueError(f"{mark}= belongs on a {wanted} cell: {example}")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{mark}={name!r}: give a name in quotes: {example}")
    if mark == "mutant":
        return {**metadata, "answer": name, "tags": [*metadata.get("tags", []), "mutant"]}
    if mark == "rubric":
        return metadata
    return {**metadata, "nbgrader": _nbgrader(mark, name, metadata)}


def _nbgrader(mark: str, name: str, metadata: dict[str, Any]) -> dict[str, Any]:
    fields = {"grade": mark != "answer", "grade_id": f"{name}-check" if mark == "check" else name,
              "locked": mark == "check", "schema_version": SCHEMA, "solution": mark != "check",
              "task": False}
    if mark != "answer":
        points = metadata.get("points")
        if isinstance(points, bool) or not isinstance(points, int | float):
            raise ValueError(f"points={points!r}: give the points as a number: "
                             f"{SHORT[mark][1]}" if "points" in metadata else
                             f"give it points: {SHORT[mark][1]}")
        fields["points"] = points
    elif "points" in metadata:
        raise ValueError(f"an answer has no points; its check does: {SHORT['check'][1]}")
    return fields
