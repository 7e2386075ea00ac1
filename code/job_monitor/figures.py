"""Figures of a report, as plain SVG in the page's own colours: they print, and are dark where the
page is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from job_monitor.markup import Markup, element

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 250, 64, 40, 12, 16
POINTS = 600  # of one line; of more, the lowest and the highest of each stretch
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
    """Points over whole x. text: what the figure shows, in words. Values that are no numbers leave
    gaps. Raises ValueError without a point."""
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

    body = _axes((begin, end), (low, high), place, x, y)
    body += [element("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in
                                                 (place(*one) for one in part)), class_="line")
             for part in _parts(points) if len(part) > 1]
    if len(good) <= 40:
        body += [_dot(place(*one), f"{x} {label(one[0])}: {one[1]:.6g}") for one in good]
    for one, value in good:
        if value > high:
            across, _ = place(one, value)
            body.append(element("path", element("title", f"{x} {label(one)}: {value:.6g}"),
                                d=f"M{across - 5:.1f},{TOP + 8} h10 l-5,-8 z", class_="beyond"))
    return _svg(HEIGHT, text, body)


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


def _dot(at: tuple[float, float], text: str) -> Markup:
    return element("circle", element("title", text), cx=f"{at[0]:.1f}", cy=f"{at[1]:.1f}", r=2.5,
                   class_="dot")


def _axes(across: Point, up: Point, place, x: str, y: str) -> list[Markup]:
    body = []
    for value in ticks(*up):
        _, down = place(across[0], value)
        body += [element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{down:.1f}", y2=f"{down:.1f}",
                         class_="grid"),
                 element("text", label(value), x=LEFT - 8, y=f"{down + 4:.1f}", class_="end")]
    for value in ticks(*across):
        if value % 1:  # half an iteration
            continue
        right, _ = place(value, up[0])
        body.append(element("text", label(value), x=f"{right:.1f}", y=HEIGHT - BOTTOM + 17,
                            class_="middle"))
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    body += [element("text", x, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 5, class_="middle"),
             element("text", y, class_="middle", transform=f"translate(13,{middle}) rotate(-90)")]
    return body


def bars(rows: Sequence[tuple[str, float, float | None]], unit: str, text: str) -> Markup:
    """Horizontal bars: (name, value, of how much there is, or None)."""
    longest = max((max(value, whole or 0.0) for _, value, whole in rows), default=0.0) or 1.0
    left, right = 150, 150
    scale = (WIDTH - left - right) / longest
    body = []
    for index, (name, value, whole) in enumerate(rows):
        top = index * (BAR + GAP) + GAP / 2
        body.append(element("text", name, x=left - 8, y=top + BAR - 4, class_="end"))
        if whole:
            body.append(element("rect", x=left, y=top, width=f"{whole * scale:.1f}", height=BAR,
                                class_="whole"))
        said = f"{value:.2f}" + (f" of {whole:.2f}" if whole else "") + f" {unit}"
        body += [element("rect", x=left, y=top, width=f"{value * scale:.1f}", height=BAR,
                         class_="bar"),
                 element("text", said, x=f"{left + max(value, whole or 0) * scale + 8:.1f}",
                         y=top + BAR - 4)]
    return _svg(len(rows) * (BAR + GAP), text, body)


def _svg(height: int, text: str, body: Sequence[Markup]) -> Markup:
    return element("svg", element("title", text), *body, viewBox=f"0 0 {WIDTH} {height}",
                   role="img", aria_label=text, xmlns="http://www.w3.org/2000/svg")
