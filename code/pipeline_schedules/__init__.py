"""Pipeline schedules as data: what every stage computes, in which order.

actions.py defines a schedule, builtin.py has the published ones, loading.py reads yours,
validation.py checks one, communication.py adds sends and receives, simulation.py puts it on a
clock, drawing.py and steps.py draw it, and traces.py reads and writes Perfetto traces.

Schedules need only the standard library and import none of our packages, so they also run where
torch does not; only drawing needs matplotlib. The trainer, the estimator, the checks, and the labs
all use the same lists. Begin with actions.py, then builtin.py.
"""

from pipeline_schedules.actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Action,
    Schedule,
    ScheduleError,
    parse,
    peak_live,
    splits_backward,
    to_text,
)
from pipeline_schedules.builtin import BUILT_IN, gpipe, interleaved, one_f_one_b, zb_h1
from pipeline_schedules.communication import Message, Program, add_communication
from pipeline_schedules.drawing import Drawing, draw, draw_beside
from pipeline_schedules.loading import load
from pipeline_schedules.simulation import Durations, Span, Timeline, simulate
from pipeline_schedules.steps import Steps, draw_steps
from pipeline_schedules.traces import export, measured, replayed, timeline_of
from pipeline_schedules.validation import check, problems

__all__ = [
    "BACKWARD", "BUILT_IN", "FORWARD", "WEIGHT", "Action", "Drawing", "Durations", "Message",
    "Program", "Schedule", "ScheduleError", "Span", "Steps", "Timeline", "add_communication",
    "check", "draw", "draw_beside", "draw_steps", "export", "gpipe", "interleaved",
    "load", "measured", "one_f_one_b", "parse", "peak_live", "problems", "replayed",
    "simulate", "splits_backward", "timeline_of", "to_text", "zb_h1",
]
