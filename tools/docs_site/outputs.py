"""The outputs of a lab's experiments, as its page shows them.

They are those of the worked notebook, so some of them are made by its answers. The page shows the
outputs of explore cells only: open if the cell needs no answer, folded if it uses one, and not at
all if they repeat an answer's code. Without worked notebooks (`lab build --no-worked`), a page has
no outputs.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from labkit.cells import Code, Role, role_of

SHORTEST = 15  # characters of a line of an answer that an output must not repeat
WIDE = 1_150  # pixels of a picture
FOLDED = "Output (answer the exercise before you open it)"
SUBMITTED = re.compile(r"<pre>Submitted batch job \d+</pre>")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+")
TRAINER = ("mytrainer", "my_trainer")  # runs what students wrote
Cell = Mapping[str, Any]


def source_of(cell: Cell) -> str:
    return "".join(cell["source"])


def squeezed(text: str) -> str:
    return " ".join(text.split())


def read(root: Path, path: str, cells: list[Cell]) -> tuple[dict[str, str], str]:
    """Return the HTML below each of a lab's cells, by the cell's ID, and the sentence that says
    where the outputs are from.

    Args:
        root: the repository.
        path: the released notebook's path.
        cells: its cells.
    """
    try:
        worked = json.loads((root / "notebooks" / "worked" / Path(path).name).read_text())["cells"]
    except FileNotFoundError:
        return {}, ""
    outputs = {cell["id"]: cell["outputs"] for cell in worked if cell.get("outputs")}
    if not outputs:
        return {}, ""
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    secrets, folded = secrets_of(worked, cells), needing_answers(code)
    shown = {}
    for cell in code:
        if is_explore(cell) and cell["id"] in outputs:
            made = "".join(to_html(output) for output in outputs[cell["id"]])
            if not secrets & lines_of(made):
                tells = cell["id"] in folded and not SUBMITTED.fullmatch(made)
                shown[cell["id"]] = _wrapped(made, tells)
    return shown, source_of(worked[0]).rpartition("\n")[2].strip("*")


def is_explore(cell: Cell) -> bool:
    return role_of(cell["metadata"]) is Role.EXPLORE


def lines_of(made: str) -> set[str]:
    text = html.unescape(re.sub(r"<[^>]*>", "", made))
    return {squeezed(line) for line in text.splitlines()}


def secrets_of(worked: Iterable[Cell], released: Iterable[Cell]) -> set[str]:
    """Return the lines of answers that students do not have."""
    theirs = {squeezed(line) for cell in released for line in source_of(cell).splitlines()}
    answers = {cell["id"] for cell in released if cell["metadata"].get("nbgrader", {}).get(
        "solution")}
    lines = {squeezed(line) for cell in worked if cell["id"] in answers
             for line in source_of(cell).splitlines()}
    return {line for line in lines - theirs if len(line) >= SHORTEST}


def needing_answers(cells: Iterable[Cell]) -> set[str]:
    """Return the IDs of the explore cells that use an answer: its name, its file, or what another
    such cell makes of it (a name that it binds, or a path that it is the first to mention)."""
    names: set[str] = set()
    files: set[str] = set(TRAINER)
    mentioned: set[str] = set()
    found = set()
    for cell in cells:
        source = source_of(cell)
        code, paths = Code(source), set(PATH.findall(source))
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            names |= code.stub_names
            files |= {code.path} if code.path else set()
        elif is_explore(cell):
            uses = {use.name for use in code.names.uses} | set(re.findall(r"[{$](\w+)", source))
            if uses & names or any(file in source for file in files):
                found.add(cell["id"])
                names |= set(code.names.binds) - set(code.names.imports)
                files |= paths - mentioned
        mentioned |= paths
    return found


def to_html(output: Mapping[str, Any]) -> str:
    """Return one output as HTML: a picture, a page without scripts, or text with its colors."""
    from nbconvert.filters import ansi2html

    data = output.get("data", {})
    if "image/svg+xml" in data:
        alt = output["metadata"].get("image/svg+xml", {}).get("alt", "")
        picture = base64.b64encode("".join(data["image/svg+xml"]).encode()).decode()
        return (f'<div class="picture"><img alt="{html.escape(alt)}" '
                f'src="data:image/svg+xml;base64,{picture}"></div>')
    if "image/png" in data:
        alt = output["metadata"].get("image/png", {}).get("alt", "")
        picture = "".join(data["image/png"]).replace("\n", "")
        # As in JupyterLab, a wide figure scrolls: shrunk, the labels in its boxes cannot be read.
        width = int.from_bytes(base64.b64decode(picture[:32])[16:20])
        kind = "picture wide" if width > WIDE else "picture"
        return (f'<div class="{kind}"><img alt="{html.escape(alt)}" '
                f'src="data:image/png;base64,{picture}"></div>')
    if "text/html" in data:
        return f'<div class="picture">{"".join(data["text/html"])}</div>'
    text = "".join(output.get("text", data.get("text/plain", ""))).strip("\n")
    return f"<pre>{ansi2html(text)}</pre>" if text else ""


def _wrapped(made: str, is_folded: bool) -> str:
    """Return the outputs of a cell in a block that Markdown and the search leave alone."""
    if is_folded:
        return (f'<details class="output" data-search-exclude><summary>{FOLDED}</summary>{made}'
                "</details>")
    return f'<div class="output" data-search-exclude>{made}</div>'
