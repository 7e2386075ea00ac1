"""Figures of a student's own runs, each with a text for those who cannot see it."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.logs import Log

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Picture:
    """A figure in a notebook, with its alternative text."""

    def __init__(self, figure: Figure, alt: str) -> None:
        self.figure, self.alt = figure, alt

    def __repr__(self) -> str:
        return self.alt

    def png(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png()).decode()
        return f'<img alt="{html.escape(self.alt)}" src="data:image/png;base64,{data}">'


def loss(**runs: Log) -> Picture:
    """The loss over samples, one line per run: `plots.loss(first=log, second=other)`.

    Raises LabError for a run without a loss.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    said = []
    markers = "osD^v*"  # not by colour alone
    for number, (name, log) in enumerate(runs.items()):
        points = [(one.samples, one.loss) for one in log.iterations if one.loss is not None]
        if not points:
            raise LabError(f"{name}: the log has no loss yet")
        samples, losses = zip(*points, strict=True)
        axes.plot(samples, losses, marker=markers[number % len(markers)], markersize=4, label=name)
        said.append(f"{name} from {losses[0]:.2f} to {losses[-1]:.2f} "
                    f"over {samples[-1]:,} samples")
    axes.set(xlabel="samples", ylabel="loss", title="Training loss")
    axes.grid(alpha=0.3)
    axes.legend()
    return Picture(figure, "Training loss over samples: " + "; ".join(said) + ".")
