"""One stage's row in the figure of a timeline: a box per action, and activations in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline_schedules.actions import BACKWARD, FORWARD, WEIGHT
from pipeline_schedules.simulation import Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, IDLE, LIVE = "#22313f", "#eceff1", "#8d6bb0"
COLORS = {FORWARD: "#92cff2", BACKWARD: "#e08a1e", WEIGHT: "#4cb894"}  # after Okabe and Ito
HATCHED = 0.22  # share of a weight gradient's box that is hatched, at its bottom
ROW, BOX = 0.62, 0.54  # inches: from row to row, and the height of a box
STRIP = 0.26  # inches that the strip of activations in flight adds to a row
MAX_FONT, MIN_FONT = 10, 5  # points
CHARACTER = 0.66  # width of a character, in units of the font size
LINE = 1.25  # height of a line, in the same units


def chunks_of(timeline: Timeline) -> int:
    """Return the number of model chunks per stage."""
    return 1 + max(span.chunk for spans in timeline.spans.values() for span in spans)


def label_of(span: Span, chunks: int) -> str:
    """Return the label of an action's box, such as F3, or F3.1 with several chunks."""
    chunk = f".{span.chunk}" if chunks > 1 else ""
    return f"{span.kind}{span.micro_batch}{chunk}"


def live_steps(spans: list[Span], split: bool) -> list[tuple[float, int]]:
    """Return [(time, activations in flight from then on)] of one stage.

    An activation is in flight from the start of its forward to the end of the last action that
    reads it, as in activations.live_activations.

    Args:
        spans: the stage's spans, in order of time.
        split: whether the schedule has W actions.
    """
    last, alive, steps = WEIGHT if split else BACKWARD, 0, []
    for span in spans:
        if span.kind in (FORWARD, last):
            alive += 1 if span.kind == FORWARD else -1
            steps.append((span.start if span.kind == FORWARD else span.end, alive))
    return steps


def draw_strip(axes: Axes, top: float, spans: list[Span], timeline: Timeline, full: float
               ) -> None:
    """Draw the activations in flight over time.

    Args:
        axes: the timeline's axes.
        top: the strip's upper edge, in inches.
        spans: the stage's spans, in order of time.
        timeline: the timeline of all stages.
        full: the number of whole stages' activations at which the strip is full; one of v chunks
            counts 1/v.
    """
    begin, end = float(timeline.begin), float(timeline.total)
    split = any(span.kind == WEIGHT for stage in timeline.spans.values() for span in stage)
    steps = live_steps(spans, split)
    bottom, unit = top + STRIP - 0.05, (STRIP - 0.09) / (full * chunks_of(timeline))
    times = [0.0, *(float(time) - begin for time, _ in steps), end]
    heights = [bottom - unit * count for count in (0, *(count for _, count in steps))]
    axes.fill_between(times, [*heights, heights[-1]], bottom, step="post", color=LIVE, linewidth=0)
    axes.plot([0, end], [bottom, bottom], color=INK, linewidth=0.5)
    axes.annotate(f"max {max((count for _, count in steps), default=0)}", (end, bottom),
                  xytext=(4, 0), textcoords="offset points", fontsize=8.5, color=INK, va="bottom",
                  annotation_clip=False)


def draw_row(axes: Axes, top: float, spans: list[Span], timeline: Timeline, scale: float) -> None:
    """Draw one box per action.

    Args:
        axes: the timeline's axes.
        top: the row's upper edge, in inches.
        spans: the stage's spans, in order of time.
        timeline: the timeline of all stages.
        scale: inches per unit of time.
    """
    from matplotlib.patches import Rectangle

    begin = timeline.begin
    axes.add_patch(Rectangle((0, top), float(timeline.total), BOX, facecolor=IDLE, linewidth=0))
    chunks = chunks_of(timeline)
    for span in spans:
        start, length = float(span.start - begin), float(span.end - span.start)
        color, band = _shade(span, chunks), HATCHED * BOX * (span.kind == WEIGHT)
        # The last box ends where the axes end, so clipping would cut its edge.
        axes.add_patch(Rectangle((start, top), length, BOX, facecolor=color, edgecolor=INK,
                                 linewidth=0.6, clip_on=False))
        if band:
            axes.add_patch(Rectangle((start, top + BOX - band), length, band, facecolor=color,
                                     edgecolor=INK, linewidth=0.6, hatch="/////", clip_on=False))
        text, size = _fit(label_of(span, chunks), length * scale, BOX - band)
        if text:
            axes.text(start + length / 2, top + (BOX - band) / 2, text, fontsize=size,
                      color="black", ha="center", va="center", linespacing=1.0)


def _fit(label: str, width: float, height: float) -> tuple[str, float]:
    """Return the label and its largest font size, in points, that fit a box; else "" and 0.

    The label is one line, or letter over number over chunk. The alternative text has all labels.

    Args:
        label: the action's label.
        width: width of the box, in inches.
        height: height of the box, in inches.
    """
    number, dot, chunk = label[1:].partition(".")
    stacked = "\n".join([label[0], number, *([dot + chunk] if dot else [])])
    best = ("", 0.0)
    for text in (label, stacked):
        lines = text.split("\n")
        longest = max(map(len, lines))
        size = min(MAX_FONT, 72 * (width - 0.03) / (CHARACTER * longest),
                   72 * height / (LINE * len(lines)))
        if size >= MIN_FONT and size > best[1]:
            best = (text, size)
    return best


def _shade(span: Span, chunks: int) -> str:
    """Return the color of the action's kind: palest for the first chunk, strongest for the last."""
    from matplotlib.colors import to_hex, to_rgb

    strength = 1 if chunks == 1 else 0.55 + 0.45 * span.chunk / (chunks - 1)
    return to_hex([1 - strength * (1 - part) for part in to_rgb(COLORS[span.kind])])
