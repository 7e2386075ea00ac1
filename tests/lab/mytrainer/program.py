"""The training loop as a program for warm ranks."""

import runpy

from labcore.workspace import CODE

SCRIPT = str(CODE / "jobs" / "my_trainer.py")


def main() -> None:
    runpy.run_path(SCRIPT, run_name="__main__")
