"""Three stages under PipeDream: which version of its weights each pass uses."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import GREY, INK, canvas

from pipeline_schedules import FORWARD, one_f_one_b, simulate

STAGES, MICRO_BATCHES = 3, 6
SHADES = ("#ffffff", "#fce5cd", "#f9cb9c", "#f6b26b", "#e69138", "#c97b2a")  # by version
UNIT, ROW, HEIGHT = 0.36, 0.95, 0.66  # inches


def draw() -> Figure:
    timeline = simulate(one_f_one_b(STAGES, MICRO_BATCHES))
    figure, axes = canvas(1.1 + UNIT * timeline.total + 0.1, STAGES * ROW + 0.75)
    top = STAGES * ROW + 0.55
    for stage, spans in timeline.spans.items():
        y = top - (stage + 1) * ROW + 0.2
        axes.text(0.95, y + HEIGHT / 2, f"stage {stage}", fontsize=10.5, color=INK, ha="right",
                  va="center")
        newest, used = 0, {}
        for span in spans:
            forward = span.kind == FORWARD
            version = used.setdefault(span.micro_batch, newest)  # a forward pass uses the newest
            x, width = 1.1 + UNIT * span.start, UNIT * (span.end - span.start)
            axes.add_patch(Rectangle((x, y), width, HEIGHT, facecolor=SHADES[version],
                                     edgecolor=INK, linewidth=1))
            axes.text(x + width / 2, y + HEIGHT * 0.68, f"{span.kind}{span.micro_batch}",
                      fontsize=9, color=INK, ha="center", va="center",
                      weight="normal" if forward else "bold")
            axes.text(x + width / 2, y + HEIGHT * 0.27, f"w{version}", fontsize=9, color=INK,
                      ha="center", va="center")
            if not forward:
                newest += 1
                axes.text(x + width, y - 0.1, f"w{newest}", fontsize=7, color=GREY, ha="center",
                          va="center")
    axes.text(1.1, 0.12, "F3: forward pass of micro-batch 3, B3: its backward pass; w1 in a box: "
              "the version that it uses; below: the version that is new then", fontsize=8,
              color=INK)
    return figure
