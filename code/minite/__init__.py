"""FP8 training with Transformer Engine's names, in readable code that needs no GPU.

On a CPU, tensors are rounded to real float8 values and multiplied exactly, so loss curves show the
effect of a recipe's rounding, but nothing is faster. recipes.py chooses each tensor's format and
scale, quantize.py rounds, cpu_gemm.py multiplies (importing the package replaces PyTorch's CPU
kernel of `torch._scaled_mm`), functional.py has the three GEMMs of a linear layer, state.py holds
the autocast context, amax histories, and cached weights, and module.py and transformer.py have the
layers. If `transformer_engine` and a GPU are available, the names below are
Transformer Engine's own.

The package may import torch and nothing else. Begin with quantize.py, then functional.py.
"""

import importlib
import importlib.util

import torch

from minite import cpu_gemm  # noqa: F401  replaces a kernel

__all__ = [
    "DotProductAttention", "LayerNorm", "LayerNormLinear", "LayerNormMLP", "Linear",
    "MultiheadAttention", "TransformerLayer", "autocast", "checkpoint", "fp8_autocast",
    "fp8_model_init", "quantized_model_init", "recipe",
]


if importlib.util.find_spec("transformer_engine") is not None and torch.cuda.is_available():
    _engine = importlib.import_module("transformer_engine.pytorch")
    globals().update({name: getattr(_engine, name) for name in __all__ if hasattr(_engine, name)})
    recipe = importlib.import_module("transformer_engine.common.recipe")
else:
    from minite import recipes as recipe
    from minite.module import LayerNorm, LayerNormLinear, LayerNormMLP, Linear, quantized_model_init
    from minite.state import autocast, checkpoint, fp8_autocast
    from minite.transformer import DotProductAttention, MultiheadAttention, TransformerLayer

    fp8_model_init = quantized_model_init  # the older name
