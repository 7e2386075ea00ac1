"""Pipeline schedules as data: the order in which every stage runs its passes.

actions.py defines a schedule, builtin.py, low_bubble.py, and v_shaped.py have the published ones,
and loading.py and parsing.py read yours. validation.py checks a schedule, communication.py adds
sends and receives, and interpreter.py executes it for whoever handles its actions; deadlock.py
explains why it cannot. activations.py counts micro-batches in flight, simulation.py computes
timelines, and ends.py only their ends, for many choices of times; drawing.py and steps.py draw
timelines, and traces.py reads and writes Perfetto traces. partitions.py says which stages may be
empty, and has a published planner's partition. Modules are imported when a name of theirs is used,
so a training step with 1F1B imports only what it runs.

The package needs only the standard library, so schedules also work where torch is not installed;
only drawing needs matplotlib. The trainer, the layout estimator, the checks, and the labs all use
the same lists. Begin with actions.py, then builtin.py and interpreter.py.
"""

from importlib import import_module

_NAMES = {
    "actions": ("BACKWARD", "FORWARD", "WEIGHT", "Action", "Schedule", "ScheduleError", "VShaped",
                "splits_backward", "to_text"),
    "activations": ("peak_live",),
    "builtin": ("WHOLE_STAGES", "gpipe", "one_f_one_b"),
    "clock": ("Durations",),
    "communication": ("add_communication",),
    "drawing": ("Drawing", "draw", "draw_beside"),
    "ends": ("last_ends", "passes"),
    "interpreter": ("Deadlock", "Handler", "replay"),
    "loading": ("load",),
    "low_bubble": ("BUILT_IN", "interleaved", "zb_h1", "zb_h2"),
    "messages": ("Message", "Program"),
    "parsing": ("parse",),
    "partitions": ("empty_stage", "fasop", "fewest_layers"),
    "simulation": ("Span", "Timeline", "simulate"),
    "steps": ("Steps", "draw_steps"),
    "traces": ("export", "measured", "replayed", "timeline_of"),
    "v_shaped": ("V_SHAPED", "dualpipev", "zbv"),
    "validation": ("check", "problems"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    """Import a public name's module when the name is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
