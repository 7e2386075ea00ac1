"""Read schedules that were written as lists or strings, and name the place of every mistake."""

from __future__ import annotations

import re

from pipeline_schedules.actions import NAMES, Action, Schedule, ScheduleError, VShaped

TOKEN = re.compile(r"([FBW])([0-9]{1,6})(?:\.([0-9]{1,6}))?")


def parse(stages: object, source: str = "schedule") -> Schedule:
    """Return the schedule in a list with one entry per stage: "F0 F1 B0 B1", or a list of actions.

    Args:
        stages: the list. An action is an Action or a string such as "F0" or "F0.1". A dictionary
            {"placement": "v", "stages": the list} is a VShaped schedule.
        source: the file or object that error messages name.

    Raises:
        ScheduleError: the list is malformed; the message names the stage and the position.
    """
    if isinstance(stages, dict) and "placement" in stages:
        if set(stages) != {"placement", "stages"} or stages["placement"] != "v":
            raise ScheduleError(f'{source}: a V-shaped schedule is a dictionary with "placement": '
                                '"v" and "stages", its list, and with nothing else')
        return VShaped(parse(stages["stages"], source))
    if isinstance(stages, VShaped):
        return VShaped(parse(list(stages), source), stages.whole)
    if not isinstance(stages, list | tuple):
        raise ScheduleError(f"{source}: a schedule is a list with one entry per stage, "
                            f"not a {type(stages).__name__}")
    return [_parse_stage(entry, f"{source}: stage {stage}") for stage, entry in enumerate(stages)]


def _parse_stage(entry: object, where: str) -> list[Action]:
    items = entry.split() if isinstance(entry, str) else entry
    if not isinstance(items, list | tuple):
        raise ScheduleError(f'{where}: write its actions as a string, "F0 B0", or as a list, '
                            f"not as a {type(entry).__name__}")
    return [_parse_action(item, f"{where}, position {position}")
            for position, item in enumerate(items)]


def _parse_action(item: object, where: str) -> Action:
    if isinstance(item, Action):
        return well_formed(item, where)
    match = TOKEN.fullmatch(item) if isinstance(item, str) else None
    if match is None:
        raise ScheduleError(f"{where}: {item!r} is not an action; write F, B, or W, then the "
                            "number of the micro-batch, and the chunk if there are several: "
                            '"F0", "B3", "F0.1"')
    return Action(match[1], int(match[2]), int(match[3] or 0))


def well_formed(action: Action, where: str) -> Action:
    """Return the action if its kind is known and its numbers are integers.

    Raises ScheduleError, which names its place (`where`), if it is malformed.
    """
    if not isinstance(action.kind, str) or action.kind not in NAMES:
        raise ScheduleError(f"{where}: an action's kind is F, B, or W, not {action.kind!r}")
    for name in ("micro_batch", "chunk"):
        value = getattr(action, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ScheduleError(f"{where}: {name} is an integer, not {value!r}")
    return action
