"""One modeled GPU: its data sheet, the cost of operations, its clock, and its memory.

gpu.py is the dispatch mode that intercepts every operation. It looks up a plan (plan.py), which
caches what the operation returns and what it costs (rules/), then advances clock.py and allocates
from memory.py. cards/ has the GPU models, with their sources. kernels.py defines fused operations
that torch lacks on meta tensors. This folder depends neither on other ranks nor on torch's CUDA
interface.
"""
