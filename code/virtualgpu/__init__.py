"""Accelerators without hardware: modeled time and memory for PyTorch programs on meta tensors.

Rooms, each importing only those before it:

- core: one modeled GPU, its clock, its memory, and what operations cost on it
- net: links, collectives, and process groups that exchange clocks instead of tensors
- export: traces in the profiler's format

It knows torch only and imports none of our packages. Begin with core/gpu.py; docs/virtual-gpus.md
says what is modeled and how well.
"""
