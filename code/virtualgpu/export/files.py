"""Everything that `--trace DIR` writes of one rank."""

from __future__ import annotations

import os
from pathlib import Path

from virtualgpu.export import chakra, chrome_trace, memory_timeline
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.measures import steps_of
from virtualgpu.export.trace import Place, Recorder

MOST_NOTES = 400_000  # of a rank; a trace of more is of no use to a viewer


def save(path: Path, text: str) -> None:
    """Replace a file in one step."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


class Traced:
    """Records one rank from now on, and writes its files in the end.

    Args:
        folder: made if it does not exist.
        ledger: of the rank; not started yet.
        place: the rank's.
    """

    def __init__(self, folder: str | Path, ledger: Ledger, place: Place) -> None:
        self.folder, self.ledger, self.place = Path(folder), ledger, place
        self.recorder = Recorder(ledger.gpu, MOST_NOTES)
        ledger.blocks.history = []
        self.recorder.start()

    def write(self) -> list[Path]:
        """Write the Chrome trace, the Chakra trace, and the memory timeline; returns the files."""
        self.recorder.stop()
        ledger, place, gpu = self.ledger, self.place, self.ledger.gpu
        self.folder.mkdir(parents=True, exist_ok=True)
        about = f"rank {place.rank} of {place.world}, virtual {gpu.card.name}: modeled memory"
        times, sizes = memory_timeline.points(
            ledger.blocks.history or [], list(ledger.blocks.live.values()),
            ledger.now(steps_of(ledger)), gpu.clock.ready())
        notes = self.recorder.notes
        texts = {
            "pt.trace.json": chrome_trace.text(gpu.card, place, notes),
            "chakra.json": chakra.text(gpu.card, place, notes),
            "memory.json": memory_timeline.as_json(times, sizes, about),
            "memory.svg": memory_timeline.as_svg(times, sizes, about)}
        made = [self.folder / f"rank{place.rank}.{end}" for end in texts]
        for path, text in zip(made, texts.values(), strict=True):
            save(path, text)
        return made
