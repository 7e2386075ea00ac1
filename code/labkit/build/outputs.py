"""The outputs of a lab's worked notebook, which `lab outputs` stores and `lab build` merges.

They are in notebooks/outputs/NN_name.json, so that `lab build` can write the worked notebook again
without running it. Each cell's outputs come with a digest of the source that made them, which tells
whether they are still those of the cell. A digest covers its own cell only, because `lab outputs`
always runs a whole lab: if one cell is stale, all outputs after it are made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from labcore.errors import LabError
from labkit.build.lab import Lab

# Bytes of JSON: what a browser loads with a page, and what every clone of the repository has twice.
MOST_OF_A_LAB = 400_000


class Source(NamedTuple):
    """The source of a code cell: its digest, and its line in the .py."""

    digest: str
    line: int


@dataclass(frozen=True)
class CellOutputs:
    """What one code cell showed.

    Attributes:
        id: the cell's ID.
        source: the digest of the source that ran.
        outputs: as in a notebook.
    """

    id: str
    source: str
    outputs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class LabOutputs:
    """The outputs of one run of a lab's worked notebook.

    Attributes:
        date: the day of the run, as YYYY-MM-DD.
        machine: the processor on which it ran, in words.
        cells: its code cells, in order.
    """

    date: str
    machine: str
    cells: tuple[CellOutputs, ...]

    @property
    def text(self) -> str:
        """The text of the file."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @property
    def label(self) -> str:
        """The sentence that tells readers what they see."""
        return (f"The outputs are from a run on {self.date}, on {self.machine}, without a GPU: "
                "measured times are that machine's, and those of virtual GPUs are modeled.")


def path_of(name: str) -> str:
    """Return the path of a lab's outputs, relative to the folder with solutions/."""
    return f"notebooks/outputs/{name}.json"


def read(root: Path, name: str) -> LabOutputs | None:
    """Return the stored outputs of a lab, or None if there are none.

    Raises:
        LabError: the file is not one that `lab outputs` wrote.
    """
    path = root / path_of(name)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        cells = tuple(CellOutputs(**cell) for cell in data["cells"])
        return LabOutputs(str(data["date"]), str(data["machine"]), cells)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is not a file that `lab outputs` wrote ({error}): delete it, and "
                       f"run `lab outputs {name}`") from error


def digest_of(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def merge(notebook: Any, sources: Mapping[str, Source], stored: LabOutputs | None) -> None:
    """Put the stored outputs into a worked notebook, and say below its title where they are from.

    A cell whose source has changed since stays without an output, because the stored one is not its
    own.

    Args:
        notebook: the worked notebook, which is changed in place.
        sources: the source of each code cell, by the cell's ID.
        stored: the lab's outputs; None if it never ran.
    """
    import nbformat

    if stored is None:
        return
    known = {cell.id: cell for cell in stored.cells}
    count = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        count += 1
        if cell.id in known and known[cell.id].source == sources[cell.id].digest:
            cell.execution_count = count
            cell.outputs = [nbformat.from_dict({**output, **(
                {"execution_count": count} if output["output_type"] == "execute_result" else {})})
                for output in known[cell.id].outputs]
    notebook.cells[0].source += f"\n\n*{stored.label}*"


def stale(lab: Lab, sources: Mapping[str, Source], stored: LabOutputs | None) -> list[str]:
    """Return a line for each cell whose source is newer than its output.

    Args:
        sources: the source of each code cell, by the cell's ID.
    """
    file = f"solutions/{lab.path.name}"
    if not stored:
        return [f"{file}: no outputs"]
    known = {cell.id: cell.source for cell in stored.cells}
    lines = [f"{file}:{source.line}: the source of cell {name} is newer than its output"
             for name, source in sources.items() if known.get(name) != source.digest]
    return lines + [f"{file}: outputs are stored for cell {name}, which no longer exists"
                    for name in known if name not in sources]
