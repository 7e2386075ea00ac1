"""Run one part in this process: python -m benchmarks.gpu.part MODULE RESULT.json [--quick]"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path


def main() -> None:
    """Import a part, run it, and save its result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("result", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    importlib.import_module(given.module).run(given.quick).save(given.result)


if __name__ == "__main__":
    main()
