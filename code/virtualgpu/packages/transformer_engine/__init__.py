"""A stand-in for Transformer Engine (github.com/NVIDIA/TransformerEngine), on virtual GPUs.

It has the modules of transformer_engine.pytorch for one GPU or data parallelism, in 16 bits, and in
FP8 with one scale per tensor.
"""

__version__ = "2.11.0"

from . import common, pytorch

__all__ = ["common", "pytorch"]
