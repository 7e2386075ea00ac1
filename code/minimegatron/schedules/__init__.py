"""Schedules as data: what every pipeline stage computes, in which order.

actions.py says what a schedule is, builtin.py has the published ones, loading.py reads yours,
validation.py says what is wrong with it, communication.py adds sends and receives, simulation.py
puts it on a clock, drawing.py draws it, steps.py with a slider, traces.py has files for Perfetto.
Nothing here needs torch; drawing alone needs matplotlib.
"""

from minimegatron.schedules.actions import (
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
from minimegatron.schedules.builtin import BUILT_IN, gpipe, interleaved, one_f_one_b, zb_h1
from minimegatron.schedules.communication import Message, Program, add_communication
from minimegatron.schedules.drawing import Drawing, draw, draw_beside
from minimegatron.schedules.loading import load
from minimegatron.schedules.simulation import Durations, Span, Timeline, simulate
from minimegatron.schedules.steps import Steps, draw_steps
from minimegatron.schedules.traces import export, measured, replayed, timeline_of
from minimegatron.schedules.validation import check, problems

__all__ = [
    "BACKWARD", "BUILT_IN", "FORWARD", "WEIGHT", "Action", "Drawing", "Durations", "Message",
    "Program", "Schedule", "ScheduleError", "Span", "Steps", "Timeline", "add_communication",
    "check", "draw", "draw_beside", "draw_steps", "export", "gpipe", "interleaved",
    "load", "measured", "one_f_one_b", "parse", "peak_live", "problems", "replayed",
    "simulate", "splits_backward", "timeline_of", "to_text", "zb_h1",
]
