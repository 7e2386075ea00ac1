"""Schedules as data: what every pipeline stage computes, in which order.

actions.py says what a schedule is, builtin.py has the published ones, loading.py reads yours,
validation.py says what is wrong with it, communication.py adds sends and receives, simulation.py
puts it on a clock, drawing.py draws it. Nothing here needs torch; drawing alone needs matplotlib.
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
from minimegatron.schedules.communication import (
    Message,
    Program,
    add_communication,
    check_program,
    program_problems,
)
from minimegatron.schedules.drawing import Drawing, draw
from minimegatron.schedules.loading import load
from minimegatron.schedules.simulation import Durations, Span, Timeline, simulate
from minimegatron.schedules.validation import check, problems

__all__ = [
    "BACKWARD", "BUILT_IN", "FORWARD", "WEIGHT", "Action", "Drawing", "Durations", "Message",
    "Program", "Schedule", "ScheduleError", "Span", "Timeline", "add_communication", "check",
    "check_program", "draw", "gpipe", "interleaved", "load", "one_f_one_b", "parse", "peak_live",
    "problems", "program_problems", "simulate", "splits_backward", "to_text", "zb_h1",
]
