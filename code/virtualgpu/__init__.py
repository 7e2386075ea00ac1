"""Accelerators without hardware: modeled time and memory for PyTorch programs on meta tensors.

gpu.py is the modeled device: a dispatch mode that advances clock.py for every operation (rules.py,
matmul.py, shapes.py) and counts memory.py. group.py is a process group that moves clocks instead of
data, over the links of network.py and topology.py with the costs of collectives.py. cards/ has one
file per GPU model, with its sources. trace.py and profiler.py record what ran, chrome_trace.py
writes it in the profiler's format, plan.py replays repeated work.

It knows torch only and imports none of our packages. Begin with gpu.py; docs/virtual-gpus.md says
what is modeled and how well.
"""
