"""Pipeline schedules as data: the order in which every stage runs its passes.

actions.py defines a schedule, builtin.py and low_bubble.py have the published ones, and loading.py
and parsing.py read yours. validation.py checks a schedule, communication.py adds sends and
receives, and interpreter.py executes it for whoever handles its actions; deadlock.py explains why
it cannot. activations.py counts micro-batches in flight, simulation.py computes timelines, and
ends.py only their ends, for many choices of times; drawing.py and steps.py draw timelines, and
traces.py reads and writes Perfetto traces. partitions.py has a published planner's. A training step
with 1F1B imports only what it runs; the other modules are imported when a name of theirs is used.

The package needs only the standard library, so schedules also work where torch is not installed;
only drawing needs matplotlib. The trainer, the layout estimator, the checks, and the labs all use
the same lists. Begin with actions.py, then builtin.py and interpreter.py.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pipeline_schedules.actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Action,
    Schedule,
    ScheduleError,
    splits_backward,
    to_text,
)
from pipeline_schedules.builtin import WHOLE_STAGES, gpipe, one_f_one_b
from pipeline_schedules.communication import add_communication
from pipeline_schedules.interpreter import Deadlock, Handler, replay
from pipeline_schedules.messages import Message, Program

if TYPE_CHECKING:
    from pipeline_schedules.activations import peak_live
    from pipeline_schedules.clock import Durations
    from pipeline_schedules.drawing import Drawing, draw, draw_beside
    from pipeline_schedules.ends import last_ends, passes
    from pipeline_schedules.loading import load
    from pipeline_schedules.low_bubble import BUILT_IN, interleaved, zb_h1
    from pipeline_schedules.parsing import parse
    from pipeline_schedules.partitions import fasop
    from pipeline_schedules.simulation import Span, Timeline, simulate
    from pipeline_schedules.steps import Steps, draw_steps
    from pipeline_schedules.traces import export, measured, replayed, timeline_of
    from pipeline_schedules.validation import check, problems

__all__ = [
    "BACKWARD", "BUILT_IN", "FORWARD", "WEIGHT", "WHOLE_STAGES", "Action", "Deadlock", "Drawing",
    "Durations", "Handler", "Message", "Program", "Schedule", "ScheduleError", "Span", "Steps",
    "Timeline", "add_communication", "check", "draw", "draw_beside", "draw_steps", "export",
    "fasop", "gpipe", "interleaved", "last_ends", "load", "measured", "one_f_one_b", "parse",
    "passes", "peak_live", "problems", "replay", "replayed", "simulate", "splits_backward",
    "timeline_of", "to_text", "zb_h1",
]
_ON_FIRST_USE = {
    "activations": ("peak_live",),
    "clock": ("Durations",),
    "drawing": ("Drawing", "draw", "draw_beside"),
    "ends": ("last_ends", "passes"),
    "loading": ("load",),
    "low_bubble": ("BUILT_IN", "interleaved", "zb_h1"),
    "parsing": ("parse",),
    "partitions": ("fasop",),
    "simulation": ("Span", "Timeline", "simulate"),
    "steps": ("Steps", "draw_steps"),
    "traces": ("export", "measured", "replayed", "timeline_of"),
    "validation": ("check", "problems"),
}


def __getattr__(name: str) -> object:
    """Import `name` from its module, for names that a training step does not use."""
    for module, names in _ON_FIRST_USE.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
