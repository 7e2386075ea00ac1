"""One micro-batch at a time, GPipe and 1F1B on one scale of time."""

from __future__ import annotations

from matplotlib.figure import Figure

from pipeline_schedules import draw_beside, gpipe, one_f_one_b

STAGES, MICRO_BATCHES = 4, 4


def draw() -> Figure:
    one_at_a_time = [" ".join(f"F{k} B{k}" for k in range(MICRO_BATCHES))] * STAGES
    return draw_beside({
        "One micro-batch at a time": one_at_a_time,
        "GPipe": gpipe(STAGES, MICRO_BATCHES),
        "1F1B": one_f_one_b(STAGES, MICRO_BATCHES)}, live=True).figure
