"""The figures of a report: where their lines, points and labels go. Templates draw them as SVG."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labcore.html import fragment

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 250, 64, 40, 12, 16
POINTS = 600  # of one line; of more, the lowest and the highest of each stretch
MOST_DOTS = 40
BAR, GAP = 16, 8
Point = tuple[float, float]


def nice_step(length: float, wanted: int = 5) -> float:
    """1, 2 or 5 times a power of ten, so that about `wanted` of them make `length`."""
    if not length > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(length / wanted))
    return next((power * one for one in (1, 2, 5) if length / (power * one) <= wanted * 1.2),
                power * 10)


def ticks(low: float, high: float) -> list[float]:
    step = nice_step(high - low)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [step * one for one in range(first, last + 1)]


def label(value: float) -> str:
    return f"{value:,.10g}" if abs(value) < 1e6 or value % 1 else f"{value:.4g}"


def thin(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most about `most` points, with every extreme."""
    if len(points) <= most:
        return list(points)
    size, kept = math.ceil(2 * len(points) / most), []
    for begin in range(0, len(points), size):
        part = points[begin:begin + size]
        kept += sorted({min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])})
    return kept


def ceiling(values: Sequence[float]) -> float:
    """The top of the axis; single points far above the others, as the first step's, stay out."""
    usual = statistics.quantiles(values, n=20)[-1] if len(values) > 1 else values[0]
    highest = max(values)
    return highest if highest <= 3 * usual else 1.5 * usual


def line(points: Sequence[Point], x: str, y: str, text: str, from_zero: bool = False) -> Markup:
    """Draw points over whole x; a value that is not finite leaves a gap. Raises ValueError if no
    point is finite.

    Args:
        points: x and y.
        x: the label of the horizontal axis.
        y: the label of the vertical axis.
        text: what the figure shows, in words.
        from_zero: the vertical axis begins at 0.
    """
    good = [point for point in points if math.isfinite(point[1])]
    if not good:
        raise ValueError("no point to draw")
    values = [value for _, value in good]
    high = ceiling(values)
    low = 0.0 if from_zero else min(values)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    high, low = high + margin, low if from_zero else low - margin
    begin = min(at for at, _ in points)  # of two runs in a log, the second begins again
    end = max(begin + 1, *(at for at, _ in points))

    def place(one: float, value: float) -> tuple[float, float]:
        across = LEFT + (one - begin) / (end - begin) * (WIDTH - LEFT - RIGHT)
        down = TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return across, max(float(TOP), down)

    def told(one: Point) -> str:
        return f"{x} {label(one[0])}: {one[1]:.6g}"

    return fragment(
        "job_monitor/line.svg.j2", text=text, x=x, y=y, width=WIDTH, height=HEIGHT, left=LEFT,
        right=WIDTH - RIGHT, top=TOP, bottom=HEIGHT - BOTTOM,
        rows=[(place(begin, value)[1], label(value)) for value in ticks(low, high)],
        columns=[(place(value, low)[0], label(value)) for value in ticks(begin, end)
                 if not value % 1],  # no half iterations
        lines=[[place(*one) for one in part] for part in _parts(points) if len(part) > 1],
        dots=[(*place(*one), told(one)) for one in good] if len(good) <= MOST_DOTS else [],
        beyond=[(place(*one)[0], told(one)) for one in good if one[1] > high])


def _parts(points: Sequence[Point]) -> list[list[Point]]:
    """Stretches without a gap and without a way back, each thinned out."""
    parts: list[list[Point]] = [[]]
    for point in points:
        if parts[-1] and point[0] <= parts[-1][-1][0]:
            parts.append([])
        if math.isfinite(point[1]):
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    return [thin(part) for part in parts]


def bars(rows: Sequence[tuple[str, float, float | None]], unit: str, text: str) -> Markup:
    """Draw horizontal bars.

    Args:
        rows: names, values, and upper bounds where they are known.
        unit: the unit of the values.
        text: what the figure shows, in words.
    """
    longest = max((max(value, whole or 0.0) for _, value, whole in rows), default=0.0) or 1.0
    left, right = 150, 150
    scale = (WIDTH - left - right) / longest
    return fragment("job_monitor/bars.svg.j2", text=text, rows=rows, unit=unit, width=WIDTH,
                    height=len(rows) * (BAR + GAP), left=left, scale=scale, bar=BAR, gap=GAP)
