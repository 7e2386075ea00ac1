"""The files that `--trace DIR` writes for one rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from virtualgpu.export import chakra, chrome_trace, memory_timeline
from virtualgpu.export.blocks import Allocation
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.measures import steps_of
from virtualgpu.export.saving import save
from virtualgpu.export.trace import RankPlacement, TraceRecorder

MAX_EVENTS = 400_000  # in a rank's trace; viewers cannot handle more


class TraceFiles:
    """Records one rank from now on, and writes its files at the end.

    Args:
        folder: folder for the files, created if it does not exist.
        ledger: the rank's ledger, before its start.
        place: the rank and its GPU.
    """

    def __init__(self, folder: str | Path, ledger: Ledger, place: RankPlacement) -> None:
        self.folder, self.ledger, self.place = Path(folder), ledger, place
        self.recorder = TraceRecorder(ledger.gpu, MAX_EVENTS, self._end)
        self.freed: Sequence[Allocation] = ()
        self.live: Sequence[Allocation] = ()
        self.end = 0.0
        ledger.blocks.history = []
        self.recorder.start()

    def _end(self) -> None:
        """Keep the allocations of the memory timeline, which ends when the trace does."""
        blocks = self.ledger.blocks
        self.freed, blocks.history = blocks.history, None
        self.live, self.end = list(blocks.live.values()), self.ledger.gpu.clock.ready()

    def write(self) -> list[Path]:
        """Write the Chrome trace, the Chakra trace, and the memory timeline; return the paths."""
        self.recorder.stop()
        ledger, place, gpu = self.ledger, self.place, self.ledger.gpu
        self.folder.mkdir(parents=True, exist_ok=True)
        about = f"rank {place.rank} of {place.world}, virtual {gpu.card.name}: modeled memory"
        times, sizes = memory_timeline.points(
            self.freed, self.live, ledger.now(steps_of(ledger)), self.end)
        notes = self.recorder.notes
        texts = {
            "pt.trace.json": chrome_trace.text(gpu.card, place, notes),
            "chakra.json": chakra.text(gpu.card, place, notes),
            "memory.json": memory_timeline.as_json(times, sizes, about),
            "memory.svg": memory_timeline.as_svg(times, sizes, about)}
        paths = [self.folder / f"rank{place.rank}.{end}" for end in texts]
        for path, text in zip(paths, texts.values(), strict=True):
            save(path, text)
        return paths
