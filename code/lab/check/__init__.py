"""Checks for notebooks: `from lab import check`. docs/writing-labs.md is the guide."""

from lab.check.checks import Failed, call, compare, function, raises, that, value
from lab.check.draws import between, draw
from lab.check.job import script
from lab.check.measure import figures

__all__ = ["Failed", "between", "call", "compare", "draw", "figures", "function", "raises",
           "script", "that", "value"]
