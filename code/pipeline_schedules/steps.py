"""A timeline shown step by step: a slider reveals the figure, and a table each stage's action.

The HTML contains its data and script (steps.js), so it works offline in JupyterLab and in an
exported page. If scripts are disabled, it shows the complete figure.
"""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path

from pipeline_schedules.actions import WEIGHT, Action, ScheduleError, sender
from pipeline_schedules.boxes import INK, chunks_of, label_of, live_steps
from pipeline_schedules.drawing import Drawing, draw, unit_of
from pipeline_schedules.simulation import Timeline
from pipeline_schedules.traces import Drawable, timeline_of

SCRIPT = Path(__file__).with_name("steps.js")
MAX_STEPS = 5_000  # more would take megabytes in a notebook
# Scripts of the buttons: one moves the slider by some steps, the other plays it to its end.
MOVE = ("const s=this.closest('figure').querySelector('input');s.value=Number(s.value)+({by});"
        "s.oninput()")
PLAY = ("const f=this.closest('figure'),s=f.querySelector('input'),b=this;"
        "if(f.timer){clearInterval(f.timer);f.timer=0;b.textContent='play';return}"
        "if(s.value===s.max){s.value=0;s.oninput()}"
        "b.textContent='stop';f.timer=setInterval(()=>{s.value=Number(s.value)+1;s.oninput();"
        "if(s.value===s.max){clearInterval(f.timer);f.timer=0;b.textContent='play'}},600)")


class Steps:
    """A drawing with a slider. A notebook displays it; `save` writes an HTML page."""

    def __init__(self, drawing: Drawing, timeline: Timeline, unit: str) -> None:
        self.drawing, self.timeline, self.unit = drawing, timeline, unit

    def __repr__(self) -> str:
        return self.drawing.alt

    def html(self) -> str:
        data = self._data()
        last = len(data["times"]) - 1
        position = self.drawing.figure.axes[0].get_position()
        picture = base64.b64encode(self.drawing.png()).decode()
        show = html.escape("".join(line.strip() + "\n" for line in SCRIPT.read_text().splitlines()
                                   if not line.startswith("//")))
        return (
            f'<figure data-steps="{html.escape(json.dumps(data, separators=(",", ":")))}" '
            'style="margin:0;max-width:100%;display:inline-block">'
            '<div style="position:relative;background:white">'
            f'<img style="display:block;max-width:100%" alt="{html.escape(self.drawing.alt)}" '
            f'src="data:image/png;base64,{picture}">'
            f'<div data-curtain style="display:none;position:absolute;top:{1 - position.y1:.2%};'
            f'bottom:{position.y0:.2%};right:0;background:rgba(255,255,255,0.88);'
            f'border-left:2px solid {INK}"></div></div>'
            '<div style="display:flex;gap:0.5em;align-items:center;margin:0.3em 0">'
            f'<button type="button" onclick="{MOVE.format(by=-1)}" aria-label="one step back">'
            '&#9664;</button>'
            f'<button type="button" onclick="{MOVE.format(by=1)}" aria-label="one step on">'
            '&#9654;</button>'
            f'<button type="button" onclick="{PLAY}">play</button>'
            f'<input type="range" min="0" max="{last}" value="{last}" style="flex:1" '
            f'aria-label="step" oninput="({show})(this.closest(\'figure\'))">'
            f'<output style="min-width:14em">step {last} of {last}</output></div>'
            '<table><thead><tr><th>stage</th><th>does now</th><th>live activations</th>'
            f'<th>idle so far</th></tr></thead><tbody>{self._rows()}</tbody></table></figure>')

    def save(self, path: str | Path) -> None:
        """Write an .html file. Raises ScheduleError for any other suffix."""
        path = Path(path)
        if path.suffix != ".html":
            raise ScheduleError(f"{path}: steps are saved as .html")
        title = html.escape(self.drawing.alt.partition(":")[0])
        path.write_text('<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
                        f"<title>{title}</title></head><body>{self.html()}</body></html>",
                        encoding="utf-8")

    def _repr_html_(self) -> str:
        return self.html()

    def _rows(self) -> str:
        """Return the table after the last step, which is also shown without scripts."""
        total, unit = float(self.timeline.total), self.unit and f" {self.unit}"
        rows = []
        for row, (stage, spans) in enumerate(self.timeline.spans.items()):
            in_flight = live_steps(spans, self.split)[-1:]
            idle = total - float(self.timeline.busy[row])
            rows.append(f'<tr data-stage="{row}"><th>{stage}</th><td>done</td>'
                        f"<td>{in_flight[0][1] if in_flight else 0}</td>"
                        f"<td>{idle:.4g}{unit}</td></tr>")
        return "".join(rows)

    @property
    def split(self) -> bool:
        return any(span.kind == WEIGHT for row in self.timeline.spans.values() for span in row)

    def _data(self) -> dict:
        timeline, chunks = self.timeline, chunks_of(self.timeline)
        position = self.drawing.figure.axes[0].get_position()
        stages = [
            {"spans": [[label_of(span, chunks), float(span.start), float(span.end),
                        self._needed(stage, Action(*span[:3]), chunks)] for span in row],
             "live": [[float(time), count] for time, count in live_steps(row, self.split)]}
            for stage, row in timeline.spans.items()]
        return {"times": moments(timeline), "begin": float(timeline.begin), "stages": stages,
                "left": round(position.x0, 5), "right": round(position.x1, 5),
                "unit": self.unit and f" {self.unit}"}

    def _needed(self, stage: int, action: Action, chunks: int) -> str:
        """Return a phrase for the other stage's action that this one depends on, or ""."""
        source = sender(stage, action, len(self.timeline.spans), chunks)
        return "" if source is None else f"{source[1]} of stage {source[0]}"


def moments(timeline: Timeline) -> list[float]:
    """Return the times at which an action of any stage starts or ends."""
    return sorted({float(time) for row in timeline.spans.values() for span in row
                   for time in (span.start, span.end)})


def draw_steps(drawable: Drawable, title: str = "Pipeline", unit: str | None = None,
               live: bool = True) -> Steps:
    """Draw a timeline with a slider over the moments at which an action starts or ends.

    Args:
        drawable: as for draw().
        title: as for draw().
        unit: as for draw().
        live: as for draw().

    Raises:
        ScheduleError: timeline_of rejects it, or there are too many moments.
    """
    timeline, unit = timeline_of(drawable), unit_of(drawable, unit)
    if len(moments(timeline)) > MAX_STEPS:
        raise ScheduleError(f"{len(moments(timeline)):,} steps are too many for a slider, which "
                            f"has {MAX_STEPS:,} at most; draw() draws them all at once")
    return Steps(draw(timeline, title, unit, live), timeline, unit)
