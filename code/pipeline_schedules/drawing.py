"""Draw a timeline, simulated or recorded: one row per stage, one box per action.

Every box is labeled, forwards are brighter than backwards, and weight gradients are hatched, so no
information depends on color alone. The same timeline always gives the same bytes.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_schedules.actions import BACKWARD, FORWARD, WEIGHT, ScheduleError
from pipeline_schedules.boxes import (
    BOX,
    COLORS,
    IDLE,
    INK,
    LIVE,
    ROW,
    STRIP,
    chunks_of,
    draw_row,
    draw_strip,
    label_of,
)
from pipeline_schedules.simulation import Timeline
from pipeline_schedules.traces import Drawable, timeline_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {FORWARD: "F forward", BACKWARD: "B backward", WEIGHT: "W gradient of the weights"}
MIN_WIDTH, MAX_WIDTH = 8.8, 22.0  # of a figure, in inches
WINDOW, PIXELS = 10.0, 96  # a notebook's width in inches, and CSS pixels per inch
LEFT, RIGHT, RIGHT_OF_STRIP = 0.85, 0.2, 0.55  # margins beside the axes, in inches
AXIS, HEADER, LEGEND = 0.57, 0.62, 0.3  # heights in inches: axis labels; title and summary; legend


class Drawing:
    """A matplotlib figure and its alternative text; a notebook shows both.

    Args:
        alt: the alternative text, which describes the figure for screen readers.
        crop: whether to crop the image to the figure's content, for figures with default margins.
    """

    def __init__(self, figure: Figure, alt: str, crop: bool = True) -> None:
        self.figure, self.alt, self.crop = figure, alt, crop

    def __repr__(self) -> str:
        return self.alt

    def svg(self) -> bytes:
        return self._bytes("svg", {"Date": None, "Description": self.alt})

    def png(self) -> bytes:
        return self._bytes("png", {"Software": None, "Description": self.alt})

    def save(self, path: str | Path) -> None:
        """Write an .svg or .png file. Raises ScheduleError for any other suffix."""
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise ScheduleError(f"{path}: a figure is saved as .svg or .png")
        path.write_bytes(self.svg() if path.suffix == ".svg" else self.png())

    def _bytes(self, form: str, metadata: dict[str, str | None]) -> bytes:
        import matplotlib

        buffer = io.BytesIO()
        # Text as outlines looks the same on every machine.
        with matplotlib.rc_context({"svg.hashsalt": "schedule", "svg.fonttype": "path"}):
            self.figure.savefig(buffer, format=form, dpi=110, metadata=metadata,
                                bbox_inches="tight" if self.crop else None)
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png()).decode()
        image = f'<img alt="{html.escape(self.alt)}" src="data:image/png;base64,{data}"'
        if self.figure.get_figwidth() <= WINDOW:
            return f"{image}>"
        # A notebook would shrink it until the labels in its boxes cannot be read.
        pixels = round(PIXELS * self.figure.get_figwidth())
        return (f'<div style="overflow-x: auto">{image} style="max-width: none; width: {pixels}px">'
                "</div>")


def draw(drawable: Drawable, title: str = "Pipeline", unit: str | None = None, live: bool = False
         ) -> Drawing:
    """Draw a schedule, a timeline, or a recorded run.

    Args:
        drawable: anything that timeline_of accepts.
        title: the figure's title.
        unit: the unit of time on the axis; by default "ms" for a recorded run, else none.
        live: whether to draw the activations in flight below every stage.

    Raises:
        ScheduleError: timeline_of rejects it.
    """
    timeline, unit = timeline_of(drawable), unit_of(drawable, unit)
    figure, top = _figure([timeline], live)
    _panel(figure, timeline, top, title, unit, float(timeline.total), _fullest([timeline]) * live)
    _legend(figure, [timeline], live)
    return Drawing(figure, alt_text(timeline, title, unit), crop=False)


def draw_beside(drawables: Mapping[str, Drawable], unit: str | None = None, live: bool = False
                ) -> Drawing:
    """Draw several timelines below each other, on one scale of time.

    Args:
        drawables: {title: anything that timeline_of accepts}.
        unit: as for draw().
        live: as for draw().

    Raises:
        ScheduleError: timeline_of rejects one, or there are none.
    """
    if not drawables:
        raise ScheduleError("draw_beside: no timelines; pass {title: timeline}")
    unit = next(iter({unit_of(drawable, unit) for drawable in drawables.values()} - {""}), "")
    timelines = {title: timeline_of(drawable) for title, drawable in drawables.items()}
    longest = max(float(timeline.total) for timeline in timelines.values())
    figure, top = _figure(list(timelines.values()), live)
    fullest = _fullest(timelines.values()) * live
    for title, timeline in timelines.items():
        _panel(figure, timeline, top, title, unit, longest, fullest)
        top -= _height(timeline, live)
    _legend(figure, list(timelines.values()), live)
    alt = " ".join(alt_text(timeline, title, unit) for title, timeline in timelines.items())
    return Drawing(figure, alt, crop=False)


def unit_of(drawable: Drawable, unit: str | None) -> str:
    """Return the given unit; the default is "ms" for a trace file, else none."""
    return unit if unit is not None else "ms" if isinstance(drawable, str | Path) else ""


def alt_text(timeline: Timeline, title: str = "Pipeline", unit: str = "") -> str:
    """Return a text that describes the figure: each stage's order, total time, bubble, and memory.

    Args:
        title: the figure's title.
        unit: the unit of time, or "".
    """
    chunks = chunks_of(timeline)
    sentences = [f"{title}: {len(timeline.spans)} stages over time. {summary(timeline, unit)}."]
    for stage, spans in timeline.spans.items():
        sentences.append(f"Stage {stage}: {' '.join(label_of(span, chunks) for span in spans)}.")
    return " ".join(sentences)


def summary(timeline: Timeline, unit: str = "") -> str:
    """Return the total time, the bubble, and the peak live activations as text."""
    total = f"{float(timeline.total):.4g}" + (f" {unit}" if unit else "")
    peak, chunks = ", ".join(map(str, timeline.peak_live)), chunks_of(timeline)
    unit_of_memory = f" (of 1/{chunks} stage each)" if chunks > 1 else ""
    return (f"total {total}; bubble {float(timeline.bubble_fraction):.1%} of the time; "
            f"peak live activations per stage {peak}{unit_of_memory}")


def _fullest(timelines: Iterable[Timeline]) -> float:
    """Return the peak of activations in flight on any stage; one of v chunks counts 1/v."""
    return max(peak / chunks_of(timeline) for timeline in timelines
               for peak in timeline.peak_live) or 1


def _row(live: bool) -> float:
    return ROW + STRIP * live


def _height(timeline: Timeline, live: bool) -> float:
    """Return the height of a panel in inches: text, rows, and axis."""
    return HEADER + len(timeline.spans) * _row(live) + AXIS


def _figure(timelines: list[Timeline], live: bool) -> tuple[Figure, float]:
    """Return an empty figure, and the upper edge of its first panel, in inches from below."""
    from matplotlib.figure import Figure

    height = sum(_height(timeline, live) for timeline in timelines)
    width = max(map(_width, timelines)) + (RIGHT_OF_STRIP - RIGHT) * live
    return Figure(figsize=(width, height + LEGEND), facecolor="white"), height


def _width(timeline: Timeline) -> float:
    """Return a width in inches at which a stacked label fits a typical short box, within bounds."""
    lengths = sorted(span.end - span.start for spans in timeline.spans.values() for span in spans)
    short = float(lengths[len(lengths) // 10])
    if not short:
        return MAX_WIDTH
    width = float(timeline.total) / short * 0.27 + LEFT + RIGHT
    return min(MAX_WIDTH, max(MIN_WIDTH, width))


def _panel(figure: Figure, timeline: Timeline, top: float, title: str, unit: str, longest: float,
           fullest: float) -> None:
    """Draw one timeline.

    Args:
        figure: the figure to draw in.
        top: the panel's upper edge, in inches from below.
        title: the panel's title.
        unit: the unit of time, or "".
        longest: length of the axis, in units of time.
        fullest: the activations in flight at which a strip is full; 0 for no strips.
    """
    width, height = figure.get_size_inches()
    rows, row = len(timeline.spans), _row(bool(fullest))
    inches = width - LEFT - (RIGHT_OF_STRIP if fullest else RIGHT)
    axes = figure.add_axes((LEFT / width, (top - HEADER - rows * row) / height, inches / width,
                            rows * row / height))
    axes.set(xlim=(0, longest or 1), ylim=(rows * row, 0))
    for number, spans in enumerate(timeline.spans.values()):
        begin = number * row + (ROW - BOX) / 2
        draw_row(axes, begin, spans, timeline, inches / (longest or 1))
        if fullest:
            draw_strip(axes, begin + BOX, spans, timeline, fullest)
    axes.set_yticks([number * row + ROW / 2 for number in range(rows)],
                    [f"stage {stage}" for stage in timeline.spans])
    _style_axes(axes, f"time ({unit})" if unit else "time")
    for text, below, style in ((title, 0.1, {"fontsize": 12, "weight": "bold"}),
                               (summary(timeline, unit), 0.35, {"fontsize": 9.5})):
        figure.text(LEFT / width, (top - below) / height, text, color=INK, va="top", **style)


def _style_axes(axes: Axes, label: str) -> None:
    axes.set_xlabel(label, color=INK)
    axes.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK)
    axes.tick_params(axis="x", labelsize=9, labelcolor=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _legend(figure: Figure, timelines: list[Timeline], live: bool) -> None:
    from matplotlib.patches import Patch

    kinds = {span.kind for timeline in timelines for spans in timeline.spans.values()
             for span in spans}
    names = NAMES | ({BACKWARD: "B gradient of the inputs"} if WEIGHT in kinds else {})
    handles = [Patch(facecolor=COLORS[kind], edgecolor=INK, linewidth=0.6, label=names[kind],
                     hatch="////" if kind == WEIGHT else "") for kind in COLORS if kind in kinds]
    handles.append(Patch(facecolor=IDLE, label="idle"))
    if live:
        handles.append(Patch(facecolor=LIVE, label="live activations"))
    several = any(chunks_of(timeline) > 1 for timeline in timelines)
    handles.append(Patch(alpha=0, label="F3.1: micro-batch 3, chunk 1" if several else
                         "F3: micro-batch 3"))
    width, height = figure.get_size_inches()
    figure.legend(handles=handles, loc="upper left", ncols=len(handles), fontsize=9, frameon=False,
                  bbox_to_anchor=(LEFT / width, 1 - 0.1 / height), borderaxespad=0,
                  borderpad=0, handlelength=1.6, columnspacing=1.4)
