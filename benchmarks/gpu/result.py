"""The result of a part of `make gpu`: tables, notes, and failures, saved as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

SO_FAR = "GPU_PART_RESULT"  # environment variable: the file that `save_so_far` writes
Cell = str | int | float | bool | None


@dataclass
class Table:
    """A table of measurements.

    Attributes:
        title: what was measured, and how.
        columns: the headers, with units.
        rows: lists of cells, each as long as `columns`. None is shown as a dash.
    """

    title: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        """Append a row; raise ValueError unless it has one cell per column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{self.title}: a row of {len(cells)} cells for "
                             f"{len(self.columns)} columns: {cells}")
        self.rows.append(list(cells))


@dataclass
class Result:
    """The result of one part.

    Attributes:
        tables: measurements.
        notes: context for the reader, including everything that was left out.
        failures: one message per failed check. A part fails if there is any.
    """

    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the result as JSON; NaN and infinity become strings."""
        return json.dumps(_plain(asdict(self)), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Parse the output of `to_json`; raise ValueError, KeyError, or TypeError otherwise."""
        loaded = json.loads(text)
        return cls([Table(**table) for table in loaded["tables"]], list(loaded["notes"]),
                   list(loaded["failures"]))

    def save_so_far(self) -> None:
        """Save the measurements so far, in case the part crashes or reaches its time limit."""
        if SO_FAR in os.environ:
            self.save(Path(os.environ[SO_FAR]))

    def save(self, path: Path) -> None:
        """Write the result to a file atomically."""
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(self.to_json())
        unfinished.replace(path)


def _plain(value: object) -> object:
    """Return a value with NaN and infinity as strings, because JSON has no such numbers."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
