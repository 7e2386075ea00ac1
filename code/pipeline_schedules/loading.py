"""Load a schedule by name or from a file."""

from __future__ import annotations

from pathlib import Path

from pipeline_schedules.actions import Schedule
from pipeline_schedules.builtin import WHOLE_STAGES


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
    if source in WHOLE_STAGES and chunks == 1:
        return WHOLE_STAGES[source](stages, micro_batches)
    from pipeline_schedules.low_bubble import by_name

    return by_name(str(source), stages, micro_batches, chunks)
