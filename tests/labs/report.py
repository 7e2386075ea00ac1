"""The cost of each lab, in the last lines of `make test`; `make stress` enforces a limit."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

CPU_SECONDS = 25  # the most that a lab should cost in its short setting
PROPERTY = "lab"
CELLS = 3  # named in each lab's line


def line(name: str, cpu: float, elapsed: float, starts: int,
         cells: Iterable[tuple[float, int]]) -> str:
    """Return a lab's line of the report.

    Args:
        name: the lab's.
        cpu: CPU-seconds of its kernel, jobs, and commands.
        elapsed: seconds from its first cell to its last.
        starts: how many times torchrun started, on all nodes.
        cells: the CPU-seconds of its cells, each with the cell's line in the lab's source.
    """
    slowest = ", ".join(f"{seconds:.1f} in line {number}"
                        for seconds, number in sorted(cells, reverse=True)[:CELLS])
    over = "  OVER BUDGET" if cpu > CPU_SECONDS else ""
    return (f"{name:<28}{cpu:6.1f} CPU-s {elapsed:5.0f} s  {starts:2} torchruns; "
            f"slowest cells (CPU-s): {slowest}{over}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the labs that ran."""
    lines = sorted(value for kind in ("passed", "failed")
                   for report in terminalreporter.stats.get(kind, [])
                   for name, value in getattr(report, "user_properties", []) if name == PROPERTY)
    if lines:
        terminalreporter.section(f"labs in their short setting (budget: {CPU_SECONDS} CPU-s each)")
        terminalreporter.write_line("\n".join(lines))
