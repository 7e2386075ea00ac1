"""torch.profiler.profile for a virtual GPU: record two steps, then write their trace."""

from __future__ import annotations

import time
from pathlib import Path

from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.export import chrome_trace
from virtualgpu.export.saving import save
from virtualgpu.export.trace import RankPlacement, TraceRecorder


class StepProfiler:
    """torch.profiler.profile for a virtual GPU.

    The first step is not recorded, nor the second, in which a real profiler warms up. After the
    next two it writes FOLDER/WORKER.TIME.pt.trace.json, named as
    torch.profiler.tensorboard_trace_handler does.
    """

    FIRST, STEPS = 2, 2

    def __init__(self, gpu: VirtualGpu, folder: str | Path, worker: str,
                 place: RankPlacement) -> None:
        self.gpu, self.folder, self.worker, self.place = gpu, Path(folder), worker, place
        self.recorder: TraceRecorder | None = None
        self.number = 0

    def start(self) -> None:
        self.number = 0

    def step(self) -> None:
        """End a step. Around recorded steps, wait for the GPU, so that each has its own kernels."""
        if self.FIRST - 1 <= self.number < self.FIRST + self.STEPS:
            self.gpu.now()
        self._edge(False)
        self.number += 1
        if self.number == self.FIRST:
            self.recorder = TraceRecorder(self.gpu)
            self.recorder.start()
        elif self.number == self.FIRST + self.STEPS:
            self._write()
        self._edge(True)

    def stop(self) -> None:
        """End the program: write the recording if it has a complete step."""
        if self.recorder is None:
            return
        self._edge(False)
        if self.number > self.FIRST:
            self._write()
        else:
            self.recorder.stop()
            self.recorder = None

    def _edge(self, begins: bool) -> None:
        if self.recorder is not None:
            self.recorder.edge("step", f"ProfilerStep#{self.number}", begins)

    def _write(self) -> None:
        recorder, self.recorder = self.recorder, None
        recorder.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.worker}.{time.time_ns()}.pt.trace.json"
        save(path, chrome_trace.text(self.gpu.card, self.place, recorder.notes))
