"""Draw collectives for lab 04: a ring all-reduce step by step, and the overlap of all-reduces."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labcore.html import render
from pipeline_schedules import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from warmranks import RankRecord

INK, SENT, PARTIAL, COMPLETE = "#22313f", "#e67e22", "#fce5cd", "#cfe2f3"


class Flipbook:
    """Drawings that a notebook shows one at a time.

    The buttons are radio inputs, so the arrow keys move between them, and CSS alone hides the other
    drawings: a page that removes both shows all drawings, one below the other.
    """

    def __init__(self, drawings: Sequence[Drawing], label: str = "step") -> None:
        """Args:
            drawings: the drawings, in order.
            label: what the numbers on the buttons count.
        """
        self.drawings, self.label = tuple(drawings), label

    def __repr__(self) -> str:
        return "\n".join(f"{self.label} {number}: {drawing.alt}"
                         for number, drawing in enumerate(self.drawings))

    def _repr_html_(self) -> str:
        name = "flip" + hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        frames = [{"alt": drawing.alt, "data": base64.b64encode(drawing.svg()).decode()}
                  for drawing in self.drawings]
        return render("lablib/flipbook.html.j2", name=name, label=self.label, frames=frames)


def ring(ranks: int = 4) -> Flipbook:
    """Return a ring all-reduce to step through, with each rank's partial sums and transfers.

    Args:
        ranks: the number of ranks, and of chunks of the tensor.
    """
    # The ranks whose contributions are in each rank's chunks.
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    drawings = [_ring_step(held, {}, "Before the first step, every rank has its own tensor.")]
    for step in range(2 * (ranks - 1)):
        reducing = step < ranks - 1
        sent = {rank: (rank - step) % ranks for rank in range(ranks)}
        arrived = {rank: set(held[(rank - 1) % ranks][sent[(rank - 1) % ranks]])
                   for rank in range(ranks)}
        for rank, parts in arrived.items():
            held[rank][sent[(rank - 1) % ranks]] |= parts
        verb = "adds" if reducing else "stores"
        phase = "reduce-scatter" if reducing else "all-gather"
        drawings.append(_ring_step(
            held, sent, f"Step {step + 1} ({phase}): every rank has sent the outlined chunk to its "
            f"right neighbor, which {verb} it."))
    return Flipbook(drawings)


def _ring_step(held: Sequence[Sequence[set[int]]], sent: Mapping[int, int], title: str) -> Drawing:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    ranks = len(held)
    figure = Figure(figsize=(1.5 * ranks + 1.5, 0.62 * ranks + 1.3))
    axes = figure.subplots()
    axes.set(xlim=(-0.9, ranks + 0.1), ylim=(-ranks - 0.65, 0.75))
    axes.axis("off")
    for chunk in range(ranks):
        axes.text(chunk + 0.5, 0.15, f"chunk {chunk}", ha="center", fontsize=9, color=INK)
    for rank, chunks in enumerate(held):
        axes.text(-0.1, -rank - 0.5, f"rank {rank}", ha="right", va="center", color=INK)
        for chunk, parts in enumerate(chunks):
            is_sent = sent.get(rank) == chunk
            axes.add_patch(Rectangle(
                (chunk + 0.04, -rank - 0.92), 0.92, 0.84, zorder=2 if is_sent else 1,
                facecolor=_face(len(parts), ranks),
                edgecolor=SENT if is_sent else INK, linewidth=3 if is_sent else 0.8))
            text = "sum of all" if len(parts) == ranks else "+".join(map(str, sorted(parts)))
            axes.text(chunk + 0.5, -rank - 0.5, text, ha="center", va="center", fontsize=9,
                      color=INK, zorder=3)
    axes.legend(loc="lower center", ncols=4, fontsize=8, frameon=False, handles=[
        Patch(facecolor="white", edgecolor=INK, label="own values"),
        Patch(facecolor=PARTIAL, edgecolor=INK, label="partial sum over these ranks"),
        Patch(facecolor=COMPLETE, edgecolor=INK, label="sum over all ranks"),
        Patch(facecolor="white", edgecolor=SENT, linewidth=2, label="sent in this step")])
    axes.text((ranks - 0.8) / 2, 0.55, title, ha="center", fontsize=9, color=INK)
    rows = "; ".join(f"rank {rank} has " + ", ".join(
        "the sum" if len(parts) == ranks else "+".join(map(str, sorted(parts)))
        for parts in chunks) for rank, chunks in enumerate(held))
    return Drawing(figure, f"{title} By chunk, {rows}.")


def _face(parts: int, ranks: int) -> str:
    """Return the color of a chunk.

    Args:
        parts: the number of contributions that it contains.
    """
    return COMPLETE if parts == ranks else PARTIAL if parts > 1 else "white"


def overlap(layers: int = 6, per_bucket: int = 2) -> Flipbook:
    """Return a backward pass to step through, which all-reduces each bucket once it is full.

    Args:
        layers: the number of layers, each with one gradient that takes one unit of time.
        per_bucket: gradients per bucket.
    """
    drawings = []
    for now in range(layers + per_bucket + 1):
        full = min(now, layers) // per_bucket
        starts = [(1 + bucket) * per_bucket for bucket in range(full)]
        alt = (f"After {now} units of time, {min(now, layers)} of {layers} gradients are computed "
               f"and {full} buckets are full; their all-reduces start at "
               f"{starts or 'no time yet'}.")
        drawings.append(_overlap_step(layers, per_bucket, now, alt))
    return Flipbook(drawings, "time")


def _overlap_step(layers: int, per_bucket: int, now: int, alt: str) -> Drawing:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.9))
    axes = figure.subplots()
    for unit in range(min(now, layers)):
        _bar(axes, 1, unit, 1, f"grad {layers - 1 - unit}", COMPLETE)
    for bucket in range(min(now, layers) // per_bucket):
        start = (bucket + 1) * per_bucket
        length = min(per_bucket * 0.9, now - start)
        if length > 0:
            _bar(axes, 0, start, length, f"bucket {bucket}", PARTIAL)
    axes.axvline(now, color=SENT, linewidth=2)
    axes.set(xlim=(-0.1, layers + per_bucket + 0.2), ylim=(-0.6, 1.6), yticks=[0, 1],
             yticklabels=["all-reduce", "backward pass"], xlabel="time")
    return Drawing(figure, alt)


def _bar(axes: Axes, row: int, start: float, length: float, text: str, color: str) -> None:
    """Draw one box of a timeline.

    Args:
        axes: the axes to draw on.
        row: its height.
        start: its left edge.
        length: its width.
        text: the text in it.
        color: the color of its face.
    """
    axes.barh(row, length, left=start, height=0.7, color=color, edgecolor=INK)
    axes.text(start + length / 2, row, text, ha="center", va="center", fontsize=9, color=INK)


def timeline(records: Mapping[str, RankRecord], steps: int = 1) -> Drawing:
    """Draw one rank's all-reduces from start to wait, over the FLOPs that the rank had done.

    Args:
        records: the records of one rank, by name.
        steps: how many equal steps each record has; the last one is drawn.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.9 * len(records) + 0.8))
    axes = figure.subplots()
    described = []
    for row, (name, record) in enumerate(records.items()):
        step = record.flops / steps
        begin = record.flops - step
        calls = [call for call in record.calls if call.op == "all_reduce"
                 and (steps == 1 or call.started > begin)]  # the step before ends at `begin`
        starts = [100 * (call.started - begin) / step for call in calls]
        ends = [100 * ((call.finished or record.flops) - begin) / step for call in calls]
        for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
            height = row + 0.7 * (at + 0.5) / len(calls) - 0.35
            axes.plot([start, max(end, start + 0.4)], [height, height], color=SENT, linewidth=3)
        first = f"the first at {min(starts):.0f}% of the FLOPs" if calls else "none"
        described.append(f"{name}: {len(calls)} all-reduces, {first}")
    axes.set(xlim=(0, 103), ylim=(len(records) - 0.5, -0.5), yticks=range(len(records)),
             yticklabels=list(records), xlabel="FLOPs of the step that the rank had done (%)")
    axes.grid(axis="x", alpha=0.3)
    return Drawing(figure, "All-reduces in flight: " + "; ".join(described) + ".")


def efficiency(curves: Mapping[str, Mapping[int, float]]) -> Drawing:
    """Plot scaling efficiency over the number of GPUs.

    Args:
        curves: the efficiency (1.0 is ideal) by number of GPUs, by name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    markers, described = "osD^v", []
    for number, (name, points) in enumerate(curves.items()):
        axes.plot(list(points), [100 * value for value in points.values()],
                  marker=markers[number % len(markers)], label=name)
        ends = list(points.items())
        described.append(f"{name}: {100 * ends[0][1]:.0f}% on {ends[0][0]} GPUs, "
                         f"{100 * ends[-1][1]:.0f}% on {ends[-1][0]:,}")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="GPUs", ylabel="efficiency (%)", ylim=(0, 105), title="Scaling efficiency")
    axes.grid(alpha=0.3)
    axes.legend()
    return Drawing(figure, "Scaling efficiency. " + "; ".join(described) + ".")
