"""Show the memory of a training step over time, for lab 06, with sliders for its settings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labcore.html import render

if TYPE_CHECKING:
    from layout_estimator.memory_record import LayerCost, MemoryRecord

SCRIPT = Path(__file__).with_name("memory_movie.js")
WIDTH, HEIGHT = 640, 300  # of the plot
MAX_POINTS = 120  # of each record
SAMPLES = 4  # per GPU and step
RECOMPUTATION = {
    "none": "", "selective": "--recompute-granularity selective",
    "full": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"}
MODEL = "--device virtual:v100 --world-size 1 --gpus-per-node 1 --num-layers 12 --hidden-size 768 "
TOKENS = "--max-position-embeddings {length} --seq-length {length} --num-attention-heads {heads} "


def record(flags: str) -> MemoryRecord:
    """Record a step; the flags are those of `pretrain_gpt.py --estimate` in one string."""
    from layout_estimator.memory_record import record

    return record(flags.split())


def layer(gpu: str, flags: str) -> LayerCost:
    """Return the cost of one transformer layer on a virtual GPU.

    Args:
        gpu: the GPU model.
        flags: the trainer's, without --num-layers, --global-batch-size, and
            --max-position-embeddings.

    Raises:
        EstimateError: the trainer does not accept the flags.
    """
    from layout_estimator.memory_record import layer

    return layer(gpu, flags.split())


def show(precisions: Sequence[str] = ("fp32", "fp16"),
         recomputation: Sequence[str] = tuple(RECOMPUTATION),
         micro_batches: Sequence[int] = (1, 4), heads: Sequence[int] = (12, 32),
         lengths: Sequence[int] = (512, 1024)) -> Movie:
    """Record GPT-2 small on a V100 with all combinations of settings.

    Args:
        precisions: "fp32" or "fp16".
        recomputation: keys of RECOMPUTATION.
        micro_batches: into how many a step's SAMPLES samples are divided.
        heads: attention heads.
        lengths: sequence lengths.
    """
    settings = {"precision": precisions, "recomputation": recomputation,
                "micro-batches": micro_batches, "heads": heads, "sequence length": lengths}
    records = []
    for precision, again, count, head, length in itertools.product(*settings.values()):
        records.append(record(
            MODEL + TOKENS.format(length=length, heads=head)
            + f"--micro-batch-size {SAMPLES // count} --global-batch-size {SAMPLES} "
            + ("--fp16 " if precision == "fp16" else "") + RECOMPUTATION[again]))
    return Movie({name: [str(one) for one in values] for name, values in settings.items()},
                 records)


class Movie:
    """Memory over the time of a step, as stacked areas, with a slider for each setting.

    The HTML contains all curves and a script that shows one of them, so it works in an exported
    page. Without scripts, it shows the first one.
    """

    def __init__(self, settings: dict[str, list[str]], records: Sequence[MemoryRecord]) -> None:
        """Args:
            settings: the values of each setting, by name.
            records: one for each combination, in itertools.product's order.
        """
        self.settings, self.records = settings, tuple(records)

    def captions(self) -> list[str]:
        """Return a description of each record: its settings, peak, and time."""
        return [
            ", ".join(f"{name} {value}" for name, value in
                      zip(self.settings, values, strict=True))
            + f": peak {one.allocated / 1e9:.2f} GB, step {1000 * one.seconds[-1]:.0f} ms"
            + ("" if one.fits else f"; does not fit the {one.card.memory / 1e9:.1f} GB of the "
               f"virtual {one.card.name.upper()}") for values, one in
            zip(itertools.product(*self.settings.values()), self.records, strict=True)]

    def __repr__(self) -> str:
        return "\n".join(self.captions())

    def _repr_html_(self) -> str:
        from virtualgpu.export.memory_timeline import COLORS

        first = self.records[0]
        seconds = max(one.seconds[-1] for one in self.records)
        size = 1.05 * max(first.card.memory, *(one.allocated for one in self.records))
        show = "".join(line.strip() + "\n" for line in SCRIPT.read_text().splitlines()
                       if not line.startswith("//"))
        limit = first.card.memory - first.outside
        return render(
            "lablib/memory_movie.html.j2", settings=self.settings, captions=self.captions(),
            data=json.dumps([len(values) for values in self.settings.values()]), show=show,
            frames=[areas(one, seconds, size, COLORS) for one in self.records],
            colors={name: COLORS[name] for name in first.categories}, gpu=first.card.name.upper(),
            width=WIDTH, height=HEIGHT, limit=HEIGHT * (1 - limit / size),
            marks=[(HEIGHT * (1 - mark * 1e9 / size), mark) for mark in
                   range(0, int(size / 1e9) + 1, 2 if size < 25e9 else 20)],
            milliseconds=1000 * seconds)


def areas(one: MemoryRecord, seconds: float, size: float, colors: Mapping[str, str]
          ) -> list[tuple[str, str]]:
    """Return the color and the corners of each stacked area of a record.

    Args:
        one: the record.
        seconds: the time at the right edge.
        size: the bytes at the upper edge.
        colors: that of each category.
    """
    kept = thinned(one.totals)
    below, found = [0] * len(kept), []
    xs = [WIDTH * one.seconds[index] / seconds for index in kept]
    for name, row in one.categories.items():
        above = [low + row[index] for low, index in zip(below, kept, strict=True)]
        corners = [*zip(xs, above, strict=True), *reversed([*zip(xs, below, strict=True)])]
        found.append((colors[name], " ".join(
            f"{x:.0f},{HEIGHT * (1 - y / size):.0f}" for x, y in corners)))
        below = above
    return found


def thinned(totals: Sequence[int]) -> list[int]:
    """Return the indices of at most MAX_POINTS points: of each section, the one with the most
    memory and the one with the least, in order."""
    size = max(1, -(-2 * len(totals) // MAX_POINTS))
    kept = {0, len(totals) - 1}
    for first in range(0, len(totals), size):
        section = range(first, min(first + size, len(totals)))
        kept |= {max(section, key=totals.__getitem__), min(section, key=totals.__getitem__)}
    return sorted(kept)
