"""One modeled GPU: what it is, what an operation costs on it, and what time it is there.

gpu.py is the dispatch mode that sees every operation. For each it asks plan.py, which remembers the
cost (rules.py, matmul.py) and the result (shapes.py), then advances clock.py and fills memory.py.
cards/ has one file per GPU model, with its sources. kernels.py defines fused operations that torch
lacks on meta tensors. Knows nothing of other ranks, nor of torch's CUDA interface.
"""
