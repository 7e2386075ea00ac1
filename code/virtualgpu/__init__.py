"""Accelerators without hardware: modeled time, memory, and communication for PyTorch programs.

Folders, each importing only those before it:

- core: one modeled GPU, its clock, its memory, and what operations cost on it
- net: links, collectives, and process groups that exchange clocks instead of tensors
- export: the account of a run, and traces for other tools
- replay: a record of a run as plain data, priced by another process
- pytorch: torch's CUDA interface, so that unmodified programs run
- smi: `nvidia-smi`, which shows the GPUs
- launch: `virtualrun` and `virtualgpu.run`, which start programs and functions

It knows torch only and imports none of our packages. Begin with launch/command.py, or with
core/gpu.py for the model; docs/virtualrun.md and docs/virtual-gpus.md say what works, and how well.
"""

from typing import Any

__all__ = ["Rank", "VirtualGpuError", "mark_step", "run"]
PLACES = {"Rank": "virtualgpu.launch.result", "VirtualGpuError": "virtualgpu.core.errors",
          "mark_step": "virtualgpu.export.ledger", "run": "virtualgpu.launch.functions"}


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for: torch takes seconds."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(PLACES[name]), name)
