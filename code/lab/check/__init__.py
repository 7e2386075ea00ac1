"""Checks for notebooks: `from lab import check`. docs/writing-labs.md is the guide.

The functions come from their modules when they are first asked for: a sandbox needs lab.check.wire
alone, and starts in half the time without the rest.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.check.checks import Failed, call, compare, function, raises, that, value
    from lab.check.draws import between, draw
    from lab.check.job import script
    from lab.check.masking import mask
    from lab.check.measure import figures
    from lab.check.partial import part, parts
    from lab.check.pipelines import schedule

__all__ = ["Failed", "between", "call", "compare", "draw", "figures", "function", "mask", "part",
           "parts", "raises", "schedule", "script", "that", "value"]
_MODULES = {"between": "draws", "draw": "draws", "figures": "measure", "mask": "masking",
            "part": "partial", "parts": "partial", "schedule": "pipelines", "script": "job"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"lab.check.{_MODULES.get(name, 'checks')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
