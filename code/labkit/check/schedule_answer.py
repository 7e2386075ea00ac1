"""Parse a pipeline schedule that untrusted code returned, and decide whether it can run.

The answer may be any value that crosses from the student's process, so nothing is parsed before its
size is known to be reasonable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline_schedules import Schedule, ScheduleError, parse, problems

Sizes = tuple[int, int, int]  # stages, micro-batches, chunks

# An answer is refused unread beyond this many times the actions that it needs, and beyond this
# many characters per action.
MOST_ACTIONS, MOST_TEXT = 4, 20


@dataclass(frozen=True)
class Fault:
    """The first error in one answer.

    Attributes:
        kind: one of pipelines.PROPERTIES.
        text: the description that the student reads.
        schedule: the parsed answer; None where it is not a schedule or cannot run.
    """

    kind: str
    text: str
    schedule: Schedule | None = None


def read(got: Any, of: Sizes) -> Schedule:
    """Parse an answer, which may be any value that a check can receive.

    Args:
        got: the answer.
        of: the sizes that it should have; an answer that is far too large is not parsed.

    Raises:
        ScheduleError: it is not a schedule, or it is far too large.
    """
    _refuse_huge(got, of)
    return parse(got, "the answer")


def validity_fault(schedule: Schedule, of: Sizes) -> Fault | None:
    """Return why a schedule cannot run: missing or repeated work, or a deadlock; None if it can.

    Args:
        schedule: the schedule.
        of: the sizes that it should have.
    """
    stages, micro_batches, chunks = of
    errors = problems(schedule, stages=stages, micro_batches=micro_batches, chunks=chunks)
    if not errors:
        return None
    kind = ("wrong stages" if len(schedule) != stages else
            "deadlock" if errors[0].startswith("deadlock") else
            "wrong order" if "which it needs" in errors[0] else "incomplete")
    more = f" (and {len(errors) - 2} more like it)" if len(errors) > 2 else ""
    return Fault(kind, ". ".join(errors[:2]) + more)


def _refuse_huge(got: Any, of: Sizes) -> None:
    stages, micro_batches, chunks = of
    if not isinstance(got, list | tuple):
        return  # parse reports it
    if len(got) > 4 * stages + 100:
        raise ScheduleError(f"the answer has {len(got):,} stages, not {stages}")
    most = MOST_ACTIONS * 3 * micro_batches * chunks + 100
    for stage, entry in enumerate(got):
        if isinstance(entry, list | tuple) and len(entry) > most:
            raise ScheduleError(f"stage {stage} has {len(entry):,} actions: far too many")
        if isinstance(entry, str) and len(entry) > MOST_TEXT * most:
            raise ScheduleError(f"stage {stage} is a string of {len(entry):,} characters: far too "
                                "long")
