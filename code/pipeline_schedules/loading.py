"""Load a schedule by name or from a file."""

from __future__ import annotations

import difflib
from pathlib import Path

from pipeline_schedules.actions import Schedule, ScheduleError
from pipeline_schedules.builtin import BUILT_IN


def load(source: str | Path, stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Return a schedule. It is well-formed; validation.check decides whether it is valid.

    Args:
        source: a name in BUILT_IN; a .py file with a function `schedule(stages, micro_batches)`, or
            one with the file's name, that returns what parsing.parse reads (it takes chunks if it
            has a third parameter); or a .json file with a list of strings such as "F0 B0".
        stages: the number of pipeline stages.
        micro_batches: micro-batches per step.
        chunks: model chunks per stage.

    Raises:
        ScheduleError: the schedule cannot be loaded; the message names the file and, if possible,
            the stage and the position.
    """
    path = Path(source)
    if path.suffix in (".py", ".json"):
        from pipeline_schedules import files

        if path.suffix == ".json":
            return files.from_json(path)
        return files.from_python(path, stages, micro_batches, chunks)
    name = str(source)
    if name not in BUILT_IN:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), BUILT_IN, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ScheduleError(f"schedule {name!r}: neither one of {', '.join(BUILT_IN)} nor a .py or "
                            f".json file{hint}")
    if name == "interleaved":
        return BUILT_IN[name](stages, micro_batches, chunks)
    if chunks != 1:
        raise ScheduleError(f"{name} has one chunk per stage, not {chunks}; for several take "
                            "interleaved")
    return BUILT_IN[name](stages, micro_batches)
