"""Stand in for a student's mytrainer/program.py, with the simplest order of sends and receives.

Every action receives its input right before it runs, and sends its result right after.
"""

from __future__ import annotations

import sys


def install() -> None:
    """Make this module `mytrainer.program` in this process."""
    sys.modules["mytrainer.program"] = sys.modules[__name__]


def parse(action: str) -> tuple[str, int, int]:
    """Return the kind, micro-batch, and chunk of an action: ("B", 3, 1) for B3.1."""
    number, _, chunk = action[1:].partition(".")
    return action[0], int(number), int(chunk or 0)


def spell(kind: str, number: int, chunk: int) -> str:
    """Return an action, given what `parse` returns."""
    return f"{kind}{number}.{chunk}" if chunk else f"{kind}{number}"


def neighbor(stage: int, action: str, stages: int, chunks: int, step: int
             ) -> tuple[int, str] | None:
    """Return the stage and the action that exchange a tensor with an action, or None.

    Args:
        stage: the stage of the action.
        action: such as "F3".
        chunks: chunks of the model on each stage.
        step: 1 for the action that takes the result, -1 for the one that supplies the input.
    """
    kind, number, chunk = parse(action)
    if kind == "W":
        return None
    part = chunk * stages + stage + (step if kind == "F" else -step)
    if not 0 <= part < stages * chunks:
        return None
    return part % stages, spell(kind, number, part // stages)


def consumer(stage: int, action: str, stages: int, chunks: int = 1) -> tuple[int, str] | None:
    """Return the stage and the action that take the result of an action, or None."""
    return neighbor(stage, action, stages, chunks, 1)


def add_communication(schedule: list[list[str]]) -> list[list[str]]:
    """Return the program of each stage, whose actions receive just before and send just after."""
    stages, programs = len(schedule), []
    chunks = 1 + max((parse(action)[2] for actions in schedule for action in actions), default=0)
    for stage, actions in enumerate(schedule):
        program = []
        for action in actions:
            source = neighbor(stage, action, stages, chunks, -1)
            target = neighbor(stage, action, stages, chunks, 1)
            if source:
                program.append(f"recv {action} from {source[0]}")
            program.append(action)
            if target:
                program.append(f"send {action} to {target[0]}")
        programs.append(program)
    return programs
