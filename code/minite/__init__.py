"""FP8 training with Transformer Engine's names, readable and without a GPU.

On a CPU, tensors are rounded to real float8 values and multiplied with float32 accumulation, so a
loss curve is the one that the recipe's rounding gives; nothing is faster. recipes.py says which
format and scale each tensor gets, quantize.py rounds, functional.py is a linear layer's three
GEMMs, state.py holds the autocast context, amax histories, and cached weights, and module.py and
transformer.py are the layers. Where `transformer_engine` and a GPU are present, the names below
are Transformer Engine's own.

The package may import torch and nothing else. Begin with quantize.py, then functional.py.
"""

import importlib
import importlib.util

import torch

__all__ = [
    "DotProductAttention", "LayerNorm", "LayerNormLinear", "LayerNormMLP", "Linear",
    "MultiheadAttention", "RMSNorm", "RotaryPositionEmbedding", "TransformerLayer", "autocast",
    "checkpoint", "fp8_autocast", "fp8_model_init", "quantized_model_init", "recipe",
]


def _real() -> bool:
    return importlib.util.find_spec("transformer_engine") is not None and torch.cuda.is_available()


if _real():
    _engine = importlib.import_module("transformer_engine.pytorch")
    globals().update({name: getattr(_engine, name) for name in __all__ if hasattr(_engine, name)})
    recipe = importlib.import_module("transformer_engine.common.recipe")
else:
    from minite import recipes as recipe
    from minite.module import (
        LayerNorm,
        LayerNormLinear,
        LayerNormMLP,
        Linear,
        RMSNorm,
        fp8_model_init,
        quantized_model_init,
    )
    from minite.state import autocast, fp8_autocast
    from minite.transformer import (
        DotProductAttention,
        MultiheadAttention,
        RotaryPositionEmbedding,
        TransformerLayer,
        checkpoint,
    )
