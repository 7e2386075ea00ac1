"""Checks for notebooks: `from labkit import check`. docs/writing-labs.md is the guide.

The functions are imported on first use: a sandbox needs only labkit.check.wire, and starts in half
the time without the rest.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.check.cases import between, by_rank, draw, for_each_rank
    from labkit.check.checks import Failed, call, compare, function, pass_mark, raises, that, value
    from labkit.check.distributed import ranks
    from labkit.check.masking import PIPELINE_LIBRARIES, mask
    from labkit.check.measure import figures
    from labkit.check.modeled import baseline, gpus
    from labkit.check.partial import part, parts
    from labkit.check.pipelines import schedule
    from labkit.check.running import lab, show
    from labkit.check.scripts import program, script

__all__ = ["PIPELINE_LIBRARIES", "Failed", "baseline", "between", "by_rank", "call", "compare",
           "draw", "figures", "for_each_rank", "function", "gpus", "lab", "mask", "part", "parts",
           "pass_mark", "program", "raises", "ranks", "schedule", "script", "show", "that", "value"]
# What a notebook calls, and no check.
NOTEBOOKS = ("lab", "show")
_MODULES = {"PIPELINE_LIBRARIES": "masking", "baseline": "modeled", "between": "cases",
            "by_rank": "cases", "draw": "cases", "figures": "measure", "for_each_rank": "cases",
            "gpus": "modeled", "lab": "running", "mask": "masking", "part": "partial",
            "parts": "partial", "program": "scripts", "ranks": "distributed",
            "schedule": "pipelines", "script": "scripts", "show": "running"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("labkit.check.kernel")  # sets the default side of this process
    attribute = getattr(importlib.import_module(f"labkit.check.{_MODULES.get(name, 'checks')}"),
                        name)
    globals()[name] = attribute
    return attribute


class _Check(ModuleType):
    """This module, which a notebook calls by the name of a check: `check("shift")`."""

    def __call__(self, name: str) -> None:
        run = importlib.import_module("labkit.check.running").run
        run(name, sys._getframe(1).f_globals)


sys.modules[__name__].__class__ = _Check


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
