"""Allocated memory over time, by category: as JSON, and as a self-contained SVG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from xml.etree import ElementTree

from virtualgpu.core.memory import amount
from virtualgpu.export.blocks import CATEGORIES, Allocation, LedgerTime, category

SCHEMA, VERSION = "virtualgpu.memory_timeline", 1
MAX_JSON_POINTS, MAX_SVG_POINTS = 50_000, 2000
WIDTH, HEIGHT, LEFT, TOP, LEGEND = 960, 420, 90, 30, 170
COLORS = dict(zip(CATEGORIES, (
    "#4c78a8", "#f58518", "#54a24b", "#72b7b2", "#e45756", "#b8b0ac", "#9d755d"), strict=True))


def points(blocks: Sequence[Allocation], live: Sequence[Allocation], now: LedgerTime, end: float
           ) -> tuple[list[float], dict[str, list[int]]]:
    """Return times, in seconds, and the bytes by category from each time on.

    Args:
        blocks: allocations that were freed.
        live: allocations that were not.
        now: the moment when the program ended.
        end: its time, in seconds.
    """
    # Sorted by order of events, because many have the same time.
    events = [(block.number, 0, block.begin, block, block.size) for block in (*blocks, *live)]
    events += [(block.last_number, 1, block.end, block, -block.size) for block in blocks]
    events.sort(key=lambda event: event[:2])
    times, sizes = [], {name: [] for name in CATEGORIES}
    current = dict.fromkeys(CATEGORIES, 0)
    for _, _, time, block, change in events:
        current[category(block, now)] += change
        times.append(time)
        for name, size in current.items():
            sizes[name].append(size)
    times.append(max(end, times[-1] if times else 0.0))
    for name, size in current.items():
        sizes[name].append(size)
    return times, sizes


def thinned(times: list[float], sizes: dict[str, list[int]], most: int
            ) -> tuple[list[float], dict[str, list[int]]]:
    """Return at most `most` points: of each section, the one with the most memory.

    Args:
        times: times of the points, in seconds.
        sizes: bytes by category.
        most: number of points to keep.
    """
    if len(times) <= most:
        return times, sizes
    totals = [sum(row) for row in zip(*sizes.values(), strict=True)]
    size = -(-len(times) // most)
    kept = [max(range(first, min(first + size, len(times))), key=totals.__getitem__)
            for first in range(0, len(times), size)]
    return [times[index] for index in kept], {
        name: [row[index] for index in kept] for name, row in sizes.items()}


def as_json(times: list[float], sizes: dict[str, list[int]], about: str) -> str:
    """Return the timeline as JSON, thinned to MAX_JSON_POINTS."""
    total = len(times)
    times, sizes = thinned(times, sizes, MAX_JSON_POINTS)
    return json.dumps({"schema": SCHEMA, "version": VERSION, "about": about,
                       "complete": len(times) == total,
                       "units": {"seconds": "seconds of modeled time", "bytes": "bytes"},
                       "seconds": times, "bytes": {
                           name.replace(" ", "_"): row for name, row in sizes.items()}},
                      separators=(",", ":"))


def as_svg(times: list[float], sizes: dict[str, list[int]], about: str) -> str:
    """Return the timeline as an SVG of stacked areas with a legend."""
    times, sizes = thinned(times, sizes, MAX_SVG_POINTS)
    most = max((sum(row) for row in zip(*sizes.values(), strict=True)), default=0) or 1
    begin, end = times[0], times[-1] if times[-1] > times[0] else times[0] + 1e-9
    svg = ElementTree.Element("svg", {
        "xmlns": "http://www.w3.org/2000/svg", "font-family": "sans-serif", "font-size": "12",
        "viewBox": f"0 0 {LEFT + WIDTH + LEGEND} {HEIGHT + TOP + 50}"})
    ElementTree.SubElement(svg, "title").text = about

    def label(x: float, y: float, text: str, anchor: str = "start") -> None:
        ElementTree.SubElement(svg, "text", {
            "x": f"{x:g}", "y": f"{y:g}", "text-anchor": anchor, "fill": "#444"}).text = text

    def at(time: float, size: float) -> str:
        return (f"{LEFT + WIDTH * (time - begin) / (end - begin):.1f},"
                f"{TOP + HEIGHT * (1 - size / most):.1f}")

    label(LEFT, 18, about)
    below = [0] * len(times)
    for number, name in enumerate(CATEGORIES):
        above = [low + size for low, size in zip(below, sizes[name], strict=True)]
        edge = steps(times, above, at) + steps(times, below, at)[::-1]
        ElementTree.SubElement(svg, "polygon", {"points": " ".join(edge), "fill": COLORS[name]})
        y = TOP + 18 * number
        ElementTree.SubElement(svg, "rect", {
            "x": f"{LEFT + WIDTH + 12}", "y": f"{y}", "width": "12", "height": "12",
            "fill": COLORS[name]})
        label(LEFT + WIDTH + 30, y + 11, name)
        below = above
    for share in (0, 0.25, 0.5, 0.75, 1):
        label(LEFT - 6, TOP + HEIGHT * (1 - share) + 4, amount(int(share * most)), "end")
        label(LEFT + WIDTH * share, TOP + HEIGHT + 18,
              f"{1e3 * (begin + share * (end - begin)):.3g} ms", "middle")
    return ElementTree.tostring(svg, encoding="unicode")


def steps(times: Sequence[float], sizes: Sequence[int], at) -> list[str]:
    """Return the corners of a step function."""
    corners, last = [], None
    for time, size in zip(times, sizes, strict=True):
        if last is not None:
            corners.append(at(time, last))
        corners.append(at(time, size))
        last = size
    return corners
