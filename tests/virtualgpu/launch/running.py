"""Run the programs of tests/virtualgpu/scripts on virtual GPUs, in forks of this process."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from virtualgpu.launch.cluster import parse
from virtualgpu.launch.process import script
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings
from virtualgpu.pytorch import assumptions

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def run(name, *arguments, gpus="h100", nodes=1, present=None, values=2**20, assume=()):
    """The ranks' results; a rank's value is what it printed."""
    program = script(str(SCRIPTS / f"{name}.py"), arguments)

    def captured():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            program()
        return printed.getvalue()

    settings = Settings(values, tuple(map(assumptions.parse, assume)))
    return run_ranks(parse(gpus, nodes), settings, captured, present)


def printed(*args, **kwargs):
    """Return the output of all ranks; none may fail."""
    result = run(*args, **kwargs)
    assert [rank.error for rank in result] == [None] * len(result)
    return [rank.value for rank in result]
