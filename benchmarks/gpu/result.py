"""What a part of `make gpu` returns: tables, notes, and failures, as JSON on disk."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

SO_FAR = "GPU_PART_RESULT"  # environment variable: the file of `save_so_far`
Cell = str | int | float | bool | None


@dataclass
class Table:
    """A table of measurements.

    Attributes:
        title: what was measured, and how.
        columns: the headers, with units.
        rows: one list of cells per row, as long as `columns`. None is shown as a dash.
    """

    title: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        """Append a row. Raises ValueError when it does not have one cell per column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{self.title}: a row of {len(cells)} cells for "
                             f"{len(self.columns)} columns: {cells}")
        self.rows.append(list(cells))


@dataclass
class Result:
    """The outcome of one part.

    Attributes:
        tables: the measurements.
        notes: what a reader must know to interpret them, including everything that did not run.
        failures: one sentence for each check that failed. A part with failures failed.
    """

    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the result as JSON text; a number that is not finite becomes a string."""
        return json.dumps(_plain(asdict(self)), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read what `to_json` wrote. Raises ValueError, KeyError, or TypeError for other text."""
        loaded = json.loads(text)
        return cls([Table(**table) for table in loaded["tables"]], list(loaded["notes"]),
                   list(loaded["failures"]))

    def save_so_far(self) -> None:
        """Keep what is measured so far, in case the part crashes or meets its time limit."""
        if SO_FAR in os.environ:
            self.save(Path(os.environ[SO_FAR]))

    def save(self, path: Path) -> None:
        """Write the result so that a reader finds all of it or none."""
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(self.to_json())
        unfinished.replace(path)


def _plain(value: object) -> object:
    """Return `value` with NaN and infinity as strings, which JSON has no numbers for."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
