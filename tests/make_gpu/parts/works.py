"""A part that works."""

from benchmarks.gpu.result import Result, Table


def run(quick: bool) -> Result:
    """Return one row."""
    table = Table("One row", ["a|b", "rate"])
    table.add("x|y", 12345.6)
    return Result([table], [f"quick: {quick}"])
