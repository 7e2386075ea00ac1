"""Lay out the figures of a report: lines, points, and labels. Templates draw them as SVG."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labcore.html import fragment

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 250, 64, 40, 12, 16
MAX_POINTS = 600  # of one line; a longer one keeps the lowest and the highest of each stretch
MAX_DOTS = 40
BAR, GAP = 16, 8
Point = tuple[float, float]


def nice_step(length: float, wanted: int = 5) -> float:
    """Return 1, 2, or 5 times a power of ten that divides an axis into about `wanted` steps.

    Args:
        length: the length of the axis, in its own unit.
        wanted: the number of steps.
    """
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


def thin(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Return about `limit` of the points, with every extreme."""
    if len(points) <= limit:
        return list(points)
    size, extremes = math.ceil(2 * len(points) / limit), []
    for begin in range(0, len(points), size):
        part = points[begin:begin + size]
        extremes += sorted({min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])})
    return extremes


def axis_top(values: Sequence[float]) -> float:
    """Return the top of the axis, which cuts off outliers such as the time of the first step."""
    typical = statistics.quantiles(values, n=20)[-1] if len(values) > 1 else values[0]
    highest = max(values)
    return highest if highest <= 3 * typical else 1.5 * typical


def line(points: Sequence[Point], x: str, y: str, text: str, from_zero: bool = False) -> Markup:
    """Draw a line whose x values are integers. A value that is not finite leaves a gap.

    Args:
        points: x and y.
        x: the label of the horizontal axis.
        y: the label of the vertical axis.
        text: a description of the figure.
        from_zero: the vertical axis begins at 0.

    Raises:
        ValueError: no point is finite.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        raise ValueError("no point to draw")
    values = [value for _, value in finite]
    high = axis_top(values)
    low = 0.0 if from_zero else min(values)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    high, low = high + margin, low if from_zero else low - margin
    begin = min(at for at, _ in points)  # a log can have two runs, and the second begins again
    end = max(begin + 1, *(at for at, _ in points))

    def to_pixels(at: float, value: float) -> tuple[float, float]:
        across = LEFT + (at - begin) / (end - begin) * (WIDTH - LEFT - RIGHT)
        down = TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return across, max(float(TOP), down)

    def tooltip(point: Point) -> str:
        return f"{x} {label(point[0])}: {point[1]:.6g}"

    return fragment(
        "job_monitor/line.svg.j2", text=text, x=x, y=y, width=WIDTH, height=HEIGHT, left=LEFT,
        right=WIDTH - RIGHT, top=TOP, bottom=HEIGHT - BOTTOM,
        rows=[(to_pixels(begin, value)[1], label(value)) for value in ticks(low, high)],
        columns=[(to_pixels(value, low)[0], label(value)) for value in ticks(begin, end)
                 if not value % 1],  # no half iterations
        lines=[[to_pixels(*one) for one in part] for part in _parts(points) if len(part) > 1],
        dots=[(*to_pixels(*one), tooltip(one)) for one in finite if len(finite) <= MAX_DOTS],
        beyond=[(to_pixels(*one)[0], tooltip(one)) for one in finite if one[1] > high])


def _parts(points: Sequence[Point]) -> list[list[Point]]:
    """Split points at gaps and where x decreases, and thin each part."""
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
        rows: names, values, and upper bounds if they are known.
        unit: the unit of the values.
        text: a description of the figure.
    """
    longest = max((max(value, bound or 0.0) for _, value, bound in rows), default=0.0) or 1.0
    left, right = 150, 150
    scale = (WIDTH - left - right) / longest
    return fragment("job_monitor/bars.svg.j2", text=text, rows=rows, unit=unit, width=WIDTH,
                    height=len(rows) * (BAR + GAP), left=left, scale=scale, bar=BAR, gap=GAP)
