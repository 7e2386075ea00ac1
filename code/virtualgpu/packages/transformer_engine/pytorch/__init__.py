"""The modules of transformer_engine.pytorch."""

from torch.utils.checkpoint import checkpoint

from virtualgpu.packages.refusals import missing

from .attention import DotProductAttention, MultiheadAttention, RotaryPositionEmbedding
from .fp8 import autocast, fp8_autocast, is_bf16_available, is_fp8_available
from .module import LayerNorm, LayerNormLinear, LayerNormMLP, Linear, RMSNorm
from .transformer import TransformerLayer

__all__ = [
    "DotProductAttention", "LayerNorm", "LayerNormLinear", "LayerNormMLP", "Linear",
    "MultiheadAttention", "RMSNorm", "RotaryPositionEmbedding", "TransformerLayer", "autocast",
    "checkpoint", "fp8_autocast", "is_bf16_available", "is_fp8_available"]
__getattr__ = missing("transformer_engine.pytorch")
