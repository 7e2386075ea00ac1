"""A released notebook as Markdown, with the outputs of its experiments."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

from docs_site import ROOT, outputs

# The worked notebooks are not on the site, so neither is the line that leads to one.
STUCK = re.compile(r"\n+\*[^*]*\]\(worked/[^)]*\)[^*]*\*\s*$")
FOLDS = ("Collapsed outputs depend on the course's answers and guesses: make your own before you "
         "open them.")
IN_A_CONTAINER = "http://127.0.0.1:8888/lab/tree"


def number_of(path: str) -> str:
    return PurePosixPath(path).name.split("_")[0]


def title_of(path: Path) -> str:
    """The lab's number and the first part of its title, as the navigation shows them."""
    first = "".join(json.loads(path.read_text())["cells"][0]["source"])
    return f"{number_of(path.name)} {first.splitlines()[0].lstrip('# ').split(':')[0]}"


def to_markdown(text: str, path: str) -> str:
    """The page of the notebook that stands at `path` in the repository."""
    cells = json.loads(text)["cells"]
    shown, label = outputs.read(ROOT, path, cells)
    parts = []
    for cell in cells:
        parts += [_cell(cell), shown.get(cell.get("id"), "")]
    title, _, rest = parts[0].partition("\n")
    parts[0] = f"{title}\n\n{_how_to_open(path, label)}\n{rest}"
    return "\n\n".join(part for part in parts if part) + "\n"


def _how_to_open(path: str, label: str) -> str:
    name = PurePosixPath(path).name
    about = f"\n    {label} {FOLDS}\n" if label else ""
    return (f'!!! note "Read here, work in JupyterLab"\n'
            f"    In your lab, open `{path}`. Links: [in a container on this machine]"
            f"({IN_A_CONTAINER}/{path}), [the notebook as a file](download/{name}).\n{about}")


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return STUCK.sub("", source)
    if cell["cell_type"] != "code" or not source.strip():
        return ""
    code = _fenced(source)
    grading = cell["metadata"].get("nbgrader", {})
    if grading.get("solution"):
        return _box('!!! question "Your turn"', code)
    if grading.get("grade"):
        return _box(f'???+ success "Check ({_points(grading["points"])})"', code)
    return code


def _points(points: float) -> str:
    return "1 point" if points == 1 else f"{points} points"


def _fenced(source: str) -> str:
    """The code with a fence that is longer than any in it."""
    longest = max((len(ticks) for ticks in re.findall("`{3,}", source)), default=2)
    fence = "`" * (longest + 1)
    language = "bash" if re.match(r"%%(writefile \S+\.sh|bash)", source) else "ipython3"
    return f"{fence}{language}\n{source}\n{fence}"


def _box(head: str, content: str) -> str:
    inside = "\n".join(f"    {line}" if line else "" for line in content.splitlines())
    return f"{head}\n{inside}"
