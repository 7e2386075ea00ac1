"""The published table of FP8 speed-ups is that of the current rates."""

import runpy
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_table_in_the_repository_is_current():
    made = runpy.run_path(str(BENCHMARKS / "fp8.py"))["report"]()
    assert made == (BENCHMARKS / "results" / "fp8_speedups.md").read_text()
