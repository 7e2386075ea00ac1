"""The Dockerfile, read: its stages and their instructions."""

from __future__ import annotations

from image import DOCKERFILE


def instructions() -> list[tuple[str, str]]:
    """Each instruction's name and the rest of it, continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines()
             if line.strip() and not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in whole)]


def stages() -> list[str]:
    return [text.rpartition(" AS ")[2] for name, text in instructions() if name == "FROM"]


def steps(target: str) -> list[tuple[str, str]]:
    """Return a target's instructions, including those of the stages that it builds on."""
    made: dict[str, list[tuple[str, str]]] = {}
    stage = ""
    for name, text in instructions():
        if name == "FROM":
            base, _, stage = text.partition(" AS ")
            made[stage] = list(made.get(base, []))
        elif stage:
            made[stage].append((name, text))
    return made[target]
