"""FP8 training with Transformer Engine's names, readable and without a GPU.

On a CPU, tensors are rounded to real float8 values and multiplied with float32 accumulation, so a
loss curve is the one that the recipe's rounding gives; nothing is faster. recipes.py says which
format and scale each tensor gets, quantize.py rounds, functional.py is a linear layer's three
GEMMs, and state.py holds the autocast context, amax histories, and cached weights.

The package may import torch and nothing else. Begin with quantize.py, then functional.py.
"""
