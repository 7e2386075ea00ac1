"""The figure of a timeline, simulated or recorded: one row per stage, one box per action.

Every box says in letters what it is; forwards are brighter than backwards, and weight gradients are
hatched: nothing is said by colour alone. The same timeline gives the same bytes.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minimegatron.schedules.actions import BACKWARD, FORWARD, WEIGHT, ScheduleError
from minimegatron.schedules.simulation import Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, IDLE = "#22313f", "#eceff1"
COLOURS = {FORWARD: "#92cff2", BACKWARD: "#e08a1e", WEIGHT: "#4cb894"}  # after Okabe and Ito
HATCHED = 0.22  # a weight gradient's box is hatched along this share of its height
ROW, BOX = 0.62, 0.54  # inches: the distance of two rows, the height of a box
LARGEST, SMALLEST = 10, 5  # points
NARROWEST, WIDEST = 8.8, 22.0  # inches
CHARACTER = 0.66  # width of a digit or letter, and
LINE = 1.25  # height of a line, both in units of the font's size


class Drawing:
    """A figure and its alternative text; a notebook shows both."""

    def __init__(self, figure: Figure, alt: str) -> None:
        self.figure, self.alt = figure, alt

    def __repr__(self) -> str:
        return self.alt

    def svg(self) -> bytes:
        return self._bytes("svg", {"Date": None, "Description": self.alt})

    def png(self) -> bytes:
        return self._bytes("png", {"Software": None, "Description": self.alt})

    def save(self, path: str | Path) -> None:
        """Write an .svg or a .png; ScheduleError for anything else."""
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise ScheduleError(f"{path}: a figure's file ends in .svg or .png")
        path.write_bytes(self.svg() if path.suffix == ".svg" else self.png())

    def _bytes(self, form: str, metadata: dict[str, str | None]) -> bytes:
        import matplotlib

        buffer = io.BytesIO()
        # Letters as outlines: the same on every machine.
        with matplotlib.rc_context({"svg.hashsalt": "schedule", "svg.fonttype": "path"}):
            self.figure.savefig(buffer, format=form, dpi=110, metadata=metadata)
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png()).decode()
        return f'<img alt="{html.escape(self.alt)}" src="data:image/png;base64,{data}">'


def draw(timeline: Timeline | Mapping[int, Sequence[Sequence]], title: str = "Pipeline",
         unit: str = "") -> Drawing:
    """Draw a simulated timeline, or a recorded {stage: [(kind, micro_batch, chunk, start, end)]}.

    unit: of the times, for the axis. Raises ScheduleError as Timeline.of does.
    """
    from matplotlib.figure import Figure

    if not isinstance(timeline, Timeline):
        timeline = Timeline.of(timeline)
    rows = len(timeline.spans)
    width, height = _width(timeline), rows * ROW + 1.5
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0.85 / width, 0.55 / height, 1 - 1.05 / width, rows * ROW / height))
    inches = width - 1.05
    total = float(timeline.total)
    axes.set(xlim=(0, total or 1), ylim=(rows * ROW, 0))
    for row, spans in enumerate(timeline.spans.values()):
        _draw_row(axes, row, spans, timeline, inches / (total or 1))
    axes.set_yticks([(row + 0.5) * ROW for row in range(rows)],
                    [f"stage {stage}" for stage in timeline.spans])
    axes.set_xlabel(f"time ({unit})" if unit else "time", color=INK)
    axes.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK)
    axes.tick_params(axis="x", labelsize=9, labelcolor=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.text(0.85 / width, 1 - 0.12 / height, title, fontsize=12, color=INK, va="top",
                weight="bold")
    figure.text(0.85 / width, 1 - 0.37 / height, _summary(timeline, unit), fontsize=9.5,
                color=INK, va="top")
    _legend(figure, timeline, width, height)
    return Drawing(figure, alt_text(timeline, title, unit))


def alt_text(timeline: Timeline, title: str = "Pipeline", unit: str = "") -> str:
    """What the figure shows, in words: the order of every stage, the total, bubble and memory."""
    chunks = _chunks(timeline)
    said = [f"{title}: {len(timeline.spans)} stages over time. {_summary(timeline, unit)}."]
    for stage, spans in timeline.spans.items():
        said.append(f"Stage {stage}: {' '.join(_label(span, chunks) for span in spans)}.")
    return " ".join(said)


def _summary(timeline: Timeline, unit: str = "") -> str:
    total = f"{float(timeline.total):.4g}" + (f" {unit}" if unit else "")
    peak, chunks = ", ".join(map(str, timeline.peak_live)), _chunks(timeline)
    unit_of_memory = f" (of 1/{chunks} stage each)" if chunks > 1 else ""
    return (f"total {total}; bubble {float(timeline.bubble_fraction):.1%} of the time; "
            f"peak live activations per stage {peak}{unit_of_memory}")


def _chunks(timeline: Timeline) -> int:
    return 1 + max(span.chunk for spans in timeline.spans.values() for span in spans)


def _label(span: Span, chunks: int) -> str:
    chunk = f".{span.chunk}" if chunks > 1 else ""
    return f"{span.kind}{span.micro_batch}{chunk}"


def _width(timeline: Timeline) -> float:
    """Wide enough for a stacked label in a typical short box, within bounds."""
    lengths = sorted(span.end - span.start for spans in timeline.spans.values() for span in spans)
    short = float(lengths[len(lengths) // 10])
    if not short:
        return WIDEST
    return min(WIDEST, max(NARROWEST, float(timeline.total) / short * 0.27 + 1.05))


def _draw_row(axes: Axes, row: int, spans: list[Span], timeline: Timeline, scale: float) -> None:
    """scale: inches per unit of time."""
    from matplotlib.patches import Rectangle

    top, begin = row * ROW + (ROW - BOX) / 2, timeline.begin
    axes.add_patch(Rectangle((0, top), float(timeline.total), BOX, facecolor=IDLE, linewidth=0))
    chunks = _chunks(timeline)
    for span in spans:
        start, length = float(span.start - begin), float(span.end - span.start)
        colour, band = _shade(span, chunks), HATCHED * BOX * (span.kind == WEIGHT)
        # The last box ends where the axes do: unclipped, its edge is whole.
        axes.add_patch(Rectangle((start, top), length, BOX, facecolor=colour, edgecolor=INK,
                                 linewidth=0.6, clip_on=False))
        if band:
            axes.add_patch(Rectangle((start, top + BOX - band), length, band, facecolor=colour,
                                     edgecolor=INK, linewidth=0.6, hatch="/////", clip_on=False))
        text, size = _fit(_label(span, chunks), length * scale, BOX - band)
        if text:
            axes.text(start + length / 2, top + (BOX - band) / 2, text, fontsize=size,
                      color="black", ha="center", va="center", linespacing=1.0)


def _fit(label: str, width: float, height: float) -> tuple[str, float]:
    """The label for a box of so many inches, as large as it fits, and its size in points.

    It is in one line, or letter over number over chunk. A box too narrow for SMALLEST stays
    without a label; the alternative text has them all.
    """
    number, dot, chunk = label[1:].partition(".")
    stacked = "\n".join([label[0], number, *([dot + chunk] if dot else [])])
    best = ("", 0.0)
    for text in (label, stacked):
        lines = text.split("\n")
        longest = max(map(len, lines))
        size = min(LARGEST, 72 * (width - 0.03) / (CHARACTER * longest),
                   72 * height / (LINE * len(lines)))
        if size >= SMALLEST and size > best[1]:
            best = (text, size)
    return best


def _shade(span: Span, chunks: int) -> str:
    """The kind's colour: the first chunk palest, the last one full."""
    from matplotlib.colors import to_hex, to_rgb

    strength = 1 if chunks == 1 else 0.55 + 0.45 * span.chunk / (chunks - 1)
    return to_hex([1 - strength * (1 - part) for part in to_rgb(COLOURS[span.kind])])


def _legend(figure: Figure, timeline: Timeline, width: float, height: float) -> None:
    from matplotlib.patches import Patch

    kinds = {span.kind for spans in timeline.spans.values() for span in spans}
    names = {FORWARD: "F forward", WEIGHT: "W gradient of the weights",
             BACKWARD: "B gradient of the inputs" if WEIGHT in kinds else "B backward"}
    handles = [Patch(facecolor=COLOURS[kind], edgecolor=INK, linewidth=0.6, label=names[kind],
                     hatch="////" if kind == WEIGHT else "") for kind in COLOURS if kind in kinds]
    handles.append(Patch(facecolor=IDLE, label="idle"))
    several = _chunks(timeline) > 1
    handles.append(Patch(alpha=0, label="F3.1: micro-batch 3, chunk 1" if several else
                         "F3: micro-batch 3"))
    figure.legend(handles=handles, loc="upper left", ncols=len(handles), fontsize=9, frameon=False,
                  bbox_to_anchor=(0.85 / width, 1 - 0.62 / height), borderaxespad=0,
                  borderpad=0, handlelength=1.6, columnspacing=1.4)
