"""What pyproject.toml asks for, a requirement a line: its dependencies and those of some extras.

    python docker/wanted.py [EXTRA ..]
"""

import sys
import tomllib
from pathlib import Path


def wanted(project: dict, extras: list[str]) -> list[str]:
    """Raises SystemExit for an extra that the project has not."""
    optional = project.get("optional-dependencies", {})
    for extra in extras:
        if extra not in optional:
            sys.exit(f"{extra} is no extra of pyproject.toml; it has: {', '.join(optional)}")
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    print(*wanted(tomllib.loads(text)["project"], sys.argv[1:]), sep="\n")
